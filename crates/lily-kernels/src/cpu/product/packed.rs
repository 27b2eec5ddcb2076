//! Quantised rows times 8-bit inputs: sixteen rows together, in the lanes of vectors.
//!
//! The packed bytes of a group are turned once, so that a 32-bit word of every row lies in one vector,
//! and multiplied with that word of each input in all lanes. The order of one result's sum is by
//! group, bias before product: `sum = bias_g * sum_g + sum`, then
//! `sum = dot_g * (scale_g * d_g) + sum`, with the exact whole number `dot_g`. It depends neither on
//! the other rows and inputs of the call nor on the instruction set.

#![allow(clippy::needless_range_loop)] // one index names vectors of several arrays alike

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;

use lily_plan::{GROUP, RowFormat, RowRef, WeightMatrix};

use super::ahead::Ahead;
use super::inputs::{Codes, Inputs};
use crate::cpu::Simd;
use crate::cpu::simd::{Isa, Kernel, ROWS, TURNED_BYTES, WORDS};

/// Groups whose scales are turned together: 32 bytes of bfloat16.
const TURNED_GROUPS: usize = TURNED_BYTES / 2;
/// Inputs multiplied together with a group: enough sums to hide the latency of a product.
const BLOCK: usize = 4;
/// Most inputs of a call; their running sums stay in the first-level cache.
pub(super) const MOST_TOKENS: usize = 64;

/// Sums of sixteen rows for one input.
pub(super) type Sums = [f32; ROWS];

/// Where sixteen rows of one length begin.
pub(super) struct Rows<'a> {
    pub(super) codes: [*const u8; ROWS],
    pub(super) scales: [*const u8; ROWS],
    pub(super) biases: [*const u8; ROWS],
    k: usize,
    format: Option<RowFormat>,
    /// Whether behind each row so many factors can be read that theirs are whole vectors.
    has_room: bool,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> Rows<'a> {
    /// No rows yet.
    pub(super) fn nowhere(k: usize) -> Self {
        let none = [ptr::null(); ROWS];
        Self {
            codes: none,
            scales: none,
            biases: none,
            k,
            format: None,
            has_room: true,
            lifetime: PhantomData,
        }
    }

    /// Sixteen times one quantised row.
    ///
    /// # Panics
    /// If it has not `k` weights.
    pub(super) fn all(row: RowRef<'a>, k: usize) -> Self {
        let (codes, scales) = (row.format.code_bytes(k), row.format.scale_bytes(k));
        let lengths = (row.codes.len(), row.scales.len(), row.biases.len());
        assert_eq!(lengths, (codes, scales, scales), "bytes of a row of {k}");
        Self {
            codes: [row.codes.as_ptr(); ROWS],
            scales: [row.scales.as_ptr(); ROWS],
            biases: [row.biases.as_ptr(); ROWS],
            format: Some(row.format),
            has_room: scales.is_multiple_of(TURNED_BYTES),
            ..Self::nowhere(k)
        }
    }

    /// Finds at most sixteen rows of an expert's part of a matrix; the last one is repeated. Segment by
    /// segment: looking up every row for itself takes as long as multiplying a short one. In place: so
    /// does moving what was found.
    pub(super) fn find(&mut self, matrix: &'a WeightMatrix, expert: usize, rows: Range<usize>) {
        let k = matrix.k();
        (self.k, self.has_room) = (k, true);
        let mut found = 0;
        for segment in matrix.segments() {
            if !segment.experts.contains(&expert) || rows.end <= segment.first_row {
                continue;
            }
            // The first row of the segment that is not before these, and those that follow it.
            let before = |row: usize| match segment.row_step {
                1 => row.saturating_sub(segment.first_row),
                step => row.saturating_sub(segment.first_row).div_ceil(step),
            };
            let served = before(rows.start)..before(rows.end).min(segment.rows);
            if served.is_empty() {
                continue;
            }
            let stored = segment.source_row
                + (expert - segment.experts.start) * segment.expert_stride
                + served.start;
            let (codes, scales) = (segment.format.code_bytes(k), segment.format.scale_bytes(k));
            let part = |bytes: &'a [u8], row: usize| {
                bytes[stored * row..(stored + served.len()) * row].as_ptr()
            };
            let starts = (
                part(&segment.codes, codes),
                part(&segment.scales, scales),
                part(&segment.biases, scales),
            );
            let end = (stored + served.len() - 1) * scales + scales.next_multiple_of(TURNED_BYTES);
            self.has_room &= end <= segment.scales.len().min(segment.biases.len());
            let first = segment.first_row + served.start * segment.row_step - rows.start;
            let places = (first..rows.len()).step_by(segment.row_step);
            for (i, at) in places.take(served.len()).enumerate() {
                self.codes[at] = starts.0.wrapping_add(i * codes);
                self.scales[at] = starts.1.wrapping_add(i * scales);
                self.biases[at] = starts.2.wrapping_add(i * scales);
            }
            self.format = match found {
                0 => Some(segment.format),
                _ => self.format.filter(|&format| format == segment.format),
            };
            found += served.len();
        }
        assert_eq!(found, rows.len(), "a matrix serves every row once");
        for at in rows.len()..ROWS {
            let last = rows.len().saturating_sub(1);
            self.codes[at] = self.codes[last];
            self.scales[at] = self.scales[last];
            self.biases[at] = self.biases[last];
        }
    }

    /// The format of the rows, if they share one.
    pub(super) fn format(&self) -> Option<RowFormat> {
        self.format
    }

    /// From these rows to others that lie alike: bytes of codes, and of scales or biases.
    pub(super) fn step_to(&self, others: &Self) -> (usize, usize) {
        let bytes = |from: *const u8, to: *const u8| (to as usize).wrapping_sub(from as usize);
        (bytes(self.codes[0], others.codes[0]), bytes(self.scales[0], others.scales[0]))
    }

    /// Products of sixteen quantised rows of one format with as many inputs from `first` on as there are
    /// `sums`. Asks for the memory of the rows `ahead`.
    ///
    /// # Panics
    /// If the rows are others; or if the inputs are not there, have another length, or are no codes.
    pub(super) fn multiply(
        &self,
        simd: Simd,
        ahead: Ahead<'_>,
        inputs: &Inputs,
        first: usize,
        (factors, sums): (&mut Factors, &mut [Sums]),
    ) {
        assert!(self.k == inputs.k() && inputs.has_codes());
        assert!(first + sums.len() <= inputs.tokens());
        let groups = inputs.k() / GROUP;
        let (rows, inputs) = (self, inputs.codes(first));
        match self.format {
            Some(RowFormat::Q4) => {
                simd.run(Product::<{ GROUP / 2 }> { rows, ahead, groups, inputs, factors, sums });
            }
            Some(RowFormat::Q8) => {
                simd.run(Product::<GROUP> { rows, ahead, groups, inputs, factors, sums });
            }
            other => panic!("quantised rows of one format, not of {other:?}"),
        }
    }
}

