//! Attention on the CPU: rotary tables, cache elements, and the online softmax.

use std::ops::Range;

use half::bf16;

use super::prepared::{PreparedArgs, bind};
use super::{RotaryArgs, blocks, score_scale};
use crate::cpu::panel::{Panel, Turned, multiply_add, turn};
use crate::cpu::{CpuLaunch, Element, Operand, SharedSlice, Simd};
use crate::math::rms_scale;
use crate::shape::StepArgs;

/// Keys that one pass of the online softmax takes at a time; their rows stay in the first-level
/// cache between the heads.
pub(crate) const PIECE: usize = 32;

/// An element type of the cache.
pub(crate) trait CacheElement: Turned + Element + 'static {
    fn slice<'a>(operand: Operand<'a>) -> SharedSlice<'a, Self>;
    fn from_f32(v: f32) -> Self;
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
}

/// Keys and values of one KV head of a sequence.
pub(crate) struct Cache<'a, T> {
    pub(crate) k: SharedSlice<'a, T>,
    pub(crate) v: SharedSlice<'a, T>,
    /// First element of position 0.
    pub(crate) first: usize,
    pub(crate) head_dim: usize,
}

impl<'a, T: CacheElement> Cache<'a, T> {
    /// Elements of some positions.
    pub(crate) fn span(&self, positions: Range<usize>) -> Range<usize> {
        self.first + positions.start * self.head_dim..self.first + positions.end * self.head_dim
    }

