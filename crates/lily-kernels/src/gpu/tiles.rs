//! Tiles of matrix products: legal shapes, constants and grid of `gemm.h`, and which tile a target gets.

use lily_plan::GROUP;

use super::{Entry, Family, GpuLaunch, Products, Target, Unsupported};

/// Matrix rows of a tile.
pub(crate) const TILE_COLUMNS: u32 = 64;
/// Rows of a full entry of the work list.
const ENTRY_ROWS: u32 = crate::shape::GROUPED_TILE_ROWS as u32;
/// Threads of a threadgroup.
const THREADS: u32 = 128;

/// A product with a packed matrix.
pub(crate) struct Product {
    /// Binding of the matrix.
    pub weight: usize,
    /// Columns of the matrix.
    pub k: u32,
    /// Rows of the matrix, of one expert.
    pub outputs: u32,
    /// Experts.
    pub experts: u32,
}

impl Product {
    /// The entry over the rows of a chunk: row tiles vary fastest.
    pub(crate) fn chunk(
        &self,
        launch: &GpuLaunch<'_>,
        function: &'static str,
        rows: u32,
    ) -> Result<Entry, Unsupported> {
        let form = TileForm::dense(launch.target, rows, self.outputs);
        let grid = [rows.div_ceil(form.rows), self.outputs.div_ceil(TILE_COLUMNS), 1];
        Ok(self.constants(launch, launch.entry(function), form)?.over(grid, THREADS))
    }

    /// The entry over a work list with `entries` entries, for `pairs` pairs of a token and a routed expert: columns
    /// vary fastest.
    pub(crate) fn grouped(
        &self,
        launch: &GpuLaunch<'_>,
        function: &'static str,
        entries: u32,
        pairs: u32,
    ) -> Result<Entry, Unsupported> {
        let form = TileForm::grouped(launch.target, pairs / (self.experts - 1).max(1));
        let tiles = entries * ENTRY_ROWS.div_ceil(form.rows);
        let grid = [self.outputs.div_ceil(TILE_COLUMNS), tiles, 1];
        let entry = launch.entry(function).constant("ENTRY_ROWS", ENTRY_ROWS);
        Ok(self.constants(launch, entry, form)?.over(grid, THREADS))
    }

    fn constants(
        &self,
        launch: &GpuLaunch<'_>,
        entry: Entry,
        form: TileForm,
    ) -> Result<Entry, Unsupported> {
        let tensors = launch.target.products == Products::TensorOperations;
        Ok(self
            .matrix(launch, entry)?
            .constant("MATRIX_ROWS", self.experts * self.outputs)
            .constant("TILE_ROWS", form.rows)
            .constant("ROW_GROUPS", form.row_groups)
            .constant("STAGES", form.stages)
            .constant("TENSOR_OPERATIONS", u32::from(tensors)))
    }

    /// Adds what a kernel needs to read the matrix.
    pub(crate) fn matrix(
        &self,
        launch: &GpuLaunch<'_>,
        entry: Entry,
    ) -> Result<Entry, Unsupported> {
        Unsupported::unless_multiple("the number of matrix columns", self.k, GROUP as u32)?;
        let format = launch.format(self.weight)?;
        let rows = u64::from(self.experts) * u64::from(self.outputs);
        let words = rows * u64::from(self.k) / 32 * u64::from(format.bits());
        if words + rows * u64::from(self.k) / GROUP as u64 > u64::from(u32::MAX) {
            let found = format!("the matrix has {words} words of 4 bytes");
            return Err(Unsupported(format!("{found}, need at most {}", u32::MAX)));
        }
        Ok(entry
            .constant("BITS", format.bits())
            .constant("INPUT_WIDTH", self.k)
            .constant("OUTPUTS", self.outputs))
    }
}

/// Form of a tile, chosen among the legal ones: rows 16, 32 or 64 with `row_groups` 1 or 2 (1 for 16 rows),
/// and two stages for at most 32 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TileForm {
    rows: u32,
    /// Simdgroups along the rows.
    row_groups: u32,
    /// Pairs of operand tiles in threadgroup memory.
    stages: u32,
}

impl TileForm {
    /// For the rows of a chunk: small tiles for short chunks, and as long as large ones would leave the
    /// device without enough threadgroups.
    fn dense(target: Target, rows: u32, outputs: u32) -> Self {
        let enough = match target.family {
            Family::Apple => 160,
            Family::Nvidia { .. } => 528,
            Family::Test => 1,
        };
        let tensors = target.products == Products::TensorOperations;
        if rows <= 16 && !tensors {
            return Self { rows: 16, row_groups: 1, stages: stages(target) };
        }
        if rows > 64 && rows.div_ceil(64) * outputs.div_ceil(TILE_COLUMNS) >= enough {
            return Self { rows: 64, row_groups: 2, stages: 1 };
        }
        Self { rows: 32, row_groups: 2, stages: stages(target) }
    }

    /// For experts with this many rows on average. All simdgroups share the rows, so that blocks of 16 that do not
    /// live cost none of them anything. Most experts with few rows have one low tile, which takes less threadgroup
    /// memory and reads less; in high ones, a weight is unpacked for twice as many rows. Only 32 rows were
    /// measured on NVIDIA GPUs.
    fn grouped(target: Target, average: u32) -> Self {
        let (few, many) = match target.family {
            Family::Apple => (8, 64),
            // Small cases have every height.
            Family::Test => (4, 16),
            Family::Nvidia { .. } => (0, u32::MAX),
        };
        let tensors = target.products == Products::TensorOperations;
        if average < few && !tensors {
            return Self { rows: 16, row_groups: 1, stages: stages(target) };
        }
        if average >= many {
            return Self { rows: 64, row_groups: 1, stages: 1 };
        }
        Self { rows: 32, row_groups: 1, stages: stages(target) }
    }
}

/// Two stages save a barrier in every step and take twice the threadgroup memory, of which a core of
/// an Apple GPU has little.
fn stages(target: Target) -> u32 {
    if target.family == Family::Apple { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_a_policy_chooses_is_legal() {
        let families = [
            Family::Apple,
            Family::Test,
            Family::Nvidia { capability: 80 },
            Family::Nvidia { capability: 90 },
        ];
        let mut seen = std::collections::BTreeSet::new();
        for family in families {
            for products in [Products::SimdgroupMatrix, Products::TensorOperations] {
                let target = Target { family, products };
                let mut forms = Vec::new();
                forms.extend([0, 3, 4, 8, 16, 64, 500].map(|a| TileForm::grouped(target, a)));
                for rows in [1, 16, 17, 32, 64, 65, 300, 2048] {
                    forms.extend([64, 2048, 12352].map(|o| TileForm::dense(target, rows, o)));
                }
                for form in forms {
                    seen.insert(form.rows);
                    assert!(form.rows.is_multiple_of(16 * form.row_groups), "{form:?}");
                    let memory = form.stages * (form.rows + TILE_COLUMNS) * 144;
                    assert!(memory + form.rows * 8 <= 32768, "{form:?}");
                    assert!(form.rows * (TILE_COLUMNS + 4) * 4 <= memory, "{form:?}");
                    assert!(form.rows >= 32 || products == Products::SimdgroupMatrix);
                }
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [16, 32, 64]);
    }
}
