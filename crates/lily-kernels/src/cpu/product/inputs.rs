//! Inputs of matrix products, prepared once for many rows.

use lily_plan::{GROUP, WeightMatrix};

use crate::cpu::simd::{Isa, Kernel};
use crate::cpu::{CpuLaunch, Numerics, Simd};

/// Input rows `[tokens, k]` of a matrix product, in the forms that its matrix multiplies.
///
/// Quantised rows with [`Numerics::Int8`] take codes: each group of 64 values has 8-bit codes (its 32
/// even elements, then its 32 odd ones, to pair with the nibbles of a packed group), a scale and the
/// sum of its rounded values. The groups of all tokens at one place of the row lie side by side, since
/// they meet the same weights. Everything else takes the f32 values.
#[derive(Default)]
pub struct Inputs {
    /// Launch and place of the rows that are here.
    of: Option<(u64, usize)>,
    simd: Option<Simd>,
    codes_wanted: bool,
    values_wanted: bool,
    k: usize,
    tokens: usize,
    capacity: usize,
    /// f32 `[tokens, value_stride]`, zero past `k`.
    values: Vec<f32>,
    /// i8 `[groups, capacity, 64]`.
    codes: Vec<i8>,
    /// f32 `[groups, capacity]`.
    scales: Vec<f32>,
    /// f32, as `scales`: `scale * sum of codes`, the factor of a weight group's bias.
    sums: Vec<f32>,
    /// One scaled row.
    row: Vec<f32>,
}

/// What multiplies the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Quantised rows with 8-bit inputs.
    pub codes: bool,
    /// Plain rows, or f32 inputs.
    pub values: bool,
}

impl Wanted {
    /// What a matrix takes.
    pub fn by(numerics: Numerics, matrix: &WeightMatrix) -> Self {
        let quantised = |s: &lily_plan::RowSegment| s.format.is_quantised();
        let int8 = numerics == Numerics::Int8;
        Self {
            codes: int8 && matrix.segments().iter().any(quantised),
            values: !int8 || !matrix.segments().iter().all(quantised),
        }
    }
}

/// The codes of some tokens.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    /// From the first of the tokens, `[groups, capacity, 64]`.
    pub codes: &'a [i8],
    /// From the first of the tokens, `[groups, capacity]`.
    pub scales: &'a [f32],
    /// As `scales`.
    pub sums: &'a [f32],
    /// Tokens from one group to the next.
    pub capacity: usize,
}

impl Inputs {
    /// Begins the `n` input rows of one place of a launch, for the matrix that they will meet. False
    /// if they are here already, from an earlier tile: then nothing is to be pushed.
    pub fn begin(
        &mut self,
        l: &CpuLaunch<'_>,
        numerics: Numerics,
        matrix: &WeightMatrix,
        (place, n): (usize, usize),
    ) -> bool {
        let of = Some((l.stamp, place));
        if self.of == of && self.tokens == n {
            return false;
        }
        self.clear(l.simd, Wanted::by(numerics, matrix), matrix.k(), n);
        self.of = of;
        true
    }

    /// Starts a new set of at most `capacity` rows of `k` values.
    ///
    /// # Panics
    /// If codes are wanted of rows with a ragged last group.
    pub fn clear(&mut self, simd: Simd, wanted: Wanted, k: usize, capacity: usize) {
        assert!(!wanted.codes || k.is_multiple_of(GROUP), "whole groups, not {k} values");
        self.of = None;
        self.simd = Some(simd);
        (self.codes_wanted, self.values_wanted) = (wanted.codes, wanted.values);
        (self.k, self.tokens, self.capacity) = (k, 0, capacity);
        let groups = if wanted.codes { capacity * (k / GROUP) } else { 0 };
        // What an earlier set has left is written over.
        self.codes.resize(groups * GROUP, 0);
        self.scales.resize(groups, 0.0);
        self.sums.resize(groups, 0.0);
        self.values.clear();
    }

    /// Adds one input row, each value times `factor`.
    ///
    /// A group that holds an infinity or NaN gets the scale NaN, so it reaches every result.
    ///
    /// # Panics
    /// If the row has not `k` values, or there are `capacity` rows already.
    pub fn push(&mut self, row: &[f32], factor: f32) {
        assert!(row.len() == self.k && self.tokens < self.capacity, "an input row of a product");
        let to = if self.values_wanted { &mut self.values } else { &mut self.row };
        let first = if self.values_wanted { to.len() } else { 0 };
        to.truncate(first);
        to.extend(row.iter().map(|v| v * factor));
        if self.values_wanted {
            to.resize(first + self.k.next_multiple_of(GROUP), 0.0);
        }
        if let (true, Some(simd)) = (self.codes_wanted, self.simd) {
            simd.run(Round {
                values: to[first..].as_chunks::<GROUP>().0,
                codes: &mut self.codes,
                scales: &mut self.scales,
                sums: &mut self.sums,
                token: self.tokens,
                capacity: self.capacity,
            });
        }
        self.tokens += 1;
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Length of a row.
    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// Whether quantised rows multiply the 8-bit codes.
    pub(super) fn has_codes(&self) -> bool {
        self.codes_wanted
    }

    /// The f32 values of row `t`, in groups; the last one is filled up with zeros.
    ///
    /// # Panics
    /// If values are not wanted.
    pub(super) fn values(&self, t: usize) -> &[[f32; GROUP]] {
        assert!(self.values_wanted, "f32 values of inputs prepared as codes");
        let stride = self.k.next_multiple_of(GROUP);
        self.values[t * stride..(t + 1) * stride].as_chunks::<GROUP>().0
    }

    /// The codes from row `first` on.
    pub(super) fn codes(&self, first: usize) -> Codes<'_> {
        Codes {
            codes: &self.codes[first * GROUP..],
            scales: &self.scales[first..],
            sums: &self.sums[first..],
            capacity: self.capacity,
        }
    }
}

/// Rounds one row to codes.
struct Round<'a> {
    values: &'a [[f32; GROUP]],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    token: usize,
    capacity: usize,
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let codes = self.codes.as_chunks_mut::<GROUP>().0;
        let mut g = 0;
        while g < self.values.len() {
            let place = g * self.capacity + self.token;
            // SAFETY: 64 values and room for 64 codes.
            let (scale, sum) =
                unsafe { s.quantise(self.values[g].as_ptr(), codes[place].as_mut_ptr()) };
            (self.scales[place], self.sums[place]) = (scale, sum);
            g += 1;
        }
    }
}
