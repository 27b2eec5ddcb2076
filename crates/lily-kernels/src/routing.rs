//! Routing of tokens to experts: the choice of experts, their order for grouped products, and the
//! ranges that follow from it.

use std::ops::Range;

use lily_plan::{Access, BufferId, Live, Region};

use crate::gpu::{Entry, Unsupported, msl_struct};
use crate::math::sigmoid;
use crate::shape::{GROUPED_TILE_ROWS, LaunchContext, ModelShape};

#[cfg(test)]
mod costs;
#[allow(unsafe_code)]
pub(crate) mod cpu;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// Words of one entry of the work list: expert, first sorted row, rows, number among the expert's entries from 0
/// on. All but an expert's last entry are full; unused entries are zero.
pub const WORK_WORDS: usize = 4;

/// A logit as the choice sees it: NaN counts as lowest and infinities as the largest finite values,
/// so that any logits give distinct experts with finite weights.
pub fn rankable(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX).max(f32::MIN)
}

/// Chooses the experts of one token.
///
/// `logits: [experts + 1]`; `ids` and `weights`: `[top_k + 1]`. The chosen experts stand in order of
/// falling probability, ties to the lowest index, with weights `p / sum of the chosen p`. The last
/// slot is the shared expert, index `experts`, with weight `sigmoid(logits[experts])`.
///
/// The softmax over all experts is never formed: its order is that of the logits, where no rounding
/// of the exponential makes ties, and its denominator cancels in the weights.
pub fn choose(logits: &[f32], ids: &mut [i32], weights: &mut [f32]) {
    let (experts, top_k) = (logits.len() - 1, ids.len() - 1);
    debug_assert!(top_k <= experts && weights.len() == ids.len());
    let mut kept = 0;
    for (expert, &logit) in logits[..experts].iter().enumerate() {
        let logit = rankable(logit);
        if kept == top_k && (top_k == 0 || weights[top_k - 1] >= logit) {
            continue;
        }
        // An equal logit of a lower index stays in front.
        let mut at = if kept < top_k { kept } else { top_k - 1 };
        while at > 0 && weights[at - 1] < logit {
            weights[at] = weights[at - 1];
            ids[at] = ids[at - 1];
            at -= 1;
        }
        weights[at] = logit;
        ids[at] = expert as i32;
        kept = (kept + 1).min(top_k);
    }
    let largest = weights[0];
    let mut sum = 0.0;
    for weight in &mut weights[..top_k] {
        *weight = (*weight - largest).exp();
        sum += *weight;
    }
    for weight in &mut weights[..top_k] {
        *weight /= sum;
    }
    ids[top_k] = experts as i32;
    weights[top_k] = sigmoid(logits[experts]);
}

/// [`choose`] into a tile's work space: ids and weights, `[top_k + 1]` each.
pub fn choose_into<'s>(
    logits: &[f32],
    top_k: usize,
    space: &'s mut Vec<f32>,
) -> (&'s [i32], &'s [f32]) {
    let slots = top_k + 1;
    space.clear();
    space.resize(2 * slots, 0.0);
    let (ids, weights) = space.split_at_mut(slots);
    let ids: &mut [i32] = bytemuck::cast_slice_mut(ids);
    choose(logits, ids, weights);
    (ids, weights)
}

/// The (token, slot) pairs of some tokens, sorted by expert, and the tiles of equal expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Token of each sorted row.
    pub row_token: Vec<i32>,
    /// Slot of each sorted row.
    pub row_slot: Vec<i32>,
    /// Entries of [`WORK_WORDS`] words, all of the buffer: unused ones are zero.
    pub work: Vec<i32>,
}

/// Groups the `rows` of `ids: [.., top_k + 1]` in the plainest way; the oracle of `group_experts`.
///
/// # Panics
/// If the list needs more than `entries` entries.
pub fn group(ids: &[i32], rows: &[usize], top_k: usize, experts: usize, entries: usize) -> Groups {
    let (mut row_token, mut row_slot, mut work) = (Vec::new(), Vec::new(), Vec::new());
    for expert in 0..=experts {
        let first = row_token.len();
        for &row in rows {
            for slot in 0..=top_k {
                let id =
                    if slot == top_k { experts } else { ids[row * (top_k + 1) + slot] as usize };
                if id == expert {
                    row_token.push(row as i32);
                    row_slot.push(slot as i32);
                }
            }
        }
        for (number, start) in (first..row_token.len()).step_by(GROUPED_TILE_ROWS).enumerate() {
            let tile = GROUPED_TILE_ROWS.min(row_token.len() - start);
            work.extend([expert as i32, start as i32, tile as i32, number as i32]);
        }
    }
    assert!(work.len() <= entries * WORK_WORDS, "the work list holds {entries} entries");
    work.resize(entries * WORK_WORDS, 0);
    Groups { row_token, row_slot, work }
}

