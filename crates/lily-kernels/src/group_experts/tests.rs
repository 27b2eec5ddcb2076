//! Conformance cases, and what the sort promises.

use lily_plan::Step;

use super::{Buffers, launch};
use crate::conformance::{Case, CaseBuilder, Tolerance, few, small_shapes};
use crate::routing::session_work_entries;
use crate::routing::testing::{PATTERNS, control, ids, steps};

/// All cases of this kernel: random routing leaves some experts empty when tokens are few; equal
/// routing leaves most empty and needs several tiles for an expert. The buffers hold garbage before.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in small_shapes() {
        // More tokens than two threadgroups place.
        let long = few([Step::Prefill { tokens: 140, sequence: 1 }]).filter(|_| !cfg!(miri));
        for step in steps().into_iter().chain(long) {
            for pattern in few(PATTERNS) {
                let mut c = CaseBuilder::new(&shape, step);
                c.label(&format!("{pattern:?}"));
                let (m, slots) = (c.rows(), shape.slots());
                let (control, _) = control(&mut c, step);
                let values = ids(&mut c, pattern);
                let entries = session_work_entries(&c.context());
                let buffers = Buffers {
                    control,
                    ids: c.i32("ids", [m, slots], values),
                    row_token: c.i32("row_token", [m * slots], vec![-7; m * slots]),
                    row_slot: c.i32("row_slot", [m * slots], vec![-7; m * slots]),
                    work: c.i32("work", [entries, 4], vec![-7; entries * 4]),
                };
                let launch = launch(&c.context(), buffers);
                cases.push(c.build(launch, Tolerance::SAME));
            }
        }
    }
    cases
}

#[cfg(test)]
mod properties {
    use super::*;
    use crate::routing::{Groups, group};
    use crate::shape::GROUPED_TILE_ROWS;

    /// Groups of every routing of the cases, with ids, rows and dimensions.
    fn for_each(claim: impl Fn(&Groups, &[i32], &[usize], usize, usize)) {
        for shape in small_shapes() {
            for (step, pattern) in steps().into_iter().flat_map(|s| PATTERNS.map(|p| (s, p))) {
                let mut c = CaseBuilder::new(&shape, step);
                let (_, live) = control(&mut c, step);
                let ids = ids(&mut c, pattern);
                let entries = session_work_entries(&c.context());
                let groups = group(&ids, &live, shape.top_k, shape.experts, entries);
                claim(&groups, &ids, &live, shape.slots(), shape.experts);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "hundreds of runs of the interpreter")]
    fn sorted_rows_are_the_stable_sort_of_all_pairs_by_expert() {
        for_each(|groups, ids, live, slots, _| {
            let pairs = live.iter().flat_map(|&row| (0..slots).map(move |slot| (row, slot)));
            let mut pairs: Vec<(usize, usize)> = pairs.collect();
            pairs.sort_by_key(|(row, slot)| ids[row * slots + slot]);
            let of = |v: &[i32]| v.iter().map(|&v| v as usize).collect::<Vec<_>>();
            let sorted: Vec<_> =
                of(&groups.row_token).into_iter().zip(of(&groups.row_slot)).collect();
            assert_eq!(sorted, pairs);
        });
    }

    #[test]
    fn the_shared_experts_rows_are_the_tokens_in_order_at_the_end() {
        for_each(|groups, _, live, slots, experts| {
            let shared = live.len() * (slots - 1);
            let tokens: Vec<i32> = live.iter().map(|&row| row as i32).collect();
            assert_eq!(groups.row_token[shared..], tokens);
            assert!(groups.row_slot[shared..].iter().all(|&slot| slot as usize == slots - 1));
            let first = groups.work.chunks(4).find(|entry| entry[0] as usize == experts);
            assert_eq!(first.map(|entry| entry[1] as usize), Some(shared));
        });
    }

    #[test]
    fn work_entries_cover_the_rows_once_and_end_in_zeros() {
        for_each(|groups, ids, live, slots, _| {
            let used: Vec<&[i32]> =
                groups.work.chunks(4).take_while(|entry| entry[2] > 0).collect();
            let mut next = 0;
            let mut before = [-1, 0, 0, 0];
            for entry in &used {
                let another = entry[0] == before[0];
                assert_eq!(entry[3], if another { before[3] + 1 } else { 0 });
                assert!(!another || before[2] as usize == GROUPED_TILE_ROWS);
                before.copy_from_slice(entry);
                assert_eq!(entry[1] as usize, next);
                assert!(entry[2] as usize <= GROUPED_TILE_ROWS);
                next += entry[2] as usize;
                for row in entry[1]..entry[1] + entry[2] {
                    let token = groups.row_token[row as usize] as usize;
                    let slot = groups.row_slot[row as usize] as usize;
                    assert_eq!(ids[token * slots + slot], entry[0]);
                }
            }
            assert_eq!(next, live.len() * slots);
            assert!(groups.work[used.len() * 4..].iter().all(|&word| word == 0));
        });
    }
}
