//! Quantised rows times 8-bit inputs: sixteen rows together, in the lanes of vectors, and one sixteen
//! after the other as long as they lie alike.
//!
//! The packed bytes of a group are turned once, so that a 32-bit word of every row lies in one vector,
//! and multiplied with that word of each input in all lanes. The order of one result's sum is by
//! group, bias before product: `sum = bias_g * sum_g + sum`, then
//! `sum = dot_g * (scale_g * d_g) + sum`, with the exact whole number `dot_g`. It depends neither on
//! the other rows and inputs of the call nor on the instruction set.

#![allow(clippy::needless_range_loop)] // one index names vectors of several arrays alike

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use lily_plan::{GROUP, RowFormat, RowRef, WeightMatrix};

use super::ahead::Course;
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
type Sums = [f32; ROWS];

/// Where rows of one length lie: the first sixteen, and others behind them that lie alike.
pub(super) struct Rows<'a> {
    pub(super) codes: [*const u8; ROWS],
    pub(super) scales: [*const u8; ROWS],
    pub(super) biases: [*const u8; ROWS],
    /// Number of rows.
    len: usize,
    /// From one sixteen to the next: bytes of codes, and of scales or biases.
    step: (usize, usize),
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
            len: 0,
            step: (0, 0),
            k,
            format: None,
            has_room: true,
            lifetime: PhantomData,
        }
    }

    /// One quantised row.
    ///
    /// # Panics
    /// If it has not `k` weights.
    pub(super) fn one(row: RowRef<'a>, k: usize) -> Self {
        let (codes, scales) = (row.format.code_bytes(k), row.format.scale_bytes(k));
        let lengths = (row.codes.len(), row.scales.len(), row.biases.len());
        assert_eq!(lengths, (codes, scales, scales), "bytes of a row of {k}");
        Self {
            codes: [row.codes.as_ptr(); ROWS],
            scales: [row.scales.as_ptr(); ROWS],
            biases: [row.biases.as_ptr(); ROWS],
            len: 1,
            format: Some(row.format),
            has_room: scales.is_multiple_of(TURNED_BYTES),
            ..Self::nowhere(k)
        }
    }

    /// Finds the first sixteen of some rows of an expert's part of a matrix, and as many sixteens behind
    /// them as lie alike. Fewer than sixteen are filled up with the last one. Segment by segment: looking
    /// up every row for itself takes as long as multiplying a short one. In place: so does moving what
    /// was found.
    pub(super) fn find(&mut self, matrix: &'a WeightMatrix, expert: usize, rows: Range<usize>) {
        let k = matrix.k();
        let first = rows.start..rows.end.min(rows.start + ROWS);
        let (mut found, mut alike) = (0, (rows.len() / ROWS).max(1));
        (self.k, self.has_room) = (k, true);
        for segment in matrix.segments() {
            if !segment.experts.contains(&expert) || first.end <= segment.first_row {
                continue;
            }
            // The first row of the segment that is not before these, and those that follow it.
            let before = |row: usize| match segment.row_step {
                1 => row.saturating_sub(segment.first_row),
                step => row.saturating_sub(segment.first_row).div_ceil(step),
            };
            let served = before(first.start)..before(first.end).min(segment.rows);
            if served.is_empty() {
                continue;
            }
            let stored =
                segment.source_row + (expert - segment.experts.start) * segment.expert_stride;
            let (codes, scales) = (segment.format.code_bytes(k), segment.format.scale_bytes(k));
            // The segment's rows from the first of these on. Behind them whole vectors are read where there
            // is room: the pointers are those of all bytes.
            let part = |bytes: &'a [u8], row: usize| {
                let (from, to) = ((stored + served.start) * row, (stored + segment.rows) * row);
                assert!(from <= to && to <= bytes.len(), "rows of {row} bytes in {}", bytes.len());
                bytes.as_ptr().wrapping_add(from)
            };
            let starts = (
                part(&segment.codes, codes),
                part(&segment.scales, scales),
                part(&segment.biases, scales),
            );
            // Rows from one sixteen to the next, and how many sixteens the segment has.
            let by = ROWS / segment.row_step;
            let step = (by * codes, by * scales);
            let format = Some(segment.format);
            if found == 0 {
                (self.format, self.step) = (format, step);
            }
            let regular =
                by * segment.row_step == ROWS && (self.format, self.step) == (format, step);
            alike = match regular {
                true => alike.min(1 + (segment.rows - served.end) / by),
                false => 1,
            };
            self.format = self.format.filter(|_| self.format == format);
            // Behind the last row of how many sixteens there is room for whole vectors of factors.
            let end = (stored + served.end - 1) * scales + scales.next_multiple_of(TURNED_BYTES);
            match segment.scales.len().min(segment.biases.len()).checked_sub(end) {
                Some(room) if step.1 > 0 => alike = alike.min(1 + room / step.1),
                Some(_) => {}
                None => (alike, self.has_room) = (1, false),
            }
            let at = segment.first_row + served.start * segment.row_step - first.start;
            let places = (at..first.len()).step_by(segment.row_step);
            for (i, at) in places.take(served.len()).enumerate() {
                self.codes[at] = starts.0.wrapping_add(i * codes);
                self.scales[at] = starts.1.wrapping_add(i * scales);
                self.biases[at] = starts.2.wrapping_add(i * scales);
            }
            found += served.len();
        }
        assert_eq!(found, first.len(), "a matrix serves every row once");
        self.len = if rows.len() < ROWS { rows.len() } else { ROWS * alike };
        for at in first.len()..ROWS {
            let last = first.len().saturating_sub(1);
            self.codes[at] = self.codes[last];
            self.scales[at] = self.scales[last];
            self.biases[at] = self.biases[last];
        }
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The format of the rows, if they share one.
    pub(super) fn format(&self) -> Option<RowFormat> {
        self.format
    }

    /// From one sixteen to the next: bytes of codes, and of scales or biases.
    pub(super) fn step(&self) -> (usize, usize) {
        self.step
    }

    /// Products of quantised rows of one format with `tokens` inputs from `first` on: `out[t * width + r]`
    /// for input `t` and row `r`. Asks for the memory of the rows ahead on the `course`, on which these are
    /// the sixteens from `place` on.
    ///
    /// # Panics
    /// If the rows are others; if the inputs are not there, have another length, or are no codes; if there
    /// are too many of them; or if the results are not inside `out`.
    pub(super) fn multiply(
        &self,
        simd: Simd,
        course: (&Course<'_>, usize),
        inputs: &Inputs,
        (first, tokens): (usize, usize),
        (out, width): (&mut [f32], usize),
    ) {
        assert!(self.k == inputs.k() && inputs.has_codes());
        assert!(first + tokens <= inputs.tokens() && (1..=MOST_TOKENS).contains(&tokens));
        assert!(self.len <= width && (tokens - 1) * width + self.len <= out.len());
        let (inputs, out) = ((inputs.codes(first), tokens), (out.as_mut_ptr(), width));
        match self.format {
            Some(RowFormat::Q4) => simd.run(self.product::<{ GROUP / 2 }>(course, inputs, out)),
            Some(RowFormat::Q8) => simd.run(self.product::<GROUP>(course, inputs, out)),
            other => panic!("quantised rows of one format, not of {other:?}"),
        }
    }

    fn product<'p, const BYTES: usize>(
        &'p self,
        (course, place): (&'p Course<'a>, usize),
        (inputs, tokens): (Codes<'p>, usize),
        (out, width): (*mut f32, usize),
    ) -> Product<'p, BYTES> {
        let groups = self.k / GROUP;
        Product { rows: self, course, place, groups, inputs, tokens, out, width }
    }
}

