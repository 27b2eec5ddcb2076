//! Attention on the CPU: rotary tables, cache elements, and the online softmax.

use half::bf16;

use super::{RotaryArgs, score_scale};
use crate::cpu::{CpuLaunch, Operand, SharedSlice, Simd};
use crate::math::rms_scale;

/// Keys that one pass of the online softmax takes at a time; their rows stay in the first-level
/// cache between the heads.
pub(crate) const PIECE: usize = 32;

/// An element type of the cache.
pub(crate) trait CacheElement: Copy + 'static {
    fn slice<'a>(operand: Operand<'a>) -> SharedSlice<'a, Self>;
    fn from_f32(v: f32) -> Self;
    fn to_f32(self) -> f32;
    fn dot(simd: Simd, q: &[f32], k: &[Self]) -> f32;
    fn axpy(simd: Simd, alpha: f32, v: &[Self], out: &mut [f32]);
}

impl CacheElement for f32 {
    fn slice<'a>(operand: Operand<'a>) -> SharedSlice<'a, Self> {
        match operand {
            Operand::F32(slice) => slice,
            _ => panic!("the key and value caches must have one element type, f32"),
        }
    }
    fn from_f32(v: f32) -> Self {
        v
    }
    fn to_f32(self) -> f32 {
        self
    }
    fn dot(simd: Simd, q: &[f32], k: &[f32]) -> f32 {
        simd.dot(q, k)
    }
    fn axpy(simd: Simd, alpha: f32, v: &[f32], out: &mut [f32]) {
        simd.axpy(alpha, v, out);
    }
}

impl CacheElement for bf16 {
    fn slice<'a>(operand: Operand<'a>) -> SharedSlice<'a, Self> {
        match operand {
            Operand::Bf16(slice) => slice,
            _ => panic!("the key and value caches must have one element type, bf16"),
        }
    }
    fn from_f32(v: f32) -> Self {
        bf16::from_f32(v)
    }
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    fn dot(simd: Simd, q: &[f32], k: &[bf16]) -> f32 {
        simd.dot_bf16(q, k)
    }
    fn axpy(simd: Simd, alpha: f32, v: &[bf16], out: &mut [f32]) {
        simd.axpy_bf16(alpha, v, out);
    }
}

/// Whether the cache behind a binding holds bfloat16.
pub(crate) fn is_bf16(l: &CpuLaunch<'_>, binding: usize) -> bool {
    matches!(l.operands[binding], Operand::Bf16(_))
}

/// Rotary factors of one position, made once for all heads.
pub(crate) struct Rotary {
    args: RotaryArgs,
}

impl Rotary {
    pub(crate) fn new(args: RotaryArgs) -> Self {
        Self { args }
    }

    /// Inverse frequencies in f64 `[rotary_dim / 2]`; they serve every position of a tile.
    pub(crate) fn frequencies(&self) -> Vec<f64> {
        let (dim, theta) = (self.args.rotary_dim as usize, f64::from(self.args.theta));
        (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect()
    }

    /// Writes the cosines, then the sines of a position to `table [rotary_dim]`.
    pub(crate) fn table(&self, frequencies: &[f64], position: usize, table: &mut [f32]) {
        let (cos, sin) = table.split_at_mut(frequencies.len());
        for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(frequencies) {
            let (s, c) = (position as f64 * frequency).sin_cos();
            (*cos, *sin) = (c as f32, s as f32);
        }
    }

    /// Norm and rotary of one head.
    pub(crate) fn apply(
        &self,
        simd: Simd,
        x: &[f32],
        weight: &[f32],
        table: &[f32],
        out: &mut [f32],
    ) {
        let scale = rms_scale(simd.dot(x, x), x.len(), self.args.rms_eps);
        for (out, (x, w)) in out.iter_mut().zip(x.iter().zip(weight)) {
            *out = x * scale * w;
        }
        let half = self.args.rotary_dim as usize / 2;
        let (cos, sin) = table.split_at(half);
        let (low, high) = out.split_at_mut(half);
        for (i, (low, high)) in low.iter_mut().zip(&mut high[..half]).enumerate() {
            (*low, *high) = (*low * cos[i] - *high * sin[i], *high * cos[i] + *low * sin[i]);
        }
    }
}

/// Softmax over keys that come piece by piece, for several queries `[queries, head_dim]` that share
/// a KV head. The order of the sums depends on the pieces alone.
pub(crate) struct OnlineSoftmax<'a> {
    pub(crate) simd: Simd,
    pub(crate) head_dim: usize,
    /// Largest score so far, `[queries]`.
    pub(crate) max: &'a mut [f32],
    /// Sum of the exponentials, `[queries]`.
    pub(crate) sum: &'a mut [f32],
    /// Unnormalised output, `[queries, head_dim]`.
    pub(crate) out: &'a mut [f32],
    /// Work space `[queries, PIECE]`.
    pub(crate) scores: &'a mut [f32],
}

impl OnlineSoftmax<'_> {
    /// Before the first key.
    pub(crate) fn start(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.out.fill(0.0);
    }

    /// Takes at most [`PIECE`] keys; query `i` sees the first `visible(i)` of them.
    pub(crate) fn absorb<T: CacheElement>(
        &mut self,
        queries: &[f32],
        keys: &[T],
        values: &[T],
        visible: impl Fn(usize) -> usize,
    ) {
        let dim = self.head_dim;
        let scale = score_scale(dim);
        for (j, key) in keys.chunks(dim).enumerate() {
            for (i, query) in queries.chunks(dim).enumerate() {
                if j < visible(i) {
                    self.scores[i * PIECE + j] = T::dot(self.simd, query, key) * scale;
                }
            }
        }
        for (i, out) in self.out.chunks_mut(dim).enumerate() {
            let scores = &mut self.scores[i * PIECE..][..visible(i)];
            let largest = scores.iter().copied().fold(self.max[i], f32::max);
            if largest > self.max[i] {
                // The first piece finds zeros; after that the older part shrinks.
                let shrink = (self.max[i] - largest).exp();
                self.sum[i] *= shrink;
                self.simd.scale(shrink, out);
                self.max[i] = largest;
            }
            for score in scores.iter_mut() {
                *score = (*score - largest).exp();
                self.sum[i] += *score;
            }
        }
        for (j, value) in values.chunks(dim).enumerate() {
            for (i, out) in self.out.chunks_mut(dim).enumerate() {
                if j < visible(i) {
                    T::axpy(self.simd, self.scores[i * PIECE + j], value, out);
                }
            }
        }
    }
}