/// `BYTES` of a group tell the format: 32 for 4-bit codes, 64 for 8-bit ones. The rows are whole.
struct Product<'a, const BYTES: usize> {
    rows: &'a Rows<'a>,
    ahead: Ahead<'a>,
    groups: usize,
    inputs: Codes<'a>,
    factors: &'a mut Factors,
    sums: &'a mut [Sums],
}

impl<const BYTES: usize> Kernel for Product<'_, BYTES> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        // Only one of these is compiled: the lanes are constant.
        match ROWS / S::LANES {
            1 => self.multiply::<S, 1>(s),
            2 => self.multiply::<S, 2>(s),
            _ => self.multiply::<S, 4>(s),
        }
    }
}

/// One group of sixteen rows: words of the even elements and of the odd ones.
#[derive(Clone, Copy)]
struct Group<S: Isa, const V: usize> {
    even: [[S::I; V]; WORDS],
    odd: [[S::I; V]; WORDS],
}

/// Scales and biases of sixteen groups of sixteen rows: space that a product writes before it reads.
pub(super) struct Factors {
    scales: [[f32; ROWS]; TURNED_GROUPS],
    biases: [[f32; ROWS]; TURNED_GROUPS],
}

impl Default for Factors {
    fn default() -> Self {
        let zeros = [[0.0; ROWS]; TURNED_GROUPS];
        Self { scales: zeros, biases: zeros }
    }
}

