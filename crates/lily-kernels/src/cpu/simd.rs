//! Vector operations, chosen once for the machine.

use half::bf16;

/// The instruction set in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd {}

impl Simd {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        Self {}
    }

    /// Plain Rust, for tests and for machines without a known instruction set.
    pub fn portable() -> Self {
        Self {}
    }

    /// `sum a[i] * b[i]`, in f32.
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    /// `sum a[i] * b[i]` with bfloat16 `b`.
    pub fn dot_bf16(self, a: &[f32], b: &[bf16]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b.to_f32()).sum()
    }

    /// `y += alpha * x`.
    pub fn axpy(self, alpha: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += alpha * x;
        }
    }

    /// `y += alpha * x` with bfloat16 `x`.
    pub fn axpy_bf16(self, alpha: f32, x: &[bf16], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += alpha * x.to_f32();
        }
    }

    /// `y *= alpha`.
    pub fn scale(self, alpha: f32, y: &mut [f32]) {
        for y in y {
            *y *= alpha;
        }
    }
}
