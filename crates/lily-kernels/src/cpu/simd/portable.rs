//! Plain Rust bodies: eight running sums, as a compiler can keep them in vectors of any width.

use half::bf16;

use crate::cpu::lanes::{LANES, sum_lanes};

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_with(a, b, |v| v)
}

pub(super) fn dot_bf16(a: &[f32], b: &[bf16]) -> f32 {
    dot_with(a, b, bf16::to_f32)
}

fn dot_with<T: Copy>(a: &[f32], b: &[T], widen: impl Fn(T) -> f32) -> f32 {
    let n = a.len().min(b.len());
    let mut sums = [0.0; LANES];
    for (a, b) in a[..n].chunks(LANES).zip(b[..n].chunks(LANES)) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * widen(b);
        }
    }
    sum_lanes(sums)
}

pub(super) fn axpy(alpha: f32, x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += alpha * x;
    }
}

pub(super) fn axpy_bf16(alpha: f32, x: &[bf16], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += alpha * x.to_f32();
    }
}

pub(super) fn scale(alpha: f32, y: &mut [f32]) {
    for y in y {
        *y *= alpha;
    }
}
