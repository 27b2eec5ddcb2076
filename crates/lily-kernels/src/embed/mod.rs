//! Embedding: `x = E[id]`, and the first norm's input with it.
//!
//! Starts the residual stream of every live row with a dequantised row of the table, in f32 and not
//! rounded. Ids come from the control block in decode and from the prompt in prefill; an id outside
//! of the table takes the nearest row, the host refuses such ids before.
//! Mapping: a threadgroup owns 256 columns of one row.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Access, Binding, BufferId, Launch, Region};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::gemv::Gemv;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::residual::{ResidualArgs, ResidualBuffers};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "embed",
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
        /// Rows of the table.
        pub vocab: u32,
    }
}

impl Args {
    /// The table row of an id.
    fn table_row(&self, id: i32) -> usize {
        id.clamp(0, self.vocab as i32 - 1) as usize
    }

    /// Index in `control` or `prompt` of the id of a row.
    fn id_at(&self, row: usize) -> usize {
        use lily_plan::control::{TOKEN, WORDS};
        if self.step.is_prefill() { row } else { row * WORDS + TOKEN }
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
    pub const WEIGHT: usize = 1;
    /// x, next_norm, xn, x_ss.
    pub const RESIDUAL: usize = 2;
    /// Prefill only.
    pub const PROMPT: usize = 6;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// matrix `[vocab, hidden]`.
    pub weight: BufferId,
    /// The residual stream and what is derived from it; the norm is the first layer's.
    pub residual: ResidualBuffers,
    /// i32 `[rows]`, the ids of the chunk; read in prefill only.
    pub prompt: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let (vocab, hidden) = (cx.shape.vocab, cx.shape.hidden);
    let args = Args { step: cx.step_args(), residual: ResidualArgs::new(cx), vocab: vocab as u32 };
    let table = Access::new(Region::whole(), move |live| {
        let mut rows: Vec<usize> = live.tokens().into_iter().map(|t| t.min(vocab - 1)).collect();
        rows.sort_unstable();
        rows.dedup();
        rows.into_iter().map(|row| Region::at([row])).collect()
    });
    let mut bindings = vec![
        Binding::read("control", buffers.control, access::sequence_rows(cx)),
        Binding::read("weight", buffers.weight, table),
    ];
    bindings.extend(buffers.residual.setting(cx));
    if cx.step.is_prefill() {
        bindings.push(Binding::read("prompt", buffers.prompt, access::rows(cx)));
    }
    Launch::new(
        KERNEL.name,
        cx.layer,
        args,
        bindings,
        [hidden.div_ceil(256) as u32, cx.step.rows() as u32, 1],
        256,
        move |live| (4 * hidden * live.rows().len()) as u64,
    )
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    let a: Args = launch.args();
    let columns = a.residual.ss_columns;
    if columns != 8 && columns != 64 {
        return Err(Unsupported(format!("sums of squares have {columns} columns, need 8 or 64")));
    }
    let format = launch.format(bind::WEIGHT)?;
    let gemv = Gemv { format, k: a.residual.hidden, rows: a.vocab };
    let function = if a.step.is_prefill() { "embed_chunk" } else { "embed" };
    Ok(gemv.matrix(launch.entry(function)).over(launch.grid, 32))
}
