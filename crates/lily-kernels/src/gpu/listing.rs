//! What a GPU runs for each launch of a plan, without the GPU: for people and for tests.

use std::collections::HashMap;

use lily_plan::{DeviceError, EntryRow, Launch, Plan, PlanTable};

use super::{Entry, Family, GpuLaunch, MatrixFormat, Target, Unsupported};
use crate::table;

/// Fills in what `target` runs for each launch of `plan`; `formats` are the device formats of its
/// weight matrices by buffer name.
///
/// # Errors
/// [`DeviceError::Unsupported`] for the first launch that the target cannot run.
pub fn add_entries(
    printed: &mut PlanTable,
    plan: &Plan,
    formats: &HashMap<String, MatrixFormat>,
    target: Target,
) -> Result<(), DeviceError> {
    for (row, launch) in printed.list.iter_mut().zip(plan.launches()) {
        let format = |b: &lily_plan::Binding| formats.get(&plan.buffers().get(b.buffer).name);
        let formats: Vec<_> = launch.bindings.iter().map(|b| format(b).copied()).collect();
        let entry = entry(launch, &formats, target).map_err(|e| DeviceError::Unsupported {
            device: target.family.device().into(),
            kernel: launch.kernel.into(),
            launch: row.index,
            reason: e.to_string(),
        })?;
        row.entry = Some(EntryRow {
            function: entry.function,
            constants: entry.constants.into_iter().collect(),
            grid_used: entry.grid,
            threads_used: entry.threads,
        });
    }
    Ok(())
}

fn entry(
    launch: &Launch,
    formats: &[Option<MatrixFormat>],
    target: Target,
) -> Result<Entry, Unsupported> {
    let face = table::find(launch.kernel).and_then(|kernel| kernel.gpu);
    let face = face.ok_or_else(|| Unsupported("the kernel has no Metal text".into()))?;
    (face.entry)(&GpuLaunch {
        args: &launch.args,
        grid: launch.grid,
        threads: launch.threads,
        formats,
        target,
    })
}

impl Family {
    /// The device that runs it, as it is named in messages.
    fn device(self) -> &'static str {
        match self {
            Self::Apple => "metal",
            Self::Nvidia { .. } => "cuda",
            Self::Test => "msl-test",
        }
    }
}