/// One tile of the grouped products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkEntry {
    /// Expert; its matrix block.
    pub expert: usize,
    /// Sorted rows, at most [`GROUPED_TILE_ROWS`].
    pub rows: Range<usize>,
}

/// The used entries of a work list.
pub fn work_entries(work: &[i32]) -> impl Iterator<Item = WorkEntry> + '_ {
    work.as_chunks::<WORK_WORDS>().0.iter().take_while(|entry| entry[2] > 0).map(work_entry)
}

/// Entry `n` of a work list.
pub fn nth_work_entry(work: &[i32], n: usize) -> WorkEntry {
    work_entry(&work.as_chunks().0[n])
}

fn work_entry(&[expert, first, rows, _]: &[i32; WORK_WORDS]) -> WorkEntry {
    WorkEntry { expert: expert as usize, rows: first as usize..(first + rows) as usize }
}

/// Where a launch finds the experts that it multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingSource {
    /// `ids: [rows, slots]`.
    Ids(BufferId),
    /// `router_logits: [rows, experts + 1]`, chosen from by the launch itself.
    Logits(BufferId),
    /// `work: [entries, 4]`.
    Work(BufferId),
}

/// The chosen experts of the live rows, in a matrix with one block for each expert. Statically all.
pub fn chosen_experts(cx: &LaunchContext<'_>, source: RoutingSource) -> Access {
    let (experts, top_k) = (cx.shape.experts, cx.shape.top_k);
    Access::new(Region::whole(), move |live| {
        let mut used = match live.memory() {
            Some(_) => used_experts(live, source, experts, top_k),
            None => uniform_experts(live.rows().len(), experts, top_k),
        };
        used.sort_unstable();
        used.dedup();
        used.into_iter().map(|expert| Region::at([expert])).collect()
    })
}

fn used_experts(
    live: &Live<'_>,
    source: RoutingSource,
    experts: usize,
    top_k: usize,
) -> Vec<usize> {
    let (Some(memory), slots) = (live.memory(), top_k + 1) else { return Vec::new() };
    let mut used = Vec::new();
    let mut add = |ids: &[i32]| {
        let ids = ids.iter().filter_map(|&id| usize::try_from(id).ok());
        used.extend(ids.filter(|&id| id <= experts));
    };
    match source {
        RoutingSource::Ids(ids) => {
            let ids = memory.i32(ids);
            live.rows().iter().for_each(|row| add(&ids[row * slots..(row + 1) * slots]));
        }
        RoutingSource::Logits(logits) => {
            let logits = memory.f32(logits);
            let mut space = Vec::new();
            for row in live.rows() {
                let row = &logits[row * (experts + 1)..(row + 1) * (experts + 1)];
                add(choose_into(row, top_k, &mut space).0);
            }
        }
        RoutingSource::Work(work) if !live.rows().is_empty() => {
            work_entries(memory.i32(work)).for_each(|entry| add(&[entry.expert as i32]));
        }
        RoutingSource::Work(_) => {}
    }
    used
}

/// As many experts as `rows` tokens are expected to use when each chooses `top_k` at random, and the
/// shared one; for costs. Which ones is fixed but without pattern.
fn uniform_experts(rows: usize, experts: usize, top_k: usize) -> Vec<usize> {
    if rows == 0 {
        return Vec::new();
    }
    let missed = (1.0 - top_k as f64 / experts as f64).powf(rows as f64);
    let distinct = (experts as f64 * (1.0 - missed)).round() as usize;
    let mut order: Vec<usize> = (0..experts).collect();
    order.sort_by_key(|&expert| scramble(expert as u64));
    order.truncate(distinct.clamp(top_k, experts));
    order.push(experts);
    order
}

