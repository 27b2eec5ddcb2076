//! Predicted times of a plan on an Apple GPU: a model of two numbers, not a measurement.
//!
//! A stage takes the launch floor, and then the longer of two: its bytes at the bandwidth that memory gives
//! for so many bytes, and its arithmetic at the rate of the cores. Launches of one stage share the floor.
//! What is left out: the number of threadgroups of a launch, caches, clocks that fall under load, and the
//! host.
//!
//! None of the figures that go in was measured for lily; [`Assumptions`] carries them with every
//! prediction.

use std::fmt::Write as _;

use lily_kernels::gpu::Products;
use lily_plan::{LaunchRow, PlanTable};
use serde::Serialize;

use crate::chip::Gpu;
use crate::encoder::SUBMISSION_SECONDS;

/// Time that a stage takes before and beside its bytes, in µs: within what two engines published for
/// dependent launches, 1.2 (infr, M3 Pro) and 2.4 to 2.7 (xwen, M5 Max), the latter with a part of the
/// host's work in it.
const FLOOR_US: f64 = 2.0;
/// The lowest and the highest of those figures.
const FLOORS_US: [f64; 2] = [1.2, 2.7];

/// Reads of cold memory as xwen published them for an M5 Max, in bytes and GB/s. A read of this kind is a
/// launch, so its time has the floor in it.
const READS: [(f64, f64); 5] =
    [(256e3, 99.0), (1e6, 250.0), (4e6, 412.0), (32e6, 530.0), (256e6, 565.0)];
/// Published bandwidth of that chip, in GB/s.
const READS_BANDWIDTH_GB_S: f64 = 614.0;

/// Arithmetic of a core in products by `simdgroup_matrix` and all other kernels, in TFLOP/s: 60 % of the
/// 2.6 TFLOP/s that Apple publishes for the 8 cores of an M1.
pub(crate) const SIMDGROUP_TFLOPS: f64 = 0.6 * 2.6 / 8.0;
/// Arithmetic of a core in products by tensor operations, in TFLOP/s: what a published 5,750 tok/s of
/// prefill at 4.87 GFLOP a token take of the 40 cores of an M5 Max, at the least.
pub(crate) const TENSOR_TFLOPS: f64 = 0.7;

/// A launch is small below this: its cost is mostly the floor.
const SMALL_BYTES: u64 = 2_000_000;

/// What a prediction rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assumptions {
    /// Time of a stage beside its bytes, in µs.
    pub launch_floor_us: f64,
    /// Bytes read at once, scaled to the chip's bandwidth, and the GB/s at which they come, without the
    /// floor.
    pub bandwidth_curve: Vec<(f64, f64)>,
    /// Arithmetic of all cores, in TFLOP/s, of kernels without tensor operations.
    pub tflops: f64,
    /// The same of kernels with tensor operations.
    pub tensor_tflops: f64,
}

/// Predicted times of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Always `prediction`: nothing here is measured.
    pub kind: &'static str,
    /// Chip.
    pub chip: String,
    /// Generation of its GPU.
    pub gpu_family: String,
    /// GPU cores.
    pub gpu_cores: u32,
    /// Published memory bandwidth in GB/s.
    pub bandwidth_gb_s: f64,
    /// Whether matrix products use tensor operations.
    pub tensor_operations: bool,
    /// What goes in.
    pub assumptions: Assumptions,
    /// Time of a step in µs.
    pub step_us: f64,
    /// The same with the lowest and with the highest published floor.
    pub step_us_range: [f64; 2],
    /// Tokens a second, of all sequences of the step together.
    pub tok_s: f64,
    /// The same with the highest and with the lowest floor.
    pub tok_s_range: [f64; 2],
    /// Command buffers that the step is sent in.
    pub command_buffers: usize,
    /// Time of the longest of them in µs.
    pub longest_command_buffer_us: f64,
    /// A launch that alone may hold the GPU for longer than a command buffer may: no cut helps against it.
    pub too_long: Option<String>,
    /// Floors of all stages, in µs.
    pub floors_us: f64,
    /// Launches that move less than 2 MB.
    pub small_launches: usize,
    /// Their share of all bytes.
    pub small_share_of_bytes: f64,
    /// Their share of the step's time.
    pub small_share_of_time: f64,
    /// The launches, in the order of the plan.
    pub launches: Vec<LaunchTime>,
}

/// Predicted time of a launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchTime {
    /// Index in the plan.
    pub index: usize,
    /// Stage.
    pub stage: usize,
    /// Kernel and layer.
    pub label: String,
    /// Threadgroups.
    pub threadgroups: u64,
    /// Threads of each.
    pub threads: u32,
    /// Bytes read and written.
    pub bytes: u64,
    /// Whether they are less than 2 MB.
    pub small: bool,
    /// Time in µs, with its part of the stage's floor.
    pub us: f64,
    /// What takes the larger part of it.
    pub bound: Bound,
}

