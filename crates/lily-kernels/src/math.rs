//! Scalar formulas shared by references and CPU kernels.

/// Logistic function, without overflow.
pub fn sigmoid(x: f32) -> f32 {
    let e = (-x.abs()).exp();
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, without overflow.
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Dot product accumulated in f64: the oracle's.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
}

/// Sum of squares accumulated in f64.
pub fn sum_of_squares(x: &[f32]) -> f32 {
    dot(x, x)
}

/// `1 / sqrt(sum / n + eps)`: the scale of RMSNorm from a sum of squares.
pub fn rms_scale(sum_of_squares: f32, n: usize, eps: f32) -> f32 {
    1.0 / (sum_of_squares / n as f32 + eps).sqrt()
}

/// `cos` and `sin` of the rotary angle of pair `i` at a position, angle in f64.
pub fn rotary(position: usize, i: usize, rotary_dim: usize, theta: f64) -> (f32, f32) {
    let angle = position as f64 * theta.powf(-2.0 * i as f64 / rotary_dim as f64);
    (angle.cos() as f32, angle.sin() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_stay_finite_at_large_arguments() {
        for x in [-200.0, -30.0, 0.0, 30.0, 200.0] {
            assert!(sigmoid(x).is_finite() && silu(x).is_finite() && softplus(x).is_finite());
        }
        assert_eq!(softplus(200.0), 200.0);
        assert_eq!(sigmoid(0.0), 0.5);
    }
}
