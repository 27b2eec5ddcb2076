//! Output projection of an attention layer: `x += att · Wᵀ`, then the residual epilogue.
//!
//! Decode is a GEMV with 8 output rows for each threadgroup, prefill a GEMM with 64 columns. `att`
//! is already gated.

mod chunk;
#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::gemv::{GEMV_ROWS, Gemv};
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::residual::{ResidualArgs, ResidualBuffers};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "attn_out",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Residual epilogue.
        pub residual: ResidualArgs,
        /// Width of all query heads.
        pub q_width: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const ATT: usize = 1;
    pub const WEIGHT: usize = 2;
    /// x, next_norm, xn, x_ss.
    pub const RESIDUAL: usize = 3;
    pub const X: usize = RESIDUAL;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, q_width]`.
    pub att: BufferId,
    /// matrix `[hidden, q_width]`.
    pub weight: BufferId,
    /// The residual stream and what is derived from it.
    pub residual: ResidualBuffers,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        residual: ResidualArgs::new(cx),
        q_width: shape.q_width() as u32,
    };
    let mut bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("att", buffers.att, access::rows(cx)),
        Binding::read("weight", buffers.weight, access::whole()),
    ];
    bindings.extend(buffers.residual.adding(cx));
    let macs = (shape.hidden * shape.q_width()) as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        cx.projection_grid(shape.hidden, 64),
        cx.projection_threads(),
        move |live| 2 * macs * live.rows().len() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    if a.step.is_prefill() && a.step.rows > GEMV_ROWS {
        return chunk::chunk_entry(launch);
    }
    let (rows, columns) = (a.residual.hidden, a.residual.ss_columns);
    let gemv = Gemv { format: launch.format(bind::WEIGHT)?, k: a.q_width, rows };
    let tile = gemv.residual(launch.target, columns, a.step.rows);
    let entry = gemv.constants(launch.entry("attn_out"), tile).constant("COLUMNS", columns);
    Ok(entry.over(gemv.grid(tile, a.step.rows), tile.threads()))
}
