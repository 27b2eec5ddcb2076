//! Whole plans on a device and on the interpreter, launch by launch, all buffers compared.

use std::sync::Arc;

use lily_kernels::conformance::{Around, Contents, compare_launch};
use lily_kernels::draw::Draw;
use lily_model::plan::{Choice, PrefillEnd};
use lily_plan::{BufferKind, Device, Launch, Plan, control, write_i32};

use crate::rig::{Machine, Rig, all_fusions};
use crate::{Golden, interpreter};

/// Prefill of three sequences in several ways, then decode steps of every combination of fusions,
/// some of them with a halted sequence: the device agrees with the interpreter at every launch.
///
/// # Panics
/// If it does not.
pub fn agrees_at_every_launch(name: &str, device: Box<dyn Device>, tolerance: f32) {
    let golden = Golden::open(name);
    let rig = Rig::new(&golden, device.precision(), 3, 40);
    let label = format!("{name}, {}", device.name());
    let mut pair = Pair::new(&rig, &label, device, tolerance);
    let ids = &golden.prompts.prompts[2];
    let chunks = [
        (0, &ids[..40], 40, PrefillEnd::More),
        (0, &ids[40..64], 40, PrefillEnd::Logits),
        (1, &ids[..9], 16, PrefillEnd::More),
        (1, &ids[9..10], 16, PrefillEnd::Sample),
        (2, &ids[..33], 40, PrefillEnd::Draw),
    ];
    let rules = [Draw::new(1.0, 20, 0.95, 0.0, 7), Draw::GREEDY, Draw::new(4.0, 64, 1.0, 0.0, 8)];
    let rules: Vec<i32> = rules.iter().flat_map(Draw::words).collect();
    pair.on_both(|machine| {
        write_i32(machine.device.as_mut(), rig.buffers.sampling, 0, &rules).expect("in bounds");
    });
    let check = |result: Result<(), String>| result.unwrap_or_else(|reason| panic!("{reason}"));
    for (sequence, ids, tokens, end) in chunks {
        pair.on_both(|machine| machine.start_chunk(sequence, ids));
        let step = format!("prefill of {} tokens, {end:?}", ids.len());
        check(pair.run(&rig.prefill(tokens, sequence, end), &step));
    }
    for (i, fusions) in all_fusions().into_iter().enumerate() {
        pair.on_both(|machine| {
            machine.set_row(0, |row| row[control::TOKEN] = 5);
            machine.set_row(1, |row| row[control::HALT] = i32::from(i % 3 == 1));
        });
        let choice = [Choice::Device, Choice::Draw, Choice::Host][i % 3];
        check(pair.run(&rig.decode(70, choice, fusions), &format!("decode, {fusions:?}")));
    }
    assert!(pair.launches > 300, "only {} launches", pair.launches);
}

/// Two devices with the same memory before every launch.
pub struct Pair<'a> {
    rig: &'a Rig,
    oracle: Machine<'a>,
    /// The device that is compared.
    pub device: Machine<'a>,
    tolerance: f32,
    label: String,
    /// Launches compared so far.
    pub launches: usize,
}

impl<'a> Pair<'a> {
    /// The interpreter and a device; written elements may differ by `tolerance`.
    pub fn new(rig: &'a Rig, label: &str, device: Box<dyn Device>, tolerance: f32) -> Self {
        let device = rig.start(device);
        let oracle = rig.start(interpreter(rig.session.precision, true));
        Self { rig, oracle, device, tolerance, label: label.into(), launches: 0 }
    }

    /// Changes both.
    pub fn on_both(&mut self, change: impl Fn(&mut Machine<'a>)) {
        [&mut self.oracle, &mut self.device].into_iter().for_each(change);
    }

    /// Runs a plan on both and compares after every launch.
    ///
    /// # Errors
    /// What differs, and where.
    pub fn run(&mut self, plan: &Arc<Plan>, step: &str) -> Result<(), String> {
        let (oracle, device) = (self.oracle.compile(plan), self.device.compile(plan));
        let mut memory = self.oracle.all_bytes();
        self.device.set_all_bytes(&memory);
        for (index, launch) in plan.launches().iter().enumerate() {
            let before = contents(&mut self.oracle, self.rig, launch);
            let ran = self.oracle.device.run_launch(oracle, index);
            ran.and_then(|()| self.device.device.run_launch(device, index))
                .map_err(|e| e.to_string())
                .and_then(|()| self.compare(plan, launch, &before))
                .and_then(|()| self.settle(launch, &mut memory))
                .map_err(|e| format!("{}, {step}, {}: {e}", self.label, launch.label()))?;
            self.launches += 1;
        }
        Ok(())
    }

    /// What the launch binds: written elements within the tolerance, all others bit for bit.
    fn compare(&mut self, plan: &Plan, launch: &Launch, before: &[Contents]) -> Result<(), String> {
        let want = contents(&mut self.oracle, self.rig, launch);
        let mut got = contents(&mut self.device, self.rig, launch);
        if launch.kernel == "head" {
            self.accept_near_ties(&want, &mut got)?;
        }
        let around = Around { before, want: &want, got: &got };
        compare_launch(plan, launch, &around, self.tolerance)
    }

    /// Another best id is right where its logit is as large as the best one, within the tolerance.
    fn accept_near_ties(&self, want: &[Contents], got: &mut [Contents]) -> Result<(), String> {
        let scratch = &self.rig.buffers.scratch;
        let (vocab, tiles) = (self.rig.shape.vocab, self.rig.shape.head_tiles());
        let best_id = scratch.best_id.index();
        let (Contents::Float(logits), Contents::Int(best), Contents::Int(chosen)) =
            (&want[scratch.logits.index()], &want[best_id], &mut got[best_id])
        else {
            return Err("the head binds no logits or ids".into());
        };
        for (i, (chosen, best)) in chosen.iter_mut().zip(best).enumerate() {
            let logit = |id: i32| logits[i / tiles * vocab + id as usize];
            if chosen != best {
                let loss = logit(*best) - logit(*chosen);
                if loss.is_nan() || loss > self.tolerance * logit(*best).abs().max(1.0) {
                    return Err(format!("id {chosen} instead of {best} loses {loss}"));
                }
                *chosen = *best;
            }
        }
        Ok(())
    }

    /// All other buffers are untouched; those that the launch binds become the interpreter's.
    fn settle(&mut self, launch: &Launch, memory: &mut [Vec<u8>]) -> Result<(), String> {
        let bound = |id| launch.bindings.iter().any(|b| b.buffer == id);
        for (id, buffer) in self.rig.buffers.table.iter() {
            if buffer.kind == BufferKind::Weight {
                continue;
            }
            let expected = &mut memory[id.index()];
            if bound(id) {
                *expected = self.oracle.bytes(id);
                self.device.device.write(id, 0, expected).map_err(|e| e.to_string())?;
            } else if self.device.bytes(id) != *expected {
                return Err(format!("{} is not bound, but has changed", buffer.name));
            }
        }
        Ok(())
    }
}

/// Contents of the buffers that a launch may touch, and of those that exact ranges follow from.
fn contents(machine: &mut Machine<'_>, rig: &Rig, launch: &Launch) -> Vec<Contents> {
    let always = [rig.buffers.control, rig.buffers.prompt];
    let needed = |id| always.contains(&id) || launch.bindings.iter().any(|b| b.buffer == id);
    let ids = rig.buffers.table.iter().map(|(id, _)| id);
    ids.map(|id| if needed(id) { machine.buffer(id) } else { Contents::Weight }).collect()
}
