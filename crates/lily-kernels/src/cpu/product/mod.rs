//! Products of stored matrix rows and prepared inputs.
//!
//! Quantised rows times 8-bit inputs are integer products by group:
//! `sum over groups g of scale_g * d_g * (codes_g · inputs_g) + bias_g * sum_g`, where `d_g` is the
//! inputs' scale and `sum_g` the sum of their rounded values. Everything else is widened to f32.
//! The order of summation of one result depends on `k` alone: not on how many inputs are multiplied
//! together, so prefill and decode give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_f32;
mod inputs;
mod portable;
#[cfg(test)]
mod tests;

use lily_plan::RowRef;

use super::{Level, Simd};

pub use inputs::Inputs;

/// Inputs multiplied by one pass over a row: their running sums fit the vector registers.
const BLOCK: usize = 4;

/// `out[t] = row · inputs[t]` for all input rows.
///
/// # Panics
/// If the row's length is not the inputs', or `out` has not one element for each input row.
#[inline]
pub fn product(simd: Simd, row: RowRef<'_>, inputs: &Inputs, out: &mut [f32]) {
    product_rows(simd, &[row], inputs, out);
}

/// `out[r, t] = rows[r] · inputs[t]`, out `[rows, tokens]`; about eight rows at a time keep both
/// rows and inputs in the first-level cache.
///
/// # Panics
/// As [`product`].
pub fn product_rows(simd: Simd, rows: &[RowRef<'_>], inputs: &Inputs, out: &mut [f32]) {
    let tokens = inputs.tokens();
    assert_eq!(out.len(), rows.len() * tokens, "results of {} rows", rows.len());
    for row in rows {
        let (codes, scales) =
            (row.format.code_bytes(inputs.k()), row.format.scale_bytes(inputs.k()));
        let lengths = (row.codes.len(), row.scales.len(), row.biases.len());
        assert_eq!(lengths, (codes, scales, scales), "bytes of a row of {}", inputs.k());
    }
    for first in (0..tokens).step_by(BLOCK) {
        let n = BLOCK.min(tokens - first);
        for (r, row) in rows.iter().enumerate() {
            let out = &mut out[r * tokens + first..][..n];
            match simd.level() {
                Level::Portable => portable::product(row, inputs, first, out),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the level is only set after the machine was seen to have it.
                Level::Avx2Fma => unsafe { avx2::product(row, inputs, first, out) },
            }
        }
    }
}
