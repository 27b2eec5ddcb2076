//! NEON: vectors of 128 bits. Machines differ in the product of bytes, so it is a parameter. The
//! standard library does not offer the newer instructions yet: they are written out.

use std::arch::aarch64::*;
use std::arch::asm;

use super::isa::{Isa, Kernel, WORDS};

/// NEON with a product of bytes as an instruction set.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Neon<D>(D);

/// A product of bytes. Holding a value proves that the machine has it.
pub(in crate::cpu) trait Dot: Copy {
    /// Whether codes may be larger than 15.
    const WIDE_CODES: bool;

    /// `sum` plus, in each lane, the products of four codes with word `LANE` of the inputs.
    fn add<const LANE: i32>(self, sum: int32x4_t, codes: int8x16_t, inputs: int8x16_t)
    -> int32x4_t;
}

/// Every AArch64 machine: products in 16 bits.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Multiply(());

/// With dotprod: `sdot`.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct DotProd(());

/// With i8mm: `usdot`, unsigned codes times signed inputs.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct I8mm(());

/// Runs a kernel with NEON alone.
#[target_feature(enable = "neon")]
pub(super) fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon(Multiply(())))
}

/// Runs a kernel with NEON and dotprod.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn run_dotprod<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon(DotProd(())))
}

/// Runs a kernel with NEON, dotprod and i8mm.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) fn run_i8mm<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon(I8mm(())))
}

impl Dot for Multiply {
    const WIDE_CODES: bool = false;

    #[inline(always)]
    fn add<const LANE: i32>(
        self,
        sum: int32x4_t,
        codes: int8x16_t,
        inputs: int8x16_t,
    ) -> int32x4_t {
        // SAFETY: every AArch64 machine has NEON.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(inputs)));
            // At most 2 * 15 * 127 = 3,810 in 16 bits.
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
            let pairs = vpaddq_s16(low, vmull_high_s8(codes, x));
            vpadalq_s16(sum, pairs)
        }
    }
}