/// `BYTES` of a group tell the format: 32 for 4-bit codes, 64 for 8-bit ones. The rows are whole, and the
/// results have their places.
struct Product<'a, const BYTES: usize> {
    rows: &'a Rows<'a>,
    course: &'a Course<'a>,
    place: usize,
    groups: usize,
    inputs: Codes<'a>,
    tokens: usize,
    out: *mut f32,
    width: usize,
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

/// Factors of sixteen groups of sixteen rows; those of groups that are not there are never written.
type Turned = [[MaybeUninit<f32>; ROWS]; TURNED_GROUPS];

/// Scales and biases of sixteen groups of sixteen rows.
struct Factors {
    scales: Turned,
    biases: Turned,
}

impl<const BYTES: usize> Product<'_, BYTES> {
    /// `V` vectors have sixteen lanes.
    #[inline(always)]
    fn multiply<S: Isa, const V: usize>(self, s: S) {
        let none = [[MaybeUninit::uninit(); ROWS]; TURNED_GROUPS];
        let mut factors = Factors { scales: none, biases: none };
        let sixteens = (0..self.rows.len).step_by(ROWS);
        // SAFETY: the rows have each sixteen, and `out` a place for each result.
        unsafe {
            if self.tokens == 1 {
                for first in sixteens {
                    self.sixteen_of_one::<S, V>(s, first, &mut factors);
                }
            } else {
                let mut sums = [[0.0; ROWS]; MOST_TOKENS];
                let sums = &mut sums[..self.tokens];
                for first in sixteens {
                    self.sixteen_of_many::<S, V>(s, first, (&mut factors, sums));
                }
            }
        }
    }

    /// Sixteen rows from `first` on and one input: the sums stay in registers.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    unsafe fn sixteen_of_one<S: Isa, const V: usize>(
        &self,
        s: S,
        first: usize,
        factors: &mut Factors,
    ) {
        let nth = first / ROWS;
        let mut ahead = self.course.ahead(self.place + nth, self.rows, nth);
        let mut sums = [s.splat(0.0); V];
        for group in 0..self.groups {
            // SAFETY: every row has this group, and so has the input.
            unsafe {
                if group.is_multiple_of(TURNED_GROUPS) {
                    self.turn_factors::<S, V>(s, nth, group, factors);
                }
                ahead.prefetch(s, (ROWS * BYTES, self.groups * BYTES), 2 * self.groups);
                let place = group * self.inputs.capacity;
                let x = self.inputs.codes.as_ptr().add(GROUP * place);
                let scale = s.splat(*self.inputs.scales.get_unchecked(place));
                let sum = s.splat(*self.inputs.sums.get_unchecked(place));
                for v in 0..V {
                    // One vector after the other: the codes of more find no room in few registers.
                    let codes = self.turn_codes::<S, 1>(s, nth, v, group);
                    let [[dot]] = self.dots::<S, 1, 1>(s, &codes, x);
                    let (scales, biases) = factors.of(s, group, v);
                    let before = s.fma(biases, sum, sums[v]);
                    sums[v] = s.fma(s.to_f32(dot), s.mul(scales, scale), before);
                }
            }
        }
        let mut results = [0.0; ROWS];
        for v in 0..V {
            // SAFETY: `V` vectors have `ROWS` lanes.
            unsafe { s.store(results.as_mut_ptr().add(v * S::LANES), sums[v]) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.put(first, 0, &results) };
    }

    /// Sixteen rows from `first` on and more inputs, as many as there are `sums`.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    unsafe fn sixteen_of_many<S: Isa, const V: usize>(
        &self,
        s: S,
        first: usize,
        (factors, sums): (&mut Factors, &mut [Sums]),
    ) {
        let (nth, tokens) = (first / ROWS, sums.len());
        let mut ahead = self.course.ahead(self.place + nth, self.rows, nth);
        sums.fill([0.0; ROWS]);
        for group in 0..self.groups {
            // SAFETY: every row has this group; `tokens` inputs are there, and their sums.
            unsafe {
                if group.is_multiple_of(TURNED_GROUPS) {
                    self.turn_factors::<S, V>(s, nth, group, factors);
                }
                ahead.prefetch(s, (ROWS * BYTES, self.groups * BYTES), 2 * self.groups);
                let codes = self.turn_codes::<S, V>(s, nth, 0, group);
                let mut t = 0;
                while t + BLOCK <= tokens {
                    self.add::<S, V, BLOCK>(s, (&codes, factors), group, (sums, t));
                    t += BLOCK;
                }
                match tokens - t {
                    0 => {}
                    1 => self.add::<S, V, 1>(s, (&codes, factors), group, (sums, t)),
                    2 => self.add::<S, V, 2>(s, (&codes, factors), group, (sums, t)),
                    _ => self.add::<S, V, 3>(s, (&codes, factors), group, (sums, t)),
                }
            }
        }
        for (t, sums) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.put(first, t, sums) };
        }
    }

    /// Writes the results of an input and the rows from `first` on, sixteen of them or those that are left.
    ///
    /// # Safety
    /// They have their places.
    #[inline(always)]
    unsafe fn put(&self, first: usize, t: usize, results: &Sums) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.out.add(t * self.width + first);
            match self.rows.len - first {
                count @ 0..ROWS => ptr::copy_nonoverlapping(results.as_ptr(), to, count),
                _ => ptr::copy_nonoverlapping(results.as_ptr(), to, ROWS),
            }
        }
    }

    /// Adds the products of a group with `T` inputs from `t` on.
    ///
    /// # Safety
    /// Group and inputs are there.
    #[inline(always)]
    unsafe fn add<S: Isa, const V: usize, const T: usize>(
        &self,
        s: S,
        (codes, factors): (&Group<S, V>, &Factors),
        group: usize,
        (sums, t): (&mut [Sums], usize),
    ) {
        let place = group * self.inputs.capacity + t;
        // SAFETY: the caller's promise.
        unsafe {
            let x = self.inputs.codes.as_ptr().add(GROUP * place);
            let dots = self.dots::<S, V, T>(s, codes, x);
            for (i, dots) in dots.iter().enumerate() {
                let scale = s.splat(*self.inputs.scales.get_unchecked(place + i));
                let sum = s.splat(*self.inputs.sums.get_unchecked(place + i));
                let sums = sums.get_unchecked_mut(t + i).as_mut_ptr();
                for (v, dot) in dots.iter().enumerate() {
                    let (scales, biases) = factors.of(s, group, v);
                    let sums = sums.add(v * S::LANES);
                    let before = s.fma(biases, sum, s.load(sums));
                    s.store(sums, s.fma(s.to_f32(*dot), s.mul(scales, scale), before));
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

    /// The codes of a group of the `nth` sixteen: `V` vectors of them from the `from`-th on.
    ///
    /// # Safety
    /// The rows have it, and no more than `ROWS` lanes are asked for.
    #[inline(always)]
    unsafe fn turn_codes<S: Isa, const V: usize>(
        &self,
        s: S,
        nth: usize,
        from: usize,
        group: usize,
    ) -> Group<S, V> {
        let at = nth * self.rows.step.0 + BYTES * group;
        // SAFETY: the caller's promise.
        unsafe {
            let rows = self.rows.codes.as_ptr().add(from * S::LANES);
            let some = s.transpose(rows, at);
            let mut out = Group { even: [[some[0]; V]; WORDS], odd: [[some[0]; V]; WORDS] };
            for v in 0..V {
                let rows = rows.add(v * S::LANES);
                let words = if v == 0 { some } else { s.transpose(rows, at) };
                if BYTES < GROUP {
                    for i in 0..WORDS {
                        out.even[i][v] = s.low_nibbles(words[i]);
                        out.odd[i][v] = s.high_nibbles(words[i]);
                    }
                    continue;
                }
                let more = s.transpose(rows, at + TURNED_BYTES);
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

    /// Scales and biases of the `nth` sixteen, of the groups from `first` on, as many as there are.
    ///
    /// # Safety
    /// The rows have the first of them.
    #[inline(always)]
    unsafe fn turn_factors<S: Isa, const V: usize>(
        &self,
        s: S,
        nth: usize,
        first: usize,
        factors: &mut Factors,
    ) {
        let n = usize::min(self.groups - first, TURNED_GROUPS);
        let at = nth * self.rows.step.1 + 2 * first;
        let Factors { scales, biases } = factors;
        for (rows, out) in [(&self.rows.scales, scales), (&self.rows.biases, biases)] {
            // SAFETY: every row has 32 bytes from the first group on, or `n` factors that are copied to
            // where it has.
            unsafe {
                if n == TURNED_GROUPS || self.rows.has_room {
                    turn::<S, V>(s, rows, at, out);
                } else {
                    let mut padded = [[0u8; TURNED_BYTES]; ROWS];
                    for (row, padded) in rows.iter().zip(&mut padded) {
                        copy_factors(row.add(at), padded, n);
                    }
                    turn::<S, V>(s, &padded.each_ref().map(|row| row.as_ptr()), 0, out);
                }
            }
        }
    }
}

impl Factors {
    /// Scales and biases of a group, vector `v` of them.
    ///
    /// # Safety
    /// They have been turned.
    #[inline(always)]
    unsafe fn of<S: Isa>(&self, s: S, group: usize, v: usize) -> (S::F, S::F) {
        let (group, at) = (group % TURNED_GROUPS, v * S::LANES);
        // SAFETY: `v` is a vector of `ROWS` lanes, and the caller's promise.
        unsafe {
            let vector = |of: &Turned| of[group].as_ptr().cast::<f32>().add(at);
            (s.load(vector(&self.scales)), s.load(vector(&self.biases)))
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
    out: &mut Turned,
) {
    for v in 0..V {
        // SAFETY: the caller's promise; `V` vectors have `ROWS` lanes.
        unsafe {
            let words = s.transpose(rows.as_ptr().add(v * S::LANES), at);
            for i in 0..WORDS {
                let (low, high) = (s.bf16_low(words[i]), s.bf16_high(words[i]));
                s.store(out[2 * i].as_mut_ptr().cast::<f32>().add(v * S::LANES), low);
                s.store(out[2 * i + 1].as_mut_ptr().cast::<f32>().add(v * S::LANES), high);
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