/// The finaliser of SplitMix64.
fn scramble(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The sorted rows of live tokens in a buffer `[rows · slots, ..]`.
pub fn sorted_rows(cx: &LaunchContext<'_>) -> Access {
    let slots = cx.shape.slots();
    Access::new(Region::new([0..cx.step.rows() * slots]), move |live| match live.rows().len() {
        0 => Vec::new(),
        n => vec![Region::new([0..n * slots])],
    })
}

/// Entries of the session's work list: room for the largest step of any of its plans.
pub fn session_work_entries(cx: &LaunchContext<'_>) -> usize {
    cx.shape.work_entries(cx.session.rows())
}

msl_struct! {
    /// Dimensions of the routing inside argument structs.
    pub struct RoutingArgs {
        /// Routed experts; the shared one has this index.
        pub experts: u32,
        /// Experts chosen for a token.
        pub top_k: u32,
    }
}

impl RoutingArgs {
    /// The routing of a model.
    pub fn new(shape: &ModelShape) -> Self {
        Self { experts: shape.experts as u32, top_k: shape.top_k as u32 }
    }

    /// Adds the constants of `routing.h` to an entry.
    pub fn constants(&self, entry: Entry) -> Result<Entry, Unsupported> {
        // A lane marks its chosen experts in 32 bits, and holds the choice of one slot.
        Unsupported::above("the number of experts", self.experts, 1024)?;
        Unsupported::above("the number of experts of a token", self.top_k, 31)?;
        Ok(entry.constant("EXPERTS", self.experts).constant("TOP_K", self.top_k))
    }

    /// Slots of a token: the chosen experts and the shared one.
    pub fn slots(&self) -> usize {
        self.top_k as usize + 1
    }

    /// Logits of a token.
    pub fn logits(&self) -> usize {
        self.experts as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(logits: &[f32], top_k: usize) -> (Vec<i32>, Vec<f32>) {
        let mut space = Vec::new();
        let (ids, weights) = choose_into(logits, top_k, &mut space);
        (ids.to_vec(), weights.to_vec())
    }

    #[test]
    fn ties_go_to_the_lowest_index_and_the_shared_expert_comes_last() {
        let (ids, weights) = chosen(&[1.0, 3.0, 2.0, 3.0, 2.0, 2.0, 0.0], 4);
        assert_eq!(ids, [1, 3, 2, 4, 6]);
        assert_eq!(weights[0], weights[1]);
        assert_eq!(weights[4], 0.5);
        assert!((weights[..4].iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(chosen(&[0.0, -0.0, 0.0, -0.0, 9.0], 3).0, [0, 1, 2, 4]);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let (ids, weights) = chosen(&[-3e38, 1000.0, 999.0, -1000.0, -200.0], 3);
        assert_eq!(ids, [1, 2, 3, 4]);
        let e = (-1f32).exp();
        assert!((weights[0] - 1.0 / (1.0 + e)).abs() < 1e-6);
        assert!((weights[1] - e / (1.0 + e)).abs() < 1e-6);
        assert_eq!(weights[2], 0.0);
        assert_eq!(weights[3], 0.0);
    }

    #[test]
    fn logits_that_are_not_finite_choose_distinct_experts_with_finite_weights() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for logits in [
            [nan, nan, nan, nan, nan, 0.0],
            [nan, 1.0, nan, 2.0, nan, 0.0],
            [inf, nan, -inf, inf, 5.0, 0.0],
            [-inf, -inf, -inf, -inf, nan, 0.0],
        ] {
            let (ids, weights) = chosen(&logits, 3);
            let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
            assert!(distinct.len() == 4 && ids.iter().all(|id| (0..=5).contains(id)), "{ids:?}");
            assert!(weights.iter().all(|w| w.is_finite()), "{weights:?}");
        }
        assert_eq!(chosen(&[nan, 1.0, nan, 2.0, nan, 0.0], 3).0, [3, 1, 0, 5]);
        assert_eq!(chosen(&[nan, -5.0, nan, -6.0, nan, nan], 2).0, [1, 3, 5]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of plain integer operations")]
    fn uniform_routing_of_one_token_uses_exactly_its_slots() {
        for (experts, top_k) in [(256, 8), (16, 4), (11, 3), (8, 8)] {
            assert_eq!(uniform_experts(1, experts, top_k).len(), top_k + 1);
            assert_eq!(uniform_experts(0, experts, top_k), []);
            let many = uniform_experts(4096, experts, top_k);
            assert_eq!(many.len(), experts + 1);
        }
    }
}
