//! A golden model on a device without an engine: plans, control rows and every buffer in the open.

use std::sync::Arc;

use lily_kernels::conformance::Contents;
use lily_kernels::draw::Draw;
use lily_kernels::{ModelShape, SessionShape};
use lily_model::Checkpoint;
use lily_model::plan::{
    Choice, LengthBucket, MatrixBytes, PlanBuilder, PrefillEnd, SessionBuffers, declare,
    model_shape, splits,
};
use lily_plan::{
    BufferId, BufferKind, Device, Element, Fusions, Plan, PlanId, Precision, Weight, Weights,
    control, read_f32, read_i32, write_i32,
};

use crate::Golden;

/// Positions of every rig's sequences.
pub const CAPACITY: usize = 160;

/// A model with the buffers of a session.
pub struct Rig {
    /// Dimensions of the model.
    pub shape: ModelShape,
    /// Dimensions of the session.
    pub session: SessionShape,
    /// Declared buffers.
    pub buffers: SessionBuffers,
    weights: Weights,
}

impl Rig {
    /// A golden model with sequences of [`CAPACITY`] positions and two steps to take back.
    pub fn new(golden: &Golden, precision: Precision, batch: usize, chunk: usize) -> Self {
        let checkpoint = Checkpoint::open(&golden.folder).expect("the golden checkpoint opens");
        let shape = model_shape(checkpoint.config());
        let weights = checkpoint.weights().expect("the golden weights are complete");
        let bytes: MatrixBytes = weights
            .iter()
            .filter_map(|(name, weight)| match weight {
                Weight::Matrix(m) => Some((name.clone(), m.total_bytes())),
                Weight::Vector(_) => None,
            })
            .collect();
        let session = SessionShape {
            batch,
            tokens: chunk,
            capacity: CAPACITY,
            run_ahead: 2,
            splits: splits(CAPACITY),
            ring: 64,
            logit_rows: batch,
            precision,
        };
        let buffers = declare(&shape, &session, &bytes);
        Self { shape, session, buffers, weights }
    }

    /// All weights by buffer name.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Weights of a norm, `[hidden]`.
    pub fn norm(&self, id: BufferId) -> &[f32] {
        match self.weights.get(&self.buffers.table.get(id).name) {
            Some(Weight::Vector(values)) => values,
            _ => panic!("{} is no vector", self.buffers.table.get(id).name),
        }
    }

    /// A decode plan for a step that starts with `position` tokens in the states.
    pub fn decode(&self, position: usize, choice: Choice, fusions: Fusions) -> Arc<Plan> {
        let bucket = LengthBucket::new(position + 1, fusions);
        let plan = self.builder(fusions).decode(bucket, choice);
        Arc::new(plan.expect("a valid decode plan"))
    }

    /// A prefill plan for at most `tokens` tokens.
    pub fn prefill(&self, tokens: usize, sequence: usize, end: PrefillEnd) -> Arc<Plan> {
        let plan = self.builder(Fusions::default()).prefill(tokens, sequence, end);
        Arc::new(plan.expect("a valid prefill plan"))
    }

    fn builder(&self, fusions: Fusions) -> PlanBuilder<'_> {
        PlanBuilder::new(&self.shape, &self.session, &self.buffers, fusions)
    }

    /// Allocates on a device. All sequences are empty, halted and greedy, the stop lists empty.
    pub fn start(&self, device: Box<dyn Device>) -> Machine<'_> {
        let mut machine = Machine { rig: self, device };
        let table = &self.buffers.table;
        machine.device.allocate(table, self.weights.clone()).expect("the buffers fit");
        let stops = vec![control::NO_ID; self.session.batch * control::STOP_IDS];
        machine.write_i32(self.buffers.stop_ids, &stops);
        machine.write_i32(self.buffers.sampling, &Draw::GREEDY.words().repeat(self.session.batch));
        for id in [self.buffers.prompt, self.buffers.output] {
            machine.write_i32(id, &vec![0; table.get(id).elements()]);
        }
        for sequence in 0..self.session.batch {
            machine.set_row(sequence, |row| {
                *row = [0; control::WORDS];
                row[control::HALT] = control::ENDED;
                row[control::LIMIT] = i32::MAX;
            });
        }
        machine
    }
}

/// A control row.
pub type Row = [i32; control::WORDS];

/// A rig's model on a device.
pub struct Machine<'a> {
    rig: &'a Rig,
    /// The device.
    pub device: Box<dyn Device>,
}

