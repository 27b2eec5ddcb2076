//! One decode step of the Gated DeltaNet: convolution, gates, delta rule, gate of the output.
//!
//! For a value head with its query and key head:
//!
//! ```text
//! q, k, v = silu(conv(columns p-3 … p)); q ← q / |q| / sqrt(k_dim); k ← k / |k|
//! beta = sigmoid(b); alpha = exp(-exp(A_log) softplus(a + dt_bias))
//! S ← alpha S; r = beta (v - S k); S ← S + r kᵀ; o = S q
//! og = o ∘ norm ∘ silu(z); o_ss = partial sums of o²
//! ```
//!
//! q, k and v round to act before the delta rule, as they do in prefill; state, gates and `o` are
//! f32. The division by rms(o) is left to `gdn_out`: a threadgroup owns 16 value rows of one head
//! (a CPU tile a whole head), reads the old state slot and writes the new one. State and old columns
//! are not read at position 0.

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
use crate::shape::{LaunchContext, O_SS_ROWS, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "gdn_step",
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
        /// Partial sums of o² of one head.
        pub o_ss_slices: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const CONV: usize = 1;
    pub const Z: usize = 2;
    pub const BA: usize = 3;
    pub const CONV1D: usize = 4;
    pub const A_LOG: usize = 5;
    pub const DT_BIAS: usize = 6;
    pub const NORM: usize = 7;
    pub const STATE: usize = 8;
    pub const OG: usize = 9;
    pub const O_SS: usize = 10;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// Convolution ring, f32 `[batch, conv_slots, conv_channels]`.
    pub conv: BufferId,
    /// act `[rows, v_width]`.
    pub z: BufferId,
    /// f32 `[rows, 2 v_heads]`: b, then a.
    pub ba: BufferId,
    /// Taps, `[conv_channels, conv_width]`, the oldest first.
    pub conv1d: BufferId,
    /// `[v_heads]`.
    pub a_log: BufferId,
    /// `[v_heads]`.
    pub dt_bias: BufferId,
    /// Weight of the output norm, `[v_dim]`, the same for all heads.
    pub norm: BufferId,
    /// State ring, f32 `[batch, state_slots, v_heads, v_dim, k_dim]`.
    pub state: BufferId,
    /// Gated output, not yet divided by rms(o); act `[rows, v_width]`.
    pub og: BufferId,
    /// Sums of o² over 16 value rows, f32 `[batch, v_heads, o_ss_slices]`.
    pub o_ss: BufferId,
}

/// Records the launch; decode only.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let args = Args {
        step: cx.step_args(),
        gdn: GdnArgs::new(cx),
        o_ss_slices: shape.o_ss_slices() as u32,
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("conv", buffers.conv, gdn::step_columns(cx)),
        Binding::read("z", buffers.z, access::rows(cx)),
        Binding::read("ba", buffers.ba, access::rows(cx)),
        Binding::read("conv1d", buffers.conv1d, access::whole()),
        Binding::read("a_log", buffers.a_log, access::whole()),
        Binding::read("dt_bias", buffers.dt_bias, access::whole()),
        Binding::read("norm", buffers.norm, access::whole()),
        Binding::owned("state", buffers.state, gdn::old_state(cx), gdn::new_state(cx)),
        Binding::write("og", buffers.og, access::rows(cx)),
        Binding::write("o_ss", buffers.o_ss, access::rows(cx)),
    ];
    let flops = gdn::step_flops(cx);
    let slices = shape.v_dim.div_ceil(O_SS_ROWS);
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [slices as u32, shape.v_heads as u32, cx.step.rows() as u32],
        128,
        move |live| flops * live.rows().len() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let args: Args = launch.args();
    args.gdn.constants(launch.entry("gdn_step"))
}
