//! Input projection of a Gated DeltaNet layer: `y = (xn · Wᵀ) / rms(x)`.
//!
//! The rows of the merged matrix are q, k, v (the convolution's channels), z, then b and a. In decode
//! the channels go straight to this position's slot of the convolution ring, so nothing is shifted;
//! in prefill to `qkv`. The norm's weight is already in `xn`; `x_ss` gives its scale.

mod chunk;
#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch, Region};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::gemv::{GEMV_ROWS, Gemv};
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::norm::NormArgs;
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "gdn_in",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step.
        pub step: StepArgs,
        /// The input's norm.
        pub norm: NormArgs,
        /// Channels of the convolution.
        pub conv_channels: u32,
        /// Width of all value heads.
        pub v_width: u32,
        /// Value heads; b and a have one row for each.
        pub v_heads: u32,
        /// Slots of the convolution ring.
        pub conv_slots: u32,
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const XN: usize = 1;
    pub const X_SS: usize = 2;
    pub const WEIGHT: usize = 3;
    pub const QKV: usize = 4;
    pub const Z: usize = 5;
    pub const BA: usize = 6;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// act `[rows, hidden]`.
    pub xn: BufferId,
    /// f32 `[rows, hidden / 8]`.
    pub x_ss: BufferId,
    /// matrix `[gdn_rows, hidden]`.
    pub weight: BufferId,
    /// Decode: the layer's ring, f32 `[batch, conv_slots, conv_channels]`. Prefill: f32
    /// `[rows, conv_channels]`.
    pub qkv: BufferId,
    /// act `[rows, v_width]`.
    pub z: BufferId,
    /// f32 `[rows, 2 v_heads]`: b, then a.
    pub ba: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let shape = cx.shape;
    let conv_slots = cx.session.conv_slots(shape);
    let args = Args {
        step: cx.step_args(),
        norm: NormArgs::new(cx),
        conv_channels: shape.conv_channels() as u32,
        v_width: shape.v_width() as u32,
        v_heads: shape.v_heads as u32,
        conv_slots: conv_slots as u32,
    };
    let qkv = if cx.step.is_prefill() {
        access::rows(cx)
    } else {
        access::sequences(cx, move |s, position, _| vec![Region::at([s, position % conv_slots])])
    };
    let bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("xn", buffers.xn, access::rows(cx)),
        Binding::read("x_ss", buffers.x_ss, access::ss(cx)),
        Binding::read("weight", buffers.weight, access::whole()),
        Binding::write("qkv", buffers.qkv, qkv),
        Binding::write("z", buffers.z, access::rows(cx)),
        Binding::write("ba", buffers.ba, access::rows(cx)),
    ];
    let macs = (shape.gdn_rows() * shape.hidden) as u64;
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        cx.projection_grid(shape.gdn_rows(), 128),
        cx.projection_threads(),
        move |live| 2 * macs * live.rows().len() as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    if a.step.is_prefill() && a.step.rows > GEMV_ROWS {
        return chunk::chunk_entry(launch);
    }
    let rows = a.conv_channels + a.v_width + 2 * a.v_heads;
    let gemv = Gemv { format: launch.format(bind::WEIGHT)?, k: a.norm.hidden, rows };
    let tile = gemv.wide(a.step.rows);
    let entry = gemv.constants(a.norm.constants(launch.entry("gdn_in")), tile);
    Ok(entry.over(gemv.grid(tile, a.step.rows), tile.threads()))
}
