//! Bodies of the operations on whole slices.

use half::bf16;

use super::isa::{Isa, Kernel};

/// Vectors summed side by side, to hide the latency of a multiply-add.
const CHAINS: usize = 4;
/// Elements of a line of memory.
const LINE: usize = 16;

/// An element that is widened to f32.
pub(crate) trait Element: Copy {
    /// `LANES` elements.
    ///
    /// # Safety
    /// `from` points to so many.
    unsafe fn load<S: Isa>(s: S, from: *const Self) -> S::F;
    /// One element.
    fn widen(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, from: *const Self) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load(from) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, from: *const Self) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(from.cast()) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// Asks for the memory of a slice.
pub(super) struct Ask<'a>(pub &'a [f32]);

impl Kernel for Ask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let mut at = 0;
        while at < self.0.len() {
            s.prefetch(self.0.as_ptr().wrapping_add(at).cast());
            at += LINE;
        }
    }
}

/// `sum a[i] * b[i]`.
pub(super) struct Dot<'a, T>(pub &'a [f32], pub &'a [T]);

impl<T: Element> Kernel for Dot<'_, T> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Isa>(self, s: S) -> f32 {
        let n = self.0.len().min(self.1.len());
        let (a, b) = (self.0.as_ptr(), self.1.as_ptr());
        let mut sums = [s.splat(0.0); CHAINS];
        let mut at = 0;
        while at + CHAINS * S::LANES <= n {
            for (i, sum) in sums.iter_mut().enumerate() {
                let i = at + i * S::LANES;
                // SAFETY: `LANES` elements from `i` are below `n`.
                *sum = unsafe { s.mul_add(s.load(a.add(i)), T::load(s, b.add(i)), *sum) };
            }
            at += CHAINS * S::LANES;
        }
        while at + S::LANES <= n {
            // SAFETY: as above.
            sums[0] = unsafe { s.mul_add(s.load(a.add(at)), T::load(s, b.add(at)), sums[0]) };
            at += S::LANES;
        }
        let mut sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
        while at < n {
            sum += self.0[at] * self.1[at].widen();
            at += 1;
        }
        sum
    }
}

/// `y += alpha * x`.
pub(super) struct Axpy<'a, T>(pub f32, pub &'a [T], pub &'a mut [f32]);

impl<T: Element> Kernel for Axpy<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let n = self.1.len().min(self.2.len());
        let (x, y) = (self.1.as_ptr(), self.2.as_mut_ptr());
        let alpha = s.splat(self.0);
        let mut at = 0;
        while at + S::LANES <= n {
            // SAFETY: `LANES` elements from `at` are below `n`.
            unsafe {
                s.store(y.add(at), s.mul_add(alpha, T::load(s, x.add(at)), s.load(y.add(at))))
            };
            at += S::LANES;
        }
        while at < n {
            self.2[at] += self.0 * self.1[at].widen();
            at += 1;
        }
    }
}

/// `y *= alpha`.
pub(super) struct Scale<'a>(pub f32, pub &'a mut [f32]);

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, _s: S) {
        for y in self.1 {
            *y *= self.0;
        }
    }
}

/// `y += a ∘ x`.
pub(super) struct AddProduct<'a>(pub &'a [f32], pub &'a [f32], pub &'a mut [f32]);

impl Kernel for AddProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, _s: S) {
        // Plain, so that the compiler vectorises it for the instruction set.
        for ((y, a), x) in self.2.iter_mut().zip(self.0).zip(self.1) {
            *y += a * x;
        }
    }
}

/// `x ← e^x`.
pub(super) struct Exp<'a>(pub &'a mut [f32]);

impl Kernel for Exp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, _s: S) {
        for x in self.0 {
            *x = exp_one(*x);
        }
    }
}

/// `x ← x sigmoid(x)`.
pub(super) struct Silu<'a>(pub &'a mut [f32]);

impl Kernel for Silu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, _s: S) {
        for x in self.0 {
            *x /= 1.0 + exp_one(-*x);
        }
    }
}

/// `h[i] = silu(pairs[2 i]) * pairs[2 i + 1]`.
pub(super) struct Gated<'a>(pub &'a [[f32; 2]], pub &'a mut [f32]);

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, _s: S) {
        for (h, [gate, up]) in self.1.iter_mut().zip(self.0) {
            *h = gate / (1.0 + exp_one(-gate)) * up;
        }
    }
}

/// `e^x` without branches, so that the compiler vectorises its callers: for finite x, held between `e^-87` and `e^88` so that it stays a normal number:
/// `2^n e^f` with `|f| <= ln(2) / 2` and the Taylor polynomial of degree 7.
#[inline(always)]
fn exp_one(x: f32) -> f32 {
    /// Added to a small number, it leaves its nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// `ln 2` in two parts: `n` times the first is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let n = x * std::f32::consts::LOG2_E + ROUND;
    let power = f32::from_bits((n.to_bits() << 23).wrapping_add(0x3f80_0000));
    let n = n - ROUND;
    let f = x - n * LN2_HIGH - n * LN2_LOW;
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * f + coefficient;
    }
    sum * power
}

/// `to = from`, widened.
pub(super) struct Widen<'a, T>(pub &'a [T], pub &'a mut [f32]);

impl<T: Element> Kernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, _s: S) {
        for (to, from) in self.1.iter_mut().zip(self.0) {
            *to = from.widen();
        }
    }
}
