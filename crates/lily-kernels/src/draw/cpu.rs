//! CPU face: a single tile.

use super::{Args, BINDINGS, Draw, Largest, bind};
use crate::choice;
use crate::cpu::{CpuLaunch, Scratch};

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    choice::cpu_tiles(l, &l.args::<Args>().choice, &BINDINGS)
}

pub(super) fn run(l: &CpuLaunch<'_>, _tile: usize, _scratch: &mut Scratch) {
    let a: Args = l.args();
    let (groups, size) = (a.groups(), a.head_rows as usize);
    let (vocab, used) = (a.vocab as usize, a.vocab_used as usize);
    choice::run_cpu(l, &a.choice, &BINDINGS, |row, was| {
        let sequence = a.choice.step.sequence_of(row);
        // SAFETY: the launch writes none of these buffers.
        let (bests, logits, rule) = unsafe {
            (
                l.f32(bind::BEST_VALUE).read(row * groups..(row + 1) * groups),
                l.f32(bind::LOGITS).read(row * vocab..row * vocab + used),
                l.i32(bind::SAMPLING).read(sequence * Draw::WORDS..(sequence + 1) * Draw::WORDS),
            )
        };
        choice::best(bests, 0..)?;
        let rule = Draw::from_words(rule);
        let mut best_groups = Largest::new(rule.top_k());
        bests.iter().zip(0..).for_each(|(&value, group)| best_groups.push(value, group));
        let mut candidates = Largest::new(rule.top_k());
        for &group in best_groups.ids() {
            let first = group as usize * size;
            let ids = first.min(used)..(first + size).min(used);
            logits[ids].iter().zip(first as u32..).for_each(|(&l, id)| candidates.push(l, id));
        }
        let position = a.choice.position(was).max(0) as u64;
        Some(candidates.ids()[rule.choose(candidates.values(), position)] as i32)
    });
}
