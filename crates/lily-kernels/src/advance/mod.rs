//! End of a prefill chunk that is not the last: `position += count`.
//!
//! One thread; only the control row of the plan's sequence changes.

#[allow(unsafe_code)]
mod cpu;
mod reference;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use lily_plan::{Binding, BufferId, Launch, Region, control};

use crate::access;
use crate::cpu::CpuFace;
use crate::gpu::{Entry, GpuFace, GpuLaunch, MslStruct, Unsupported, msl_struct};
use crate::shape::{LaunchContext, StepArgs};
use crate::table::Kernel;

/// Table entry.
pub const KERNEL: Kernel = Kernel {
    name: "advance",
    reference: reference::run,
    cpu: CpuFace { tiles: cpu::tiles, run: cpu::run },
    gpu: Some(GpuFace { text: include_str!("kernel.metal"), args: Args::text, entry }),
};

msl_struct! {
    /// Arguments of a launch.
    pub struct Args {
        /// The step, a prefill chunk.
        pub step: StepArgs,
    }
}

impl Args {
    /// The sequence's control row after the chunk; `None` if it is halted or the chunk is empty.
    fn next(&self, control: &[i32]) -> Option<[i32; control::WORDS]> {
        if self.step.live_rows(control).is_empty() {
            return None;
        }
        let mut now = [0; control::WORDS];
        let first = self.step.sequence as usize * control::WORDS;
        now.copy_from_slice(&control[first..first + control::WORDS]);
        now[control::POSITION] = now[control::POSITION].saturating_add(now[control::COUNT]);
        Some(now)
    }
}

/// Indices of the bindings.
mod bind {
    pub const CONTROL: usize = 0;
}

/// Buffers of a launch.
pub struct Buffers {
    /// i32 `[batch, 8]`, read and written.
    pub control: BufferId,
}

/// Records the launch.
pub fn launch(cx: &LaunchContext<'_>, buffers: Buffers) -> Launch {
    let args = Args { step: cx.step_args() };
    let written = access::sequences(cx, |s, _, _| vec![Region::at([s])]);
    let control = Binding::owned("control", buffers.control, access::sequence_rows(cx), written);
    Launch::new(KERNEL.name, cx.layer, args, vec![control], [1, 1, 1], 32, |_| 0)
}

fn entry(launch: &GpuLaunch<'_>) -> Result<Entry, Unsupported> {
    Ok(launch.entry("advance"))
}
