//! What the Gated DeltaNet kernels share: dimensions, the two rings, the convolution, the gates and
//! the delta rule.
//!
//! Rings. The recurrent state before position `p` lies in slot `p mod state_slots`; the convolution's
//! input column of position `p` in slot `p mod conv_slots`. Nothing is shifted, and as many steps can
//! be taken back as there are slots to spare. At position 0 neither ring is read.

#[cfg(any(test, feature = "testing"))]
pub mod claims;
#[allow(unsafe_code)]
pub(crate) mod cpu;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod tests;

use std::ops::Range;

use half::bf16;
use lily_plan::{Access, Element, ReferenceIo, Region};

use crate::access;
use crate::gpu::{Entry, Family, Target, Unsupported, msl_struct};
use crate::math::{dot, sigmoid, silu, softplus, sum_of_squares};
use crate::shape::{CHUNK, CHUNKED_FROM_TOKENS, L2_EPS, LaunchContext};

msl_struct! {
    /// Dimensions inside argument structs.
    pub struct GdnArgs {
        /// Query and key heads.
        pub k_heads: u32,
        /// Value heads, a multiple of `k_heads`.
        pub v_heads: u32,
        /// Width of a query or key head.
        pub k_dim: u32,
        /// Width of a value head.
        pub v_dim: u32,
        /// Taps of the convolution.
        pub conv_width: u32,
        /// Slots of the convolution ring.
        pub conv_slots: u32,
        /// Slots of the recurrent state ring.
        pub state_slots: u32,
        /// 1: queries, keys and values are rounded to bfloat16, 0: they stay f32.
        pub act_bf16: u32,
        /// 1: so is what the chunked form prepares, 0: it stays f32.
        pub chunk_bf16: u32,
    }
}

impl GdnArgs {
    /// The dimensions of a launch.
    pub fn new(cx: &LaunchContext<'_>) -> Self {
        let shape = cx.shape;
        Self {
            k_heads: shape.k_heads as u32,
            v_heads: shape.v_heads as u32,
            k_dim: shape.k_dim as u32,
            v_dim: shape.v_dim as u32,
            conv_width: shape.conv_width as u32,
            conv_slots: cx.session.conv_slots(shape) as u32,
            state_slots: cx.session.state_slots() as u32,
            act_bf16: u32::from(cx.session.act() == Element::Bf16),
            chunk_bf16: u32::from(cx.session.precision.chunk == Element::Bf16),
        }
    }

    /// The constants of `gdn.h`. 8 lanes share a row of the state as float4, and a threadgroup owns 16
    /// rows of it.
    pub fn constants(&self, entry: Entry) -> Result<Entry, Unsupported> {
        Unsupported::unless_multiple("the width of DeltaNet keys", self.k_dim, 32)?;
        Unsupported::unless_multiple("the width of DeltaNet values", self.v_dim, 16)?;
        Unsupported::above("the width of DeltaNet keys", self.k_dim, 256)?;
        Unsupported::above("the width of DeltaNet values", self.v_dim, 256)?;
        Unsupported::above("the number of taps of the convolution", self.conv_width, 8)?;
        Ok(entry
            .constant("K_HEADS", self.k_heads)
            .constant("V_HEADS", self.v_heads)
            .constant("K_DIM", self.k_dim)
            .constant("V_DIM", self.v_dim)
            .constant("CONV_WIDTH", self.conv_width)
            .float("L2_EPS", L2_EPS)
            .float("QUERY_SCALE", 1.0 / (self.k_dim as f32).sqrt()))
    }

    /// The constants of `gdn_chunk.h`, and whether the kernels of compute capability 9.0 take these widths.
    pub fn chunk_constants(
        &self,
        target: Target,
        entry: Entry,
    ) -> Result<(Entry, bool), Unsupported> {
        Unsupported::above("the width of DeltaNet keys", self.k_dim, 128)?;
        let entry = self.constants(entry)?.constant("CHUNK_BFLOAT", self.chunk_bf16);
        Ok((entry, self.chunk_bf16 != 0 && self.is_hopper(target)))
    }

    /// Whether a target is of compute capability 9.0, and heads have the width of its own texts.
    pub fn is_hopper(&self, target: Target) -> bool {
        let hopper = target.family == Family::Nvidia { capability: 90 };
        hopper && self.act_bf16 != 0 && self.k_dim == 128 && self.v_dim == 128
    }

    /// Channels of the convolution: q, k, v.
    pub fn conv_channels(&self) -> usize {
        (2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim) as usize
    }

    /// The query and key head of a value head.
    pub fn key_head(&self, v_head: usize) -> usize {
        v_head / (self.v_heads / self.k_heads) as usize
    }

    /// Convolution channels of a query head.
    pub fn q_channels(&self, k_head: usize) -> Range<usize> {
        let k_dim = self.k_dim as usize;
        k_head * k_dim..(k_head + 1) * k_dim
    }

