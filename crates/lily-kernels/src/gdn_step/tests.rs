//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, decode_steps, small_shapes};
use crate::shape::ModelShape;

/// All cases of this kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        for step in decode_steps() {
            cases.push(case(&shape, step, "", |_| {}));
        }
        let three = Step::Decode { batch: 3 };
        // Positions without a full window, among them 0: nothing of the old rings is read there, so
        // not a number in them changes nothing. The middle sequence is halted.
        cases.push(case(&shape, three, "first positions", |c| {
            c.control = [[5, 0, 0, 0, 0, 9], [5, 8, 0, 1, 0, 9], [5, 1, 0, 0, 1, 9]];
        }));
        cases.push(case(&shape, three, "all halted", |c| {
            c.control.iter_mut().for_each(|row| row[3] = 1);
        }));
        // a = 40 with A_log = 3: log alpha = -800, alpha = 0.
        cases.push(case(&shape, three, "complete decay", |c| (c.a, c.a_log) = (40.0, 3.0)));
    }
    cases
}

struct Content {
    control: [[i32; 6]; 3],
    a: f32,
    a_log: f32,
}

fn case(shape: &ModelShape, step: Step, label: &str, change: impl FnOnce(&mut Content)) -> Case {
    let mut c = CaseBuilder::new(shape, step);
    let mut content = Content {
        control: [[5, 37, 0, 0, 3, 99], [7, 61, 0, 0, 0, 99], [9, 50, 0, 1, 2, 99]],
        a: 0.0,
        a_log: 0.0,
    };
    change(&mut content);
    if !label.is_empty() {
        c.label(label);
    }
    let (m, batch) = (c.rows(), c.session.batch);
    let state = [batch, c.session.state_slots(), shape.v_heads, shape.v_dim, shape.k_dim];
    let control = c.control_rows(&content.control);
    let gates = (0..m * 2 * shape.v_heads).map(|i| {
        let is_a = i % (2 * shape.v_heads) >= shape.v_heads;
        if is_a { content.a + c.normal() } else { 1.5 * c.normal() }
    });
    let gates = gates.collect();
    let buffers = Buffers {
        control,
        conv: c.f32("conv", [batch, c.session.conv_slots(shape), shape.conv_channels()]),
        z: c.act("z", [m, shape.v_width()]),
        ba: c.f32_with("ba", [m, 2 * shape.v_heads], gates),
        conv1d: c.vector("conv1d", [shape.conv_channels(), shape.conv_width], |c| 0.5 * c.normal()),
        a_log: c.vector("a_log", [shape.v_heads], |c| content.a_log + 0.5 * c.normal()),
        dt_bias: c.vector("dt_bias", [shape.v_heads], |c| 0.5 * c.normal()),
        norm: c.vector("norm", [shape.v_dim], |c| 1.0 + 0.2 * c.normal()),
        state: c.f32("state", state),
        og: c.act("og", [m, shape.v_width()]),
        o_ss: c.f32("o_ss", [batch, shape.v_heads, shape.o_ss_slices()]),
    };
    let launch = launch(&c.context(), buffers);
    c.build(launch, Tolerance::PLAIN)
}
