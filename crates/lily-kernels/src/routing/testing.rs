//! Routings for the conformance cases of the expert kernels.

use lily_plan::{BufferId, Step};

use super::{Groups, group, session_work_entries};
use crate::conformance::{CaseBuilder, decode_steps, prefill_steps};
use crate::residual::ResidualBuffers;

/// How tokens choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every token for itself.
    Random,
    /// All tokens choose the same experts, the others stay empty.
    Same,
}

/// Both patterns.
pub const PATTERNS: [Pattern; 2] = [Pattern::Random, Pattern::Same];

/// Steps of both kinds.
pub fn steps() -> Vec<Step> {
    decode_steps().into_iter().chain(prefill_steps()).collect()
}

/// A control block whose middle sequence of three is halted in decode, and its live rows.
pub fn control(c: &mut CaseBuilder<'_>, step: Step) -> (BufferId, Vec<usize>) {
    match step {
        Step::Prefill { tokens, .. } => {
            (c.control(), (0..tokens.saturating_sub(2).max(1)).collect())
        }
        Step::Decode { batch } => {
            let rows = [[5, 37, 0, 0, 3, 99], [7, 61, 0, 1, 0, 99], [9, 50, 0, 0, 2, 99]];
            let live = (0..batch).filter(|&row| row != 1).collect();
            (c.control_rows(&rows[..batch]), live)
        }
    }
}

/// Ids of all rows, `[rows, slots]`.
pub fn ids(c: &mut CaseBuilder<'_>, pattern: Pattern) -> Vec<i32> {
    let (experts, top_k) = (c.shape.experts, c.shape.top_k);
    let mut out: Vec<i32> = Vec::new();
    for row in 0..c.rows() {
        if row > 0 && pattern == Pattern::Same {
            out.extend_from_within(..top_k + 1);
            continue;
        }
        let mut order: Vec<(f32, i32)> = (0..experts as i32).map(|e| (c.uniform(), e)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        out.extend(order[..top_k].iter().map(|(_, expert)| *expert));
        out.push(experts as i32);
    }
    out
}

/// Route weights of all rows, `[rows, slots]`, positive.
pub fn route(c: &mut CaseBuilder<'_>) -> BufferId {
    let (rows, slots) = (c.rows(), c.shape.slots());
    let values = (0..rows * slots).map(|_| 0.05 + c.uniform()).collect();
    c.f32_with("route", [rows, slots], values)
}

/// Buffers of the residual epilogue.
pub fn residual(c: &mut CaseBuilder<'_>) -> ResidualBuffers {
    let (m, hidden) = (c.rows(), c.shape.hidden);
    ResidualBuffers {
        x: c.f32("x", [m, hidden]),
        next_norm: c.vector("next_norm", [hidden], |c| 1.0 + 0.2 * c.normal()),
        xn: c.act("xn", [m, hidden]),
        x_ss: c.sums("x_ss", [m, hidden / 8]),
    }
}

/// Groups of the live rows; sorted rows of other tokens hold what nothing may use.
pub fn groups(c: &mut CaseBuilder<'_>, pattern: Pattern, live: &[usize]) -> Groups {
    let ids = ids(c, pattern);
    let entries = session_work_entries(&c.context());
    let mut groups = group(&ids, live, c.shape.top_k, c.shape.experts, entries);
    groups.row_token.resize(c.rows() * c.shape.slots(), i32::MAX);
    groups.row_slot.resize(c.rows() * c.shape.slots(), i32::MAX);
    groups
}
