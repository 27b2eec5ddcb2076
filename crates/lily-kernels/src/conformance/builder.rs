//! Builds cases: buffers with random contents, weights, a control block.

use super::*;

use half::bf16;
use lily_plan::{GROUP, RowSegment, Weight, WeightMatrix};

/// Shapes small enough for every device: one with the real model's head sizes, one where nothing is
/// a power of two or shares a factor with the others but the group size. Miri, thousands of times
/// slower, gets the smallest that the kernels accept.
pub fn small_shapes() -> Vec<ModelShape> {
    let asked = CASE_SHAPES.with_borrow(Vec::clone);
    if !asked.is_empty() {
        return asked;
    }
    let real_heads = ModelShape {
        hidden: 128,
        layers: vec![Mixer::Gdn, Mixer::Attention],
        vocab: 300,
        vocab_used: 290,
        q_heads: 16,
        kv_heads: 2,
        head_dim: 256,
        rotary_dim: 64,
        rope_theta: 1e7,
        k_heads: 2,
        v_heads: 4,
        k_dim: 128,
        v_dim: 128,
        conv_width: 4,
        experts: 16,
        top_k: 4,
        inner: 128,
        rms_eps: 1e-6,
    };
    let odd = ModelShape {
        hidden: 192,
        vocab: 131,
        vocab_used: 131,
        q_heads: 6,
        kv_heads: 3,
        head_dim: 96,
        rotary_dim: 18,
        rope_theta: 5e4,
        k_heads: 3,
        v_heads: 9,
        k_dim: 96,
        v_dim: 64,
        conv_width: 3,
        experts: 11,
        top_k: 3,
        inner: 64,
        rms_eps: 1e-5,
        ..real_heads.clone()
    };
    if cfg!(miri) {
        let smallest = ModelShape {
            hidden: 64,
            vocab: 70,
            vocab_used: 67,
            q_heads: 4,
            kv_heads: 1,
            head_dim: 16,
            rotary_dim: 8,
            k_heads: 1,
            v_heads: 4,
            k_dim: 16,
            v_dim: 16,
            conv_width: 3,
            experts: 3,
            top_k: 1,
            inner: 64,
            ..real_heads
        };
        return vec![smallest];
    }
    vec![real_heads, odd]
}

/// The dimensions of Qwen3.6-35B-A3B, with fewer experts and ids: a kernel's work for one of them is the
/// same, and a case fits into memory.
pub fn real_shape() -> ModelShape {
    ModelShape {
        hidden: 2048,
        layers: vec![Mixer::Gdn, Mixer::Attention],
        vocab: 5000,
        vocab_used: 4990,
        q_heads: 16,
        kv_heads: 2,
        head_dim: 256,
        rotary_dim: 64,
        rope_theta: 1e7,
        k_heads: 16,
        v_heads: 32,
        k_dim: 128,
        v_dim: 128,
        conv_width: 4,
        experts: 32,
        top_k: 8,
        inner: 512,
        rms_eps: 1e-6,
    }
}

/// Shapes for decode attention over tens of thousands of keys: narrow heads, so that every device can
/// afford it. None under Miri.
pub fn long_shapes() -> Vec<ModelShape> {
    if cfg!(miri) || CASE_SHAPES.with_borrow(|shapes| !shapes.is_empty()) {
        return CASE_SHAPES.with_borrow(Vec::clone);
    }
    let [real_heads, ..] = &small_shapes()[..] else { return Vec::new() };
    vec![ModelShape { q_heads: 4, head_dim: 32, rotary_dim: 16, ..real_heads.clone() }]
}

/// Decode of one sequence, and of three of which one is halted.
pub fn decode_steps() -> Vec<Step> {
    let batches: &[usize] = if cfg!(miri) { &[1] } else { &[1, 3] };
    batches.iter().map(|&batch| Step::Decode { batch }).collect()
}

/// Prefill chunks: one token, ragged, one around the DeltaNet chunk.
pub fn prefill_steps() -> Vec<Step> {
    let chunks: &[usize] = if cfg!(miri) { &[2] } else { &[1, 7, 33, 70] };
    chunks.iter().map(|&tokens| Step::Prefill { tokens, sequence: 1 }).collect()
}

