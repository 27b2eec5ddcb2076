//! The part of the chunked delta rule that does not depend on the entering state.
//!
//! For every chunk of up to 64 tokens and every value head, with `G_i = Σ_{s<=i} log alpha_s`,
//! `D_ij = e^(G_i - G_j)` for `i >= j`, else 0:
//!
//! ```text
//! A_ij = beta_i D_ij (k_i · k_j)  for i > j, else 0
//! U = (I + A)⁻¹ diag(beta) V       W = (I + A)⁻¹ diag(beta e^G) K       P = (Q Kᵀ) ∘ D
//! ```
//!
//! All f32. `G_i - G_j` is formed before the exponential: `e^-G` alone would overflow. The inverse is
//! applied by forward substitution; `I + A` is unit lower triangular and well conditioned, since
//! keys have length 1 and beta is below 1. A short last chunk uses fewer rows, and of P fewer
//! columns. One threadgroup: a chunk of one value head (a CPU tile: of all value heads that share a
//! key head, whose products with keys are then formed once).

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch};

use crate::access;
use crate::cpu::CpuFace;
use crate::gdn::{self, GdnArgs};
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{CHUNK, LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "gdn_chunk_prepare",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// Dimensions.
        pub gdn: GdnArgs,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const GQ: usize = 1;
    pub const GK: usize = 2;
    pub const GV: usize = 3;
    pub const BETA: usize = 4;
    pub const LOG_DECAY: usize = 5;
    pub const CHUNK_U: usize = 6;
    pub const CHUNK_W: usize = 7;
    pub const CHUNK_G: usize = 8;
    pub const CHUNK_P: usize = 9;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// Queries, act `[rows, k_heads, k_dim]`.
    pub gq: BufferId,
    /// Keys, act `[rows, k_heads, k_dim]`.
    pub gk: BufferId,
    /// Values, act `[rows, v_heads, v_dim]`.
    pub gv: BufferId,
    /// f32 `[rows, v_heads]`.
    pub beta: BufferId,
    /// f32 `[rows, v_heads]`.
    pub log_decay: BufferId,
    /// U, chunk `[rows, v_heads, v_dim]`.
    pub chunk_u: BufferId,
    /// W, chunk `[rows, v_heads, k_dim]`.
    pub chunk_w: BufferId,
    /// G, f32 `[rows, v_heads]`.
    pub chunk_g: BufferId,
    /// P, chunk `[rows, v_heads, 64]`: a row for each token, a column for each token of its chunk.
    pub chunk_p: BufferId,
}

/// Records the launch; prefill only.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args { step: cx.step_args(), gdn: GdnArgs::new(cx) };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("gq", buffers.gq, access::rows(cx)),
        Binding::read("gk", buffers.gk, access::rows(cx)),
        Binding::read("gv", buffers.gv, access::rows(cx)),
        Binding::read("beta", buffers.beta, access::rows(cx)),
        Binding::read("log_decay", buffers.log_decay, access::rows(cx)),
        Binding::write("chunk_u", buffers.chunk_u, access::rows(cx)),
        Binding::write("chunk_w", buffers.chunk_w, access::rows(cx)),
        Binding::write("chunk_g", buffers.chunk_g, access::rows(cx)),
        Binding::write("chunk_p", buffers.chunk_p, gdn::chunk_squares(cx)),
    ];
    let macs = CHUNK * shape.k_dim + CHUNK * (shape.k_dim + shape.v_dim) / 2;
    let flops = (2 * shape.v_heads * macs) as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [cx.step.rows().div_ceil(CHUNK) as u32, shape.v_heads as u32, 1],
        128,
        move |live| flops * live.rows().len() as u64,
    )
}

/// Bytes of shared memory of `hopper.cu`, which checks it.
const SHARED_BYTES: u32 = 71_680;

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let args: Args = launch.args();
    let entry = launch.entry("gdn_chunk_prepare");
    let (entry, hopper) = args.gdn.chunk_constants(launch.target, entry)?;
    Ok(match hopper {
        true => entry
            .constant("SHARED_MEMORY", SHARED_BYTES)
            .from_text("hopper.cu", include_str!("hopper.cu"))
            .shared(SHARED_BYTES),
        false => entry,
    })
}