/// What a launch's time is made of, for the larger part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The floor.
    Floor,
    /// Bytes.
    Bytes,
    /// Arithmetic.
    Arithmetic,
}

/// Predicts one run of a printed plan of `tokens` tokens; where the table says what the GPU runs for a
/// launch, threadgroups and form of products are those.
pub fn predict(table: &PlanTable, tokens: usize, gpu: &Gpu, products: Products) -> Prediction {
    let tensor_operations = products == Products::TensorOperations;
    let sizes = stage_sizes(table);
    let launches: Vec<LaunchTime> =
        table.list.iter().map(|row| launch_time(row, &sizes[row.stage], gpu)).collect();
    let sum = |launches: &mut dyn Iterator<Item = &LaunchTime>| -> (u64, f64) {
        launches.fold((0, 0.0), |(bytes, us), l| (bytes + l.bytes, us + l.us))
    };
    let (bytes, step_us) = sum(&mut launches.iter());
    let (small_bytes, small_us) = sum(&mut launches.iter().filter(|l| l.small));
    let floors_us = FLOOR_US * table.stages as f64;
    let step_us_range = FLOORS_US.map(|floor| step_us - floors_us + floor * table.stages as f64);
    let tok_s = |us: f64| tokens as f64 / us * 1e6;
    Prediction {
        kind: "prediction",
        chip: gpu.name.clone(),
        gpu_family: gpu.family.to_string(),
        gpu_cores: gpu.cores,
        bandwidth_gb_s: gpu.bandwidth_gb_s,
        tensor_operations,
        assumptions: Assumptions {
            launch_floor_us: FLOOR_US,
            bandwidth_curve: curve(gpu),
            tflops: SIMDGROUP_TFLOPS * f64::from(gpu.cores),
            tensor_tflops: if tensor_operations { TENSOR_TFLOPS } else { SIMDGROUP_TFLOPS }
                * f64::from(gpu.cores),
        },
        step_us,
        step_us_range,
        tok_s: tok_s(step_us),
        tok_s_range: [tok_s(step_us_range[1]), tok_s(step_us_range[0])],
        command_buffers: 1,
        longest_command_buffer_us: step_us,
        too_long: None,
        floors_us,
        small_launches: launches.iter().filter(|l| l.small).count(),
        small_share_of_bytes: small_bytes as f64 / bytes.max(1) as f64,
        small_share_of_time: small_us / step_us.max(f64::MIN_POSITIVE),
        launches,
    }
}

/// Bandwidth in GB/s at which a GPU reads and writes `bytes` at once, without the floor.
pub fn bandwidth_gb_s(gpu: &Gpu, bytes: u64) -> f64 {
    let curve = curve(gpu);
    let bytes = bytes as f64;
    let behind = curve.iter().position(|(size, _)| *size >= bytes);
    match behind {
        None => curve[curve.len() - 1].1,
        Some(0) => curve[0].1,
        Some(i) => {
            // A straight line over the logarithm of the size.
            let ((a, from), (b, to)) = (curve[i - 1], curve[i]);
            from + (to - from) * (bytes / a).ln() / (b / a).ln()
        }
    }
}

/// The published reads without their floor, as sizes and bandwidths of `gpu`: a chip with half of the
/// bandwidth reaches the same share of it with half of the bytes.
fn curve(gpu: &Gpu) -> Vec<(f64, f64)> {
    let scale = gpu.bandwidth_gb_s / READS_BANDWIDTH_GB_S;
    let point = |(bytes, gb_s): (f64, f64)| {
        let seconds = bytes / (gb_s * 1e9) - FLOOR_US / 1e6;
        (bytes * scale, bytes / seconds / 1e9 * scale)
    };
    READS.map(point).to_vec()
}

/// Launches and bytes of a stage.
#[derive(Clone, Default)]
struct StageSize {
    launches: usize,
    bytes: u64,
}

fn stage_sizes(table: &PlanTable) -> Vec<StageSize> {
    let stages = table.list.iter().map(|row| row.stage + 1).max().unwrap_or(0);
    let mut sizes = vec![StageSize::default(); stages];
    for row in &table.list {
        sizes[row.stage].launches += 1;
        sizes[row.stage].bytes += moved(row);
    }
    sizes
}

fn moved(row: &LaunchRow) -> u64 {
    row.bytes_read + row.bytes_written
}

