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
/// Bytes of the widest group.
const MOST_BYTES: usize = 4 * GROUP;

/// Products of one row with the inputs from `first`, at most four.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn product(row: &RowRef<'_>, inputs: &Inputs, first: usize, out: &mut [f32]) {
    match row.format {
        RowFormat::Q4 => pairs::<Q4>(row, inputs, first, out),
        RowFormat::Q8 => pairs::<Q8>(row, inputs, first, out),
        RowFormat::Bf16 => pairs::<Bf16>(row, inputs, first, out),
        RowFormat::F16 => pairs::<F16>(row, inputs, first, out),
        RowFormat::F32 => pairs::<F32>(row, inputs, first, out),
    }
}

/// How eight codes or values are widened to f32.
trait Widen {
    /// Bytes of a group of 64.
    const BYTES: usize;
    /// Whether the results are codes, to be scaled.
    const CODES: bool;

    /// Elements `8 i..8 i + 8` of a group.
    ///
    /// # Safety
    /// The machine has AVX2, FMA and F16C; `group` points to `BYTES` bytes; `i` is below eight.
    unsafe fn vector(group: *const u8, i: usize) -> __m256;
}

struct Q4;
struct Q8;
struct Bf16;
struct F16;
struct F32;

impl Widen for Q4 {
    const BYTES: usize = GROUP / 2;
    const CODES: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn vector(group: *const u8, i: usize) -> __m256 {
        // SAFETY: four of the group's bytes.
        let word = unsafe { group.add(4 * i).cast::<i32>().read_unaligned() };
        let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        let nibbles = _mm256_srlv_epi32(_mm256_set1_epi32(word), shifts);
        _mm256_cvtepi32_ps(_mm256_and_si256(nibbles, _mm256_set1_epi32(15)))
    }
}

impl Widen for Q8 {
    const BYTES: usize = GROUP;
    const CODES: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn vector(group: *const u8, i: usize) -> __m256 {
        // SAFETY: eight of the group's bytes.
        let codes = unsafe { _mm_loadl_epi64(group.add(8 * i).cast()) };
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes))
    }
}

impl Widen for Bf16 {
    const BYTES: usize = 2 * GROUP;
    const CODES: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn vector(group: *const u8, i: usize) -> __m256 {
        // SAFETY: 16 of the group's bytes.
        load_bf16(unsafe { &*group.add(16 * i).cast() })
    }
}

impl Widen for F16 {
    const BYTES: usize = 2 * GROUP;
    const CODES: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn vector(group: *const u8, i: usize) -> __m256 {
        // SAFETY: 16 of the group's bytes.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(group.add(16 * i).cast()) })
    }
}

impl Widen for F32 {
    const BYTES: usize = 4 * GROUP;
    const CODES: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn vector(group: *const u8, i: usize) -> __m256 {
        // SAFETY: 32 of the group's bytes.
        unsafe { _mm256_loadu_ps(group.add(32 * i).cast()) }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs<W: Widen>(row: &RowRef<'_>, inputs: &Inputs, first: usize, out: &mut [f32]) {
    for (pair, out) in out.chunks_mut(2).enumerate() {
        match out {
            [one] => [*one] = groups::<1, W>(row, inputs, first + 2 * pair),
            both => both.copy_from_slice(&groups::<2, W>(row, inputs, first + 2 * pair)),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn groups<const T: usize, W: Widen>(row: &RowRef<'_>, inputs: &Inputs, first: usize) -> [f32; T] {
    // Loops, not closures: those are not inlined into code for other instruction sets.
    let mut values = [inputs.values(first); T];
    for (t, values) in values.iter_mut().enumerate() {
        *values = inputs.values(first + t);
    }
    // Zeros past the end of the row meet zeros of the inputs.
    let whole = row.codes.len() / W::BYTES;
    let rest = &row.codes[whole * W::BYTES..];
    let mut last = [0; MOST_BYTES];
    last[..rest.len()].copy_from_slice(rest);
    let mut sums = [[_mm256_setzero_ps(); CHAINS]; T];
    #[allow(clippy::needless_range_loop)] // `g` names a group of codes, scales and inputs alike
    for g in 0..row.codes.len().div_ceil(W::BYTES) {
        let group = match g < whole {
            true => row.codes[g * W::BYTES..].as_ptr(),
            false => last.as_ptr(),
        };
        let (mut scale, mut bias) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        if W::CODES {
            scale = _mm256_set1_ps(value(row.scales, g));
            bias = _mm256_set1_ps(value(row.biases, g));
        }
        let mut group_values = [&values[0][g]; T];
        for t in 0..T {
            group_values[t] = &values[t][g];
        }
        for i in 0..VECTORS {
            // SAFETY: `group` points to a whole group of the row, or to the filled up last one.
            let mut weights = unsafe { W::vector(group, i) };
            if W::CODES {
                // The product is exact, so the sum is rounded once, as in `RowRef::dequantise`.
                weights = _mm256_fmadd_ps(scale, weights, bias);
            }
            for t in 0..T {
                let x = load(&group_values[t].as_chunks::<LANES>().0[i]);
                sums[t][i % CHAINS] = _mm256_fmadd_ps(weights, x, sums[t][i % CHAINS]);
            }
        }
    }
    let mut out = [0.0; T];
    for (out, s) in out.iter_mut().zip(sums) {
        *out = sum(_mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
    }
    out
}

#[inline]
fn value(bytes: &[u8], g: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * g], bytes[2 * g + 1]]).to_f32()
}
