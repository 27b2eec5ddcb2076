//! Vector operations, chosen once for the machine.
//!
//! Every operation has a portable body and one for each instruction set. Each body sums in a fixed
//! order, so two runs at one level give the same bits; levels differ by rounding only.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
mod portable;
#[cfg(test)]
mod tests;

use std::fmt;

use half::bf16;

/// An instruction set with its own bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// Plain Rust: any machine, and Miri.
    Portable,
    /// AVX2 with FMA and F16C: x86-64 machines since 2013.
    #[cfg(target_arch = "x86_64")]
    Avx2Fma,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "plain Rust",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Fma => "AVX2 with FMA and F16C",
        })
    }
}

/// The instruction set in use. Holding a level proves that this machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd {
    level: Level,
}

/// Calls the body of the level.
macro_rules! dispatch {
    ($simd:expr, $name:ident($($arg:expr),*)) => {
        match $simd.level {
            Level::Portable => portable::$name($($arg),*),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level is only set after the machine was seen to have it.
            Level::Avx2Fma => unsafe { avx2::$name($($arg),*) },
        }
    };
}

impl Simd {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if !cfg!(miri)
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Self { level: Level::Avx2Fma };
        }
        Self::portable()
    }

    /// Plain Rust, for tests and for machines without a known instruction set.
    pub fn portable() -> Self {
        Self { level: Level::Portable }
    }

    /// All levels of this machine, the portable one first.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::portable(), Self::detect()];
        all.dedup();
        all
    }

    /// The instruction set.
    pub fn level(self) -> Level {
        self.level
    }

    /// `sum a[i] * b[i]`, in f32. The shorter length counts, here and below.
    #[inline]
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        dispatch!(self, dot(a, b))
    }

    /// `sum a[i] * b[i]` with bfloat16 `b`.
    #[inline]
    pub fn dot_bf16(self, a: &[f32], b: &[bf16]) -> f32 {
        dispatch!(self, dot_bf16(a, b))
    }

    /// `y += alpha * x`.
    #[inline]
    pub fn axpy(self, alpha: f32, x: &[f32], y: &mut [f32]) {
        dispatch!(self, axpy(alpha, x, y));
    }

    /// `y += alpha * x` with bfloat16 `x`.
    #[inline]
    pub fn axpy_bf16(self, alpha: f32, x: &[bf16], y: &mut [f32]) {
        dispatch!(self, axpy_bf16(alpha, x, y));
    }

    /// `y *= alpha`.
    #[inline]
    pub fn scale(self, alpha: f32, y: &mut [f32]) {
        dispatch!(self, scale(alpha, y));
    }
}
