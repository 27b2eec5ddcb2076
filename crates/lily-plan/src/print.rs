//! Plans as text and as JSON: what a person reviews and what tools compare.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::buffer::Region;
use crate::launch::{Access, Launch};
use crate::live::Live;
use crate::plan::Plan;

/// One launch with its cost at a given position.
#[derive(Clone, Debug, Serialize)]
pub struct LaunchRow {
    /// Index in the plan.
    pub index: usize,
    /// Stage; launches of one stage are independent.
    pub stage: usize,
    /// Kernel name.
    pub kernel: &'static str,
    /// Layer, if any.
    pub layer: Option<usize>,
    /// Threadgroups along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Buffers read.
    pub reads: Vec<String>,
    /// Buffers written.
    pub writes: Vec<String>,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Arithmetic operations.
    pub flops: u64,
    /// What a device runs for it, where one was asked.
    #[serde(flatten)]
    pub entry: Option<EntryRow>,
}

/// What a device runs for a launch.
#[derive(Clone, Debug, Serialize)]
pub struct EntryRow {
    /// Function of the kernel's text.
    pub function: &'static str,
    /// Its preprocessor constants, by name.
    pub constants: BTreeMap<&'static str, String>,
    /// Threadgroups along x, y, z.
    pub grid_used: [u32; 3],
    /// Threads of a threadgroup.
    pub threads_used: u32,
}

impl fmt::Display for EntryRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grid = self.grid_used.map(|n| n.to_string()).join("x");
        write!(f, "{} {grid} {}", self.function, self.threads_used)?;
        self.constants.iter().try_for_each(|(name, value)| match value.starts_with('{') {
            // A list of many numbers, which JSON has.
            true => write!(f, " {name}={{..}}"),
            false => write!(f, " {name}={value}"),
        })
    }
}

/// A plan with its totals at a given position.
#[derive(Clone, Debug, Serialize)]
pub struct PlanTable {
    /// Number of launches.
    pub launches: usize,
    /// Number of stages.
    pub stages: usize,
    /// Bytes read by one run.
    pub bytes_read: u64,
    /// Bytes written by one run.
    pub bytes_written: u64,
    /// Bytes moved for each token of the run.
    pub bytes_per_token: u64,
    /// Arithmetic operations for each token of the run.
    pub flops_per_token: u64,
    /// Launches that move less than 2 MB: their cost is mostly latency.
    pub launches_under_2mb: usize,
    /// The launches.
    pub list: Vec<LaunchRow>,
}

impl PlanTable {
    /// Costs of one run of `plan` as `live` describes it.
    pub fn new(plan: &Plan, live: &Live<'_>) -> Self {
        let row = |(index, l): (usize, &Launch)| launch_row(plan, index, l, live);
        let list: Vec<LaunchRow> = plan.launches().iter().enumerate().map(row).collect();
        let sum = |f: fn(&LaunchRow) -> u64| list.iter().map(f).sum::<u64>();
        let (bytes_read, bytes_written) = (sum(|r| r.bytes_read), sum(|r| r.bytes_written));
        let tokens = live.rows().len().max(1) as u64;
        Self {
            launches: list.len(),
            stages: plan.stages(),
            bytes_read,
            bytes_written,
            bytes_per_token: (bytes_read + bytes_written) / tokens,
            flops_per_token: sum(|r| r.flops) / tokens,
            launches_under_2mb: list
                .iter()
                .filter(|r| r.bytes_read + r.bytes_written < 2_000_000)
                .count(),
            list,
        }
    }

    /// The totals for people, in lines.
    pub fn summary(&self) -> String {
        format!(
            "{} launches in {} stages; {} launches move under 2 MB\n\
             {} bytes read, {} written; per token {} bytes and {:.3} GFLOP\n",
            self.launches,
            self.stages,
            self.launches_under_2mb,
            self.bytes_read,
            self.bytes_written,
            self.bytes_per_token,
            self.flops_per_token as f64 / 1e9,
        )
    }

    /// The table for people: one line for each launch.
    pub fn rows(&self) -> String {
        let mut out = String::from(
            "index stage kernel                      grid  threads     bytes read  bytes written        MFLOP  reads -> writes",
        );
        let entries = self.list.iter().any(|r| r.entry.is_some());
        out += if entries { " | function grid threads constants\n" } else { "\n" };
        for r in &self.list {
            let name = r.layer.map_or(r.kernel.to_string(), |l| format!("{}.{l}", r.kernel));
            let grid = r.grid.map(|n| n.to_string()).join("x");
            let entry = r.entry.as_ref().map(|entry| format!(" | {entry}")).unwrap_or_default();
            let _ = writeln!(
                out,
                "{:5} {:5} {name:22} {grid:>14} {:7} {:14} {:14} {:12.2}  {} -> {}{entry}",
                r.index,
                r.stage,
                r.threads,
                r.bytes_read,
                r.bytes_written,
                r.flops as f64 / 1e6,
                r.reads.join(" "),
                r.writes.join(" "),
            );
        }
        out
    }
}

fn launch_row(plan: &Plan, index: usize, launch: &Launch, live: &Live<'_>) -> LaunchRow {
    let buffers = plan.buffers();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let (mut bytes_read, mut bytes_written) = (0, 0);
    for binding in &launch.bindings {
        let buffer = buffers.get(binding.buffer);
        let bytes = |access: &Access| -> u64 {
            let elements = |r: &Region| r.elements(&buffer.shape);
            buffer.bytes_of(access.exact(live).iter().map(elements).sum())
        };
        if let Some(access) = &binding.read {
            reads.push(buffer.name.clone());
            bytes_read += bytes(access);
        }
        if let Some(access) = &binding.write {
            writes.push(buffer.name.clone());
            bytes_written += bytes(access);
        }
    }
    LaunchRow {
        index,
        stage: launch.stage,
        kernel: launch.kernel,
        layer: launch.layer,
        grid: launch.grid,
        threads: launch.threads,
        reads,
        writes,
        bytes_read,
        bytes_written,
        flops: launch.flops(live),
        entry: None,
    }
}
