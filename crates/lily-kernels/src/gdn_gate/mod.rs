//! Gated norm of a prefill chunk: `og = core / rms(core) ∘ norm ∘ silu(z)`, the rms over each value
//! head. A threadgroup owns one head of 8 tokens, a CPU tile all heads of 4.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "gdn_gate",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Value heads.
        pub v_heads: u32,
        /// Width of a value head.
        pub v_dim: u32,
        /// Eps of RMSNorm.
        pub rms_eps: f32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const CORE: usize = 1;
    pub const Z: usize = 2;
    pub const NORM: usize = 3;
    pub const OG: usize = 4;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// Core output, f32 `[rows, v_heads, v_dim]`.
    pub core: BufferId,
    /// act `[rows, v_width]`.
    pub z: BufferId,
    /// Weight of the norm, `[v_dim]`, the same for all heads.
    pub norm: BufferId,
    /// act `[rows, v_width]`.
    pub og: BufferId,
}

/// Records the launch; prefill only.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        v_heads: shape.v_heads as u32,
        v_dim: shape.v_dim as u32,
        rms_eps: shape.rms_eps,
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("core", buffers.core, access::rows(cx)),
        Binding::read("z", buffers.z, access::rows(cx)),
        Binding::read("norm", buffers.norm, access::whole()),
        Binding::write("og", buffers.og, access::rows(cx)),
    ];
    let flops = 10 * shape.v_width() as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [shape.v_heads as u32, cx.step.rows().div_ceil(8) as u32, 1],
        256,
        move |live| flops * live.rows().len() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let args: Args = launch.args();
    Unsupported::unless_multiple("the width of DeltaNet values", args.v_dim, 4)?;
    Ok(launch.entry("gdn_gate").constant("V_HEADS", args.v_heads).constant("V_DIM", args.v_dim))
}
