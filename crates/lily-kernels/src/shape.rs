//! Dimensions of a model and of a session: what launches, buffers and kernels are sized by.

use lily_plan::control::{COUNT, HALT, POSITION, WORDS};
use lily_plan::{Element, Precision, Step};

use crate::gpu::msl_struct;

/// Eps inside the l2 norm of Gated DeltaNet queries and keys; the model's code fixes it.
pub const L2_EPS: f32 = 1e-6;
/// Tokens of one Gated DeltaNet chunk.
pub const CHUNK: usize = 64;
/// Below this many tokens a prefill chunk runs the DeltaNet token by token; with f32 inputs, as on a
/// CPU, every chunk does.
pub const CHUNKED_FROM_TOKENS: usize = 32;
/// Rows of one tile of the grouped expert products.
pub const GROUPED_TILE_ROWS: usize = 32;
/// Value rows of a head that share one partial sum of squares of the core output.
pub const O_SS_ROWS: usize = 16;

/// Kind of a layer's mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mixer {
    /// Gated DeltaNet.
    Gdn,
    /// Gated full attention.
    Attention,
}

/// Dimensions of a model of the family. Built from a validated configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Mixer of each layer.
    pub layers: Vec<Mixer>,
    /// Rows of the embedding and of the LM head.
    pub vocab: usize,
    /// Ids below this may be chosen; the rest is padding.
    pub vocab_used: usize,
    /// Query heads of attention.
    pub q_heads: usize,
    /// Key and value heads of attention.
    pub kv_heads: usize,
    /// Width of an attention head.
    pub head_dim: usize,
    /// Leading elements of a head that are rotated; even.
    pub rotary_dim: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Query and key heads of the DeltaNet.
    pub k_heads: usize,
    /// Value heads of the DeltaNet, a multiple of `k_heads`.
    pub v_heads: usize,
    /// Width of a DeltaNet query or key head.
    pub k_dim: usize,
    /// Width of a DeltaNet value head.
    pub v_dim: usize,
    /// Taps of the causal convolution.
    pub conv_width: usize,
    /// Routed experts.
    pub experts: usize,
    /// Experts chosen for a token.
    pub top_k: usize,
    /// Inner width of a routed expert and of the shared one.
    pub inner: usize,
    /// Eps of RMSNorm.
    pub rms_eps: f32,
}

impl ModelShape {
    /// Query heads that share a KV head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Width of all query heads.
    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Width of all key (or value) heads of attention.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Width of all DeltaNet value heads.
    pub fn v_width(&self) -> usize {
        self.v_heads * self.v_dim
    }

    /// Channels of the convolution: q, k, v.
    pub fn conv_channels(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.v_width()
    }

    /// Rows of the merged DeltaNet input projection: q, k, v, z, b, a.
    pub fn gdn_rows(&self) -> usize {
        self.conv_channels() + self.v_width() + 2 * self.v_heads
    }

    /// Rows of the merged attention input projection: (query, gate) by head, k, v.
    pub fn attn_rows(&self) -> usize {
        2 * self.q_width() + 2 * self.kv_width()
    }

    /// Partial sums of o² of one value head.
    pub fn o_ss_slices(&self) -> usize {
        self.v_dim.div_ceil(O_SS_ROWS)
    }

    /// Experts of a token: the chosen ones and the shared one.
    pub fn slots(&self) -> usize {
        self.top_k + 1
    }

    /// Rows of the LM head that leave one candidate.
    pub fn head_rows(&self) -> usize {
        if self.vocab > 4096 { 32 } else { 64 }
    }

    /// Candidates of the LM head.
    pub fn head_tiles(&self) -> usize {
        self.vocab.div_ceil(self.head_rows())
    }

    /// Most work entries that `tokens` tokens can need, one for each tile of the grouped products.
    pub fn work_entries(&self, tokens: usize) -> usize {
        let routed = tokens * self.top_k;
        let tiles = self.experts.min(routed) + routed / GROUPED_TILE_ROWS;
        routed.min(tiles) + tokens.div_ceil(GROUPED_TILE_ROWS)
    }
}

