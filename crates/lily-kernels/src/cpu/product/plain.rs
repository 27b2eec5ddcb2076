//! f32 inputs times rows widened to f32: one row at a time, along it.

use half::bf16;
use lily_plan::{GROUP, RowFormat, RowRef};

use super::inputs::Inputs;
use crate::cpu::Simd;
use crate::cpu::simd::{Isa, Kernel};

/// Vectors summed side by side, to hide the latency of a multiply-add.
const CHAINS: usize = 4;
/// Bytes of the widest group.
const MOST_BYTES: usize = 4 * GROUP;

/// Products of one row with the inputs from `first`: `out[i * stride]` for input `first + i`.
pub(super) fn multiply(
    simd: Simd,
    row: &RowRef<'_>,
    inputs: &Inputs,
    (first, tokens): (usize, usize),
    (out, stride): (&mut [f32], usize),
) {
    simd.run(Product { row, inputs, first, tokens, out, stride });
}

struct Product<'a> {
    row: &'a RowRef<'a>,
    inputs: &'a Inputs,
    first: usize,
    tokens: usize,
    out: &'a mut [f32],
    stride: usize,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        match self.row.format {
            RowFormat::Q4 => self.blocks::<S, Q4>(s),
            RowFormat::Q8 => self.blocks::<S, Q8>(s),
            RowFormat::Bf16 => self.blocks::<S, Bf16>(s),
            RowFormat::F16 => self.blocks::<S, F16>(s),
            RowFormat::F32 => self.blocks::<S, F32>(s),
        }
    }
}

/// How codes or values are widened to f32.
trait Widen {
    /// Bytes of a group of 64.
    const BYTES: usize;
    /// Whether the results are codes, to be scaled.
    const CODES: bool;

    /// A vector of elements from element `at` of a group on.
    ///
    /// # Safety
    /// `group` points to `BYTES` bytes, and `at` is a multiple of the lanes.
    unsafe fn vector<S: Isa>(s: S, group: *const u8, at: usize) -> S::F;
}

/// Declares a format: its bytes for 64 elements, and the load.
macro_rules! widen {
    ($name:ident, $bytes:expr, $codes:expr, $load:ident) => {
        struct $name;

        impl Widen for $name {
            const BYTES: usize = $bytes;
            const CODES: bool = $codes;

            #[inline(always)]
            unsafe fn vector<S: Isa>(s: S, group: *const u8, at: usize) -> S::F {
                // SAFETY: the caller's promise.
                unsafe { s.$load(group.add(at * $bytes / GROUP).cast()) }
            }
        }
    };
}

widen!(Q4, GROUP / 2, true, load_u4);
widen!(Q8, GROUP, true, load_u8);
widen!(Bf16, 2 * GROUP, false, load_bf16);
widen!(F16, 2 * GROUP, false, load_f16);
widen!(F32, 4 * GROUP, false, load);

impl Product<'_> {
    #[inline(always)]
    fn blocks<S: Isa, W: Widen>(mut self, s: S) {
        let mut t = 0;
        while S::MANY_REGISTERS && t + 4 <= self.tokens {
            let sums = self.groups::<S, W, 4>(s, t);
            self.store(t, sums);
            t += 4;
        }
        while t + 2 <= self.tokens {
            let sums = self.groups::<S, W, 2>(s, t);
            self.store(t, sums);
            t += 2;
        }
        if t < self.tokens {
            let sums = self.groups::<S, W, 1>(s, t);
            self.store(t, sums);
        }
    }

    #[inline(always)]
    fn store<const T: usize>(&mut self, t: usize, sums: [f32; T]) {
        for (i, sum) in sums.into_iter().enumerate() {
            self.out[(t + i) * self.stride] = sum;
        }
    }

    #[inline(always)]
    fn groups<S: Isa, W: Widen, const T: usize>(&self, s: S, t: usize) -> [f32; T] {
        let row = self.row;
        let mut values = [self.inputs.values(self.first + t); T];
        for (i, values) in values.iter_mut().enumerate() {
            *values = self.inputs.values(self.first + t + i);
        }
        // Zeros past the end of the row meet zeros of the inputs.
        let whole = row.codes.len() / W::BYTES;
        let rest = &row.codes[whole * W::BYTES..];
        let mut last = [0; MOST_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        let mut sums = [[s.splat(0.0); CHAINS]; T];
        for g in 0..row.codes.len().div_ceil(W::BYTES) {
            let group = match g < whole {
                true => row.codes[g * W::BYTES..].as_ptr(),
                false => last.as_ptr(),
            };
            let (mut scale, mut bias) = (s.splat(0.0), s.splat(0.0));
            if W::CODES {
                scale = s.splat(value(row.scales, g));
                bias = s.splat(value(row.biases, g));
            }
            let mut x = [values[0][g].as_ptr(); T];
            for (x, values) in x.iter_mut().zip(values) {
                *x = values[g].as_ptr();
            }
            for i in 0..GROUP / S::LANES {
                // SAFETY: `group` points to a whole group of the row, or to the filled up last one; a
                // group of inputs has 64 values.
                unsafe {
                    let mut weights = W::vector(s, group, i * S::LANES);
                    if W::CODES {
                        // The product is exact, so the sum is rounded once, as in
                        // `RowRef::dequantise`.
                        weights = s.mul_add(scale, weights, bias);
                    }
                    for (sums, x) in sums.iter_mut().zip(x) {
                        let x = s.load(x.add(i * S::LANES));
                        sums[i % CHAINS] = s.mul_add(weights, x, sums[i % CHAINS]);
                    }
                }
            }
        }
        let mut out = [0.0; T];
        for (out, c) in out.iter_mut().zip(sums) {
            *out = s.sum(s.add(s.add(c[0], c[1]), s.add(c[2], c[3])));
        }
        out
    }
}

#[inline(always)]
fn value(bytes: &[u8], g: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * g], bytes[2 * g + 1]]).to_f32()
}