fn launch_time(row: &LaunchRow, stage: &StageSize, gpu: &Gpu) -> LaunchTime {
    let bytes = moved(row);
    let constant = |name| row.entry.as_ref().and_then(|entry| entry.constants.get(name));
    let has_tensors = constant("TENSOR_OPERATIONS").is_some_and(|value| value == "1");
    let core_tflops = if has_tensors { TENSOR_TFLOPS } else { SIMDGROUP_TFLOPS };
    let floor = FLOOR_US / stage.launches as f64;
    let bytes_us = bytes as f64 / bandwidth_gb_s(gpu, stage.bytes) / 1e3;
    let arithmetic_us = row.flops as f64 / (core_tflops * f64::from(gpu.cores)) / 1e6;
    let work = bytes_us.max(arithmetic_us);
    let (grid, threads) = match &row.entry {
        Some(entry) => (entry.grid_used, entry.threads_used),
        None => (row.grid, row.threads),
    };
    LaunchTime {
        index: row.index,
        stage: row.stage,
        label: row.layer.map_or(row.kernel.into(), |layer| format!("{}.{layer}", row.kernel)),
        threadgroups: grid.iter().map(|&n| u64::from(n)).product(),
        threads,
        bytes,
        small: bytes < SMALL_BYTES,
        us: floor + work,
        bound: match () {
            () if floor >= work => Bound::Floor,
            () if bytes_us >= arithmetic_us => Bound::Bytes,
            () => Bound::Arithmetic,
        },
    }
}

impl Prediction {
    /// The same step, sent in command buffers that begin at the stages of `cuts`; `too_long` is a launch that takes too
    /// long for one.
    #[must_use]
    pub fn cut(mut self, cuts: &[usize], too_long: Option<usize>) -> Self {
        let mut us = vec![0.0; cuts.len() + 1];
        for launch in &self.launches {
            us[cuts.partition_point(|&cut| cut <= launch.stage)] += launch.us;
        }
        self.command_buffers = us.len();
        self.longest_command_buffer_us = us.into_iter().fold(0.0, f64::max);
        self.too_long = too_long.map(|launch| self.launches[launch].label.clone());
        self
    }

    /// The prediction for people: the totals, then one line for each launch.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{}", self.title());
        let _ = writeln!(
            out,
            "predicted, not measured: {:.2} ms in {}, {:.0} tok/s\n\
             ({:.0} to {:.0} tok/s with launch floors of {} to {} us)",
            self.step_us / 1e3,
            self.submissions(),
            self.tok_s,
            self.tok_s_range[0],
            self.tok_s_range[1],
            FLOORS_US[1],
            FLOORS_US[0],
        );
        let stages = self.launches.iter().map(|l| l.stage + 1).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "{} launches in {stages} stages; {} launches move under 2 MB: {:.1} % of the bytes, {:.1} % of the time\n\
             launch floors take {:.2} ms",
            self.launches.len(),
            self.small_launches,
            100.0 * self.small_share_of_bytes,
            100.0 * self.small_share_of_time,
            self.floors_us / 1e3,
        );
        if let Some(launch) = &self.too_long {
            let _ = writeln!(
                out,
                "{launch} may hold the GPU for longer than the {SUBMISSION_SECONDS} s of a command buffer,\n\
                 and macOS may end it: fewer tokens make it shorter",
            );
        }
        let _ = writeln!(out, "{}", self.assumptions.text());
        out += "\nindex stage launch                 threadgroups threads          bytes under 2 MB       us  bound by\n";
        for l in &self.launches {
            let _ = writeln!(
                out,
                "{:5} {:5} {:22} {:12} {:7} {:14} {:>10} {:8.2}  {}",
                l.index,
                l.stage,
                l.label,
                l.threadgroups,
                l.threads,
                l.bytes,
                if l.small { "yes" } else { "" },
                l.us,
                match l.bound {
                    Bound::Floor => "floor",
                    Bound::Bytes => "bytes",
                    Bound::Arithmetic => "arithmetic",
                },
            );
        }
        out
    }

    fn submissions(&self) -> String {
        match self.command_buffers {
            1 => "one command buffer".into(),
            count => {
                let longest = self.longest_command_buffer_us / 1e3;
                format!("{count} command buffers of up to {longest:.2} ms")
            }
        }
    }

    fn title(&self) -> String {
        format!(
            "prediction for {}, {}, {} GPU cores, {} GB/s, matrix products by {}; nothing here is measured",
            self.chip,
            self.gpu_family,
            self.gpu_cores,
            self.bandwidth_gb_s,
            if self.tensor_operations { "tensor operations" } else { "simdgroup_matrix" },
        )
    }
}

impl Assumptions {
    fn text(&self) -> String {
        let points = self.bandwidth_curve.iter();
        let points: Vec<_> = points
            .map(|(bytes, gb_s)| format!("{gb_s:.0} GB/s at {:.2} MB", bytes / 1e6))
            .collect();
        format!(
            "assumed: {} us a stage, {}; {:.1} TFLOP/s, {:.1} with tensor operations",
            self.launch_floor_us,
            points.join(", "),
            self.tflops,
            self.tensor_tflops,
        )
    }
}

#[cfg(test)]
mod tests;
