//! Layer by layer against recorded hidden states: an error of one layer does not reach the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_kernels::LaunchContext;
use lily_plan::{Device, Plan, control, read_f32, write_f32};

use crate::rig::{Machine, Rig};
use crate::{Golden, relative_rms};

/// A golden model on a device, with the recorded residual stream.
pub struct Layers<'a> {
    rig: &'a Rig,
    machine: Machine<'a>,
    /// `hidden.{i}` `[tokens, hidden]`: in front of layer i.
    recorded: BTreeMap<String, Vec<f32>>,
}

/// Sums of squared errors and of squared values.
type Sums = Vec<[f64; 2]>;

impl<'a> Layers<'a> {
    /// The rig has one sequence.
    pub fn new(golden: &Golden, rig: &'a Rig, device: Box<dyn Device>) -> Self {
        let recorded = golden.tensors("hidden_hf32.safetensors");
        Self { rig, machine: rig.start(device), recorded }
    }

    /// Relative rms of the residual stream after the embedding and after every layer, over a prefill of
    /// all recorded tokens.
    pub fn prefill(&mut self, plan: &Arc<Plan>, ids: &[u32]) -> Vec<f64> {
        self.restart();
        self.machine.start_chunk(0, ids);
        let mut errors = Vec::new();
        self.run(plan, 0, ids.len(), &mut |got, want| errors.push(relative_rms(got, want)));
        errors
    }

    /// The same over as many decode steps.
    pub fn decode(&mut self, plan: &Arc<Plan>, ids: &[u32]) -> Vec<f64> {
        self.restart();
        let mut sums = Sums::new();
        for (token, &id) in ids.iter().enumerate() {
            self.machine.set_row(0, |row| {
                row[control::TOKEN] = id as i32;
                row[control::HALT] = 0;
            });
            let mut layer = 0;
            self.run(plan, token, 1, &mut |got, want| {
                sums.resize(sums.len().max(layer + 1), [0.0; 2]);
                let square = |x: f32| f64::from(x) * f64::from(x);
                for (got, &want) in got.iter().zip(want) {
                    sums[layer][0] += square(got - want);
                    sums[layer][1] += square(want);
                }
                layer += 1;
            });
        }
        sums.into_iter().map(|[error, size]| (error / size).sqrt()).collect()
    }

    /// An empty sequence.
    fn restart(&mut self) {
        self.machine.set_row(0, |row| {
            *row = [0; control::WORDS];
            row[control::LIMIT] = i32::MAX;
        });
    }

    /// Runs a plan over `count` tokens from `first` on. After the embedding and every layer, compares the
    /// residual stream, and puts the recorded one in its place.
    fn run(
        &mut self,
        plan: &Arc<Plan>,
        first: usize,
        count: usize,
        compare: &mut dyn FnMut(&[f32], &[f32]),
    ) {
        let hidden = self.rig.shape.hidden;
        let id = self.machine.compile(plan);
        let launches = plan.launches();
        for (index, launch) in launches.iter().enumerate() {
            self.machine.device.run_launch(id, index).expect("the launch runs");
            let behind = match launch.layer {
                // The embedding is in front of all layers, the head behind them.
                None if index > 0 => continue,
                Some(layer) if launches.get(index + 1).is_some_and(|l| l.layer == Some(layer)) => {
                    continue;
                }
                layer => layer.map_or(0, |layer| layer + 1),
            };
            let want = &self.recorded[&format!("hidden.{behind}")];
            let want = want[first * hidden..(first + count) * hidden].to_vec();
            let x = self.rig.buffers.scratch.x;
            let got = read_f32(self.machine.device.as_mut(), x, 0, want.len());
            compare(&got.expect("in bounds"), &want);
            self.store(plan, behind, &want);
        }
    }

    /// Writes the residual stream in front of layer `next` as a kernel with a residual epilogue does.
    fn store(&mut self, plan: &Plan, next: usize, x: &[f32]) {
        let (shape, session) = (&self.rig.shape, &self.rig.session);
        let buffers = &self.rig.buffers;
        let splits = session.splits;
        let cx = LaunchContext { shape, session, step: plan.step(), layer: None, splits };
        let norm = buffers.layers.get(next).map_or(buffers.final_norm, |layer| layer.input_norm);
        let norm = self.rig.norm(norm);
        let xn: Vec<f32> = x.iter().zip(norm.iter().cycle()).map(|(x, w)| x * w).collect();
        let mut write = |id, first, values: &[f32]| {
            write_f32(self.machine.device.as_mut(), id, first, values).expect("in bounds");
        };
        write(buffers.scratch.x, 0, x);
        write(buffers.scratch.xn, 0, &xn);
        for (row, x) in x.chunks(shape.hidden).enumerate() {
            let tiles = x.chunks(cx.ss_columns());
            let ss: Vec<f32> = tiles.map(|x| x.iter().map(|v| v * v).sum()).collect();
            write(buffers.scratch.x_ss, row * (shape.hidden / 8), &ss);
        }
    }
}
