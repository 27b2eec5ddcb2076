//! The input projections' common body: the whole merged matrix times the normalised inputs.

use super::{CpuLaunch, ProductTiles, Scratch, multiply};
use crate::norm::NormArgs;
use crate::shape::StepArgs;

/// Matrix rows of one tile: enough work to hide the preparation of the inputs.
const TILE_ROWS: usize = 128;

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
    pub fn tiles<'a>(&self, l: &CpuLaunch<'a>) -> ProductTiles<'a> {
        let live = self.step.live_rows(l.control(self.control));
        ProductTiles { live, rows: l.matrix(self.weight).rows(), tile_rows: TILE_ROWS }
    }

    /// Computes one tile and hands the results of each input to `store(first matrix row, input row,
    /// results)`.
    pub fn run(
        &self,
        l: &CpuLaunch<'_>,
        tile: usize,
        scratch: &mut Scratch,
        mut store: impl FnMut(usize, usize, &[f32]),
    ) {
        let (tokens, rows) = self.tiles(l).nth(tile);
        let Scratch { inputs, floats, .. } = scratch;
        let (matrix, n) = (l.matrix(self.weight), tokens.len());
        if inputs.begin(l, l.numerics, matrix, (tokens.nth(0), n)) {
            for row in tokens.iter() {
                // SAFETY: no launch that reads `xn` or `x_ss` writes them.
                let (x, scale) =
                    unsafe { self.norm.scaled_row(l.f32(self.xn), l.f32(self.x_ss), row) };
                inputs.push(x, scale);
            }
        }
        let results = multiply(l.simd, matrix, (0, rows.clone()), inputs, 0..n, floats);
        for (token, results) in tokens.iter().zip(results.chunks_exact(rows.len())) {
            store(rows.start, token, results);
        }
    }
}
