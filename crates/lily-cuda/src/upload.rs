//! Weights into device memory: packed by several threads into page-locked buffers, and copied from
//! there while the next part is packed. Host memory stays bounded by the buffers.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use lily_kernels::gpu::MatrixFormat;
use lily_plan::WeightMatrix;

use crate::driver::{DeviceMemory, Event, Gpu, PinnedMemory};
use crate::error::CudaError;

/// Bytes of one staging buffer, if the largest matrix has as many.
const STAGE_BYTES: usize = 64 << 20;

/// Uploads matrices one after the other.
pub(crate) struct Uploader {
    gpu: Arc<Gpu>,
    stages: [Stage; 2],
    stage_bytes: usize,
    turn: usize,
    threads: usize,
}

/// A buffer, and the mark behind the last copy from it.
struct Stage {
    memory: PinnedMemory,
    copied: Option<Event>,
}

impl Uploader {
    /// An uploader with its staging buffers, for matrices of at most `largest` bytes in device memory.
    pub fn new(gpu: &Arc<Gpu>, largest: usize) -> Result<Self, CudaError> {
        let stage_bytes = largest.min(STAGE_BYTES);
        let stage = || Ok(Stage { memory: gpu.pinned(stage_bytes)?, copied: None });
        Ok(Self {
            gpu: gpu.clone(),
            stages: [stage()?, stage()?],
            stage_bytes,
            turn: 0,
            threads: thread::available_parallelism().map_or(1, |n| n.get()),
        })
    }

    /// Copies a matrix in its device format. The last copy may still run when this returns.
    pub fn matrix(
        &mut self,
        matrix: &WeightMatrix,
        format: MatrixFormat,
        to: &mut DeviceMemory,
    ) -> Result<(), CudaError> {
        let layout = format.layout(matrix);
        let rows_at_once = self.stage_bytes / layout.row_bytes();
        assert!(
            rows_at_once > 0,
            "a row has {} bytes, a stage {}",
            layout.row_bytes(),
            self.stage_bytes
        );
        let mut first = 0;
        while first < layout.rows {
            let rows = first..(first + rows_at_once).min(layout.rows);
            let codes = rows.len() * layout.code_bytes;
            let pairs = rows.len() * layout.pair_bytes;
            self.turn = 1 - self.turn;
            let stage = &mut self.stages[self.turn];
            if let Some(copied) = stage.copied.take() {
                copied.wait()?;
            }
            let (code_part, rest) = stage.memory.bytes_mut().split_at_mut(codes);
            pack(matrix, format, rows.clone(), code_part, &mut rest[..pairs], self.threads);
            to.write_pinned(rows.start * layout.code_bytes, &stage.memory, 0..codes)?;
            let pairs_at = layout.rows * layout.code_bytes + rows.start * layout.pair_bytes;
            to.write_pinned(pairs_at, &stage.memory, codes..codes + pairs)?;
            stage.copied = Some(self.gpu.mark()?);
            first = rows.end;
        }
        Ok(())
    }
}

/// Packs rows on several threads.
fn pack(
    matrix: &WeightMatrix,
    format: MatrixFormat,
    rows: Range<usize>,
    codes: &mut [u8],
    pairs: &mut [u8],
    threads: usize,
) {
    let layout = format.layout(matrix);
    let share = rows.len().div_ceil(threads).max(1);
    // Plain matrices have no pairs: then every part's is empty.
    let pair_parts = pairs.chunks_mut((share * layout.pair_bytes).max(1));
    let pair_parts = pair_parts.map(Some).chain(std::iter::repeat_with(|| None));
    let firsts = rows.clone().step_by(share);
    thread::scope(|scope| {
        for ((first, codes), pairs) in
            firsts.zip(codes.chunks_mut(share * layout.code_bytes)).zip(pair_parts)
        {
            let part = first..(first + share).min(rows.end);
            scope.spawn(move || format.pack(matrix, part, codes, pairs.unwrap_or_default()));
        }
    });
}
