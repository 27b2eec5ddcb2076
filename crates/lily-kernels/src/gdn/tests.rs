//! Contents for the cases of the Gated DeltaNet kernels.

use lily_plan::BufferId;

use crate::conformance::CaseBuilder;
use crate::shape::CHUNK;

/// Queries or keys of length 1, act `[rows, k_heads, k_dim]`.
pub(crate) fn unit_heads(c: &mut CaseBuilder<'_>, name: &str, rows: usize) -> BufferId {
    let (heads, k_dim) = (c.shape.k_heads, c.shape.k_dim);
    let mut values: Vec<f32> = (0..rows * heads * k_dim).map(|_| c.normal()).collect();
    for head in values.chunks_mut(k_dim) {
        let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
        head.iter_mut().for_each(|x| *x /= length);
    }
    c.act_with(name, [rows, heads, k_dim], values)
}

/// `beta`, f32 `[rows, v_heads]` in 0..1.
pub(crate) fn strengths(c: &mut CaseBuilder<'_>, rows: usize) -> BufferId {
    let heads = c.shape.v_heads;
    let values = (0..rows * heads).map(|_| c.uniform()).collect();
    c.f32_with("beta", [rows, heads], values)
}

/// `log_decay`, f32 `[rows, v_heads]` in `-size..0`.
pub(crate) fn decays(c: &mut CaseBuilder<'_>, rows: usize, size: f32) -> BufferId {
    let heads = c.shape.v_heads;
    let values = (0..rows * heads).map(|_| -size * c.uniform()).collect();
    c.f32_with("log_decay", [rows, heads], values)
}

/// `chunk_g`, f32 `[rows, v_heads]`: sums of decays in `-size..0`, from the start of each chunk.
pub(crate) fn chunk_sums(c: &mut CaseBuilder<'_>, rows: usize, size: f32) -> BufferId {
    let heads = c.shape.v_heads;
    let mut sums = vec![0.0; heads];
    let mut values = Vec::new();
    for row in 0..rows {
        if row % CHUNK == 0 {
            sums.fill(0.0);
        }
        sums.iter_mut().for_each(|sum| *sum -= size * c.uniform());
        values.extend_from_slice(&sums);
    }
    c.f32_with("chunk_g", [rows, heads], values)
}
