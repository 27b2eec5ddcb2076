//! Inputs of matrix products, prepared once for many rows.

use lily_plan::GROUP;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::portable;
use crate::cpu::lanes::LANES;
use crate::cpu::{Level, Numerics, Simd};

/// Input rows `[tokens, k]` of a matrix product.
///
/// The f32 values are always kept: plain matrices multiply them. With [`Numerics::Int8`] and whole
/// groups, each group of 64 values also has 8-bit codes (its 32 even elements, then its 32 odd ones,
/// to pair with the nibbles of a packed group), a scale and the sum of its rounded values.
pub struct Inputs {
    simd: Simd,
    int8: bool,
    k: usize,
    tokens: usize,
    /// f32 `[tokens, value_stride]`, zero past `k`.
    values: Vec<f32>,
    /// i8 `[tokens, k]`.
    codes: Vec<i8>,
    /// f32 `[tokens, group_stride]`, zero past the last group.
    scales: Vec<f32>,
    /// f32, as `scales`: `scale * sum of codes`, the factor of a weight group's bias.
    sums: Vec<f32>,
}

impl Default for Inputs {
    fn default() -> Self {
        Self {
            simd: Simd::detect(),
            int8: false,
            k: 0,
            tokens: 0,
            values: Vec::new(),
            codes: Vec::new(),
            scales: Vec::new(),
            sums: Vec::new(),
        }
    }
}

/// One group's destination.
pub(super) struct GroupCodes<'a> {
    pub codes: &'a mut [i8; GROUP],
    pub scale: &'a mut f32,
    pub sum: &'a mut f32,
}

/// One input row in 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    /// `[groups]`, even elements first.
    pub codes: &'a [[i8; GROUP]],
    /// `[groups]`, eight at a time, the last eight filled up with zeros.
    pub scales: &'a [[f32; LANES]],
    /// As `scales`.
    pub sums: &'a [[f32; LANES]],
}

impl Inputs {
    /// Starts a new set of rows of `k` values.
    pub fn clear(&mut self, numerics: Numerics, k: usize) {
        self.int8 = numerics == Numerics::Int8 && k.is_multiple_of(GROUP);
        self.k = k;
        self.tokens = 0;
        self.values.clear();
        self.codes.clear();
        self.scales.clear();
        self.sums.clear();
    }

    /// Adds one input row, each value times `factor`.
    ///
    /// A group that holds an infinity or NaN gets the scale NaN, so it reaches every result.
    ///
    /// # Panics
    /// If the row has not `k` values.
    pub fn push(&mut self, row: &[f32], factor: f32) {
        assert_eq!(row.len(), self.k, "an input row of a matrix product");
        let first = self.values.len();
        self.values.extend(row.iter().map(|v| v * factor));
        self.values.resize(first + self.value_stride(), 0.0);
        self.tokens += 1;
        if self.int8 {
            self.push_codes(first);
        }
    }

    /// Rounds the row of values that begins at `first`.
    fn push_codes(&mut self, first: usize) {
        let group = self.scales.len();
        let end = group + self.group_stride();
        self.codes.resize(self.tokens * self.k, 0);
        self.scales.resize(end, 0.0);
        self.sums.resize(end, 0.0);
        let values = self.values[first..].as_chunks::<GROUP>().0;
        let codes = self.codes[(self.tokens - 1) * self.k..].as_chunks_mut::<GROUP>().0;
        let scales = self.scales[group..].iter_mut().zip(&mut self.sums[group..]);
        for ((values, codes), (scale, sum)) in values.iter().zip(codes).zip(scales) {
            let to = GroupCodes { codes, scale, sum };
            match self.simd.level() {
                Level::Portable => portable::quantise(values, to),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the level is only set after the machine was seen to have it.
                Level::Avx2Fma => unsafe { avx2::quantise(values, to) },
            }
        }
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Length of a row.
    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// Whether quantised matrices multiply the 8-bit codes.
    pub(super) fn int8(&self) -> bool {
        self.int8
    }

    fn value_stride(&self) -> usize {
        self.k.next_multiple_of(GROUP)
    }

    fn group_stride(&self) -> usize {
        (self.k / GROUP).next_multiple_of(LANES)
    }

    /// The f32 values of row `t`, in groups; the last one is filled up with zeros.
    pub(super) fn values(&self, t: usize) -> &[[f32; GROUP]] {
        let stride = self.value_stride();
        self.values[t * stride..(t + 1) * stride].as_chunks::<GROUP>().0
    }

    /// The codes of row `t`.
    pub(super) fn token(&self, t: usize) -> Token<'_> {
        let stride = self.group_stride();
        let groups = t * stride..(t + 1) * stride;
        Token {
            codes: self.codes[t * self.k..(t + 1) * self.k].as_chunks::<GROUP>().0,
            scales: self.scales[groups.clone()].as_chunks::<LANES>().0,
            sums: self.sums[groups].as_chunks::<LANES>().0,
        }
    }

    /// Uses the bodies of one level, for tests.
    #[cfg(test)]
    pub(super) fn with(simd: Simd) -> Self {
        Self { simd, ..Self::default() }
    }
}
