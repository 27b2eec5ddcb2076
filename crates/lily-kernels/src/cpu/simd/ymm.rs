//! AVX2 with FMA and F16C: vectors of 256 bits. The product of bytes is the only operation in which
//! machines with this width differ, so it is a parameter.

use std::arch::x86_64::*;

use super::isa::{Isa, Kernel, WORDS, group_scale};

/// AVX2, FMA and F16C with a product of bytes as an instruction set.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Ymm<D>(D);

/// A product of bytes. Holding a value proves that the machine has it.
pub(in crate::cpu) trait Dot: Copy {
    /// Whether codes may be larger than 15.
    const WIDE_CODES: bool;
    /// Registers of this encoding.
    const MANY_REGISTERS: bool;

    /// Sums of eight products of words of four bytes, codes of each row times inputs of each token.
    unsafe fn dots<const V: usize, const T: usize>(
        self,
        codes: &[[__m256i; V]; WORDS],
        inputs: *const i8,
    ) -> [[__m256i; V]; T];
}

/// Plain AVX2: sums of two products in 16 bits.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct MultiplyAdd(());

/// AVX-VNNI.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct AvxVnni(());

/// VNNI of AVX-512 with vectors of 256 bits.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx512Vnni(());

/// Runs a kernel with AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Ymm(MultiplyAdd(())))
}

/// Runs a kernel with AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) fn run_avx_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Ymm(AvxVnni(())))
}

/// Runs a kernel with AVX-512's VNNI at 256 bits.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
pub(super) fn run_avx512_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Ymm(Avx512Vnni(())))
}

/// Four bytes at `from` in every lane.
#[inline(always)]
unsafe fn broadcast(from: *const i8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
}

/// The sums by an instruction that adds four products to a 32-bit lane.
macro_rules! dots_by {
    ($instruction:ident) => {
        #[inline(always)]
        unsafe fn dots<const V: usize, const T: usize>(
            self,
            codes: &[[__m256i; V]; WORDS],
            inputs: *const i8,
        ) -> [[__m256i; V]; T] {
            // SAFETY: the value proves the instruction; memory is the caller's promise.
            unsafe {
                let mut sums = [[_mm256_setzero_si256(); V]; T];
                for (i, codes) in codes.iter().enumerate() {
                    for (t, sums) in sums.iter_mut().enumerate() {
                        let x = broadcast(inputs.add(64 * t + 4 * i));
                        for (sum, codes) in sums.iter_mut().zip(codes) {
                            *sum = $instruction(*sum, *codes, x);
                        }
                    }
                }
                sums
            }
        }
    };
}

impl Dot for AvxVnni {
    const WIDE_CODES: bool = true;
    const MANY_REGISTERS: bool = false;
    dots_by!(_mm256_dpbusd_avx_epi32);
}

impl Dot for Avx512Vnni {
    const WIDE_CODES: bool = true;
    const MANY_REGISTERS: bool = true;
    dots_by!(_mm256_dpbusd_epi32);
}

impl Dot for MultiplyAdd {
    const WIDE_CODES: bool = false;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    unsafe fn dots<const V: usize, const T: usize>(
        self,
        codes: &[[__m256i; V]; WORDS],
        inputs: *const i8,
    ) -> [[__m256i; V]; T] {
        // SAFETY: the value proves AVX2; memory is the caller's promise.
        unsafe {
            // At most 8 * 2 * 15 * 127 = 30,480 in 16 bits: nothing saturates.
            let mut sums = [[_mm256_setzero_si256(); V]; T];
            for (i, codes) in codes.iter().enumerate() {
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = broadcast(inputs.add(64 * t + 4 * i));
                    for (sum, codes) in sums.iter_mut().zip(codes) {
                        *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(*codes, x));
                    }
                }
            }
            for sums in &mut sums {
                for sum in sums {
                    *sum = _mm256_madd_epi16(*sum, _mm256_set1_epi16(1));
                }
            }
            sums
        }
    }
}