/// Dimensions of a session; all its plans share one set of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionShape {
    /// Sequences decoded together.
    pub batch: usize,
    /// Largest prefill chunk.
    pub tokens: usize,
    /// Positions of the KV cache.
    pub capacity: usize,
    /// Steps that can be taken back.
    pub run_ahead: usize,
    /// Most blocks of keys in decode attention, for each KV head.
    pub splits: usize,
    /// Ids of the output ring.
    pub ring: usize,
    /// Rows of logits: 1 for each sequence, or a whole chunk for teacher-forced evaluation.
    pub logit_rows: usize,
    /// Element types.
    pub precision: Precision,
}

impl SessionShape {
    /// Rows of scratch, shared by all plans.
    pub fn rows(&self) -> usize {
        self.tokens.max(self.batch)
    }

    /// Element type of the inputs of matrix products.
    pub fn act(&self) -> Element {
        self.precision.act
    }

    /// Slots of the convolution ring.
    pub fn conv_slots(&self, shape: &ModelShape) -> usize {
        shape.conv_width - 1 + self.run_ahead
    }

    /// Slots of the recurrent state ring.
    pub fn state_slots(&self) -> usize {
        self.run_ahead + 1
    }
}

/// What a kernel's `launch` function knows about its place in a plan.
#[derive(Clone, Copy, Debug)]
pub struct LaunchContext<'a> {
    /// The model.
    pub shape: &'a ModelShape,
    /// The session.
    pub session: &'a SessionShape,
    /// The step of the plan.
    pub step: Step,
    /// The layer, for messages.
    pub layer: Option<usize>,
    /// Blocks of keys in this plan's decode attention, at most `session.splits`.
    pub splits: usize,
}

impl LaunchContext<'_> {
    /// Columns of the residual stream that share one partial sum of squares.
    pub fn ss_columns(&self) -> usize {
        if self.step.is_prefill() && self.shape.hidden.is_multiple_of(64) { 64 } else { 8 }
    }

    /// Partial sums of squares of one residual row, as written and read by this plan.
    pub fn ss_tiles(&self) -> usize {
        self.shape.hidden / self.ss_columns()
    }

    /// Whether the DeltaNet of this step runs in chunks of [`CHUNK`] tokens. They pay where a machine has
    /// more arithmetic than loads to offer: a CPU does as many multiply-adds for them as token by token,
    /// and its results then depend on how a prompt is cut.
    pub fn is_chunked(&self) -> bool {
        self.step.is_prefill()
            && self.step.rows() >= CHUNKED_FROM_TOKENS
            && self.session.act() != Element::F32
    }

    /// Threadgroups along rows and columns of a projection with `rows` outputs.
    pub fn projection_grid(&self, rows: usize, tile_columns: usize) -> [u32; 3] {
        match self.step {
            Step::Decode { batch } => [rows.div_ceil(8) as u32, batch as u32, 1],
            Step::Prefill { tokens, .. } => {
                [rows.div_ceil(tile_columns) as u32, tokens.div_ceil(128) as u32, 1]
            }
        }
    }

    /// Threads of a projection's threadgroup.
    pub fn projection_threads(&self) -> u32 {
        if self.step.is_prefill() { 128 } else { 64 }
    }

    /// The step as kernel arguments.
    pub fn step_args(&self) -> StepArgs {
        let (prefill, sequence) = match self.step {
            Step::Decode { .. } => (0, 0),
            Step::Prefill { sequence, .. } => (1, sequence as u32),
        };
        StepArgs { prefill, rows: self.step.rows() as u32, sequence }
    }
}

msl_struct! {
    /// The step inside argument structs.
    pub struct StepArgs {
        /// 1 for a prefill chunk, 0 for decode.
        pub prefill: u32,
        /// Decode: sequences. Prefill: largest chunk.
        pub rows: u32,
        /// Sequence of a prefill chunk.
        pub sequence: u32,
    }
}

impl StepArgs {
    /// Whether this is a prefill chunk.
    pub fn is_prefill(&self) -> bool {
        self.prefill != 0
    }

