//! AVX-512 with VNNI: vectors of 512 bits.

use std::arch::x86_64::*;

use super::isa::{Isa, Kernel, WORDS, group_scale};

/// AVX-512 (F, BW, DQ, VL, VNNI) as an instruction set.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Zmm(());

/// Runs a kernel with this instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Zmm(()))
}

// SAFETY, for every block below: a value of the type proves that the machine has the instructions;
// memory is the caller's promise.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Isa for Zmm {
    const LANES: usize = 16;
    const MANY_REGISTERS: bool = true;
    const WIDE_CODES: bool = true;
    const HIGH_SHIFT: u32 = 4;

    type F = __m512;
    type I = __m512i;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: __m512) {
        unsafe { _mm512_stream_ps(to, v) }
    }
    #[inline(always)]
    fn end_streams(self) {
        unsafe { _mm_sfence() }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m512 {
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_u4(self, from: *const u8) -> __m512 {
        unsafe {
            let words = _mm512_castsi128_si512(_mm_loadl_epi64(from.cast()));
            let place = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
            let shifts =
                _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
            let nibbles = _mm512_srlv_epi32(_mm512_permutexvar_epi32(place, words), shifts);
            _mm512_cvtepi32_ps(_mm512_and_si512(nibbles, _mm512_set1_epi32(15)))
        }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(v) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn transpose(self, rows: *const *const u8, at: usize) -> [__m512i; WORDS] {
        unsafe {
            // Rows i and i + 8 side by side; words 0..4 and 4..8 of each in halves of 128 bits.
            let mut r = [_mm512_setzero_si512(); WORDS];
            for (i, r) in r.iter_mut().enumerate() {
                let low = _mm256_loadu_si256((*rows.add(i)).add(at).cast());
                let high = _mm256_loadu_si256((*rows.add(i + 8)).add(at).cast());
                *r = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            }
            // Words of four rows: in each 128 bits word j of the first half, or j + 4 of the second.
            let mut fours = [[_mm512_setzero_si512(); 4]; 2];
            for (i, four) in fours.iter_mut().enumerate() {
                let r = &r[4 * i..4 * i + 4];
                let (a, b) = (_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpacklo_epi32(r[2], r[3]));
                let (c, d) = (_mm512_unpackhi_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[2], r[3]));
                *four = [
                    _mm512_unpacklo_epi64(a, b),
                    _mm512_unpackhi_epi64(a, b),
                    _mm512_unpacklo_epi64(c, d),
                    _mm512_unpackhi_epi64(c, d),
                ];
            }
            let first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
            let second = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
            let mut out = [_mm512_setzero_si512(); WORDS];
            for i in 0..4 {
                out[i] = _mm512_permutex2var_epi64(fours[0][i], first, fours[1][i]);
                out[i + 4] = _mm512_permutex2var_epi64(fours[0][i], second, fours[1][i]);
            }
            out
        }
    }
    #[inline(always)]
    fn low_nibbles(self, v: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(v, _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    fn high_nibbles(self, v: __m512i) -> __m512i {
        unsafe { _mm512_andnot_si512(_mm512_set1_epi8(15), v) }
    }
    #[inline(always)]
    fn unzip_bytes(self, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        unsafe {
            let pick = _mm512_set1_epi32(0x0301_0200);
            let pick = _mm512_add_epi32(
                pick,
                _mm512_setr_epi32(
                    0,
                    0x0404_0404,
                    0x0808_0808,
                    0x0c0c_0c0c,
                    0,
                    0x0404_0404,
                    0x0808_0808,
                    0x0c0c_0c0c,
                    0,
                    0x0404_0404,
                    0x0808_0808,
                    0x0c0c_0c0c,
                    0,
                    0x0404_0404,
                    0x0808_0808,
                    0x0c0c_0c0c,
                ),
            );
            let (a, b) = (_mm512_shuffle_epi8(a, pick), _mm512_shuffle_epi8(b, pick));
            let high = 0xaaaa_aaaa;
            (
                _mm512_mask_blend_epi16(high, a, _mm512_slli_epi32::<16>(b)),
                _mm512_mask_blend_epi16(high, _mm512_srli_epi32::<16>(a), b),
            )
        }
    }
    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn shift_left_4(self, v: __m512i) -> __m512i {
        unsafe { _mm512_slli_epi32::<4>(v) }
    }
    #[inline(always)]
    fn shift_right_4(self, v: __m512i) -> __m512i {
        unsafe { _mm512_srai_epi32::<4>(v) }
    }
    #[inline(always)]
    fn to_f32(self, v: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    fn as_f32(self, v: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(v) }
    }
    #[inline(always)]
    fn bf16_low(self, v: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)) }
    }
    #[inline(always)]
    fn bf16_high(self, v: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536))) }
    }

    #[inline(always)]
    unsafe fn dots<const V: usize, const T: usize>(
        self,
        codes: &[[__m512i; V]; WORDS],
        inputs: *const i8,
    ) -> [[__m512i; V]; T] {
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); V]; T];
            // One input alone waits for its sum: two halves wait side by side.
            let mut more = sums;
            for (i, codes) in codes.iter().enumerate() {
                let sums = if T == 1 && i % 2 == 1 { &mut more } else { &mut sums };
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = inputs.add(64 * t + 4 * i).cast::<i32>().read_unaligned();
                    for (sum, codes) in sums.iter_mut().zip(codes) {
                        *sum = _mm512_dpbusd_epi32(*sum, *codes, _mm512_set1_epi32(x));
                    }
                }
            }
            if T == 1 {
                for (sum, more) in sums[0].iter_mut().zip(more[0]) {
                    *sum = _mm512_add_epi32(*sum, more);
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn quantise(self, values: *const f32, codes: *mut i8) -> (f32, f32) {
        unsafe {
            let mut v = [_mm512_setzero_ps(); 4];
            let mut max = _mm512_setzero_si512();
            for (i, v) in v.iter_mut().enumerate() {
                *v = _mm512_loadu_ps(values.add(16 * i));
                let magnitude =
                    _mm512_and_si512(_mm512_castps_si512(*v), _mm512_set1_epi32(i32::MAX));
                max = _mm512_max_epu32(max, magnitude);
            }
            let (scale, inverse) = group_scale(f32::from_bits(_mm512_reduce_max_epu32(max)));
            if inverse == 0.0 {
                _mm512_storeu_si512(codes.cast(), _mm512_setzero_si512());
                return (scale, scale * 0.0);
            }
            let mut words = [_mm512_setzero_si512(); 4];
            for (word, v) in words.iter_mut().zip(v) {
                *word = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse)));
            }
            let low = _mm512_add_epi32(words[0], words[1]);
            let high = _mm512_add_epi32(words[2], words[3]);
            let total = _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            for half in 0..2 {
                let (a, b) = (words[2 * half], words[2 * half + 1]);
                let even = _mm512_cvtepi32_epi8(_mm512_permutex2var_epi32(a, even, b));
                let odd = _mm512_cvtepi32_epi8(_mm512_permutex2var_epi32(a, odd, b));
                _mm_storeu_si128(codes.add(16 * half).cast(), even);
                _mm_storeu_si128(codes.add(32 + 16 * half).cast(), odd);
            }
            (scale, scale * total as f32)
        }
    }
}
