//! What the tests of the attention kernels share.

use lily_plan::{BufferId, Element, Step};

use super::PreparedBuffers;
use crate::conformance::{CaseBuilder, Tolerance, decode_steps, few};
use crate::shape::ModelShape;

/// Tolerance of kernels that write the cache. Two f32 results on both sides of a rounding boundary
/// differ by 2^-8 in a bfloat16 cache; one such pair among the at least 288 new elements makes
/// 2.3e-4.
pub(crate) fn tolerance(cache: Element) -> Tolerance {
    match cache {
        Element::Bf16 => Tolerance { exact: 5e-4, int8: 5e-4, ..Tolerance::PLAIN },
        _ => Tolerance::PLAIN,
    }
}

/// Decode steps with both caches, and positions around the block borders of 4 splits (blocks of 32
/// keys up to 128, of 64 above). The control block is declared first.
pub(crate) fn decode_builders(shape: &ModelShape) -> Vec<(CaseBuilder<'_>, BufferId)> {
    let mut builders = Vec::new();
    for step in decode_steps() {
        builders.push(CaseBuilder::new(shape, step));
        builders.push(CaseBuilder::new(shape, step).bf16_cache());
    }
    let mut builders: Vec<_> = builders
        .into_iter()
        .map(|mut c| {
            let control = c.control();
            (c, control)
        })
        .collect();
    for position in few([0, 30, 31, 32, 95, 96, 127, 128, 158, 159]) {
        let mut c = CaseBuilder::new(shape, Step::Decode { batch: 2 });
        c.label(&format!("position {position}"));
        let control = c.control_rows(&[position, 159 - position].map(|p| [5, p, 0, 0, 3, 99]));
        builders.push((c, control));
    }
    builders
}

/// Buffers of the prologue with random contents.
pub(crate) fn prepared(c: &mut CaseBuilder<'_>, control: BufferId) -> PreparedBuffers {
    let shape = c.shape;
    let (m, batch, dim) = (c.rows(), c.session.batch, shape.head_dim);
    let cache = [batch, shape.kv_heads, c.session.capacity, dim];
    PreparedBuffers {
        control,
        aq: c.f32("aq", [m, shape.q_heads, dim]),
        ak: c.f32("ak", [m, shape.kv_heads, dim]),
        av: c.f32("av", [m, shape.kv_heads, dim]),
        q_norm: c.vector("q_norm", [dim], |c| 1.0 + 0.2 * c.normal()),
        k_norm: c.vector("k_norm", [dim], |c| 1.0 + 0.2 * c.normal()),
        k: c.kv("k", cache),
        v: c.kv("v", cache),
    }
}

/// Scores this many times as far apart exceed what came before them in most rows by more than an online
/// softmax tolerates without scaling its outputs.
pub(crate) const STEEP: f32 = 6.0;

/// Queries whose scores are `steepness` times as far apart as those of normal values.
pub(crate) fn queries(c: &mut CaseBuilder<'_>, shape: [usize; 3], steepness: f32) -> BufferId {
    let values = (0..shape.iter().product()).map(|_| steepness * c.normal()).collect();
    c.act_with("q", shape, values)
}
