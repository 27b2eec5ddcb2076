//! Output projection of a Gated DeltaNet layer, added to the residual stream.
//!
//! Decode: `x += Σ_h (1 / rms(o_h)) Σ_k og[h, k] W[·, h, k]`. The gate and the norm's weight are already
//! in `og`, but no threadgroup of `gdn_step` sees a whole head, so the norm's scale is left to this
//! kernel: one factor for each head, from the partial sums `o_ss`. Prefill: `x += og · Wᵀ`, the norm
//! is complete. Both end with the residual epilogue (see [`crate::residual`]).

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
    name: "gdn_out",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// The epilogue.
        pub residual: ResidualArgs,
        /// Value heads.
        pub v_heads: u32,
        /// Width of a value head.
        pub v_dim: u32,
        /// Partial sums of o² of one head.
        pub o_ss_slices: u32,
        /// Eps of RMSNorm.
        pub rms_eps: f32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const OG: usize = 1;
    pub const WEIGHT: usize = 2;
    /// The first of the epilogue's four.
    pub const X: usize = 3;
    /// Bound in decode only.
    pub const O_SS: usize = 7;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// Gated core output, act `[rows, v_heads, v_dim]`.
    pub og: BufferId,
    /// Partial sums of o², f32 `[batch, v_heads, o_ss_slices]`; read in decode only.
    pub o_ss: BufferId,
    /// matrix `[hidden, v_width]`.
    pub weight: BufferId,
    /// The epilogue's buffers.
    pub residual: ResidualBuffers,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        residual: ResidualArgs::new(cx),
        v_heads: shape.v_heads as u32,
        v_dim: shape.v_dim as u32,
        o_ss_slices: shape.o_ss_slices() as u32,
        rms_eps: shape.rms_eps,
    };
    let mut bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("og", buffers.og, access::rows(cx)),
        Binding::read("weight", buffers.weight, access::whole()),
    ];
    bindings.extend(buffers.residual.adding(cx));
    if !cx.step.is_prefill() {
        bindings.push(Binding::read("o_ss", buffers.o_ss, access::rows(cx)));
    }
    let macs = (shape.hidden * shape.v_width()) as u64;
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
    // The codes that a lane loads at once have one factor.
    Unsupported::unless_multiple("the width of a value head", a.v_dim, 32)?;
    let (rows, columns) = (a.residual.hidden, a.residual.ss_columns);
    let gemv = Gemv { format: launch.format(bind::WEIGHT)?, k: a.v_heads * a.v_dim, rows };
    let tile = gemv.residual(launch.target, columns, a.step.rows);
    let function = if a.step.is_prefill() { "gdn_out_normed" } else { "gdn_out" };
    let entry = gemv
        .constants(launch.entry(function), tile)
        .constant("COLUMNS", columns)
        .constant("V_HEADS", a.v_heads)
        .constant("V_DIM", a.v_dim)
        .constant("O_SS_SLICES", a.o_ss_slices);
    Ok(entry.over(gemv.grid(tile, a.step.rows), tile.threads()))
}
