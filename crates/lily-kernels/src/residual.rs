//! The residual epilogue, shared by every kernel that ends a block: `x += result` on owned columns,
//! then `xn = x ∘ w_next` as the next matrix input, and the sum of squares of each tile of columns.
//! This is the writer's half of the next norm; [`crate::norm`] is the reader's.
//!
//! The four bindings stand together, in this order: `x`, `next_norm`, `xn`, `x_ss`.

use std::ops::Range;

use lily_plan::{Binding, BufferId, ReferenceIo};

use crate::access;
use crate::cpu::CpuLaunch;
use crate::gpu::msl_struct;
use crate::math::sum_of_squares;
use crate::shape::LaunchContext;

const X: usize = 0;
const NEXT_NORM: usize = 1;
const XN: usize = 2;
const X_SS: usize = 3;

/// Buffers of the epilogue.
#[derive(Clone, Copy, Debug)]
pub struct ResidualBuffers {
    /// Residual stream, f32 `[rows, hidden]`.
    pub x: BufferId,
    /// Weight of the next norm, `[hidden]`.
    pub next_norm: BufferId,
    /// Next matrix input, act `[rows, hidden]`.
    pub xn: BufferId,
    /// Partial sums of squares, f32 `[rows, hidden / 8]`.
    pub x_ss: BufferId,
}

impl ResidualBuffers {
    /// Bindings of a kernel that adds to the residual stream.
    pub fn adding(self, cx: &LaunchContext<'_>) -> [Binding; 4] {
        let x = Binding::owned("x", self.x, access::rows(cx), access::rows(cx));
        self.with(x, cx)
    }

    /// Bindings of the kernel that starts the residual stream.
    pub fn setting(self, cx: &LaunchContext<'_>) -> [Binding; 4] {
        let x = Binding::write("x", self.x, access::rows(cx));
        self.with(x, cx)
    }

    fn with(self, x: Binding, cx: &LaunchContext<'_>) -> [Binding; 4] {
        [
            x,
            Binding::read("next_norm", self.next_norm, access::whole()),
            Binding::write("xn", self.xn, access::rows(cx)),
            Binding::write("x_ss", self.x_ss, access::ss(cx)),
        ]
    }
}

msl_struct! {
    /// The epilogue inside argument structs.
    pub struct ResidualArgs {
        /// Width of the residual stream.
        pub hidden: u32,
        /// Columns that share one partial sum of squares.
        pub ss_columns: u32,
        /// Partial sums of squares from one row to the next.
        pub ss_stride: u32,
    }
}

impl ResidualArgs {
    /// The epilogue of a launch.
    pub fn new(cx: &LaunchContext<'_>) -> Self {
        Self {
            hidden: cx.shape.hidden as u32,
            ss_columns: cx.ss_columns() as u32,
            ss_stride: (cx.shape.hidden / 8) as u32,
        }
    }

    /// Reference: stores a whole new residual row. `first` is the index of the binding `x`.
    pub fn store_row(&self, io: &mut ReferenceIo<'_>, first: usize, row: usize, x: &[f32]) {
        let hidden = self.hidden as usize;
        let weight = io.f32(first + NEXT_NORM);
        let xn: Vec<f32> = x.iter().zip(weight.iter()).map(|(x, w)| x * w).collect();
        let ss: Vec<f32> = x.chunks(self.ss_columns as usize).map(sum_of_squares).collect();
        io.store(first + X, row * hidden, x);
        io.store(first + XN, row * hidden, xn);
        io.store(first + X_SS, row * self.ss_stride as usize, ss);
    }

    /// CPU: adds `result` to `columns` of a residual row (or sets them, if `add` is false) and
    /// derives the rest. The columns are whole tiles of `ss_columns`.
    ///
    /// # Safety
    /// These columns of this row belong to the calling tile.
    pub unsafe fn store_columns(
        &self,
        l: &CpuLaunch<'_>,
        first: usize,
        row: usize,
        columns: Range<usize>,
        result: &[f32],
        write: Write,
    ) {
        let base = row * self.hidden as usize;
        let span = base + columns.start..base + columns.end;
        let tile = self.ss_columns as usize;
        debug_assert!(columns.start.is_multiple_of(tile) && columns.end.is_multiple_of(tile));
        let ss_base = row * self.ss_stride as usize;
        let ss_span = ss_base + columns.start / tile..ss_base + columns.end / tile;
        // SAFETY: the caller owns these columns; the norm's weight is never written.
        let (x, xn, ss, weight) = unsafe {
            (
                l.f32(first + X).write(span.clone()),
                l.f32(first + XN).write(span),
                l.f32(first + X_SS).write(ss_span),
                l.f32(first + NEXT_NORM).read(columns),
            )
        };
        for ((x, xn), (result, weight)) in x.iter_mut().zip(xn).zip(result.iter().zip(weight)) {
            *x = match write {
                Write::Add => *x + result,
                Write::Set => *result,
            };
            *xn = *x * weight;
        }
        for (ss, x) in ss.iter_mut().zip(x.chunks(tile)) {
            *ss = l.simd.dot(x, x);
        }
    }
}

/// What the epilogue does with the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Adds it to the residual stream.
    Add,
    /// Starts the residual stream with it.
    Set,
}
