//! The projections' common body: a block of matrix rows times a block of normalised inputs.

use super::{CpuLaunch, Scratch, product_rows};
use crate::norm::NormArgs;
use crate::shape::StepArgs;

/// Matrix rows of one tile: enough work to hide the preparation of the inputs.
const TILE_ROWS: usize = 128;
/// Input rows of one tile in prefill; they stay in the second-level cache.
const TILE_TOKENS: usize = 32;

/// Matrix rows multiplied together: they and a few inputs share the first-level cache.
const BLOCK_ROWS: usize = 8;

/// A projection of `xn`, scaled by `1 / rms(x)`.
pub struct Projection {
    step: StepArgs,
    norm: NormArgs,
    control: usize,
    xn: usize,
    x_ss: usize,
    weight: usize,
}

impl Projection {
    /// The projection of a launch, with the indices of its bindings: control block, inputs f32
    /// `[rows, hidden]`, their partial sums of squares f32 `[rows, ss_stride]`, and the matrix.
    pub fn new(step: StepArgs, norm: NormArgs, [control, xn, x_ss, weight]: [usize; 4]) -> Self {
        Self { step, norm, control, xn, x_ss, weight }
    }

    /// Tiles of the launch.
    pub fn tiles(&self, l: &CpuLaunch<'_>) -> usize {
        let live = self.step.live_rows(l.control(self.control)).len();
        live.div_ceil(TILE_TOKENS) * l.matrix(self.weight).rows().div_ceil(TILE_ROWS)
    }

    /// Computes one tile and hands every result to `store(matrix row, input row, value)`.
    pub fn run(
        &self,
        l: &CpuLaunch<'_>,
        tile: usize,
        scratch: &mut Scratch,
        mut store: impl FnMut(usize, usize, f32),
    ) {
        let matrix = l.matrix(self.weight);
        let row_tiles = matrix.rows().div_ceil(TILE_ROWS);
        let live = self.step.live_rows(l.control(self.control));
        let tokens = live.part(TILE_TOKENS, tile / row_tiles);
        scratch.inputs.clear(l.numerics, self.norm.hidden());
        for row in tokens.iter() {
            // SAFETY: no launch that reads `xn` or `x_ss` writes them.
            let (x, scale) = unsafe { self.norm.scaled_row(l.f32(self.xn), l.f32(self.x_ss), row) };
            scratch.inputs.push(x, scale);
        }
        let rows = super::part(matrix.rows(), TILE_ROWS, tile % row_tiles);
        let mut out = [0.0; BLOCK_ROWS * TILE_TOKENS];
        for block in rows.clone().step_by(BLOCK_ROWS) {
            // A last, shorter block names its last row several times and multiplies it once.
            let n = BLOCK_ROWS.min(rows.end - block);
            let refs: [_; BLOCK_ROWS] =
                std::array::from_fn(|i| matrix.row(0, block + i.min(n - 1)));
            let out = &mut out[..n * tokens.len()];
            product_rows(l.simd, &refs[..n], &scratch.inputs, out);
            for (i, out) in out.chunks_exact(tokens.len()).enumerate() {
                for (token, &value) in tokens.iter().zip(out) {
                    store(block + i, token, value);
                }
            }
        }
    }
}
