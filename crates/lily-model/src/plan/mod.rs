//! Plan builders: the model as a list of launches.

mod attention_layer;
mod buffers;
mod gdn_layer;
mod head;
mod moe_block;
mod shape;

use lily_kernels::{LaunchContext, ModelShape, SessionShape};
use lily_plan::{BufferId, Fusions, Launch, Plan, PlanError, Step};

pub use buffers::{
    AttentionBuffers, GdnBuffers, LayerBuffers, MatrixBytes, MixerBuffers, Scratch, SessionBuffers,
    declare,
};
pub use shape::{config_matrix_bytes, config_matrix_formats, model_shape};

/// Who chooses the next token of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The device: the largest logit.
    Device,
    /// The device: each sequence by its row of the `sampling` buffer.
    Draw,
    /// The host, from the logits.
    Host,
}

/// How a prefill chunk ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefillEnd {
    /// More chunks follow: only the states are wanted.
    More,
    /// The device takes the largest logit as the next token.
    Sample,
    /// The device draws the next token by the sequence's row of the `sampling` buffer.
    Draw,
    /// The host reads the logits of the last row.
    Logits,
    /// The host reads the logits of every row.
    AllLogits,
}

impl PrefillEnd {
    /// Whether the device chooses the next token.
    pub fn chooses(self) -> bool {
        matches!(self, Self::Sample | Self::Draw)
    }
}

/// Blocks of keys for each KV head in decode attention over `length` keys: a plan for each bucket
/// of lengths.
pub fn splits(length: usize) -> usize {
    match length {
        0..=1024 => 32,
        1025..=32768 => 64,
        _ => 128,
    }
}

/// Most keys that a decode plan reads in a single launch, where a device wants that.
pub const SHORT_KEYS: usize = 256;

/// A range of lengths that one decode plan serves. Buckets follow from the position alone, so that
/// a repeated run sums in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LengthBucket {
    /// At most [`SHORT_KEYS`] keys, in one launch.
    Short,
    /// Keys cut into this many blocks.
    Split(usize),
}

impl LengthBucket {
    /// The bucket of a step that attends to `length` keys.
    pub fn new(length: usize, fusions: Fusions) -> Self {
        if fusions.short && length <= SHORT_KEYS {
            Self::Short
        } else {
            Self::Split(splits(length))
        }
    }
}

/// Builds plans over the buffers of a session.
pub struct PlanBuilder<'a> {
    shape: &'a ModelShape,
    session: &'a SessionShape,
    buffers: &'a SessionBuffers,
    fusions: Fusions,
}

impl<'a> PlanBuilder<'a> {
    /// A builder over declared buffers.
    pub fn new(
        shape: &'a ModelShape,
        session: &'a SessionShape,
        buffers: &'a SessionBuffers,
        fusions: Fusions,
    ) -> Self {
        Self { shape, session, buffers, fusions }
    }

    /// One token of every sequence that is awake.
    pub fn decode(&self, bucket: LengthBucket, choice: Choice) -> Result<Plan, PlanError> {
        self.decode_rows(bucket, choice, self.session.batch)
    }

    /// As [`decode`](Self::decode), for the first `batch` sequences of the session only.
    pub fn decode_rows(
        &self,
        bucket: LengthBucket,
        choice: Choice,
        batch: usize,
    ) -> Result<Plan, PlanError> {
        let step = Step::Decode { batch };
        let (splits, short) = match bucket {
            LengthBucket::Short => (1, true),
            LengthBucket::Split(splits) => (splits.min(self.session.splits), false),
        };
        let mut recorder = self.recorder(step, splits);
        recorder.short_attention = short;
        recorder.layers();
        recorder.head(choice);
        recorder.finish()
    }

    /// Up to `tokens` tokens of one sequence.
    pub fn prefill(
        &self,
        tokens: usize,
        sequence: usize,
        end: PrefillEnd,
    ) -> Result<Plan, PlanError> {
        let step = Step::Prefill { tokens, sequence };
        let mut recorder = self.recorder(step, self.session.splits);
        recorder.layers();
        recorder.prefill_end(end);
        recorder.finish()
    }

    fn recorder(&self, step: Step, splits: usize) -> Recorder<'a> {
        let cx =
            LaunchContext { shape: self.shape, session: self.session, step, layer: None, splits };
        Recorder {
            cx,
            buffers: self.buffers,
            fusions: self.fusions,
            short_attention: false,
            launches: Vec::new(),
        }
    }
}

/// Records the launches of one plan.
struct Recorder<'a> {
    cx: LaunchContext<'a>,
    buffers: &'a SessionBuffers,
    fusions: Fusions,
    /// Decode attention in one launch.
    short_attention: bool,
    launches: Vec<Launch>,
}

impl Recorder<'_> {
    fn push(&mut self, launch: Launch) {
        self.launches.push(launch);
    }

    /// Embedding, then mixer and experts of every layer.
    fn layers(&mut self) {
        self.embed();
        for (index, layer) in self.buffers.layers.iter().enumerate() {
            self.cx.layer = Some(index);
            match &layer.mixer {
                MixerBuffers::Gdn(gdn) => self.gdn_layer(layer, gdn),
                MixerBuffers::Attention(attention) => self.attention_layer(layer, attention),
            }
            self.moe_block(layer, self.norm_after(index));
        }
        self.cx.layer = None;
    }

    /// The norm that reads the residual stream after a layer.
    fn norm_after(&self, layer: usize) -> BufferId {
        match self.buffers.layers.get(layer + 1) {
            Some(next) => next.input_norm,
            None => self.buffers.final_norm,
        }
    }

    fn finish(self) -> Result<Plan, PlanError> {
        Plan::new(self.cx.step, self.buffers.table.clone(), self.launches)
    }
}