impl<const BYTES: usize> Product<'_, BYTES> {
    /// `V` vectors have sixteen lanes.
    #[inline(always)]
    fn multiply<S: Isa, const V: usize>(mut self, s: S) {
        let tokens = self.sums.len();
        self.sums.fill([0.0; ROWS]);
        for group in 0..self.groups {
            // SAFETY: every row has this group; `tokens` inputs are there, and their sums.
            unsafe {
                if group.is_multiple_of(TURNED_GROUPS) {
                    self.turn_factors::<S, V>(s, group);
                }
                self.ahead.prefetch(s, (ROWS * BYTES, self.groups * BYTES), 2 * self.groups);
                let codes = self.turn_codes::<S, V>(s, group);
                let mut t = 0;
                while t + BLOCK <= tokens {
                    self.add::<S, V, BLOCK>(s, &codes, group, t);
                    t += BLOCK;
                }
                match tokens - t {
                    0 => {}
                    1 => self.add::<S, V, 1>(s, &codes, group, t),
                    2 => self.add::<S, V, 2>(s, &codes, group, t),
                    _ => self.add::<S, V, 3>(s, &codes, group, t),
                }
            }
        }
    }

    /// Adds the products of a group with `T` inputs from `t` on.
    ///
    /// # Safety
    /// Group and inputs are there.
    #[inline(always)]
    unsafe fn add<S: Isa, const V: usize, const T: usize>(
        &mut self,
        s: S,
        codes: &Group<S, V>,
        group: usize,
        t: usize,
    ) {
        let scales = &self.factors.scales[group % TURNED_GROUPS];
        let biases = &self.factors.biases[group % TURNED_GROUPS];
        let place = group * self.inputs.capacity + t;
        // SAFETY: the caller's promise.
        unsafe {
            let x = self.inputs.codes.as_ptr().add(GROUP * place);
            let dots = self.dots::<S, V, T>(s, codes, x);
            for (i, dots) in dots.iter().enumerate() {
                let scale = s.splat(*self.inputs.scales.get_unchecked(place + i));
                let sum = s.splat(*self.inputs.sums.get_unchecked(place + i));
                let sums = self.sums.get_unchecked_mut(t + i).as_mut_ptr();
                for (v, dot) in dots.iter().enumerate() {
                    let at = v * S::LANES;
                    let biases = s.load(biases.as_ptr().add(at));
                    let scales = s.mul(s.load(scales.as_ptr().add(at)), scale);
                    let before = s.fma(biases, sum, s.load(sums.add(at)));
                    s.store(sums.add(at), s.fma(s.to_f32(*dot), scales, before));
                }
            }
        }
    }

    /// The products of a group with `T` inputs at `x`, 64 codes each.
    #[inline(always)]
    unsafe fn dots<S: Isa, const V: usize, const T: usize>(
        &self,
        s: S,
        codes: &Group<S, V>,
        x: *const i8,
    ) -> [[S::I; V]; T] {
        // SAFETY: the caller's promise.
        unsafe {
            if BYTES == GROUP && !S::WIDE_CODES {
                // Low and high nibbles of the codes, one after the other.
                let (mut low, mut high) = (*codes, *codes);
                for i in 0..WORDS {
                    for v in 0..V {
                        low.even[i][v] = s.low_nibbles(codes.even[i][v]);
                        low.odd[i][v] = s.low_nibbles(codes.odd[i][v]);
                        high.even[i][v] = s.high_nibbles(codes.even[i][v]);
                        high.odd[i][v] = s.high_nibbles(codes.odd[i][v]);
                    }
                }
                let mut sums = s.dots::<V, T>(&low.even, x);
                let odd = s.dots::<V, T>(&low.odd, x.add(GROUP / 2));
                let high_even = s.dots::<V, T>(&high.even, x);
                let high_odd = s.dots::<V, T>(&high.odd, x.add(GROUP / 2));
                for t in 0..T {
                    for v in 0..V {
                        let high = s.add_i32(high_even[t][v], high_odd[t][v]);
                        let low = s.add_i32(sums[t][v], odd[t][v]);
                        sums[t][v] = s.add_i32(low, s.shift_left_4(high));
                    }
                }
                return sums;
            }
            let mut sums = s.dots::<V, T>(&codes.even, x);
            let odd = s.dots::<V, T>(&codes.odd, x.add(GROUP / 2));
            for t in 0..T {
                for v in 0..V {
                    let odd = match BYTES < GROUP && S::HIGH_SHIFT > 0 {
                        true => s.shift_right_4(odd[t][v]),
                        false => odd[t][v],
                    };
                    sums[t][v] = s.add_i32(sums[t][v], odd);
                }
            }
            sums
        }
    }

    /// The codes of a group.
    ///
    /// # Safety
    /// The rows have it.
    #[inline(always)]
    unsafe fn turn_codes<S: Isa, const V: usize>(&self, s: S, group: usize) -> Group<S, V> {
        // SAFETY: the caller's promise; `V` vectors have `ROWS` lanes.
        unsafe {
            let rows = self.rows.codes.as_ptr();
            let some = s.transpose(rows, BYTES * group);
            let mut out = Group { even: [[some[0]; V]; WORDS], odd: [[some[0]; V]; WORDS] };
            for v in 0..V {
                let rows = rows.add(v * S::LANES);
                let words = if v == 0 { some } else { s.transpose(rows, BYTES * group) };
                if BYTES < GROUP {
                    for i in 0..WORDS {
                        out.even[i][v] = s.low_nibbles(words[i]);
                        out.odd[i][v] = s.high_nibbles(words[i]);
                    }
                    continue;
                }
                let more = s.transpose(rows, BYTES * group + TURNED_BYTES);
                for i in 0..WORDS / 2 {
                    let (even, odd) = s.unzip_bytes(words[2 * i], words[2 * i + 1]);
                    (out.even[i][v], out.odd[i][v]) = (even, odd);
                    let (even, odd) = s.unzip_bytes(more[2 * i], more[2 * i + 1]);
                    (out.even[i + WORDS / 2][v], out.odd[i + WORDS / 2][v]) = (even, odd);
                }
            }
            out
        }
    }

    /// Scales and biases of the groups from `first` on, as many as there are.
    ///
    /// # Safety
    /// The rows have the first of them.
    #[inline(always)]
    unsafe fn turn_factors<S: Isa, const V: usize>(&mut self, s: S, first: usize) {
        let n = usize::min(self.groups - first, TURNED_GROUPS);
        let Factors { scales, biases } = &mut *self.factors;
        for (rows, out) in [(&self.rows.scales, scales), (&self.rows.biases, biases)] {
            // SAFETY: every row has 32 bytes from the first group on, or `n` factors that are copied to
            // where it has.
            unsafe {
                if n == TURNED_GROUPS || self.rows.has_room {
                    turn::<S, V>(s, rows, 2 * first, out);
                } else {
                    let mut padded = [[0u8; TURNED_BYTES]; ROWS];
                    for (row, padded) in rows.iter().zip(&mut padded) {
                        copy_factors(row.add(2 * first), padded, n);
                    }
                    turn::<S, V>(s, &padded.each_ref().map(|row| row.as_ptr()), 0, out);
                }
            }
        }
    }
}

