//! Launches: kernels with arguments, bound buffers, geometry and declared ranges.

use std::fmt;
use std::sync::Arc;

use crate::buffer::{BufferId, Region};
use crate::live::Live;

type ExactFn = dyn Fn(&Live<'_>) -> Vec<Region> + Send + Sync;
type CostFn = dyn Fn(&Live<'_>) -> u64 + Send + Sync;

/// A declared range: where a launch reads, or where it writes.
#[derive(Clone)]
pub struct Access {
    /// Valid for every token (whole KV capacity, all experts, all ring slots); gives hazards.
    pub bound: Region,
    exact: Arc<ExactFn>,
}

impl Access {
    /// A range with its static bound and its exact boxes as a function of control and routing.
    pub fn new(
        bound: Region,
        exact: impl Fn(&Live<'_>) -> Vec<Region> + Send + Sync + 'static,
    ) -> Self {
        Self { bound, exact: Arc::new(exact) }
    }

    /// The boxes touched by the next run, without duplicates.
    pub fn exact(&self, live: &Live<'_>) -> Vec<Region> {
        let mut boxes: Vec<Region> = Vec::new();
        for region in (self.exact)(live) {
            if !boxes.contains(&region) {
                boxes.push(region);
            }
        }
        boxes
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access{}", self.bound)
    }
}

/// A buffer as an argument of a launch. The order of bindings is the order of the kernel's buffer
/// arguments on every device.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Name of the argument in the kernel's documentation.
    pub role: &'static str,
    /// The buffer bound to it.
    pub buffer: BufferId,
    /// What the launch reads.
    pub read: Option<Access>,
    /// What the launch writes.
    pub write: Option<Access>,
    /// The launch reads and writes the same elements, and each belongs to one threadgroup.
    pub owned: bool,
}

impl Binding {
    /// An argument that is read.
    pub fn read(role: &'static str, buffer: BufferId, read: Access) -> Self {
        Self { role, buffer, read: Some(read), write: None, owned: false }
    }

    /// An argument that is written.
    pub fn write(role: &'static str, buffer: BufferId, write: Access) -> Self {
        Self { role, buffer, read: None, write: Some(write), owned: false }
    }

    /// An argument that is read and written, each element by one threadgroup alone.
    pub fn owned(role: &'static str, buffer: BufferId, read: Access, write: Access) -> Self {
        Self { role, buffer, read: Some(read), write: Some(write), owned: true }
    }
}

/// Conflict of a launch with an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Index of the earlier launch.
    pub launch: usize,
    /// Reads what it wrote.
    pub read_after_write: bool,
    /// Writes what it wrote.
    pub write_after_write: bool,
    /// Writes what it read.
    pub write_after_read: bool,
}

/// One recorded kernel launch.
#[derive(Clone)]
pub struct Launch {
    /// Kernel name, as in the kernel table.
    pub kernel: &'static str,
    /// Layer, for messages; devices never use it.
    pub layer: Option<usize>,
    /// The kernel's `#[repr(C)]` argument struct as bytes.
    pub args: Vec<u8>,
    /// Buffer arguments in kernel order.
    pub bindings: Vec<Binding>,
    /// Threadgroups along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
    flops: Arc<CostFn>,
    /// Stage, set by the hazard analysis.
    pub stage: usize,
    /// Conflicts with earlier launches, set by the hazard analysis.
    pub needs: Vec<Dependency>,
}

impl Launch {
    /// Records a launch.
    pub fn new<A: bytemuck::Pod>(
        kernel: &'static str,
        layer: Option<usize>,
        args: A,
        bindings: Vec<Binding>,
        grid: [u32; 3],
        threads: u32,
        flops: impl Fn(&Live<'_>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self {
            kernel,
            layer,
            args: bytemuck::bytes_of(&args).to_vec(),
            bindings,
            grid,
            threads,
            flops: Arc::new(flops),
            stage: 0,
            needs: Vec::new(),
        }
    }

    /// `kernel` or `kernel.layer`.
    pub fn label(&self) -> String {
        match self.layer {
            Some(layer) => format!("{}.{layer}", self.kernel),
            None => self.kernel.to_string(),
        }
    }

    /// Arithmetic operations of the next run.
    pub fn flops(&self, live: &Live<'_>) -> u64 {
        (self.flops)(live)
    }

    /// Threadgroups of the grid.
    pub fn threadgroups(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("label", &self.label())
            .field("stage", &self.stage)
            .field("bindings", &self.bindings)
            .finish_non_exhaustive()
    }
}
