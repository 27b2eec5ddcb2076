//! Plain Rust: any machine, Miri, and the twin that the other instruction sets are tested against.

use half::{bf16, f16};

use super::isa::{Isa, Kernel, TURNED_BYTES, WORDS};

/// Lanes that a compiler can keep in vectors of any width.
const LANES: usize = 8;

/// Plain Rust as an instruction set.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Portable;

/// Runs a kernel in plain Rust.
#[inline(never)]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Portable)
}

type F = [f32; LANES];
type I = [i32; LANES];

/// Applies a function lane by lane.
macro_rules! lanes {
    ($lane:ident => $value:expr) => {{
        let mut out = [Default::default(); LANES];
        for ($lane, out) in out.iter_mut().enumerate() {
            *out = $value;
        }
        out
    }};
}

impl Isa for Portable {
    const LANES: usize = LANES;
    const MANY_REGISTERS: bool = false;
    const WIDE_CODES: bool = true;
    const HIGH_SHIFT: u32 = 0;

    type F = F;
    type I = I;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> F {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: F) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> F {
        // SAFETY: the caller's promise.
        let halves = unsafe { from.cast::<[[u8; 2]; LANES]>().read() };
        lanes!(i => bf16::from_le_bytes(halves[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> F {
        // SAFETY: the caller's promise.
        let halves = unsafe { from.cast::<[[u8; 2]; LANES]>().read() };
        lanes!(i => f16::from_le_bytes(halves[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> F {
        // SAFETY: the caller's promise.
        let bytes = unsafe { from.cast::<[u8; LANES]>().read() };
        lanes!(i => f32::from(bytes[i]))
    }
    #[inline(always)]
    unsafe fn load_u4(self, from: *const u8) -> F {
        // SAFETY: the caller's promise.
        let bytes = unsafe { from.cast::<[u8; LANES / 2]>().read() };
        lanes!(i => f32::from((bytes[i / 2] >> (4 * (i % 2))) & 15))
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        lanes!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn mul_add(self, a: F, b: F, c: F) -> F {
        lanes!(i => a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn sum(self, v: F) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}

    #[inline(always)]
    unsafe fn transpose(self, rows: *const *const u8, at: usize) -> [I; WORDS] {
        let mut out = [[0; LANES]; WORDS];
        for row in 0..LANES {
            // SAFETY: the caller's promise: `LANES` rows with 32 bytes from `at`.
            let bytes = unsafe { (*rows.add(row)).add(at).cast::<[u8; TURNED_BYTES]>().read() };
            for (out, word) in out.iter_mut().zip(bytes.as_chunks().0) {
                out[row] = i32::from_le_bytes(*word);
            }
        }
        out
    }
    #[inline(always)]
    fn low_nibbles(self, v: I) -> I {
        lanes!(i => v[i] & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn high_nibbles(self, v: I) -> I {
        lanes!(i => (v[i] >> 4) & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn unzip_bytes(self, a: I, b: I) -> (I, I) {
        let pick = |a: i32, b: i32, first: usize| {
            let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
            i32::from_le_bytes([a[first], a[first + 2], b[first], b[first + 2]])
        };
        (lanes!(i => pick(a[i], b[i], 0)), lanes!(i => pick(a[i], b[i], 1)))
    }
    #[inline(always)]
    fn add_i32(self, a: I, b: I) -> I {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    fn shift_left_4(self, v: I) -> I {
        lanes!(i => v[i] << 4)
    }
    #[inline(always)]
    fn shift_right_4(self, v: I) -> I {
        lanes!(i => v[i] >> 4)
    }
    #[inline(always)]
    fn to_f32(self, v: I) -> F {
        lanes!(i => v[i] as f32)
    }
    #[inline(always)]
    fn as_f32(self, v: I) -> F {
        lanes!(i => f32::from_bits(v[i] as u32))
    }
    #[inline(always)]
    fn bf16_low(self, v: I) -> F {
        lanes!(i => f32::from_bits((v[i] as u32) << 16))
    }
    #[inline(always)]
    fn bf16_high(self, v: I) -> F {
        lanes!(i => f32::from_bits(v[i] as u32 & 0xffff_0000))
    }

    #[inline(always)]
    unsafe fn dots<const V: usize, const T: usize>(
        self,
        codes: &[[I; V]; WORDS],
        inputs: *const i8,
    ) -> [[I; V]; T] {
        let mut out = [[[0; LANES]; V]; T];
        for (t, out) in out.iter_mut().enumerate() {
            for (word, codes) in codes.iter().enumerate() {
                // SAFETY: the caller's promise: 32 codes for each of `T` inputs, 64 apart.
                let x = unsafe { inputs.add(64 * t + 4 * word).cast::<[i8; 4]>().read() };
                for (sums, codes) in out.iter_mut().zip(codes) {
                    for (sum, code) in sums.iter_mut().zip(codes) {
                        for (code, x) in code.to_le_bytes().into_iter().zip(x) {
                            *sum += i32::from(code) * i32::from(x);
                        }
                    }
                }
            }
        }
        out
    }
}