    /// Convolution channels of a key head.
    pub fn k_channels(&self, k_head: usize) -> Range<usize> {
        self.q_channels(self.k_heads as usize + k_head)
    }

    /// Convolution channels of a value head.
    pub fn v_channels(&self, v_head: usize) -> Range<usize> {
        let first = (2 * self.k_heads * self.k_dim) as usize + v_head * self.v_dim as usize;
        first..first + self.v_dim as usize
    }

    /// Elements of one head's state before `position`, `[v_dim, k_dim]`.
    pub fn state(&self, sequence: usize, position: usize, v_head: usize) -> Range<usize> {
        let slots = self.state_slots as usize;
        let slot = sequence * slots + position % slots;
        let head = (self.v_dim * self.k_dim) as usize;
        let first = (slot * self.v_heads as usize + v_head) * head;
        first..first + head
    }

    /// First element of the convolution column of `position`.
    pub fn column(&self, sequence: usize, position: usize) -> usize {
        let slots = self.conv_slots as usize;
        (sequence * slots + position % slots) * self.conv_channels()
    }

    /// Positions that the convolution at `position` looks at, the oldest first; those before the
    /// start are `None`.
    pub fn window(&self, position: usize) -> impl Iterator<Item = Option<usize>> {
        let width = self.conv_width as usize;
        (0..width).map(move |tap| (position + tap + 1).checked_sub(width))
    }

    /// Rounds a query, key or value as a matrix input.
    pub fn round(&self, value: f32) -> f32 {
        if self.act_bf16 != 0 { bf16::from_f32(value).to_f32() } else { value }
    }
}

/// A key (or, times `1 / sqrt(k_dim)`, a query) is multiplied with this to have length 1.
pub fn l2_scale(sum_of_squares: f32) -> f32 {
    1.0 / (sum_of_squares + L2_EPS).sqrt()
}

/// `beta = sigmoid(b)`.
pub fn beta(b: f32) -> f32 {
    sigmoid(b)
}

/// `log alpha = -exp(A_log) softplus(a + dt_bias)`: at most 0, can be far below -10.
pub fn log_decay(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    -a_log.exp() * softplus(a + dt_bias)
}

/// Reference: convolution and SiLU of one token's channels. `columns` are the inputs of the window,
/// the oldest first, `None` before the start; `taps` is `[channels, conv_width]`.
fn convolve(columns: &[Option<&[f32]>], taps: &[f32], channels: Range<usize>) -> Vec<f32> {
    let width = columns.len();
    let channel = |c: usize| {
        let window: Vec<f32> = columns.iter().map(|x| x.map_or(0.0, |x| x[c])).collect();
        silu(dot(&window, &taps[c * width..(c + 1) * width]))
    };
    channels.map(channel).collect()
}

/// Reference: value of a value head.
pub(crate) fn value(
    d: &GdnArgs,
    columns: &[Option<&[f32]>],
    taps: &[f32],
    v_head: usize,
) -> Vec<f32> {
    let v = convolve(columns, taps, d.v_channels(v_head));
    v.into_iter().map(|v| d.round(v)).collect()
}

/// Reference: normalised query and key of a key head.
pub(crate) fn query_key(
    d: &GdnArgs,
    columns: &[Option<&[f32]>],
    taps: &[f32],
    key_head: usize,
) -> (Vec<f32>, Vec<f32>) {
    let normalise = |channels: Range<usize>, factor: f32| {
        let x = convolve(columns, taps, channels);
        let scale = l2_scale(sum_of_squares(&x)) * factor;
        x.into_iter().map(|x| d.round(x * scale)).collect()
    };
    let query_factor = 1.0 / (d.k_dim as f32).sqrt();
    (normalise(d.q_channels(key_head), query_factor), normalise(d.k_channels(key_head), 1.0))
}

/// Reference: the delta rule for one token of one head.
///
/// `S *= alpha; r = beta (v - S k); S += r kᵀ; o = S q`, with `S` `[v_dim, k_dim]`.
pub(crate) fn delta_token(
    state: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    log_decay: f32,
    beta: f32,
) -> Vec<f32> {
    let alpha = log_decay.exp();
    let row = |(state, v): (&mut [f32], &f32)| {
        state.iter_mut().for_each(|s| *s *= alpha);
        let r = beta * (v - dot(state, k));
        state.iter_mut().zip(k).for_each(|(s, k)| *s += r * k);
        dot(state, q)
    };
    state.chunks_mut(k.len()).zip(v).map(row).collect()
}

/// Reference: copies the last rows of a chunk into the convolution ring. `qkv` and `ring` are
/// bindings, `position` is that of the chunk's first token.
pub(crate) fn store_columns(
    io: &mut ReferenceIo<'_>,
    d: &GdnArgs,
    (qkv, ring): (usize, usize),
    sequence: usize,
    position: usize,
    rows: Range<usize>,
) {
    let (values, channels) = (io.f32(qkv), d.conv_channels());
    for row in rows {
        let column = &values[row * channels..(row + 1) * channels];
        io.store(ring, d.column(sequence, position + row), column);
    }
}

