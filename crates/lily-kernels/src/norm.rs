//! RMSNorm as its readers see it: `scale = 1 / sqrt(Σ x² / hidden + eps)` of a residual row.
//!
//! The norm in front of a block needs the whole row, but no threadgroup that writes the residual
//! stream holds one, and a launch of its own would only read again what has just been written. So
//! the norm is split. The writer ([`crate::residual`]) multiplies by the norm's weight, `xn = x ∘ w`,
//! and leaves the sum of squares of every tile of columns in `x_ss`. The reader adds these sums up
//! and multiplies by the scale: each matrix product of `xn` is linear, so the scale may come before
//! it, into the inputs, or after it, onto the results.

use crate::cpu::SharedSlice;
use crate::gpu::{Entry, msl_struct};
use crate::math::rms_scale;
use crate::shape::LaunchContext;

msl_struct! {
    /// The reader's half of the norm inside argument structs.
    pub struct NormArgs {
        /// Width of the residual stream.
        pub hidden: u32,
        /// Partial sums of squares of a residual row.
        pub ss_tiles: u32,
        /// Partial sums of squares from one row to the next.
        pub ss_stride: u32,
        /// Eps of RMSNorm.
        pub rms_eps: f32,
    }
}

impl NormArgs {
    /// The norm of a launch.
    pub fn new(cx: &LaunchContext<'_>) -> Self {
        Self {
            hidden: cx.shape.hidden as u32,
            ss_tiles: cx.ss_tiles() as u32,
            ss_stride: (cx.shape.hidden / 8) as u32,
            rms_eps: cx.shape.rms_eps,
        }
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.hidden as usize
    }

    /// Adds the constants of `norm.h` to an entry.
    pub fn constants(&self, entry: Entry) -> Entry {
        entry.constant("SS_LANE_TILES", self.ss_tiles.div_ceil(32))
    }

    /// Row `row` of a whole buffer `[rows, hidden]`.
    pub fn row<'x>(&self, x: &'x [f32], row: usize) -> &'x [f32] {
        &x[row * self.hidden()..(row + 1) * self.hidden()]
    }

    /// Scale of a row, from the whole buffer `x_ss: [rows, ss_stride]`.
    pub fn scale(&self, x_ss: &[f32], row: usize) -> f32 {
        let ss = &x_ss[row * self.ss_stride as usize..][..self.ss_tiles as usize];
        rms_scale(ss.iter().sum(), self.hidden(), self.rms_eps)
    }

    /// CPU: a row of `x: [rows, hidden]` and its scale.
    ///
    /// # Safety
    /// No tile of the launch writes either buffer.
    pub unsafe fn scaled_row<'x>(
        &self,
        x: SharedSlice<'x, f32>,
        x_ss: SharedSlice<'_, f32>,
        row: usize,
    ) -> (&'x [f32], f32) {
        let first = row * self.ss_stride as usize;
        // SAFETY: the caller rules out writers.
        let (x, ss) = unsafe {
            (
                x.read(row * self.hidden()..(row + 1) * self.hidden()),
                x_ss.read(first..first + self.ss_tiles as usize),
            )
        };
        (x, self.scale(ss, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_uses_the_sums_of_its_row_and_no_other_element() {
        let norm = NormArgs { hidden: 8, ss_tiles: 2, ss_stride: 3, rms_eps: 0.5 };
        let nan = f32::NAN;
        let mut x_ss = [nan, nan, nan, 3.0, 1.0, nan];
        assert_eq!(norm.scale(&x_ss, 1), 1.0);
        let mut x: Vec<f32> = (0..16).map(|i| i as f32).collect();
        // SAFETY: nothing else refers to the two arrays.
        let (row, scale) =
            unsafe { norm.scaled_row(SharedSlice::new(&mut x), SharedSlice::new(&mut x_ss), 1) };
        assert_eq!((row, scale), (&[8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0][..], 1.0));
    }
}