    /// Live rows, from the control block `[sequences, WORDS]`.
    pub fn live_rows<'a>(&self, control: &'a [i32]) -> LiveRows<'a> {
        let rows = self.rows as usize;
        if !self.is_prefill() {
            return LiveRows { first: 0, end: rows, control: Some(control) };
        }
        let words = &control[self.sequence as usize * WORDS..][..WORDS];
        let end = if words[HALT] == 0 { words[COUNT].max(0) as usize } else { 0 };
        LiveRows { first: 0, end: end.min(rows), control: None }
    }

    /// Sequence of a row of scratch.
    pub fn sequence_of(&self, row: usize) -> usize {
        if self.is_prefill() { self.sequence as usize } else { row }
    }

    /// Position of the token in a row of scratch.
    pub fn position_of(&self, control: &[i32], row: usize) -> usize {
        let base = control[self.sequence_of(row) * WORDS + POSITION].max(0) as usize;
        if self.is_prefill() { base + row } else { base }
    }
}

/// The rows of scratch that a step computes, in rising order, or a part of them. A prefill chunk has
/// its first rows, a decode step those of the sequences that are not halted.
#[derive(Clone, Copy, Debug)]
pub struct LiveRows<'a> {
    first: usize,
    end: usize,
    /// Decode: the control block, which says what is halted.
    control: Option<&'a [i32]>,
}

impl<'a> LiveRows<'a> {
    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone + use<'a> {
        let control = self.control;
        let lives = move |&row: &usize| control.is_none_or(|c| c[row * WORDS + HALT] == 0);
        (self.first..self.end).filter(lives)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match self.control {
            Some(_) => self.iter().count(),
            None => self.end - self.first,
        }
    }

    /// Whether no row lives.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Row `i` of them.
    ///
    /// # Panics
    /// If there are no more than `i`.
    pub fn nth(&self, i: usize) -> usize {
        self.get(i).expect("tiles are counted from the same rows")
    }

    /// The last row.
    pub fn last(&self) -> Option<usize> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Part `tile` of the rows cut into parts of `size`; the last may be shorter.
    pub fn part(&self, size: usize, tile: usize) -> Self {
        let place = |i| self.get(i).unwrap_or(self.end);
        Self { first: place(tile * size), end: place((tile + 1) * size), control: self.control }
    }

    fn get(&self, i: usize) -> Option<usize> {
        match self.control {
            Some(_) => self.iter().nth(i),
            None => (i < self.end - self.first).then_some(self.first + i),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(live: LiveRows<'_>) -> Vec<usize> {
        let rows: Vec<usize> = live.iter().collect();
        assert_eq!((live.len(), live.is_empty()), (rows.len(), rows.is_empty()));
        assert_eq!(live.last(), rows.last().copied());
        assert!(rows.iter().enumerate().all(|(i, &row)| live.nth(i) == row));
        rows
    }

    /// A control block with these halt flags and token counts.
    fn control(words: &[(i32, i32)]) -> Vec<i32> {
        let mut control = vec![7; words.len() * WORDS];
        for (row, &(halt, count)) in control.chunks_mut(WORDS).zip(words) {
            (row[HALT], row[COUNT]) = (halt, count);
        }
        control
    }

    #[test]
    fn halted_sequences_have_no_live_row_in_decode() {
        let step = StepArgs { prefill: 0, rows: 5, sequence: 0 };
        let control = control(&[(1, 1), (0, 1), (0, 1), (2, 1), (0, 1), (0, 1)]);
        let live = step.live_rows(&control);
        assert_eq!(rows(live), [1, 2, 4]);
        assert_eq!(rows(live.part(2, 0)), [1, 2]);
        assert_eq!(rows(live.part(2, 1)), [4]);
        assert_eq!(rows(live.part(2, 0).part(1, 1)), [2]);
        assert_eq!(rows(live.part(2, 2)), []);
    }

    #[test]
    fn the_first_rows_of_a_chunk_live() {
        let step = StepArgs { prefill: 1, rows: 5, sequence: 1 };
        for (halt, count, live) in [(0, 3, 3), (0, 9, 5), (0, 0, 0), (0, -1, 0), (1, 3, 0)] {
            let control = control(&[(1, 5), (halt, count)]);
            let all: Vec<usize> = (0..live).collect();
            assert_eq!(rows(step.live_rows(&control)), all, "halt {halt}, count {count}");
        }
        let control = control(&[(1, 5), (0, 4)]);
        let live = step.live_rows(&control);
        assert_eq!(rows(live.part(3, 0)), [0, 1, 2]);
        assert_eq!(rows(live.part(3, 1)), [3]);
        assert_eq!(rows(live.part(3, 0).part(2, 1)), [2]);
        assert_eq!(rows(live.part(3, 2)), []);
    }
}
