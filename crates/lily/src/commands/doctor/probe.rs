//! What launches and reads of memory cost on a device, measured by plans like those of a decode step:
//! matrix products with one vector, each over weights of its own.
//!
//! The time of a launch is the difference between a plan and one with twice its launches, so that what a
//! submission costs as a whole drops out.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use lily_kernels::{LaunchContext, Mixer, ModelShape, SessionShape, attn_in};
use lily_plan::{
    BufferKind, Buffers, Device, Element, Plan, RowFormat, RowSegment, Step, Weight, WeightMatrix,
    Weights, control, write_f32, write_i32,
};
use serde::Serialize;

/// Measured costs.
#[derive(Debug, Serialize)]
pub struct Launches {
    /// Time in µs of a launch that waits for the one before it and does next to nothing.
    pub dependent_us: Option<f64>,
    /// Time in µs of such a launch beside others.
    pub independent_us: Option<f64>,
    /// Time in µs of a border between stages: the difference of the two.
    pub barrier_us: Option<f64>,
    /// Time in µs of a launch that waits, in a plan that is encoded once; only where that is an option.
    pub encoded_once_us: Option<f64>,
    /// Launches that read weights from memory, each waiting for the one before it.
    pub reads: Vec<Read>,
}

/// A launch that reads weights.
#[derive(Debug, Serialize)]
pub struct Read {
    /// Bytes of the weights.
    pub bytes: u64,
    /// Time of the launch in µs; `None` where the clock is too coarse for it.
    pub us: Option<f64>,
    /// Bandwidth in GB/s, the launch's start included.
    pub gb_s: Option<f64>,
}

/// Query heads of the products: 0.3, 1.0, 4.1, 33 and 134 MB of weights.
const HEADS: [usize; 5] = [1, 6, 27, 226, 909];
/// Bytes of weights of the shorter plan of a pair: a plan that has twice of them finds no cache that still
/// holds them.
const ROUND_BYTES: u64 = 128 << 20;
/// Launches of the shorter plan.
const LAUNCHES: std::ops::RangeInclusive<u64> = 2..=256;
/// Timed rounds; the median counts.
const ROUNDS: usize = 7;

/// Measures a device; `once` is the same with decode plans encoded once.
///
/// # Errors
/// It has too little memory, or a launch fails.
pub fn measure(device: &mut dyn Device, once: Option<Box<dyn Device>>) -> Result<Launches> {
    let tiny = Product { hidden: 64, q_heads: 1, head_dim: 32 };
    let mut reads = Vec::new();
    for q_heads in HEADS {
        let product = Product { hidden: 2048, q_heads, head_dim: 64 };
        let bytes = product.bytes();
        let launches = (ROUND_BYTES / bytes).clamp(*LAUNCHES.start(), *LAUNCHES.end());
        let us = product.launch_us(device, launches as usize, Outputs::Shared)?;
        reads.push(Read { bytes, us, gb_s: us.map(|us| bytes as f64 / us / 1e3) });
    }
    let launches = *LAUNCHES.end() as usize;
    let dependent_us = tiny.launch_us(device, launches, Outputs::Shared)?;
    let independent_us = tiny.launch_us(device, launches, Outputs::Apart)?;
    let encoded_once_us = match once {
        Some(mut once) => tiny.launch_us(once.as_mut(), launches, Outputs::Shared)?,
        None => None,
    };
    let barrier_us = dependent_us.zip(independent_us).map(|(waits, runs)| (waits - runs).max(0.0));
    Ok(Launches { dependent_us, independent_us, barrier_us, encoded_once_us, reads })
}

/// Where the launches of a plan write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outputs {
    /// To the same buffers: each waits for the one before it.
    Shared,
    /// To buffers of their own: all may run at once.
    Apart,
}

/// An input projection of attention.
#[derive(Clone, Copy)]
struct Product {
    hidden: usize,
    q_heads: usize,
    head_dim: usize,
}

