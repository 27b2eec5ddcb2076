//! Conformance cases.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::attention::testing::{STEEP, queries};
use crate::conformance::{Case, CaseBuilder, Tolerance, prefill_steps, small_shapes};
#[cfg(test)]
use crate::gpu::{Family, Products, Target};

/// All cases of this kernel. Keys behind the chunk are poisoned by the check itself.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        let case = |mut c: CaseBuilder<'_>, row: Option<[i32; 6]>, steepness: f32| {
            let (m, batch, dim) = (c.rows(), c.session.batch, shape.head_dim);
            let cache = [batch, shape.kv_heads, c.session.capacity, dim];
            let control = match row {
                Some(row) => c.control_rows(&[[5, 37, 0, 0, 3, 99], row]),
                None => c.control(),
            };
            let buffers = Buffers {
                control,
                q: queries(&mut c, [m, shape.q_heads, dim], steepness),
                gate: c.act("gate", [m, shape.q_heads, dim]),
                k: c.kv("k", cache),
                v: c.kv("v", cache),
                att: c.act("att", [m, shape.q_width()]),
            };
            let launch = launch(&c.context(), buffers);
            c.build(launch, Tolerance::PLAIN)
        };
        for step in prefill_steps() {
            cases.push(case(CaseBuilder::new(&shape, step), None, 1.0));
            cases.push(case(CaseBuilder::new(&shape, step).bf16_cache(), None, 1.0));
        }
        if cfg!(miri) {
            continue;
        }
        let step = Step::Prefill { tokens: 70, sequence: 1 };
        for (label, row) in [
            ("from position 0", [7, 0, 70, 0, 0, 99]),
            ("a single token at position 0", [7, 0, 1, 0, 0, 99]),
            ("to the last position", [7, 90, 70, 0, 0, 99]),
            ("halted", [7, 61, 70, 1, 0, 99]),
        ] {
            let mut c = CaseBuilder::new(&shape, step);
            c.label(label);
            cases.push(case(c, Some(row), 1.0));
        }
        let mut c = CaseBuilder::new(&shape, step);
        c.label("steep scores");
        cases.push(case(c, None, STEEP));
        // Tiles of 80 keys and parts of four tiles: as many keys as fill them, one more, which the last token alone sees,
        // a third part of one tile, and eight parts.
        for (tokens, position, steepness) in
            [(17, 303, 1.0), (16, 305, 1.0), (5, 636, STEEP), (3, 2557, 1.0)]
        {
            let mut c = CaseBuilder::new(&shape, Step::Prefill { tokens, sequence: 1 });
            c.session.capacity = position + tokens;
            c.label(&format!("from position {position}"));
            let row = [7, position as i32, tokens as i32, 0, 0, 99];
            cases.push(case(c, Some(row), steepness));
        }
    }
    cases
}

/// Function and grid on an NVIDIA GPU for the cases of so many tokens.
#[cfg(test)]
fn entries(capability: u32, tokens: usize) -> Vec<(&'static str, [u32; 3])> {
    let target =
        Target { family: Family::Nvidia { capability }, products: Products::SimdgroupMatrix };
    let cases = cases()
        .into_iter()
        .filter(|case| case.plan.step() == Step::Prefill { tokens, sequence: 1 });
    let entry = |case: Case| {
        let (_, entry) = target.entry(&case.plan.launches()[0], 0, &[None; 6]).expect("legal");
        (entry.function, entry.grid)
    };
    cases.map(entry).collect()
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no case with heads of 256")]
fn heads_of_256_take_the_hopper_form_whose_clusters_fill_the_chip_where_it_exists() {
    let (hopper, other): (Vec<_>, Vec<_>) =
        entries(90, 70).into_iter().partition(|(function, _)| *function == "attn_flash_hopper");
    assert!(!hopper.is_empty() && hopper.iter().all(|(_, grid)| *grid == [2, 5, 8]), "{hopper:?}");
    assert!(!other.is_empty() && other.iter().all(|(function, _)| *function == "attn_flash"));
    assert!(entries(80, 70).iter().all(|(function, _)| *function == "attn_flash"));
}

#[test]
fn all_clusters_run_at_once() {
    for blocks in 1..=200 {
        let splits = super::policy::hopper_splits(blocks);
        assert!((1..=8).contains(&splits));
        // Pairs of blocks fill every group of multiprocessors, whatever its size.
        let at_once = if splits == 2 { 132 / 2 } else { 7 * (16 / splits) };
        assert!(splits == 1 || blocks <= at_once, "{blocks} clusters of {splits}");
    }
}
