//! End of the grouped expert block: `x += Σ_slot moe_y[slot]`, slots in order, the shared expert
//! last, and the residual epilogue.
//!
//! A threadgroup owns 256 columns of one row.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::residual::{ResidualArgs, ResidualBuffers};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "combine",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Experts of a token, with the shared one.
        pub slots: u32,
        /// The epilogue.
        pub residual: ResidualArgs,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const MOE_Y: usize = 1;
    /// First of the epilogue's four.
    pub const X: usize = 2;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// f32 `[rows, slots, hidden]`, route weights applied.
    pub moe_y: BufferId,
    /// The epilogue.
    pub residual: ResidualBuffers,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args =
        Args { step: cx.step_args(), slots: shape.slots() as u32, residual: ResidualArgs::new(cx) };
    let mut bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("moe_y", buffers.moe_y, access::rows(cx)),
    ];
    bindings.extend(buffers.residual.adding(cx));
    let grid = [shape.hidden.div_ceil(256) as u32, cx.step.rows() as u32, 1];
    let flops = (shape.slots() * shape.hidden) as u64;
    Launch::new(KERNEL.name, cx.layer, args, bindings, grid, 64, move |live| {
        flops * live.rows().len() as u64
    })
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let (hidden, ss_columns) = (a.residual.hidden, a.residual.ss_columns);
    Unsupported::unless_multiple("hidden", hidden, 8)?;
    Ok(launch
        .entry("combine")
        .constant("HIDDEN", hidden)
        .constant("SLOTS", a.slots)
        .constant("SS_COLUMNS", ss_columns))
}