impl Product {
    fn shape(self) -> ModelShape {
        ModelShape {
            hidden: self.hidden,
            layers: vec![Mixer::Attention],
            vocab: 64,
            vocab_used: 64,
            q_heads: self.q_heads,
            kv_heads: 1,
            head_dim: self.head_dim,
            rotary_dim: 2,
            rope_theta: 1e4,
            k_heads: 1,
            v_heads: 1,
            k_dim: 32,
            v_dim: 32,
            conv_width: 2,
            experts: 2,
            top_k: 1,
            inner: 64,
            rms_eps: 1e-6,
        }
    }

    /// Bytes of the weights.
    fn bytes(self) -> u64 {
        (self.shape().attn_rows() * RowFormat::Q4.row_bytes(self.hidden)) as u64
    }

    /// Weights that all share: they are copied to the device one by one.
    fn matrix(self) -> Result<WeightMatrix> {
        let (format, rows) = (RowFormat::Q4, self.shape().attn_rows());
        let sides = Bytes::from(vec![0; rows * format.scale_bytes(self.hidden)]);
        let codes = vec![0x5a; rows * format.code_bytes(self.hidden)];
        let segment = RowSegment::whole("probe", format, rows, codes.into(), sides.clone(), sides);
        Ok(WeightMatrix::new(1, rows, self.hidden, vec![segment])?)
    }

    /// Two plans over the same buffers, with `launches` launches and with twice of them.
    fn plans(
        self,
        device: &mut dyn Device,
        launches: usize,
        outputs: Outputs,
    ) -> Result<[Arc<Plan>; 2]> {
        let (shape, matrix) = (self.shape(), self.matrix()?);
        let precision = device.precision();
        let session = SessionShape {
            batch: 1,
            tokens: 1,
            capacity: 64,
            run_ahead: 1,
            splits: 1,
            ring: 1,
            logit_rows: 1,
            precision,
        };
        let step = Step::Decode { batch: 1 };
        let cx = LaunchContext { shape: &shape, session: &session, step, layer: None, splits: 1 };
        let (mut table, mut weights) = (Buffers::new(), Weights::new());
        let control = table.add(BufferKind::Control, "control", Element::I32, [1, control::WORDS]);
        let xn = table.add(BufferKind::Scratch, "xn", precision.act, [1, self.hidden]);
        let x_ss = table.add(BufferKind::Scratch, "x_ss", Element::F32, [1, self.hidden / 8]);
        let mut own = None;
        let mut list = Vec::new();
        for index in 0..2 * launches {
            let element = Element::Matrix { total_bytes: matrix.total_bytes() };
            let name = format!("weight.{index}");
            let weight =
                table.add(BufferKind::Weight, &*name, element, [matrix.rows(), self.hidden]);
            weights.insert(name, Weight::Matrix(matrix.clone()));
            let known = own.filter(|_| outputs == Outputs::Shared);
            let [aq, gate, ak, av] = known.unwrap_or_else(|| {
                let mut add = |part: &str, element, heads| {
                    let name = format!("{part}.{index}");
                    table.add(BufferKind::Scratch, name, element, [1, heads, self.head_dim])
                };
                [
                    add("aq", Element::F32, self.q_heads),
                    add("gate", precision.act, self.q_heads),
                    add("ak", Element::F32, 1),
                    add("av", Element::F32, 1),
                ]
            });
            own = Some([aq, gate, ak, av]);
            let buffers = attn_in::Buffers { control, xn, x_ss, weight, aq, gate, ak, av };
            list.push(attn_in::launch(&cx, buffers));
        }
        let table = Arc::new(table);
        device.allocate(&table, weights)?;
        write_i32(device, control, 0, &[0; control::WORDS])?;
        write_f32(device, xn, 0, &vec![0.0; self.hidden])?;
        write_f32(device, x_ss, 0, &vec![1.0; self.hidden / 8])?;
        let short = list.clone().into_iter().take(launches).collect();
        let plan = |list| Plan::new(step, table.clone(), list).map(Arc::new);
        Ok([plan(short)?, plan(list)?])
    }

