//! Declared ranges of the expert kernels at the reference model's size, as bytes moved.

use std::sync::Arc;

use lily_plan::{
    BufferKind, Buffers, Element, Launch, Live, Plan, PlanTable, Precision, RowFormat, Step,
};

use crate::conformance::small_shapes;
use crate::residual::ResidualBuffers;
use crate::shape::{LaunchContext, ModelShape, SessionShape};
use crate::{combine, experts_down, experts_gate_up};
use crate::{group_experts, grouped_down, grouped_gate_up, router, topk};

/// Kernel, bytes read, bytes written.
type Cost = (&'static str, u64, u64);

fn costs(step: Step, fused: bool) -> Vec<Cost> {
    let small = small_shapes().remove(0);
    let shape = ModelShape { hidden: 2048, experts: 256, top_k: 8, inner: 512, ..small };
    let session = SessionShape {
        batch: 1,
        tokens: step.rows(),
        capacity: 4096,
        run_ahead: 1,
        splits: 16,
        ring: 64,
        logit_rows: 1,
        precision: Precision::BF16,
    };
    let cx = LaunchContext { shape: &shape, session: &session, step, layer: None, splits: 16 };
    let mut buffers = Buffers::new();
    let launches = block(&cx, &mut buffers, fused);
    let plan = Plan::new(step, Arc::new(buffers), launches).expect("the block is a plan");
    let control = [5, 37, step.rows() as i32, 0, 0, 99, 0, 0];
    let live = Live::new(step, &control, &[], None);
    let row = |r: &lily_plan::LaunchRow| (r.kernel, r.bytes_read, r.bytes_written);
    PlanTable::new(&plan, &live).list.iter().map(row).collect()
}

/// The launches of one expert block.
fn block(cx: &LaunchContext<'_>, b: &mut Buffers, fused: bool) -> Vec<Launch> {
    use Element::{Bf16, F32, I32};
    let (shape, m) = (cx.shape, cx.session.rows());
    let (hidden, inner, experts, slots) = (shape.hidden, shape.inner, shape.experts, shape.slots());
    let mut add =
        |name: &str, element, shape: &[usize]| b.add(BufferKind::Scratch, name, element, shape);
    let control = add("control", I32, &[1, 8]);
    let (x, xn) = (add("x", F32, &[m, hidden]), add("xn", Bf16, &[m, hidden]));
    let x_ss = add("x_ss", F32, &[m, hidden / 8]);
    let router_logits = add("router_logits", F32, &[m, experts + 1]);
    let (ids, route) = (add("ids", I32, &[m, slots]), add("route", F32, &[m, slots]));
    let h = add("h", Bf16, &[1, slots, inner]);
    let row_token = add("row_token", I32, &[m * slots]);
    let row_slot = add("row_slot", I32, &[m * slots]);
    let work = add("work", I32, &[shape.work_entries(m), 4]);
    let hs = add("hs", Bf16, &[m * slots, inner]);
    let moe_y = add("moe_y", F32, &[m, slots, hidden]);
    let mut weight =
        |name: &str, element, shape: &[usize]| b.add(BufferKind::Weight, name, element, shape);
    let post_norm = weight("post_norm", Bf16, &[hidden]);
    let next_norm = weight("next_norm", Bf16, &[hidden]);
    let mut matrix = |name: &str, format: RowFormat, shape: &[usize]| {
        let (k, rows) = shape.split_last().expect("a matrix has columns");
        let rows: usize = rows.iter().product();
        let total_bytes = (rows * format.row_bytes(*k)) as u64;
        weight(name, Element::Matrix { total_bytes }, shape)
    };
    let router_weight = matrix("router", RowFormat::Q8, &[experts + 1, hidden]);
    let gate_up = matrix("gate_up", RowFormat::Q4, &[experts + 1, 2 * inner, hidden]);
    let down = matrix("down", RowFormat::Q4, &[experts + 1, hidden, inner]);
    let residual = ResidualBuffers { x, next_norm, xn, x_ss };
    let route_tokens = [
        router::launch(
            cx,
            router::Buffers { control, x, x_ss, post_norm, weight: router_weight, router_logits },
        ),
        topk::launch(cx, topk::Buffers { control, router_logits, ids, route }),
    ];
    let experts = if cx.step.is_prefill() {
        use grouped_gate_up::Buffers as Up;
        vec![
            group_experts::launch(
                cx,
                group_experts::Buffers { control, ids, row_token, row_slot, work },
            ),
            grouped_gate_up::launch(cx, Up { control, xn, x_ss, work, row_token, gate_up, hs }),
            grouped_down::launch(
                cx,
                grouped_down::Buffers {
                    control,
                    hs,
                    work,
                    row_token,
                    row_slot,
                    route,
                    down,
                    moe_y,
                },
            ),
            combine::launch(cx, combine::Buffers { control, moe_y, residual }),
        ]
    } else if fused {
        use experts_down::FusedBuffers as Down;
        use experts_gate_up::FusedBuffers as Up;
        vec![
            experts_gate_up::launch_fused(cx, Up { control, xn, x_ss, router_logits, gate_up, h }),
            experts_down::launch_fused(cx, Down { control, h, router_logits, down, residual }),
        ]
    } else {
        use experts_down::Buffers as Down;
        use experts_gate_up::Buffers as Up;
        vec![
            experts_gate_up::launch(cx, Up { control, xn, x_ss, ids, gate_up, h }),
            experts_down::launch(cx, Down { control, h, ids, route, down, residual }),
        ]
    };
    route_tokens.into_iter().chain(experts).collect()
}

#[test]
fn decode_moves_the_bytes_of_nine_experts() {
    let expected = [
        ("router", 572_576, 1_028),
        ("topk", 1_060, 72),
        ("experts_gate_up", 10_622_020, 9_216),
        ("experts_down", 5_330_024, 13_312),
    ];
    assert_eq!(costs(Step::Decode { batch: 1 }, false), expected);
}

#[test]
fn the_fused_choice_reads_logits_instead_of_ids_and_weights() {
    let expected = [("experts_gate_up", 10_622_020 + 992), ("experts_down", 5_330_024 + 956)];
    let costs = costs(Step::Decode { batch: 1 }, true);
    assert_eq!([(costs[2].0, costs[2].1), (costs[3].0, costs[3].1)], expected);
}

#[test]
#[cfg_attr(miri, ignore = "millions of plain integer operations")]
fn a_long_chunk_moves_every_expert_once() {
    let expected = [
        ("router", 17_602_720, 2_105_344),
        ("topk", 2_105_376, 147_456),
        ("group_experts", 73_760, 160_768),
        ("grouped_gate_up", 311_907_360, 18_874_368),
        ("grouped_down", 170_693_664, 150_994_944),
        ("combine", 167_776_288, 25_427_968),
    ];
    assert_eq!(costs(Step::Prefill { tokens: 2048, sequence: 0 }, false), expected);
}