/// `sum + codes · word LANE` by one instruction of an extension.
macro_rules! add_by {
    ($extension:literal, $instruction:literal) => {
        #[inline(always)]
        fn add<const LANE: i32>(
            self,
            mut sum: int32x4_t,
            codes: int8x16_t,
            inputs: int8x16_t,
        ) -> int32x4_t {
            // SAFETY: the value proves that the machine has the instruction; it touches registers only.
            unsafe {
                asm!(
                    concat!(".arch_extension ", $extension),
                    concat!($instruction, " {sum:v}.4s, {codes:v}.16b, {inputs:v}.4b[{lane}]"),
                    sum = inout(vreg) sum,
                    codes = in(vreg) codes,
                    inputs = in(vreg) inputs,
                    lane = const LANE,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    };
}

impl Dot for DotProd {
    const WIDE_CODES: bool = false;
    add_by!("dotprod", "sdot");
}

impl Dot for I8mm {
    const WIDE_CODES: bool = true;
    add_by!("i8mm", "usdot");
}

// SAFETY, for every block below: every AArch64 machine has NEON; memory is the caller's promise.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: Dot> Isa for Neon<D> {
    const LANES: usize = 4;
    const MANY_REGISTERS: bool = true;
    const WIDE_CODES: bool = D::WIDE_CODES;
    const HIGH_SHIFT: u32 = 0;

    type F = float32x4_t;
    type I = int32x4_t;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(to, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> float32x4_t {
        unsafe {
            let halves = vreinterpret_u16_u8(vld1_u8(from));
            vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> float32x4_t {
        unsafe {
            let halves = vld1_u8(from);
            let wide: float32x4_t;
            asm!(
                "fcvtl {wide:v}.4s, {halves:v}.4h",
                wide = out(vreg) wide,
                halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags)
            );
            wide
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> float32x4_t {
        unsafe {
            let bytes = vreinterpret_u8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
        }
    }
    #[inline(always)]
    unsafe fn load_u4(self, from: *const u8) -> float32x4_t {
        unsafe {
            let nibbles = vdupq_n_u32(u32::from(from.cast::<u16>().read_unaligned()));
            let shifts = vcombine_s32(
                vcreate_s32(0xffff_fffc_0000_0000),
                vcreate_s32(0xffff_fff4_ffff_fff8),
            );
            vcvtq_f32_u32(vandq_u32(vshlq_u32(nibbles, shifts), vdupq_n_u32(15)))
        }
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn sum(self, v: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(v) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        unsafe {
            asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn transpose(self, rows: *const *const u8, at: usize) -> [int32x4_t; WORDS] {
        unsafe {
            let mut out = [vdupq_n_s32(0); WORDS];
            for half in 0..2 {
                let mut r = [vdupq_n_s32(0); 4];
                for (i, r) in r.iter_mut().enumerate() {
                    *r = vreinterpretq_s32_u8(vld1q_u8((*rows.add(i)).add(at + 16 * half)));
                }
                let (a, b) = (vtrn1q_s32(r[0], r[1]), vtrn2q_s32(r[0], r[1]));
                let (c, d) = (vtrn1q_s32(r[2], r[3]), vtrn2q_s32(r[2], r[3]));
                let pair = |x: int32x4_t| vreinterpretq_s64_s32(x);
                out[4 * half] = vreinterpretq_s32_s64(vtrn1q_s64(pair(a), pair(c)));
                out[4 * half + 1] = vreinterpretq_s32_s64(vtrn1q_s64(pair(b), pair(d)));
                out[4 * half + 2] = vreinterpretq_s32_s64(vtrn2q_s64(pair(a), pair(c)));
                out[4 * half + 3] = vreinterpretq_s32_s64(vtrn2q_s64(pair(b), pair(d)));
            }
            out
        }
    }
    #[inline(always)]
    fn low_nibbles(self, v: int32x4_t) -> int32x4_t {
        unsafe { vandq_s32(v, vdupq_n_s32(0x0f0f_0f0f)) }
    }
    #[inline(always)]
    fn high_nibbles(self, v: int32x4_t) -> int32x4_t {
        unsafe { vreinterpretq_s32_u8(vshrq_n_u8::<4>(vreinterpretq_u8_s32(v))) }
    }
    #[inline(always)]
    fn unzip_bytes(self, a: int32x4_t, b: int32x4_t) -> (int32x4_t, int32x4_t) {
        const EVEN: [u8; 16] = [0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30];
        unsafe {
            let table = uint8x16x2_t(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b));
            let even = vld1q_u8(EVEN.as_ptr());
            let odd = vaddq_u8(even, vdupq_n_u8(1));
            (
                vreinterpretq_s32_u8(vqtbl2q_u8(table, even)),
                vreinterpretq_s32_u8(vqtbl2q_u8(table, odd)),
            )
        }
    }
    #[inline(always)]
    fn add_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vaddq_s32(a, b) }
    }
    #[inline(always)]
    fn shift_left_4(self, v: int32x4_t) -> int32x4_t {
        unsafe { vshlq_n_s32::<4>(v) }
    }
    #[inline(always)]
    fn shift_right_4(self, v: int32x4_t) -> int32x4_t {
        unsafe { vshrq_n_s32::<4>(v) }
    }
    #[inline(always)]
    fn to_f32(self, v: int32x4_t) -> float32x4_t {
        unsafe { vcvtq_f32_s32(v) }
    }
    #[inline(always)]
    fn as_f32(self, v: int32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_s32(v) }
    }
    #[inline(always)]
    fn bf16_low(self, v: int32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<16>(v)) }
    }
    #[inline(always)]
    fn bf16_high(self, v: int32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_s32(vandq_s32(v, vdupq_n_s32(-65536))) }
    }

    #[inline(always)]
    unsafe fn dots<const V: usize, const T: usize>(
        self,
        codes: &[[int32x4_t; V]; WORDS],
        inputs: *const i8,
    ) -> [[int32x4_t; V]; T] {
        unsafe {
            let mut sums = [[vdupq_n_s32(0); V]; T];
            for (half, codes) in codes.chunks_exact(4).enumerate() {
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = vld1q_s8(inputs.add(64 * t + 16 * half));
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = self.0.add::<0>(*sum, vreinterpretq_s8_s32(codes[0][v]), x);
                        *sum = self.0.add::<1>(*sum, vreinterpretq_s8_s32(codes[1][v]), x);
                        *sum = self.0.add::<2>(*sum, vreinterpretq_s8_s32(codes[2][v]), x);
                        *sum = self.0.add::<3>(*sum, vreinterpretq_s8_s32(codes[3][v]), x);
                    }
                }
            }
            sums
        }
    }
}
