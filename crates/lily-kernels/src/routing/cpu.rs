//! What the CPU faces of the grouped products share.

use std::ops::Range;

use super::{WORK_WORDS, WorkEntry, nth_work_entry, work_entries};
use crate::cpu::{CpuLaunch, part};
use crate::shape::LiveRows;

/// The tiles of a grouped product: entries of the work list by blocks of columns.
pub(crate) struct GroupedTiles<'a> {
    work: &'a [i32],
    columns: usize,
    tile_columns: usize,
}

impl<'a> GroupedTiles<'a> {
    /// The tiles of a launch that reads a list of `entries` in its binding `work`, and cuts `columns`
    /// into blocks of `tile_columns`.
    pub(crate) fn new(
        l: &CpuLaunch<'a>,
        live: LiveRows<'_>,
        (work, entries): (usize, u32),
        (columns, tile_columns): (usize, usize),
    ) -> Self {
        // Without a live row nobody has written the list.
        let words = if live.is_empty() { 0 } else { entries as usize * WORK_WORDS };
        // SAFETY: no launch that multiplies by the work list writes it.
        let work = unsafe { l.i32(work).read(0..words) };
        Self { work, columns, tile_columns }
    }

    /// Number of tiles.
    pub(crate) fn count(&self) -> usize {
        work_entries(self.work).count() * self.columns.div_ceil(self.tile_columns)
    }

    /// Entry and columns of a tile.
    pub(crate) fn nth(&self, tile: usize) -> (WorkEntry, Range<usize>) {
        let blocks = self.columns.div_ceil(self.tile_columns);
        let columns = part(self.columns, self.tile_columns, tile % blocks);
        (nth_work_entry(self.work, tile / blocks), columns)
    }
}
