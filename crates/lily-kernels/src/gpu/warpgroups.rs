//! Matrix products of a chunk by warpgroups: the `hopper.cu` texts over `tile/hopper_products.h`. Which launches they
//! serve, their constants and grid, and which tile a launch gets.

use super::tiles::Product;
use super::{Entry, Family, GpuLaunch, MatrixFormat, Products, Target, Unsupported};
use crate::shape::GROUPED_TILE_ROWS;

/// Matrix rows of a warpgroup.
const WARPGROUP_ROWS: u32 = 64;
/// Columns that a stage of shared memory holds, and columns of which a step's pairs of scales and biases are copied.
const STAGE_COLUMNS: u32 = 128;
const PAIR_COLUMNS: u32 = 256;
/// Multiprocessors of the GPUs that have warpgroup products.
const MULTIPROCESSORS: u32 = 132;
/// Tiles that the list of a grouped product holds.
const TILES: u32 = 1152;

/// Form of a block's tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    warpgroups: u32,
    /// Rows of x: 32, 64, 96 or 128.
    tokens: u32,
    /// Of shared memory.
    stages: u32,
    /// Blocks that a multiprocessor holds.
    blocks: u32,
}

impl Form {
    fn outputs(self) -> u32 {
        self.warpgroups * WARPGROUP_ROWS
    }

    /// Bytes of shared memory beside what the text declares.
    fn shared(self) -> u32 {
        let codes = self.outputs() * STAGE_COLUMNS / 2;
        let pairs = self.outputs() * PAIR_COLUMNS / 64 * 4;
        let inputs = self.tokens * STAGE_COLUMNS * 2;
        self.stages * (inputs + codes + pairs).next_multiple_of(1024)
    }

    fn constants(self, entry: Entry) -> Entry {
        entry
            .constant("WARPGROUPS", self.warpgroups)
            .constant("TILE_TOKENS", self.tokens)
            .constant("STAGES", self.stages)
            .constant("BLOCKS", self.blocks)
            .shared(self.shared())
    }

    /// Items of a dense product.
    fn items(self, rows: u32, outputs: u32) -> u32 {
        rows.div_ceil(self.tokens) * outputs.div_ceil(self.outputs())
    }

    /// The entry over as many blocks as run at a time, but not more than there are items.
    fn over(self, entry: Entry, items: u32) -> Entry {
        let blocks = items.min(self.blocks * MULTIPROCESSORS);
        entry.over([blocks, 1, 1], self.warpgroups * 128)
    }

    /// For projections of a chunk's rows. The highest tile takes the fewest bytes for its arithmetic; of short
    /// chunks there are too few of them.
    fn projection(rows: u32) -> Self {
        match rows {
            0..=64 => Self { warpgroups: 2, tokens: 32, stages: 6, blocks: 2 },
            65..=128 => Self { warpgroups: 2, tokens: 64, stages: 4, blocks: 2 },
            129..=512 => Self { warpgroups: 3, tokens: 128, stages: 4, blocks: 1 },
            _ => Self { warpgroups: 4, tokens: 128, stages: 4, blocks: 1 },
        }
    }

    /// For projections to the residual stream: a sixth of the other ones' matrix rows, so lower tiles, of which every
    /// multiprocessor gets one.
    fn residual(rows: u32) -> Self {
        match rows {
            0..=256 => Self { warpgroups: 2, tokens: 32, stages: 6, blocks: 2 },
            _ => Self { warpgroups: 2, tokens: 64, stages: 4, blocks: 2 },
        }
    }

    /// For experts with this many rows on average: nearly all of them have one tile where it is at most 64.
    fn grouped(average: u32) -> Self {
        match average {
            0..20 => Self { warpgroups: 2, tokens: 32, stages: 5, blocks: 2 },
            20..48 => Self { warpgroups: 2, tokens: 64, stages: 3, blocks: 2 },
            _ => Self { warpgroups: 2, tokens: 96, stages: 3, blocks: 2 },
        }
    }
}

impl Product {
    /// The entry of `text` over the rows of a chunk, if the target and the matrix are what it is made for.
    pub(crate) fn chunk_by_warpgroups(
        &self,
        launch: &GpuLaunch<'_>,
        function: &'static str,
        text: &'static str,
        rows: u32,
    ) -> Result<Option<Entry>, Unsupported> {
        self.dense_by_warpgroups(launch, function, text, rows, Form::projection(rows))
    }

