//! Inputs of matrix products, prepared once for many rows, and the product itself.

use lily_plan::RowRef;

use super::{Numerics, Simd};

/// Input rows `[tokens, k]` of a matrix product.
#[derive(Default)]
pub struct Inputs {
    k: usize,
    tokens: usize,
    values: Vec<f32>,
}

impl Inputs {
    /// Starts a new set of rows of `k` values.
    pub fn clear(&mut self, _numerics: Numerics, k: usize) {
        self.k = k;
        self.tokens = 0;
        self.values.clear();
    }

    /// Adds one input row, each value times `factor`.
    pub fn push(&mut self, row: &[f32], factor: f32) {
        self.values.extend(row.iter().map(|v| v * factor));
        self.tokens += 1;
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

/// `out[t] = row · inputs[t]` for all input rows.
pub fn product(simd: Simd, row: RowRef<'_>, inputs: &Inputs, out: &mut [f32]) {
    let mut weights = vec![0.0; inputs.k];
    row.dequantise(&mut weights);
    for (out, x) in out.iter_mut().zip(inputs.values.chunks(inputs.k)) {
        *out = simd.dot(&weights, x);
    }
}