// SAFETY, for every block below: a value of the type proves that the machine has AVX2, FMA and F16C;
// memory is the caller's promise.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: Dot> Isa for Ymm<D> {
    const LANES: usize = 8;
    const MANY_REGISTERS: bool = D::MANY_REGISTERS;
    const WIDE_CODES: bool = D::WIDE_CODES;
    const HIGH_SHIFT: u32 = if D::WIDE_CODES { 4 } else { 0 };

    type F = __m256;
    type I = __m256i;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(to, v) }
    }
    // Miri executes this instruction set, and has no stores past the caches.
    #[cfg(not(miri))]
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: __m256) {
        unsafe { _mm256_stream_ps(to, v) }
    }
    #[cfg(not(miri))]
    #[inline(always)]
    fn end_streams(self) {
        unsafe { _mm_sfence() }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m256 {
        unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_u4(self, from: *const u8) -> __m256 {
        unsafe {
            let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            let nibbles = _mm256_srlv_epi32(broadcast(from.cast()), shifts);
            _mm256_cvtepi32_ps(_mm256_and_si256(nibbles, _mm256_set1_epi32(15)))
        }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps::<1>(quarter, quarter)))
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn transpose(self, rows: *const *const u8, at: usize) -> [__m256i; WORDS] {
        unsafe {
            let mut r = [_mm256_setzero_si256(); WORDS];
            for (i, r) in r.iter_mut().enumerate() {
                *r = _mm256_loadu_si256((*rows.add(i)).add(at).cast());
            }
            // Words of four rows: word j in the first 128 bits, j + 4 in the second.
            let mut fours = [[_mm256_setzero_si256(); 4]; 2];
            for (i, four) in fours.iter_mut().enumerate() {
                let r = &r[4 * i..4 * i + 4];
                let (a, b) = (_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpacklo_epi32(r[2], r[3]));
                let (c, d) = (_mm256_unpackhi_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[2], r[3]));
                *four = [
                    _mm256_unpacklo_epi64(a, b),
                    _mm256_unpackhi_epi64(a, b),
                    _mm256_unpacklo_epi64(c, d),
                    _mm256_unpackhi_epi64(c, d),
                ];
            }
            let mut out = [_mm256_setzero_si256(); WORDS];
            for i in 0..4 {
                out[i] = _mm256_permute2x128_si256::<0x20>(fours[0][i], fours[1][i]);
                out[i + 4] = _mm256_permute2x128_si256::<0x31>(fours[0][i], fours[1][i]);
            }
            out
        }
    }
    #[inline(always)]
    fn low_nibbles(self, v: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(v, _mm256_set1_epi8(15)) }
    }
    #[inline(always)]
    fn high_nibbles(self, v: __m256i) -> __m256i {
        unsafe {
            let nibble = _mm256_set1_epi8(15);
            match Self::HIGH_SHIFT {
                0 => _mm256_and_si256(_mm256_srli_epi16::<4>(v), nibble),
                _ => _mm256_andnot_si256(nibble, v),
            }
        }
    }
    #[inline(always)]
    fn unzip_bytes(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        unsafe {
            let pick = _mm256_setr_epi8(
                0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, 0, 2, 1, 3, 4, 6, 5, 7, 8,
                10, 9, 11, 12, 14, 13, 15,
            );
            let (a, b) = (_mm256_shuffle_epi8(a, pick), _mm256_shuffle_epi8(b, pick));
            (
                _mm256_blend_epi16::<0xaa>(a, _mm256_slli_epi32::<16>(b)),
                _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(a), b),
            )
        }
    }
    #[inline(always)]
    fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    fn shift_left_4(self, v: __m256i) -> __m256i {
        unsafe { _mm256_slli_epi32::<4>(v) }
    }
    #[inline(always)]
    fn shift_right_4(self, v: __m256i) -> __m256i {
        unsafe { _mm256_srai_epi32::<4>(v) }
    }
    #[inline(always)]
    fn to_f32(self, v: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(v) }
    }
    #[inline(always)]
    fn as_f32(self, v: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(v) }
    }
    #[inline(always)]
    fn bf16_low(self, v: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v)) }
    }
    #[inline(always)]
    fn bf16_high(self, v: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-65536))) }
    }

    #[inline(always)]
    unsafe fn dots<const V: usize, const T: usize>(
        self,
        codes: &[[__m256i; V]; WORDS],
        inputs: *const i8,
    ) -> [[__m256i; V]; T] {
        unsafe { self.0.dots(codes, inputs) }
    }

    #[inline(always)]
    unsafe fn quantise(self, values: *const f32, codes: *mut i8) -> (f32, f32) {
        unsafe {
            let mut v = [_mm256_setzero_ps(); 8];
            let mut max = _mm256_setzero_si256();
            for (i, v) in v.iter_mut().enumerate() {
                *v = _mm256_loadu_ps(values.add(8 * i));
                let magnitude = _mm256_set1_epi32(i32::MAX);
                let magnitude = _mm256_and_si256(_mm256_castps_si256(*v), magnitude);
                max = _mm256_max_epu32(max, magnitude);
            }
            let max =
                _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
            let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
            let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b00_00_00_01>(max));
            let (scale, inverse) = group_scale(f32::from_bits(_mm_cvtsi128_si32(max) as u32));
            if inverse == 0.0 {
                codes.cast::<[i8; 64]>().write([0; 64]);
                return (scale, scale * 0.0);
            }
            let mut words = [_mm256_setzero_si256(); 8];
            for (word, v) in words.iter_mut().zip(v) {
                *word = _mm256_cvtps_epi32(_mm256_mul_ps(v, _mm256_set1_ps(inverse)));
            }
            let (first, first_total) = split_codes(&words, 0);
            let (second, second_total) = split_codes(&words, 4);
            let even = _mm256_permute2x128_si256::<0x20>(first, second);
            let odd = _mm256_permute2x128_si256::<0x31>(first, second);
            _mm256_storeu_si256(codes.cast(), even);
            _mm256_storeu_si256(codes.add(32).cast(), odd);
            let total = _mm256_add_epi32(first_total, second_total);
            let half =
                _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256::<1>(total));
            let half = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
            let total = _mm_add_epi32(half, _mm_shuffle_epi32::<0b00_00_00_01>(half));
            (scale, scale * _mm_cvtsi128_si32(total) as f32)
        }
    }
}

/// 32 codes in order, from four of the vectors, as 16 even and 16 odd ones, and lanes of their total.
#[inline(always)]
unsafe fn split_codes(words: &[__m256i; 8], first: usize) -> (__m256i, __m256i) {
    // SAFETY: the caller has AVX2.
    unsafe {
        let v = [words[first], words[first + 1], words[first + 2], words[first + 3]];
        let total = _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
        let halves = (_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
        // Packing works in 128-bit halves: runs of four codes come out as 0 2 4 6, 1 3 5 7.
        let packed = _mm256_packs_epi16(halves.0, halves.1);
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let codes = _mm256_permutevar8x32_epi32(packed, order);
        let pick = _mm256_setr_epi8(
            0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3,
            5, 7, 9, 11, 13, 15,
        );
        let codes = _mm256_shuffle_epi8(codes, pick);
        (_mm256_permute4x64_epi64::<0b11_01_10_00>(codes), total)
    }
}