/// Convolution columns that stand before the step's first token.
pub fn old_columns(cx: &LaunchContext<'_>) -> Access {
    columns(cx, 0)
}

/// Convolution columns of a decode step: the old ones, and its own, which `gdn_in` has written.
pub fn step_columns(cx: &LaunchContext<'_>) -> Access {
    columns(cx, 1)
}

fn columns(cx: &LaunchContext<'_>, own: usize) -> Access {
    let (old, slots) = (cx.shape.conv_width - 1, cx.session.conv_slots(cx.shape));
    access::sequences(cx, move |s, position, _| {
        let window = position.saturating_sub(old)..position + own;
        window.map(|p| Region::at([s, p % slots])).collect()
    })
}

/// The recurrent state before the step; nothing at position 0.
pub fn old_state(cx: &LaunchContext<'_>) -> Access {
    let slots = cx.session.state_slots();
    access::sequences(cx, move |s, position, _| match position {
        0 => Vec::new(),
        _ => vec![Region::at([s, position % slots])],
    })
}

/// The recurrent state after the step; after every token of it, if the chunk may be taken back.
pub fn new_state(cx: &LaunchContext<'_>) -> Access {
    let (slots, every) = (cx.session.state_slots(), keeps_every_token(cx));
    access::sequences(cx, move |s, position, added| {
        let first = if every { 1 } else { added };
        (first..=added).map(|t| Region::at([s, (position + t) % slots])).collect()
    })
}

/// Whether a prefill chunk can be taken back to any of its tokens: it is short enough for the rings,
/// and runs token by token.
pub fn keeps_every_token(cx: &LaunchContext<'_>) -> bool {
    let most = cx.session.state_slots().min(CHUNKED_FROM_TOKENS);
    cx.step.is_prefill() && cx.step.rows() < most
}

/// Columns that a prefill chunk leaves in the convolution ring: the last, or all of a chunk that may
/// be taken back.
pub fn kept_columns(cx: &LaunchContext<'_>) -> usize {
    if keeps_every_token(cx) { cx.step.rows() } else { cx.shape.conv_width - 1 }
}

/// The rows of `qkv` that a chunk copies into the convolution ring.
pub fn kept_rows(cx: &LaunchContext<'_>) -> Access {
    let kept = kept_columns(cx);
    Access::new(Region::new([0..cx.step.rows()]), move |live| {
        let rows = live.rows();
        rows[rows.len().saturating_sub(kept)..].iter().map(|&row| Region::at([row])).collect()
    })
}

/// The slots of the convolution ring that a chunk writes.
pub fn new_columns(cx: &LaunchContext<'_>) -> Access {
    let (kept, slots) = (kept_columns(cx), cx.session.conv_slots(cx.shape));
    access::sequences(cx, move |s, position, added| {
        let first = position + added.saturating_sub(kept);
        (first..position + added).map(|p| Region::at([s, p % slots])).collect()
    })
}

/// `P` of every chunk: as many columns as the chunk has tokens.
pub fn chunk_squares(cx: &LaunchContext<'_>) -> Access {
    let heads = cx.shape.v_heads;
    Access::new(Region::new([0..cx.step.rows()]), move |live| {
        let n = live.rows().len();
        let square = |start: usize| {
            let end = n.min(start + CHUNK);
            Region::new([start..end, 0..heads, 0..end - start])
        };
        (0..n).step_by(CHUNK).map(square).collect()
    })
}

/// Arithmetic operations of the recurrence and the convolution of one token.
pub fn step_flops(cx: &LaunchContext<'_>) -> u64 {
    let shape = cx.shape;
    (7 * shape.v_width() * shape.k_dim + 12 * shape.conv_channels()) as u64
}

#[cfg(test)]
mod constants {
    use super::*;

    #[test]
    fn widths_that_lanes_cannot_share_are_refused_with_what_is_needed() {
        let entry = || Entry {
            function: "gdn_step",
            text: None,
            constants: Vec::new(),
            grid: [1, 1, 1],
            threads: 128,
            shared: 0,
        };
        let real = GdnArgs {
            k_heads: 16,
            v_heads: 32,
            k_dim: 128,
            v_dim: 128,
            conv_width: 4,
            conv_slots: 5,
            state_slots: 3,
            act_bf16: 1,
            chunk_bf16: 1,
        };
        let ready = real.constants(entry()).expect("the real model's widths");
        assert!(ready.constants.contains(&("K_DIM", "128".into())));
        for (args, reason) in [
            (
                GdnArgs { k_dim: 48, ..real },
                "the width of DeltaNet keys is 48, need a multiple of 32",
            ),
            (
                GdnArgs { v_dim: 40, ..real },
                "the width of DeltaNet values is 40, need a multiple of 16",
            ),
            (GdnArgs { k_dim: 512, ..real }, "the width of DeltaNet keys is 512, need at most 256"),
        ] {
            assert_eq!(args.constants(entry()), Err(Unsupported(reason.into())));
        }
    }
}