/// Chunks over matrices with whole hundreds of columns, for devices that have a form of their own for their products: one
/// row in the last tile, most of one, and several tiles. At the asked shapes, a chunk with high tiles.
pub fn product_steps() -> Vec<(ModelShape, Step)> {
    if cfg!(miri) {
        return Vec::new();
    }
    let asked = CASE_SHAPES.with_borrow(Vec::clone);
    if !asked.is_empty() {
        return asked.into_iter().map(|shape| (shape, chunk(300))).collect();
    }
    let shape = product_shape();
    shape.into_iter().flat_map(|s| [11, 67, 200].map(|tokens| (s.clone(), chunk(tokens)))).collect()
}

/// A chunk long enough for the highest tiles of products with a chunk's rows.
pub fn long_product_step() -> Option<(ModelShape, Step)> {
    let asked = cfg!(miri) || CASE_SHAPES.with_borrow(|shapes| !shapes.is_empty());
    product_shape().filter(|_| !asked).map(|shape| (shape, chunk(520)))
}

fn chunk(tokens: usize) -> Step {
    Step::Prefill { tokens, sequence: 1 }
}

fn product_shape() -> Option<ModelShape> {
    small_shapes().into_iter().next().map(|real_heads| ModelShape {
        hidden: 256,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 128,
        rotary_dim: 32,
        v_heads: 32,
        v_dim: 8,
        experts: 5,
        top_k: 2,
        inner: 256,
        ..real_heads
    })
}

/// What a case is made for, one after another; the first alone under Miri, which would take minutes to
/// build the others.
pub fn few<T, const N: usize>(values: [T; N]) -> impl Iterator<Item = T> {
    values.into_iter().take(if cfg!(miri) { 1 } else { N })
}

/// Collects the buffers of one launch.
pub struct CaseBuilder<'a> {
    /// The model.
    pub shape: &'a ModelShape,
    /// The session: 3 sequences, 2 steps to take back, 160 positions (64 under Miri), 4 splits.
    pub session: SessionShape,
    step: Step,
    buffers: Buffers,
    weights: Weights,
    contents: Vec<Contents>,
    random: u64,
    label: String,
    number: usize,
    is_filled: bool,
}

impl<'a> CaseBuilder<'a> {
    /// A builder for one launch of `step`.
    pub fn new(shape: &'a ModelShape, step: Step) -> Self {
        let (batch, tokens) = match step {
            Step::Decode { batch } => (batch, 1),
            Step::Prefill { tokens, .. } => (2, tokens),
        };
        let session = SessionShape {
            batch,
            tokens,
            // Enough for the default control block; the caches are copied element by element.
            capacity: if cfg!(miri) { 64 } else { 160 },
            run_ahead: 2,
            splits: 4,
            ring: 8,
            logit_rows: batch,
            precision: case_precision(),
        };
        let number = CASE_COUNT.replace(CASE_COUNT.get() + 1);
        let is_filled = |filled: &BTreeSet<usize>| filled.contains(&number);
        Self {
            number,
            is_filled: CASES_FILLED.with_borrow(|some| some.as_ref().is_none_or(is_filled)),
            shape,
            session,
            step,
            buffers: Buffers::new(),
            weights: Weights::new(),
            contents: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            label: format!("hidden {}, {step:?}", shape.hidden),
        }
    }

    /// Keeps the KV cache in bfloat16, as devices do by default. Call before declaring buffers.
    pub fn bf16_cache(mut self) -> Self {
        self.session.precision.kv = Element::Bf16;
        self.label += ", bf16 cache";
        self
    }

    /// Decode of two sequences above 32,768 keys, where a plan has 128 blocks: the first one fills them all, the
    /// second is the first length of this layout. Declares the control block.
    pub fn long_context(shape: &'a ModelShape) -> (Self, BufferId) {
        let mut c = Self::new(shape, Step::Decode { batch: 2 });
        (c.session.capacity, c.session.splits) = (36_864, 128);
        c.label("long context");
        let control = c.control_rows(&[36_863, 32_768].map(|p| [5, p, 0, 0, 3, 99]));
        (c, control)
    }

    /// Adds to the case's name.
    pub fn label(&mut self, text: &str) {
        self.label += ", ";
        self.label += text;
    }

