//! AVX2 and FMA bodies. Loads and stores are unaligned: weights come from files.

use std::arch::x86_64::*;

use half::bf16;

use crate::cpu::lanes::{LANES, sum_lanes};

/// Vectors summed side by side, to hide the latency of an FMA.
const CHAINS: usize = 4;

/// Eight floats.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::cpu) fn load(from: &[f32; LANES]) -> __m256 {
    // SAFETY: a reference to eight floats.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

/// Writes eight floats.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::cpu) fn store(to: &mut [f32; LANES], v: __m256) {
    // SAFETY: a reference to eight floats.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
}

/// Eight bfloat16 values, little-endian, widened.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::cpu) fn load_bf16(from: &[u8; 2 * LANES]) -> __m256 {
    // SAFETY: a reference to 16 bytes.
    let halves = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_bf16_values(from: &[bf16; LANES]) -> __m256 {
    load_bf16(bytemuck::cast_ref(from))
}

/// Sum of the lanes, in the order of [`sum_lanes`].
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::cpu) fn sum(v: __m256) -> f32 {
    let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
    _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps::<1>(quarter, quarter)))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_with(a, b, |v| load(v), |v| v)
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn dot_bf16(a: &[f32], b: &[bf16]) -> f32 {
    dot_with(a, b, |v| load_bf16_values(v), bf16::to_f32)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn dot_with<T: Copy>(
    a: &[f32],
    b: &[T],
    load_b: impl Fn(&[T; LANES]) -> __m256,
    widen: impl Fn(T) -> f32,
) -> f32 {
    let n = a.len().min(b.len());
    let (a, a_rest) = a[..n].as_chunks::<LANES>();
    let (b, b_rest) = b[..n].as_chunks::<LANES>();
    let (a_blocks, a_tail) = a.as_chunks::<CHAINS>();
    let (b_blocks, b_tail) = b.as_chunks::<CHAINS>();
    let mut sums = [_mm256_setzero_ps(); CHAINS];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = _mm256_fmadd_ps(load(a), load_b(b), *sum);
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(a_tail).zip(b_tail) {
        *sum = _mm256_fmadd_ps(load(a), load_b(b), *sum);
    }
    let sums = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
    if a_rest.is_empty() {
        return sum(sums);
    }
    let mut lanes = [0.0; LANES];
    store(&mut lanes, sums);
    for ((lane, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = a.mul_add(widen(b), *lane);
    }
    sum_lanes(lanes)
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn axpy(alpha: f32, x: &[f32], y: &mut [f32]) {
    axpy_with(alpha, x, y, |v| load(v), |v| v);
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn axpy_bf16(alpha: f32, x: &[bf16], y: &mut [f32]) {
    axpy_with(alpha, x, y, |v| load_bf16_values(v), bf16::to_f32);
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn axpy_with<T: Copy>(
    alpha: f32,
    x: &[T],
    y: &mut [f32],
    load_x: impl Fn(&[T; LANES]) -> __m256,
    widen: impl Fn(T) -> f32,
) {
    let n = x.len().min(y.len());
    let (x, x_rest) = x[..n].as_chunks::<LANES>();
    let (y, y_rest) = y[..n].as_chunks_mut::<LANES>();
    let factor = _mm256_set1_ps(alpha);
    for (x, y) in x.iter().zip(y) {
        let sum = _mm256_fmadd_ps(factor, load_x(x), load(y));
        store(y, sum);
    }
    for (&x, y) in x_rest.iter().zip(y_rest) {
        *y = alpha.mul_add(widen(x), *y);
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn scale(alpha: f32, y: &mut [f32]) {
    let (y, rest) = y.as_chunks_mut::<LANES>();
    let factor = _mm256_set1_ps(alpha);
    for y in y {
        let scaled = _mm256_mul_ps(factor, load(y));
        store(y, scaled);
    }
    for y in rest {
        *y *= alpha;
    }
}