/// Sixteen factors of each row, bfloat16, widened and turned.
///
/// # Safety
/// Each row has 32 bytes from `at` on.
#[inline(always)]
unsafe fn turn<S: Isa, const V: usize>(
    s: S,
    rows: &[*const u8; ROWS],
    at: usize,
    out: &mut [[f32; ROWS]; TURNED_GROUPS],
) {
    for v in 0..V {
        // SAFETY: the caller's promise; `V` vectors have `ROWS` lanes.
        unsafe {
            let words = s.transpose(rows.as_ptr().add(v * S::LANES), at);
            for i in 0..WORDS {
                let (low, high) = (s.bf16_low(words[i]), s.bf16_high(words[i]));
                s.store(out[2 * i].as_mut_ptr().add(v * S::LANES), low);
                s.store(out[2 * i + 1].as_mut_ptr().add(v * S::LANES), high);
            }
        }
    }
}

/// Copies the last `n` factors of a row. Eight, half of a vector, are a single move.
///
/// # Safety
/// `from` points to as many.
#[inline(always)]
unsafe fn copy_factors(from: *const u8, to: &mut [u8; TURNED_BYTES], n: usize) {
    // SAFETY: the caller's promise, and fewer than 16 factors.
    unsafe {
        match n {
            8 => ptr::copy_nonoverlapping(from, to.as_mut_ptr(), 16),
            _ => ptr::copy_nonoverlapping(from, to.as_mut_ptr(), 2 * n),
        }
    }
}