    /// The launch context.
    pub fn context(&self) -> LaunchContext<'_> {
        LaunchContext {
            shape: self.shape,
            session: &self.session,
            step: self.step,
            layer: None,
            splits: self.session.splits,
        }
    }

    /// Rows of scratch.
    pub fn rows(&self) -> usize {
        self.session.rows()
    }

    /// Uniform in 0..1.
    pub fn uniform(&mut self) -> f32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal: mean 0, standard deviation 1.
    pub fn normal(&mut self) -> f32 {
        if cfg!(miri) || !self.is_filled {
            return 4.0 * self.uniform() - 2.0;
        }
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    /// The default control block: sequence 0 at position 37, 1 at 101, 2 (if there) halted. A
    /// prefill chunk of sequence 1 has all but two of its tokens valid, at least one.
    pub fn control(&mut self) -> BufferId {
        let count = self.session.tokens.saturating_sub(2).max(1);
        self.control_rows(&[
            [5, 37, 0, 0, 3, 99],
            [7, 61, count as i32, 0, 0, 99],
            [9, 50, 0, 1, 2, 99],
        ])
    }

    /// A control block with the given token, position, count, halt, produced, limit.
    pub fn control_rows(&mut self, rows: &[[i32; 6]]) -> BufferId {
        let mut words = vec![0; self.session.batch * control::WORDS];
        for (to, row) in words.chunks_mut(control::WORDS).zip(rows) {
            to[..6].copy_from_slice(row);
        }
        let batch = self.session.batch;
        self.i32("control", [batch, control::WORDS], words)
    }

    /// An f32 buffer of normal values.
    pub fn f32(&mut self, name: &str, shape: impl Into<Vec<usize>>) -> BufferId {
        self.random_floats(name, Element::F32, shape.into())
    }

    /// A buffer of matrix inputs.
    pub fn act(&mut self, name: &str, shape: impl Into<Vec<usize>>) -> BufferId {
        self.random_floats(name, self.session.precision.act, shape.into())
    }

    /// A buffer of matrix inputs with given contents.
    pub fn act_with(
        &mut self,
        name: &str,
        shape: impl Into<Vec<usize>>,
        values: Vec<f32>,
    ) -> BufferId {
        self.floats_with(name, self.session.precision.act, shape.into(), values)
    }

    /// A buffer that the chunked delta rule prepares.
    pub fn chunk(&mut self, name: &str, shape: impl Into<Vec<usize>>) -> BufferId {
        self.random_floats(name, self.session.precision.chunk, shape.into())
    }

    /// A buffer that the chunked delta rule prepares, with given contents.
    pub fn chunk_with(
        &mut self,
        name: &str,
        shape: impl Into<Vec<usize>>,
        values: Vec<f32>,
    ) -> BufferId {
        self.floats_with(name, self.session.precision.chunk, shape.into(), values)
    }

    fn floats_with(
        &mut self,
        name: &str,
        element: Element,
        shape: Vec<usize>,
        mut values: Vec<f32>,
    ) -> BufferId {
        if element == Element::Bf16 {
            values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32());
        }
        self.contents.push(Contents::Float(values));
        self.buffers.add(BufferKind::Scratch, name, element, shape)
    }

    /// A buffer of keys or values.
    pub fn kv(&mut self, name: &str, shape: impl Into<Vec<usize>>) -> BufferId {
        self.random_floats(name, self.session.precision.kv, shape.into())
    }

    /// An f32 buffer of positive values, such as sums of squares.
    pub fn sums(&mut self, name: &str, shape: impl Into<Vec<usize>>) -> BufferId {
        let shape = shape.into();
        let values = (0..shape.iter().product()).map(|_| 4.0 + 8.0 * self.uniform()).collect();
        self.f32_with(name, shape, values)
    }

    /// An f32 buffer with given contents.
    pub fn f32_with(
        &mut self,
        name: &str,
        shape: impl Into<Vec<usize>>,
        values: Vec<f32>,
    ) -> BufferId {
        self.contents.push(Contents::Float(values));
        self.buffers.add(BufferKind::Scratch, name, Element::F32, shape)
    }

    /// An i32 buffer with given contents.
    pub fn i32(&mut self, name: &str, shape: impl Into<Vec<usize>>, values: Vec<i32>) -> BufferId {
        self.contents.push(Contents::Int(values));
        self.buffers.add(BufferKind::Scratch, name, Element::I32, shape)
    }

    /// A small unquantised weight.
    pub fn vector(
        &mut self,
        name: &str,
        shape: impl Into<Vec<usize>>,
        mut value: impl FnMut(&mut Self) -> f32,
    ) -> BufferId {
        let shape = shape.into();
        let values = (0..shape.iter().product()).map(|_| value(self)).collect();
        self.weights.insert(name.into(), Weight::Vector(values));
        self.contents.push(Contents::Weight);
        self.buffers.add(BufferKind::Weight, name, Element::F32, shape)
    }

    /// A random matrix `[experts, rows, k]` (two axes if `experts` is 1) with outputs of about 1 for
    /// inputs of about 1; its rows come from two stored tensors.
    pub fn matrix(
        &mut self,
        name: &str,
        experts: usize,
        rows: usize,
        k: usize,
        format: RowFormat,
    ) -> BufferId {
        let first = rows / 2;
        let halves = [(0, first), (first, rows - first)];
        let segments = halves.into_iter().filter(|(_, n)| *n > 0).map(|(first_row, rows)| {
            let (codes, scales, biases) = self.random_rows(experts * rows, k, format);
            RowSegment {
                tensor: name.into(),
                format,
                experts: 0..experts,
                first_row,
                row_step: 1,
                rows,
                source_row: 0,
                expert_stride: rows,
                codes: codes.into(),
                scales: scales.into(),
                biases: biases.into(),
            }
        });
        let segments: Vec<RowSegment> = segments.collect();
        let matrix = WeightMatrix::new(experts, rows, k, segments)
            .expect("the segments were cut to cover every row");
        let element = Element::Matrix { total_bytes: matrix.total_bytes() };
        self.weights.insert(name.into(), Weight::Matrix(matrix));
        self.contents.push(Contents::Weight);
        let shape = if experts == 1 { vec![rows, k] } else { vec![experts, rows, k] };
        self.buffers.add(BufferKind::Weight, name, element, shape)
    }

    fn random_rows(
        &mut self,
        rows: usize,
        k: usize,
        format: RowFormat,
    ) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        if cfg!(miri) || !self.is_filled {
            let sides = if format.is_quantised() { rows * k / GROUP * 2 } else { 0 };
            let codes = vec![0; rows * format.code_bytes(k)];
            return (codes, vec![0; sides], vec![0; sides]);
        }
        let sd = 1.0 / (k as f32).sqrt();
        let bytes = |v: f32| bf16::from_f32(v).to_le_bytes();
        let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        if !format.is_quantised() {
            for _ in 0..rows * k {
                let w = sd * self.normal();
                match format {
                    RowFormat::F32 => codes.extend(w.to_le_bytes()),
                    RowFormat::F16 => codes.extend(half::f16::from_f32(w).to_le_bytes()),
                    _ => codes.extend(bytes(w)),
                }
            }
            return (codes, scales, biases);
        }
        codes.extend((0..rows * format.code_bytes(k)).map(|_| (self.uniform() * 256.0) as u8));
        let levels = (1 << format.bits()) as f32;
        for _ in 0..rows * k / GROUP {
            let sign = if self.uniform() < 0.33 { -1.0 } else { 1.0 };
            let scale = sign * sd * 12f32.sqrt() / levels * (0.5 + self.uniform());
            scales.extend(bytes(scale));
            biases.extend(bytes(-scale * (levels - 1.0) / 2.0));
        }
        (codes, scales, biases)
    }

    fn random_floats(&mut self, name: &str, element: Element, shape: Vec<usize>) -> BufferId {
        let value = |v: f32| if element == Element::Bf16 { bf16::from_f32(v).to_f32() } else { v };
        let n = shape.iter().product();
        let values = match cfg!(miri) || !self.is_filled {
            // Miri asks what is accessed, not what comes out; zeros cost nothing.
            true => vec![0.0; n],
            false => (0..n).map(|_| value(self.normal())).collect(),
        };
        self.contents.push(Contents::Float(values));
        self.buffers.add(BufferKind::Scratch, name, element, shape)
    }

    /// The finished case.
    ///
    /// # Panics
    /// If the launch is no valid plan.
    pub fn build(self, launch: Launch, tolerance: Tolerance) -> Case {
        let name = format!("{} ({})", launch.kernel, self.label);
        let plan = Plan::new(self.step, Arc::new(self.buffers), vec![launch]);
        Case {
            name,
            plan: Arc::new(plan.expect("a single launch with declared ranges is a plan")),
            weights: self.weights,
            contents: self.contents,
            tolerance,
            number: self.number,
        }
    }
}
