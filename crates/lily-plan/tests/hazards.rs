//! Hazard analysis against a brute-force model that looks at single elements.

use std::ops::Range;
use std::sync::Arc;

use lily_plan::{Access, Binding, BufferKind, Buffers, Element, Launch, Plan, Region, Step};
use proptest::collection::vec;
use proptest::prelude::*;

const SHAPES: [&[usize]; 3] = [&[6], &[3, 4], &[2, 3, 3]];

#[derive(Clone, Debug)]
struct Use {
    buffer: usize,
    read: Option<Vec<Range<usize>>>,
    write: Option<Vec<Range<usize>>>,
}

fn range(size: usize) -> impl Strategy<Value = Range<usize>> {
    (0..size, 1..=size).prop_map(move |(start, len)| start..(start + len).min(size))
}

fn region(buffer: usize) -> impl Strategy<Value = Vec<Range<usize>>> {
    let shape = SHAPES[buffer];
    (0..=shape.len()).prop_flat_map(move |axes| {
        shape[..axes].iter().map(|&size| range(size)).collect::<Vec<_>>()
    })
}

/// Reads or writes of some of the buffers; each buffer is bound at most once.
fn launch() -> impl Strategy<Value = Vec<Use>> {
    let of = |buffer: usize| {
        (region(buffer), region(buffer), 0..5u8).prop_map(move |(a, b, kind)| match kind {
            0 | 1 => Some(Use { buffer, read: Some(a), write: None }),
            2 => Some(Use { buffer, read: None, write: Some(b) }),
            3 => Some(Use { buffer, read: Some(a), write: Some(b) }),
            _ => None,
        })
    };
    (of(0), of(1), of(2)).prop_map(|(a, b, c)| [a, b, c].into_iter().flatten().collect())
}

fn elements(buffer: usize, region: &Option<Vec<Range<usize>>>) -> Vec<usize> {
    let shape = SHAPES[buffer];
    let Some(axes) = region else { return Vec::new() };
    let inside = |flat: &usize| {
        let mut rest = *flat;
        let mut index = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            index[axis] = rest % shape[axis];
            rest /= shape[axis];
        }
        axes.iter().zip(index).all(|(r, i)| r.contains(&i))
    };
    (0..shape.iter().product()).filter(inside).collect()
}

fn meet(a: &[Use], b: &[Use], pick_a: Pick, pick_b: Pick) -> bool {
    a.iter().any(|x| {
        b.iter().any(|y| {
            let theirs = elements(y.buffer, pick_b(y));
            x.buffer == y.buffer && elements(x.buffer, pick_a(x)).iter().any(|e| theirs.contains(e))
        })
    })
}

type Pick = fn(&Use) -> &Option<Vec<Range<usize>>>;

fn plan(launches: &[Vec<Use>]) -> Plan {
    let mut buffers = Buffers::new();
    let ids: Vec<_> = SHAPES
        .iter()
        .enumerate()
        .map(|(i, shape)| {
            buffers.add(BufferKind::Scratch, format!("b{i}"), Element::F32, shape.to_vec())
        })
        .collect();
    let access = |axes: &Vec<Range<usize>>| Access::new(Region::new(axes.clone()), |_| Vec::new());
    let binding = |u: &Use| match (&u.read, &u.write) {
        (Some(r), Some(w)) => Binding::owned("b", ids[u.buffer], access(r), access(w)),
        (Some(r), None) => Binding::read("b", ids[u.buffer], access(r)),
        (None, Some(w)) => Binding::write("b", ids[u.buffer], access(w)),
        (None, None) => unreachable!("every use reads or writes"),
    };
    let record = |uses: &Vec<Use>| {
        let bindings = uses.iter().map(binding).collect();
        Launch::new("kernel", None, 0u32, bindings, [1, 1, 1], 32, |_| 0)
    };
    let list = launches.iter().map(record).collect();
    Plan::new(Step::Decode { batch: 1 }, Arc::new(buffers), list).expect("valid by construction")
}

proptest! {
    #[test]
    fn stages_and_conflicts_agree_with_single_elements(launches in vec(launch(), 1..14)) {
        let plan = plan(&launches);
        let read: Pick = |u| &u.read;
        let write: Pick = |u| &u.write;
        let mut stages = Vec::new();
        for (i, ours) in launches.iter().enumerate() {
            let mut stage = 0;
            for (j, theirs) in launches[..i].iter().enumerate() {
                let kinds = [
                    meet(ours, theirs, read, write),
                    meet(ours, theirs, write, write),
                    meet(ours, theirs, write, read),
                ];
                let found = plan.launches()[i].needs.iter().find(|d| d.launch == j).map(|d| {
                    [d.read_after_write, d.write_after_write, d.write_after_read]
                });
                prop_assert_eq!(found.unwrap_or([false; 3]), kinds);
                if kinds.contains(&true) {
                    stage = stage.max(stages[j] + 1);
                }
            }
            stages.push(stage);
            prop_assert_eq!(plan.launches()[i].stage, stage);
        }
        let listed: usize = plan.by_stage().iter().map(Vec::len).sum();
        prop_assert_eq!(listed, launches.len());
    }
}

#[test]
fn a_launch_that_meets_its_own_reads_is_refused() {
    let mut buffers = Buffers::new();
    let id = buffers.add(BufferKind::Scratch, "x", Element::F32, [4]);
    let access = |r: Range<usize>| Access::new(Region::new([r]), |_| Vec::new());
    let try_plan = |bindings: Vec<Binding>| {
        let launch = Launch::new("kernel", Some(3), 0u32, bindings, [1, 1, 1], 32, |_| 0);
        Plan::new(Step::Decode { batch: 1 }, Arc::new(buffers.clone()), vec![launch])
    };
    let unowned =
        try_plan(vec![Binding::read("a", id, access(0..3)), Binding::write("b", id, access(2..4))]);
    let text = unowned.expect_err("the ranges overlap").to_string();
    assert!(text.contains("kernel.3 reads and writes x[2..4] without owning it"), "{text}");
    let apart =
        try_plan(vec![Binding::read("a", id, access(0..2)), Binding::write("b", id, access(2..4))]);
    assert!(apart.is_ok());
    let outside = try_plan(vec![Binding::read("a", id, access(2..5))]);
    let text = outside.expect_err("the range leaves the buffer").to_string();
    assert!(text.contains("x[2..5] outside of the buffer's shape [4]"), "{text}");
}