    /// The same for a text that adds its results to the residual stream.
    pub(crate) fn residual_by_warpgroups(
        &self,
        launch: &GpuLaunch<'_>,
        function: &'static str,
        text: &'static str,
        rows: u32,
    ) -> Result<Option<Entry>, Unsupported> {
        self.dense_by_warpgroups(launch, function, text, rows, Form::residual(rows))
    }

    fn dense_by_warpgroups(
        &self,
        launch: &GpuLaunch<'_>,
        function: &'static str,
        text: &'static str,
        rows: u32,
        form: Form,
    ) -> Result<Option<Entry>, Unsupported> {
        // The texts count the bytes of the rows in 32 bits.
        if !self.suits_warpgroups(launch) || u64::from(rows) * u64::from(self.k) > 1 << 30 {
            return Ok(None);
        }
        let entry = self.by_warpgroups(launch, function, text, form)?;
        Ok(Some(form.over(entry, form.items(rows, self.outputs))))
    }

    /// The entry of `text` over a work list with `entries` entries, for `pairs` pairs of a token and a routed expert.
    pub(crate) fn grouped_by_warpgroups(
        &self,
        launch: &GpuLaunch<'_>,
        function: &'static str,
        text: &'static str,
        entries: u32,
        pairs: u32,
    ) -> Result<Option<Entry>, Unsupported> {
        let form = Form::grouped(pairs / (self.experts - 1).max(1));
        let entry_rows = GROUPED_TILE_ROWS as u32;
        let tiles = entries.min(self.experts + entries * entry_rows / form.tokens);
        if !self.suits_warpgroups(launch) || tiles > TILES {
            return Ok(None);
        }
        let entry = self.by_warpgroups(launch, function, text, form)?;
        // TILE_ROWS: `grouped.h` has a function with it that the text leaves alone.
        let entry = entry.constant("ENTRY_ROWS", entry_rows).constant("TILE_ROWS", entry_rows);
        let entry = entry.constant("TILES", TILES);
        Ok(Some(form.over(entry, tiles * self.outputs.div_ceil(form.outputs()))))
    }

    fn by_warpgroups(
        &self,
        launch: &GpuLaunch<'_>,
        function: &'static str,
        text: &'static str,
        form: Form,
    ) -> Result<Entry, Unsupported> {
        let entry = self.matrix(launch, launch.entry(function).from_text("hopper.cu", text))?;
        Ok(form.constants(entry.constant("MATRIX_ROWS", self.experts * self.outputs)))
    }

    /// Warpgroup products need compute capability 9.0; the texts unpack 4-bit codes alone, copy their scales for 256
    /// columns at a time, and own whole blocks of 64 matrix rows.
    fn suits_warpgroups(&self, launch: &GpuLaunch<'_>) -> bool {
        let common = Products::SimdgroupMatrix;
        let target = Target { family: Family::Nvidia { capability: 90 }, products: common };
        launch.target == target
            && launch.format(self.weight) == Ok(MatrixFormat::Q4)
            && self.k.is_multiple_of(PAIR_COLUMNS)
            && self.outputs.is_multiple_of(WARPGROUP_ROWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of shared memory of a multiprocessor, and what a block takes beside its own.
    const SHARED: u32 = 228 << 10;
    const RESERVED: u32 = 1 << 10;
    /// What texts declare: numbers for rows and warps; the list of tiles; squares by warp and row.
    const NUMBERS: u32 = 2 << 10;
    const LIST: u32 = TILES * 8;

    #[test]
    fn every_form_fits_as_many_blocks_as_it_names() {
        let rows = [1, 64, 65, 128, 129, 512, 513, 8192];
        let dense = rows.iter().flat_map(|&r| [Form::projection(r), Form::residual(r)]);
        let grouped = [0, 19, 20, 47, 48, 500].map(|average| (Form::grouped(average), LIST));
        for (form, list) in
            dense.map(|form| (form, form.tokens * form.warpgroups * 16)).chain(grouped)
        {
            assert!([32, 64, 96, 128].contains(&form.tokens), "{form:?}");
            assert!(form.stages >= 3 && form.warpgroups * 128 * form.blocks <= 512, "{form:?}");
            let block = form.shared() + NUMBERS + list + RESERVED;
            assert!(form.blocks * block <= SHARED, "{form:?}");
        }
    }
}
