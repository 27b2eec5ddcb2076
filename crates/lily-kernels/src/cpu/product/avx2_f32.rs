//! AVX2, FMA and F16C bodies: f32 inputs times rows widened to f32.

use std::arch::x86_64::*;

use half::bf16;
use lily_plan::{GROUP, RowFormat, RowRef};

use super::inputs::Inputs;
use crate::cpu::lanes::LANES;
use crate::cpu::simd::avx2::{load, load_bf16, sum};

/// Vectors of a group.
const VECTORS: usize = GROUP / LANES;
/// Vectors summed side by side, to hide the latency of an FMA.
const CHAINS: usize = 4;

/// Products of one row with the inputs from `first`, at most four.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn product(row: &RowRef<'_>, inputs: &Inputs, first: usize, out: &mut [f32]) {
    for (pair, out) in out.chunks_mut(2).enumerate() {
        let first = first + 2 * pair;
        match (out.len(), row.format) {
            (1, RowFormat::Q4) => groups::<1, 32>(row, inputs, first, out),
            (1, RowFormat::Q8) => groups::<1, 64>(row, inputs, first, out),
            (1, RowFormat::F32) => groups::<1, 256>(row, inputs, first, out),
            (1, _) => groups::<1, 128>(row, inputs, first, out),
            (_, RowFormat::Q4) => groups::<2, 32>(row, inputs, first, out),
            (_, RowFormat::Q8) => groups::<2, 64>(row, inputs, first, out),
            (_, RowFormat::F32) => groups::<2, 256>(row, inputs, first, out),
            (_, _) => groups::<2, 128>(row, inputs, first, out),
        }
    }
}

/// `BYTES` of a group tell the width of its codes or values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn groups<const T: usize, const BYTES: usize>(
    row: &RowRef<'_>,
    inputs: &Inputs,
    first: usize,
    out: &mut [f32],
) {
    let values: [&[[f32; GROUP]]; T] = std::array::from_fn(|t| inputs.values(first + t));
    let mut sums = [[_mm256_setzero_ps(); CHAINS]; T];
    let (codes, rest) = row.codes.as_chunks::<BYTES>();
    for (g, codes) in codes.iter().enumerate() {
        let weights = unpack(row, g, codes);
        let values: [&[f32; GROUP]; T] = std::array::from_fn(|t| &values[t][g]);
        accumulate(&mut sums, &weights, &values);
    }
    if !rest.is_empty() {
        // Zeros past the end meet zeros of the inputs.
        let mut padded = [0; BYTES];
        padded[..rest.len()].copy_from_slice(rest);
        let g = codes.len();
        let values: [&[f32; GROUP]; T] = std::array::from_fn(|t| &values[t][g]);
        accumulate(&mut sums, &unpack(row, g, &padded), &values);
    }
    for (out, s) in out.iter_mut().zip(sums) {
        *out = sum(_mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate<const T: usize>(
    sums: &mut [[__m256; CHAINS]; T],
    weights: &[__m256; VECTORS],
    values: &[&[f32; GROUP]; T],
) {
    for (i, &weight) in weights.iter().enumerate() {
        for t in 0..T {
            let value = load(&values[t].as_chunks::<LANES>().0[i]);
            sums[t][i % CHAINS] = _mm256_fmadd_ps(weight, value, sums[t][i % CHAINS]);
        }
    }
}

/// The 64 weights of group `g`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack<const BYTES: usize>(
    row: &RowRef<'_>,
    g: usize,
    codes: &[u8; BYTES],
) -> [__m256; VECTORS] {
    let mut weights = [_mm256_setzero_ps(); VECTORS];
    match row.format {
        RowFormat::Q4 => {
            let (scale, bias) = (value(row.scales, g), value(row.biases, g));
            for (i, codes) in codes.as_chunks::<{ 2 * LANES }>().0.iter().enumerate() {
                // SAFETY: 16 bytes.
                let bytes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
                let nibble = _mm_set1_epi8(15);
                let even = _mm_and_si128(bytes, nibble);
                let odd = _mm_and_si128(_mm_srli_epi16::<4>(bytes), nibble);
                let (first, second) = (_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd));
                weights[4 * i] = affine(first, scale, bias);
                weights[4 * i + 1] = affine(_mm_srli_si128::<8>(first), scale, bias);
                weights[4 * i + 2] = affine(second, scale, bias);
                weights[4 * i + 3] = affine(_mm_srli_si128::<8>(second), scale, bias);
            }
        }
        RowFormat::Q8 => {
            let (scale, bias) = (value(row.scales, g), value(row.biases, g));
            for (weight, codes) in weights.iter_mut().zip(codes.as_chunks::<LANES>().0) {
                *weight = affine(_mm_cvtsi64_si128(i64::from_le_bytes(*codes)), scale, bias);
            }
        }
        RowFormat::Bf16 => {
            for (weight, values) in weights.iter_mut().zip(codes.as_chunks::<{ 2 * LANES }>().0) {
                *weight = load_bf16(values);
            }
        }
        RowFormat::F16 => {
            for (weight, values) in weights.iter_mut().zip(codes.as_chunks::<{ 2 * LANES }>().0) {
                // SAFETY: 16 bytes.
                *weight = _mm256_cvtph_ps(unsafe { _mm_loadu_si128(values.as_ptr().cast()) });
            }
        }
        RowFormat::F32 => {
            for (weight, values) in weights.iter_mut().zip(codes.as_chunks::<{ 4 * LANES }>().0) {
                // SAFETY: 32 bytes.
                *weight = unsafe { _mm256_loadu_ps(values.as_ptr().cast()) };
            }
        }
    }
    weights
}

/// `scale * code + bias` of the low eight bytes. The product is exact, so the sum is rounded once,
/// as in `RowRef::dequantise`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn affine(codes: __m128i, scale: f32, bias: f32) -> __m256 {
    let codes = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes));
    _mm256_fmadd_ps(_mm256_set1_ps(scale), codes, _mm256_set1_ps(bias))
}

#[inline]
fn value(bytes: &[u8], g: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * g], bytes[2 * g + 1]]).to_f32()
}
