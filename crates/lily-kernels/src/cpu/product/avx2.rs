//! AVX2 and FMA bodies: 8-bit inputs times quantised rows.

use std::arch::x86_64::*;

use lily_plan::{GROUP, RowFormat, RowRef};

use super::avx2_f32;
use super::inputs::{GroupCodes, Inputs, Token};
use super::portable::group_scale;
use crate::cpu::lanes::LANES;
use crate::cpu::simd::avx2::{load, load_bf16, store, sum};

/// How far ahead of the codes in use memory is asked for, in bytes: two rows of 2,048 weights.
const AHEAD: usize = 2048;
/// Bytes of 4-bit codes for each byte of scales.
const SCALE_SHARE: usize = 16;

/// Rounds a group to 8 bits, as the portable body.
#[target_feature(enable = "avx2,fma")]
pub(super) fn quantise(values: &[f32; GROUP], to: GroupCodes<'_>) {
    let values = values.as_chunks::<LANES>().0;
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut max = _mm256_setzero_si256();
    for v in values {
        // Magnitudes compare like integers, and so does NaN: above infinity.
        max = _mm256_max_epu32(max, _mm256_and_si256(_mm256_castps_si256(load(v)), magnitude));
    }
    let max = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b00_00_00_01>(max));
    let (scale, inverse) = group_scale(f32::from_bits(_mm_cvtsi128_si32(max) as u32));
    *to.scale = scale;
    if inverse == 0.0 {
        *to.codes = [0; GROUP];
        *to.sum = scale * 0.0;
        return;
    }
    let factor = _mm256_set1_ps(inverse);
    let code = |i: usize| _mm256_cvtps_epi32(_mm256_mul_ps(load(&values[i]), factor));
    let (first, first_total) = split([code(0), code(1), code(2), code(3)]);
    let (second, second_total) = split([code(4), code(5), code(6), code(7)]);
    let even = _mm256_permute2x128_si256::<0x20>(first, second);
    let odd = _mm256_permute2x128_si256::<0x31>(first, second);
    let (even_codes, odd_codes) = to.codes.split_at_mut(GROUP / 2);
    // SAFETY: each half has room for 32 codes.
    unsafe {
        _mm256_storeu_si256(even_codes.as_mut_ptr().cast(), even);
        _mm256_storeu_si256(odd_codes.as_mut_ptr().cast(), odd);
    }
    *to.sum = scale * sum_i32(_mm256_add_epi32(first_total, second_total)) as f32;
}

/// 32 codes in order, as 16 even and 16 odd ones, and lanes of their total.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn split(v: [__m256i; 4]) -> (__m256i, __m256i) {
    let total = _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
    let words = (_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    // Packing works in 128-bit halves: runs of four codes come out as 0 2 4 6, 1 3 5 7.
    let packed = _mm256_packs_epi16(words.0, words.1);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let codes = _mm256_permutevar8x32_epi32(packed, order);
    let pick = _mm256_setr_epi8(
        0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5,
        7, 9, 11, 13, 15,
    );
    let codes = _mm256_shuffle_epi8(codes, pick);
    (_mm256_permute4x64_epi64::<0b11_01_10_00>(codes), total)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_i32(v: __m256i) -> i32 {
    let half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let quarter = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
    _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32::<0b00_00_00_01>(quarter)))
}