    /// Time of a launch in µs; `None` if it drowns in what else the machine does.
    fn launch_us(
        self,
        device: &mut dyn Device,
        launches: usize,
        outputs: Outputs,
    ) -> Result<Option<f64>> {
        let plans = self.plans(device, launches, outputs).context("the probe of launches")?;
        let mut seconds = [Vec::new(), Vec::new()];
        let ids = [device.compile(&plans[0])?, device.compile(&plans[1])?];
        for round in 0..=ROUNDS {
            for (id, seconds) in ids.iter().zip(&mut seconds) {
                let start = Instant::now();
                device.submit(*id)?;
                device.wait()?;
                // The first round warms up.
                if round > 0 {
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
        }
        let [short, long] = seconds.map(median);
        let us = (long - short) / launches as f64 * 1e6;
        Ok((us > 0.0).then_some(us))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl fmt::Display for Launches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |us: Option<f64>| us.map_or("lost in noise".into(), |us| format!("{us:.2} us"));
        writeln!(f, "{:21} {}", "dependent launch", us(self.dependent_us))?;
        writeln!(f, "{:21} {}", "launch beside others", us(self.independent_us))?;
        writeln!(f, "{:21} {}", "barrier", us(self.barrier_us))?;
        if self.encoded_once_us.is_some() {
            writeln!(f, "{:21} {}", "encoded once", us(self.encoded_once_us))?;
        }
        for read in &self.reads {
            let name = format!("weights of {:.1} MB", read.bytes as f64 / 1e6);
            let gb_s = read.gb_s.map(|gb_s| format!(", {gb_s:.0} GB/s")).unwrap_or_default();
            writeln!(f, "{name:21} {}{gb_s}", us(read.us))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lily_cpu::Numerics;
    use lily_kernels::gpu::{MatrixFormat, Target};

    use super::*;
    use crate::device;

    #[test]
    fn launches_wait_for_one_another_only_where_they_share_outputs() {
        let mut device = device::cpu(Numerics::Int8, 1).unwrap();
        let tiny = Product { hidden: 64, q_heads: 1, head_dim: 32 };
        for (outputs, stages) in [(Outputs::Shared, [3, 6]), (Outputs::Apart, [1, 1])] {
            let plans = tiny.plans(&mut device, 3, outputs).unwrap();
            assert_eq!(plans.each_ref().map(|plan| plan.launches().len()), [3, 6]);
            assert_eq!(plans.each_ref().map(|plan| plan.stages()), stages);
            tiny.launch_us(&mut device, 3, outputs).unwrap();
        }
    }

    #[test]
    fn gpus_have_a_function_for_every_size() {
        let mut device = device::cpu(Numerics::Int8, 1).unwrap();
        for q_heads in &HEADS[..4] {
            let product = Product { hidden: 2048, q_heads: *q_heads, head_dim: 64 };
            let [plan, _] = product.plans(&mut device, 1, Outputs::Shared).unwrap();
            let launch = &plan.launches()[0];
            let format = |b: &lily_plan::Binding| (b.role == "weight").then_some(MatrixFormat::Q4);
            let formats: Vec<_> = launch.bindings.iter().map(format).collect();
            for target in [Target::APPLE, Target::NVIDIA] {
                target.entry(launch, 0, &formats).unwrap();
            }
        }
    }

    #[test]
    fn the_products_have_the_stated_sizes() {
        let megabytes = |q_heads| {
            let product = Product { hidden: 2048, q_heads, head_dim: 64 };
            product.bytes() as f64 / 1e6
        };
        let found = HEADS.map(|q_heads| (megabytes(q_heads) * 10.0).round() / 10.0);
        assert_eq!(found, [0.3, 1.0, 4.1, 33.5, 134.2]);
    }
}
