//! What a GPU runs for each launch of a plan, without the GPU: for people and for tests.

use std::collections::HashMap;

use lily_plan::{DeviceError, EntryRow, Plan, PlanTable};

use super::{MatrixFormat, Target};

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
        let (_, entry) = target.entry(launch, row.index, &formats)?;
        row.entry = Some(EntryRow {
            function: entry.function,
            constants: entry.constants.into_iter().collect(),
            grid_used: entry.grid,
            threads_used: entry.threads,
        });
    }
    Ok(())
}
