//! The plan: a recorded list of kernel launches with declared reads and writes.
//!
//! A [`Plan`] is built once for a model, a step kind and a session shape. It knows nothing about
//! devices: a [`Device`] compiles it and runs it for every token. Hazards and stages are derived from
//! the declared ranges; the [`Interpreter`] runs any plan with plain reference kernels and enforces
//! those ranges.

#![forbid(unsafe_code)]

mod buffer;
mod device;
mod forward;
mod groups;
mod host;
mod interpreter;
mod launch;
mod live;
mod matrix;
mod plan;
mod print;
mod reference;
mod threads;

pub use buffer::{Buffer, BufferId, BufferKind, Buffers, Element, Region};
pub use device::{
    CompileTimes, Device, DeviceError, FETCH_BYTES, Fetch, Fusions, KernelTime, MappedFile,
    MemoryBudget, PlanId, Precision, WeightWatch, Weights, WholeBelow, check_plan, check_range,
    check_weights, read_f32, read_i32, write_f32, write_i32,
};
pub use groups::{ControlGroup, control_groups};
pub use host::host_memory;
pub use interpreter::{Interpreter, ReferenceFn, ReferenceTable};
pub use launch::{Access, Binding, Dependency, Launch};
pub use live::{Live, Memory, Step, control};
pub use matrix::{GROUP, MatrixError, RowFormat, RowRef, RowSegment, Weight, WeightMatrix};
pub use plan::{Plan, PlanError};
pub use print::{EntryRow, LaunchRow, PlanTable};
pub use reference::ReferenceIo;
pub use threads::on_threads;