    /// Keys and values of some positions.
    ///
    /// # Safety
    /// Nobody writes these rows while the results live.
    pub(crate) unsafe fn rows(&self, positions: Range<usize>) -> (&'a [T], &'a [T]) {
        let span = self.span(positions);
        // SAFETY: the caller rules out writers.
        unsafe { (self.k.read(span.clone()), self.v.read(span)) }
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

    /// Writes the cosines, then the sines of each position to `tables [positions, rotary_dim]`. A
    /// frequency, in f64, serves all of them.
    pub(crate) fn tables(
        &self,
        positions: impl Iterator<Item = usize> + Clone,
        tables: &mut [f32],
    ) {
        let (dim, theta) = (self.args.rotary_dim as usize, f64::from(self.args.theta));
        for i in 0..dim / 2 {
            let frequency = theta.powf(-2.0 * i as f64 / dim as f64);
            for (table, position) in tables.chunks_mut(dim).zip(positions.clone()) {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                (table[i], table[dim / 2 + i]) = (cos as f32, sin as f32);
            }
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
    simd: Simd,
    head_dim: usize,
    /// Largest score so far, `[queries]`.
    pub(crate) max: &'a mut [f32],
    /// Sum of the exponentials, `[queries]`.
    pub(crate) sum: &'a mut [f32],
    /// Unnormalised output, `[queries, head_dim]`.
    pub(crate) out: &'a mut [f32],
    /// Work space `[queries, PIECE]`.
    scores: &'a mut [f32],
    /// Keys of a piece, turned, `[head_dim, PIECE]`.
    keys: &'a mut [f32],
    /// Values of a piece, widened, `[PIECE, head_dim]`.
    values: &'a mut [f32],
}

impl<'a> OnlineSoftmax<'a> {
    /// Before the first key; takes its memory from `floats`.
    pub(crate) fn start(
        simd: Simd,
        head_dim: usize,
        queries: usize,
        floats: &'a mut Vec<f32>,
    ) -> Self {
        floats.resize(queries * (head_dim + PIECE + 2) + 2 * PIECE * head_dim, 0.0);
        let (out, rest) = floats.split_at_mut(queries * head_dim);
        let (scores, rest) = rest.split_at_mut(queries * PIECE);
        let (max, rest) = rest.split_at_mut(queries);
        let (sum, rest) = rest.split_at_mut(queries);
        let (keys, rest) = rest.split_at_mut(PIECE * head_dim);
        let values = &mut rest[..PIECE * head_dim];
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        out.fill(0.0);
        Self { simd, head_dim, max, sum, out, scores, keys, values }
    }

    /// Takes all keys of a range, each seen by every query.
    ///
    /// # Safety
    /// No other tile writes these rows of the cache.
    pub(crate) unsafe fn absorb_range<T: CacheElement>(
        &mut self,
        queries: &[f32],
        cache: &Cache<'_, T>,
        range: Range<usize>,
    ) {
        for start in range.clone().step_by(PIECE) {
            let n = PIECE.min(range.end - start);
            // SAFETY: the caller rules out writers.
            let (k, v) = unsafe { cache.rows(start..start + n) };
            self.absorb(queries, k, v, |_| n);
        }
    }

    /// Takes at most [`PIECE`] keys; query `i` sees the first `visible(i)` of them.
    pub(crate) fn absorb<T: CacheElement>(
        &mut self,
        queries: &[f32],
        keys: &[T],
        values: &[T],
        visible: impl Fn(usize) -> usize,
    ) {
        let (dim, n, simd) = (self.head_dim, keys.len() / self.head_dim, self.simd);
        let (queries_n, scale) = (queries.len() / dim, score_scale(dim));
        // Always a whole piece of keys, the missing ones zero: a score's bits do not depend on how many
        // there are.
        turn(simd, keys, (n, dim), (self.keys, PIECE));
        simd.widen(values, self.values);
        let scores = &mut self.scores[..queries_n * PIECE];
        scores.fill(0.0);
        let size = (queries_n, dim, PIECE);
        multiply_add(simd, size, Panel::rows(queries, dim), (self.keys, PIECE), (scores, PIECE));
        for (i, out) in self.out.chunks_mut(dim).enumerate() {
            let (scores, hidden) = scores[i * PIECE..][..PIECE].split_at_mut(visible(i));
            simd.scale(scale, scores);
            let largest = scores.iter().copied().fold(self.max[i], f32::max);
            if largest > self.max[i] {
                // The first piece finds zeros; after that the older part shrinks.
                let shrink = (self.max[i] - largest).exp();
                self.sum[i] *= shrink;
                simd.scale(shrink, out);
                self.max[i] = largest;
            }
            for score in scores.iter_mut() {
                *score -= largest;
            }
            simd.exp(scores);
            self.sum[i] += scores.iter().sum::<f32>();
            hidden.fill(0.0);
        }
        let size = (queries_n, n, dim);
        multiply_add(simd, size, Panel::rows(scores, PIECE), (self.values, dim), (self.out, dim));
    }
}

impl PreparedArgs {
    /// CPU: the cache of a KV head of a decode row.
    pub(crate) fn cache<'a, T: CacheElement>(
        &self,
        l: &CpuLaunch<'a>,
        row: usize,
        kv_head: usize,
    ) -> Cache<'a, T> {
        Cache {
            k: T::slice(l.operands[bind::K]),
            v: T::slice(l.operands[bind::V]),
            first: self.cache_at(row, kv_head),
            head_dim: self.head_dim(),
        }
    }

    /// CPU: prepares the queries of a KV head of a decode row into `queries [group * head_dim]`, and
    /// stores the new key and value if a `cache` is given. `work` is `[head_dim + rotary_dim]`.
    ///
    /// # Safety
    /// With a cache: the row of this position belongs to the calling tile.
    pub(crate) unsafe fn prepare_on_cpu<T: CacheElement>(
        &self,
        l: &CpuLaunch<'_>,
        token: Token,
        cache: Option<&Cache<'_, T>>,
        queries: &mut [f32],
        work: &mut [f32],
    ) {
        let (dim, group) = (self.head_dim(), self.group());
        let (key, table) = work.split_at_mut(dim);
        let rotary = Rotary::new(self.rotary);
        rotary.tables(std::iter::once(token.position), table);
        let first = (token.row * self.q_heads as usize + token.kv_head * group) * dim;
        let raw = (token.row * self.kv_heads as usize + token.kv_head) * dim;
        // SAFETY: launches with this prologue do not write projections and norms.
        let (aq, ak, av, q_norm, k_norm) = unsafe {
            (
                l.f32(bind::AQ).read(first..first + group * dim),
                l.f32(bind::AK).read(raw..raw + dim),
                l.f32(bind::AV).read(raw..raw + dim),
                l.f32(bind::Q_NORM).read(0..dim),
                l.f32(bind::K_NORM).read(0..dim),
            )
        };
        for (x, q) in aq.chunks(dim).zip(queries.chunks_mut(dim)) {
            rotary.apply(l.simd, x, q_norm, table, q);
        }
        let Some(cache) = cache else { return };
        rotary.apply(l.simd, ak, k_norm, table, key);
        let span = cache.span(token.position..token.position + 1);
        // SAFETY: the caller owns this row, and nothing refers to it yet.
        let (k, v) = unsafe { (cache.k.write(span.clone()), cache.v.write(span)) };
        k.iter_mut().zip(key).for_each(|(to, from)| *to = T::from_f32(*from));
        v.iter_mut().zip(av).for_each(|(to, from)| *to = T::from_f32(*from));
    }
}

/// A KV head of a decode row.
#[derive(Clone, Copy)]
pub(crate) struct Token {
    pub(crate) row: usize,
    pub(crate) kv_head: usize,
    pub(crate) position: usize,
}

/// Row, number of keys and block of the `index`-th block in use of a decode step.
pub(crate) fn block_place(
    step: &StepArgs,
    control: &[i32],
    splits: usize,
    mut index: usize,
) -> (usize, usize, usize) {
    for row in step.live_rows(control).iter() {
        let length = step.position_of(control, row) + 1;
        let used = blocks(length, splits);
        if index < used {
            return (row, length, index);
        }
        index -= used;
    }
    panic!("there is no such block of keys; the control block changed while the launch ran");
}

/// Blocks in use of all rows of a decode step.
pub(crate) fn blocks_in_use(step: &StepArgs, control: &[i32], splits: usize) -> usize {
    let used = |row| blocks(step.position_of(control, row) + 1, splits);
    step.live_rows(control).iter().map(used).sum()
}