/// Products of one row with the inputs from `first`, at most four.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn product(row: &RowRef<'_>, inputs: &Inputs, first: usize, out: &mut [f32]) {
    if !(inputs.int8() && row.format.is_quantised()) {
        return avx2_f32::product(row, inputs, first, out);
    }
    match out.len() {
        1 => int8::<1>(row, inputs, first, out),
        2 => int8::<2>(row, inputs, first, out),
        3 => int8::<3>(row, inputs, first, out),
        _ => int8::<4>(row, inputs, first, out),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn int8<const T: usize>(row: &RowRef<'_>, inputs: &Inputs, first: usize, out: &mut [f32]) {
    // Loops, not closures: those are not inlined into code for other instruction sets.
    let mut tokens = [inputs.token(first); T];
    for (t, token) in tokens.iter_mut().enumerate() {
        *token = inputs.token(first + t);
    }
    let sums = match row.format {
        RowFormat::Q4 => int8_groups::<T, { GROUP / 2 }>(row, &tokens),
        _ => int8_groups::<T, GROUP>(row, &tokens),
    };
    out.copy_from_slice(&sums);
}

/// `BYTES` of a group tell the format: 32 for 4-bit codes, 64 for 8-bit ones.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn int8_groups<const T: usize, const BYTES: usize>(
    row: &RowRef<'_>,
    tokens: &[Token<'_>; T],
) -> [f32; T] {
    let codes = row.codes.as_chunks::<BYTES>().0;
    let (groups, blocks) = (codes.len(), codes.len().div_ceil(LANES));
    // Scales and biases of eight groups at a time; those of the last few are filled up.
    let (scales, last_scales) = row.scales.as_chunks::<{ 2 * LANES }>();
    let (biases, last_biases) = row.biases.as_chunks::<{ 2 * LANES }>();
    let last = [fill_up(last_scales), fill_up(last_biases)];
    // Checked once here, so that the loops below need not.
    assert!(row.scales.len() == 2 * groups && row.biases.len() == 2 * groups);
    for t in tokens {
        let fits = t.codes.len() == groups && t.scales.len() == blocks && t.sums.len() == blocks;
        assert!(fits, "inputs of {groups} groups");
    }
    // Even and odd groups are summed apart, which hides the latency of an FMA.
    let mut even = [_mm256_setzero_ps(); T];
    let mut odd = [_mm256_setzero_ps(); T];
    for block in 0..blocks {
        let first = block * LANES;
        let (scales, biases) = match block < scales.len() {
            true => (&scales[block], &biases[block]),
            false => (&last[0], &last[1]),
        };
        prefetch(codes[first].as_ptr().wrapping_add(AHEAD), LANES * BYTES);
        prefetch(scales.as_ptr().wrapping_add(AHEAD / SCALE_SHARE), 1);
        prefetch(biases.as_ptr().wrapping_add(AHEAD / SCALE_SHARE), 1);
        let (scales, biases) = (load_bf16(scales), load_bf16(biases));
        let mut factors = [[0f32; LANES]; T];
        for t in 0..T {
            // SAFETY: the inputs have `blocks` of both.
            let (d, sums) = unsafe {
                (tokens[t].scales.get_unchecked(block), tokens[t].sums.get_unchecked(block))
            };
            store(&mut factors[t], _mm256_mul_ps(scales, load(d)));
            even[t] = _mm256_fmadd_ps(biases, load(sums), even[t]);
        }
        let add = |sums: &mut [__m256; T], g: usize| {
            // SAFETY: `first + g` is below `groups`, and `g` below eight.
            let group = unpack(unsafe { codes.get_unchecked(first + g) });
            for t in 0..T {
                // SAFETY: as above; the row of inputs has as many groups.
                let (inputs, factor) = unsafe {
                    (tokens[t].codes.get_unchecked(first + g), factors[t].get_unchecked(g))
                };
                let dots = _mm256_cvtepi32_ps(dots::<BYTES>(group, inputs));
                sums[t] = _mm256_fmadd_ps(dots, _mm256_set1_ps(*factor), sums[t]);
            }
        };
        let n = LANES.min(groups - first);
        for g in (0..n - n % 2).step_by(2) {
            add(&mut even, g);
            add(&mut odd, g + 1);
        }
        if n % 2 == 1 {
            add(&mut even, n - 1);
        }
    }
    let mut out = [0.0; T];
    for t in 0..T {
        out[t] = sum(_mm256_add_ps(even[t], odd[t]));
    }
    out
}

/// Values of the last groups, then zeros. Apart from the loop, whose registers a call would cost.
#[inline(never)]
fn fill_up(bytes: &[u8]) -> [u8; 2 * LANES] {
    let mut padded = [0; 2 * LANES];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

/// Asks for memory that is needed soon: the processor's own prefetch is slow to follow rows whose
/// codes, scales and biases lie apart.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn prefetch(from: *const u8, bytes: usize) {
    const LINE: usize = 64;
    for line in 0..bytes.div_ceil(LINE) {
        // Any address will do, also one past the rows.
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line * LINE).cast());
    }
}

/// The codes of a group as the dot products take them. 4 bits: bytes of the even elements, bytes of
/// the odd ones. 8 bits: for each half the even and the odd elements, as words.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn unpack<const BYTES: usize>(codes: &[u8; BYTES]) -> [__m256i; 4] {
    let zero = _mm256_setzero_si256();
    if BYTES == GROUP / 2 {
        // SAFETY: 32 codes bytes.
        let bytes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
        let nibble = _mm256_set1_epi8(15);
        let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
        return [_mm256_and_si256(bytes, nibble), odd, zero, zero];
    }
    let low = _mm256_set1_epi16(255);
    let half = |i: usize| {
        // SAFETY: `i` is 0 or 1 and a group has 64 bytes.
        let bytes = unsafe { _mm256_loadu_si256(codes[i * 32..].as_ptr().cast()) };
        (_mm256_and_si256(bytes, low), _mm256_srli_epi16::<8>(bytes))
    };
    let (first, second) = (half(0), half(1));
    [first.0, first.1, second.0, second.1]
}

/// Products of a group's codes with the inputs' codes, in eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn dots<const BYTES: usize>(group: [__m256i; 4], inputs: &[i8; GROUP]) -> __m256i {
    if BYTES == GROUP / 2 {
        // SAFETY: 64 codes.
        let (even, odd) = unsafe {
            (
                _mm256_loadu_si256(inputs.as_ptr().cast()),
                _mm256_loadu_si256(inputs.as_ptr().add(GROUP / 2).cast()),
            )
        };
        // At most 4 * 15 * 127 = 7,620 in a word: nothing saturates.
        let words = _mm256_add_epi16(
            _mm256_maddubs_epi16(group[0], even),
            _mm256_maddubs_epi16(group[1], odd),
        );
        return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    }
    // 255 * 127 * 2 does not fit a word, so these are multiplied as words.
    let word = |i: usize| {
        // SAFETY: 16 of the 64 codes, from element 16 `i`, `i` below 4.
        _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(inputs.as_ptr().add(16 * i).cast()) })
    };
    let first = _mm256_add_epi32(
        _mm256_madd_epi16(group[0], word(0)),
        _mm256_madd_epi16(group[1], word(2)),
    );
    let second = _mm256_add_epi32(
        _mm256_madd_epi16(group[2], word(1)),
        _mm256_madd_epi16(group[3], word(3)),
    );
    _mm256_add_epi32(first, second)
}
