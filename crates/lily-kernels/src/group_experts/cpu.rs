//! CPU face: one tile, a counting sort.

use super::{Args, bind};
use crate::cpu::{CpuLaunch, Scratch};
use crate::routing::WORK_WORDS;
use crate::shape::GROUPED_TILE_ROWS;

pub(super) fn tiles(l: &CpuLaunch<'_>) -> usize {
    let a: Args = l.args();
    usize::from(!a.step.live_rows(l.control(bind::CONTROL)).is_empty())
}

pub(super) fn run(l: &CpuLaunch<'_>, _tile: usize, scratch: &mut Scratch) {
    let a: Args = l.args();
    let (experts, slots) = (a.routing.experts as usize, a.routing.slots());
    let live = a.step.live_rows(l.control(bind::CONTROL));
    let (n, top_k) = (live.len(), slots - 1);
    let rows = live.last().map_or(0, |row| row + 1);
    // SAFETY: the launch has a single tile, and the ids are not written.
    let (ids, row_token, row_slot, work) = unsafe {
        (
            l.i32(bind::IDS).read(0..rows * slots),
            l.i32(bind::ROW_TOKEN).write(0..n * slots),
            l.i32(bind::ROW_SLOT).write(0..n * slots),
            l.i32(bind::WORK).write(0..a.entries as usize * WORK_WORDS),
        )
    };
    // `next[e]`: place of the next row of expert `e`; first its count.
    scratch.floats.clear();
    scratch.floats.resize(experts + 1, 0.0);
    let next: &mut [u32] = bytemuck::cast_slice_mut(&mut scratch.floats);
    for row in live.iter() {
        for &id in &ids[row * slots..row * slots + top_k] {
            next[id as usize] += 1;
        }
    }
    next[experts] = n as u32;
    work.fill(0);
    let mut entries = work.as_chunks_mut::<WORK_WORDS>().0.iter_mut();
    let mut first = 0;
    for (expert, next) in next.iter_mut().enumerate() {
        let rows = std::mem::replace(next, first);
        for (number, start) in (0..rows).step_by(GROUPED_TILE_ROWS).enumerate() {
            let tile = (rows - start).min(GROUPED_TILE_ROWS as u32);
            let entry = entries.next().expect("the list was sized for the worst routing");
            *entry = [expert as i32, (first + start) as i32, tile as i32, number as i32];
        }
        first += rows;
    }
    let mut place = |id: usize, row: usize, slot: usize| {
        let at = next[id] as usize;
        row_token[at] = row as i32;
        row_slot[at] = slot as i32;
        next[id] += 1;
    };
    for row in live.iter() {
        for (slot, &id) in ids[row * slots..row * slots + top_k].iter().enumerate() {
            place(id as usize, row, slot);
        }
        place(experts, row, top_k);
    }
}