impl Machine<'_> {
    /// Compiles a plan of the rig.
    pub fn compile(&mut self, plan: &Arc<Plan>) -> PlanId {
        self.device.compile(plan).expect("the device runs every plan")
    }

    /// Runs a plan.
    pub fn run(&mut self, plan: PlanId) {
        self.device.submit(plan).expect("the plan runs");
        self.device.wait().expect("the plan runs");
    }

    /// Control row of a sequence.
    pub fn row(&mut self, sequence: usize) -> Row {
        let first = sequence * control::WORDS;
        let id = self.rig.buffers.control;
        let words = read_i32(self.device.as_mut(), id, first, control::WORDS).expect("in bounds");
        words.try_into().expect("as many words as asked for")
    }

    /// Changes the control row of a sequence.
    pub fn set_row(&mut self, sequence: usize, change: impl FnOnce(&mut Row)) {
        let mut row = self.row(sequence);
        change(&mut row);
        let first = sequence * control::WORDS;
        write_i32(self.device.as_mut(), self.rig.buffers.control, first, &row).expect("in bounds");
    }

    /// Writes a chunk's ids and wakes the sequence.
    pub fn start_chunk(&mut self, sequence: usize, ids: &[u32]) {
        let words: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        self.write_i32(self.rig.buffers.prompt, &words);
        self.set_row(sequence, |row| {
            row[control::COUNT] = ids.len() as i32;
            row[control::HALT] = 0;
        });
    }

    /// Feeds a prompt in chunks; the device chooses the next token, and the sequence stays awake.
    pub fn prefill(&mut self, sequence: usize, ids: &[u32]) {
        let chunk = self.rig.session.tokens;
        let plans = [PrefillEnd::More, PrefillEnd::Sample].map(|end| {
            let plan = self.rig.prefill(chunk, sequence, end);
            self.compile(&plan)
        });
        for (i, part) in ids.chunks(chunk).enumerate() {
            self.start_chunk(sequence, part);
            self.run(plans[usize::from((i + 1) * chunk >= ids.len())]);
        }
    }

    /// The first `count` ids of a sequence's output ring.
    pub fn output(&mut self, sequence: usize, count: usize) -> Vec<u32> {
        let first = sequence * self.rig.session.ring;
        let id = self.rig.buffers.output;
        let ids = read_i32(self.device.as_mut(), id, first, count).expect("in bounds");
        ids.into_iter().map(|id| id as u32).collect()
    }

    /// Contents of one buffer.
    pub fn buffer(&mut self, id: BufferId) -> Contents {
        let buffer = self.rig.buffers.table.get(id);
        let (count, device) = (buffer.elements(), self.device.as_mut());
        match (buffer.kind, buffer.element) {
            (BufferKind::Weight, _) => Contents::Weight,
            (_, Element::I32) => Contents::Int(read_i32(device, id, 0, count).expect("in bounds")),
            _ => Contents::Float(read_f32(device, id, 0, count).expect("in bounds")),
        }
    }

    /// Bytes of one buffer, as the device keeps it.
    pub fn bytes(&mut self, id: BufferId) -> Vec<u8> {
        let mut out = vec![0; self.rig.buffers.table.get(id).bytes() as usize];
        self.device.read(id, 0, &mut out).expect("in bounds");
        out
    }

    /// Bytes of every buffer but the weights, which have none.
    pub fn all_bytes(&mut self) -> Vec<Vec<u8>> {
        let table = self.rig.buffers.table.clone();
        let bytes = |(id, b): (_, &lily_plan::Buffer)| match b.kind {
            BufferKind::Weight => Vec::new(),
            _ => self.bytes(id),
        };
        table.iter().map(bytes).collect()
    }

    /// Puts back the bytes of every buffer.
    pub fn set_all_bytes(&mut self, bytes: &[Vec<u8>]) {
        let table = self.rig.buffers.table.clone();
        for ((id, _), bytes) in table.iter().zip(bytes).filter(|(_, bytes)| !bytes.is_empty()) {
            self.device.write(id, 0, bytes).expect("in bounds");
        }
    }

    fn write_i32(&mut self, id: BufferId, values: &[i32]) {
        write_i32(self.device.as_mut(), id, 0, values).expect("in bounds");
    }
}

/// Every combination of fusions.
pub fn all_fusions() -> [Fusions; 8] {
    std::array::from_fn(|i| Fusions { topk: i & 1 != 0, prepare: i & 2 != 0, short: i & 4 != 0 })
}
