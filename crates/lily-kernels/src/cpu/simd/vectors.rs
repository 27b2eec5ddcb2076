//! Bodies of the operations on whole slices.

use half::bf16;

use super::isa::{Isa, Kernel};

/// Vectors summed side by side, to hide the latency of a multiply-add.
const CHAINS: usize = 4;

/// An element that is widened to f32.
pub(super) trait Element: Copy {
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
                *sum = unsafe { s.fma(s.load(a.add(i)), T::load(s, b.add(i)), *sum) };
            }
            at += CHAINS * S::LANES;
        }
        while at + S::LANES <= n {
            // SAFETY: as above.
            sums[0] = unsafe { s.fma(s.load(a.add(at)), T::load(s, b.add(at)), sums[0]) };
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
            unsafe { s.store(y.add(at), s.fma(alpha, T::load(s, x.add(at)), s.load(y.add(at)))) };
            at += S::LANES;
        }
        while at < n {
            self.2[at] = self.0.mul_add(self.1[at].widen(), self.2[at]);
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
