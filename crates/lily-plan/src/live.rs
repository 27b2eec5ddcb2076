//! The control block and the routing as they stand before a launch: what exact ranges depend on.

use crate::buffer::BufferId;

/// Words of one sequence's row in the control block, all i32.
pub mod control {
    /// Name of the buffer.
    pub const NAME: &str = "control";
    /// Words of a row.
    pub const WORDS: usize = 8;
    /// The token that the next decode step reads.
    pub const TOKEN: usize = 0;
    /// Tokens already in the states.
    pub const POSITION: usize = 1;
    /// Valid tokens of a prefill chunk.
    pub const COUNT: usize = 2;
    /// Not 0: every launch leaves this sequence alone. The device sets [`ENDED`] or [`NON_FINITE`].
    pub const HALT: usize = 3;
    /// In [`HALT`]: a stop id was chosen, the limit is reached or the cache is full.
    pub const ENDED: i32 = 1;
    /// In [`HALT`]: a logit was NaN, or the largest was infinite. No token was chosen; position,
    /// produced and the output ring are as they were.
    pub const NON_FINITE: i32 = 2;
    /// Tokens chosen so far.
    pub const PRODUCED: usize = 4;
    /// Halts when this many tokens are chosen.
    pub const LIMIT: usize = 5;
    /// Ids of a stop list row; shorter lists are padded with [`NO_ID`].
    pub const STOP_IDS: usize = 8;
    /// Padding of stop lists.
    pub const NO_ID: i32 = -1;
}

/// Which step a plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// One token of each of `batch` sequences.
    Decode {
        /// Rows; row `b` is sequence `b`.
        batch: usize,
    },
    /// Up to `tokens` tokens of one sequence; the control block's count says how many.
    Prefill {
        /// Largest chunk.
        tokens: usize,
        /// The sequence.
        sequence: usize,
    },
}

impl Step {
    /// Rows of scratch that the plan may touch.
    pub fn rows(self) -> usize {
        match self {
            Self::Decode { batch } => batch,
            Self::Prefill { tokens, .. } => tokens,
        }
    }

    /// Whether this is a prefill chunk.
    pub fn is_prefill(self) -> bool {
        matches!(self, Self::Prefill { .. })
    }
}

/// Buffers as they are, for ranges that depend on routing.
pub trait Memory {
    /// A float buffer, widened to f32.
    fn f32(&self, buffer: BufferId) -> &[f32];
    /// An integer buffer.
    fn i32(&self, buffer: BufferId) -> &[i32];
}

/// What the exact ranges of a launch are computed from.
pub struct Live<'a> {
    step: Step,
    control: &'a [i32],
    prompt: &'a [i32],
    memory: Option<&'a dyn Memory>,
    rows: Vec<usize>,
}

impl<'a> Live<'a> {
    /// From the control block `[sequences, WORDS]` and the prompt of the chunk; without `memory`
    /// (costs only) routing is taken as uniform.
    pub fn new(
        step: Step,
        control: &'a [i32],
        prompt: &'a [i32],
        memory: Option<&'a dyn Memory>,
    ) -> Self {
        let running = |row: usize| control[row * control::WORDS + control::HALT] == 0;
        let rows = match step {
            Step::Decode { batch } => (0..batch).filter(|&b| running(b)).collect(),
            Step::Prefill { sequence, .. } if !running(sequence) => Vec::new(),
            Step::Prefill { tokens, sequence } => {
                let count = control[sequence * control::WORDS + control::COUNT];
                (0..usize::try_from(count).unwrap_or(0).min(tokens)).collect()
            }
        };
        Self { step, control, prompt, memory, rows }
    }

    /// Live rows of scratch: sequences that are not halted, or the valid tokens of the chunk.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// Live rows as contiguous runs.
    pub fn runs(&self) -> Vec<std::ops::Range<usize>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for &row in &self.rows {
            match runs.last_mut() {
                Some(run) if run.end == row => run.end += 1,
                _ => runs.push(row..row + 1),
            }
        }
        runs
    }

    /// Live sequences.
    pub fn sequences(&self) -> Vec<usize> {
        match self.step {
            Step::Decode { .. } => self.rows.clone(),
            Step::Prefill { .. } if self.rows.is_empty() => Vec::new(),
            Step::Prefill { sequence, .. } => vec![sequence],
        }
    }

    /// Tokens that this step adds to a live sequence.
    pub fn added(&self) -> usize {
        if self.step.is_prefill() { self.rows.len() } else { 1 }
    }

    /// A word of a sequence's control row.
    pub fn word(&self, sequence: usize, word: usize) -> i32 {
        self.control[sequence * control::WORDS + word]
    }

    /// Tokens already in the states of a sequence.
    pub fn position(&self, sequence: usize) -> usize {
        self.word(sequence, control::POSITION).max(0) as usize
    }

    /// Keys that each live row attends to.
    pub fn lengths(&self) -> Vec<usize> {
        let length = |&row: &usize| match self.step {
            Step::Decode { .. } => self.position(row) + 1,
            Step::Prefill { sequence, .. } => self.position(sequence) + row + 1,
        };
        self.rows.iter().map(length).collect()
    }

    /// Input token of each live row.
    pub fn tokens(&self) -> Vec<usize> {
        let token = |&row: &usize| match self.step {
            Step::Decode { .. } => self.word(row, control::TOKEN),
            Step::Prefill { .. } => self.prompt[row],
        };
        self.rows.iter().map(token).map(|t| t.max(0) as usize).collect()
    }

    /// The buffers, when the launch is about to run; `None` when only costs are asked.
    pub fn memory(&self) -> Option<&'a dyn Memory> {
        self.memory
    }
}
