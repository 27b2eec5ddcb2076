//! Weights into device memory, as a stream: several threads read parts of the files, pack them into page-locked
//! buffers of their own, and start the copies; each packs its next part while the last one is copied. Host memory
//! stays bounded by the buffers, and nothing waits between matrices.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use lily_kernels::gpu::MatrixFormat;
use lily_kernels::gpu::stored::{Part, Unreadable, WeightFiles, excerpt, parts};
use lily_plan::{WeightMatrix, on_threads};

/// Bytes of a page-locked buffer, unless a row needs more. Copies of this size run at the full speed of the bus.
const STAGE_BYTES: usize = 4 << 20;

/// Buffers of each thread: one is packed while the other is copied.
const STAGES: usize = 2;

/// Most threads: beyond it, memory and bus are the limit, and page-locked memory is dear.
const MOST_THREADS: usize = 16;

/// A matrix with the number of its buffer in device memory.
pub(crate) struct Upload<'a> {
    /// The matrix.
    pub matrix: &'a WeightMatrix,
    /// Its format there.
    pub format: MatrixFormat,
    /// The buffer.
    pub buffer: usize,
}

/// What copies are made with; a GPU, or memory of a test.
pub(crate) trait Bus: Sync {
    /// A page-locked buffer.
    type Stage: Send;
    /// A copy that cannot be made.
    type Error: Send + From<Unreadable>;

    /// A buffer.
    fn stage(&self, bytes: usize) -> Result<Self::Stage, Self::Error>;

    /// Its contents, once no copy from it is under way.
    fn contents<'a>(&self, stage: &'a mut Self::Stage) -> Result<&'a mut [u8], Self::Error>;

    /// Starts copies of parts of it, each to an offset in a buffer of device memory.
    fn copy(
        &self,
        stage: &mut Self::Stage,
        buffer: usize,
        pieces: &[(Range<usize>, usize)],
    ) -> Result<(), Self::Error>;
}

/// Copies matrices in their device formats. The last copies may still run when this returns. `watch` hears of the
/// bytes packed so far, now and then, on any thread.
///
/// # Errors
/// A file cannot be read, or a copy fails.
pub(crate) fn upload<B: Bus>(
    bus: &B,
    uploads: &[Upload<'_>],
    files: &WeightFiles,
    threads: usize,
    watch: &(dyn Fn(u64) + Sync),
) -> Result<(), B::Error> {
    let mut jobs = Vec::new();
    let mut stage_bytes = 0;
    for upload in uploads {
        let layout = upload.format.layout(upload.matrix);
        for part in parts(upload.matrix, layout, STAGE_BYTES) {
            stage_bytes = stage_bytes.max(part.rows.len() * layout.row_bytes());
            jobs.push((upload, part));
        }
    }
    let (next, done, failed) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let error = Mutex::new(None);
    let work = || {
        let run = || {
            let mut stages =
                (0..STAGES).map(|_| bus.stage(stage_bytes)).collect::<Result<Vec<_>, _>>()?;
            let mut turn = 0;
            while let Some((upload, part)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                if failed.load(Ordering::Relaxed) {
                    break;
                }
                let bytes = pack(bus, &mut stages[turn], upload, part, files)?;
                watch(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
                turn = (turn + 1) % STAGES;
            }
            Ok(stages)
        };
        let result: Result<Vec<B::Stage>, B::Error> = run();
        if let Err(first) = result {
            failed.store(true, Ordering::Relaxed);
            error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(first);
        }
    };
    if jobs.is_empty() {
        return Ok(());
    }
    on_threads(threads.clamp(1, MOST_THREADS).min(jobs.len()), work);
    error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Packs a part and starts its copies; gives its bytes.
fn pack<B: Bus>(
    bus: &B,
    stage: &mut B::Stage,
    upload: &Upload<'_>,
    part: &Part,
    files: &WeightFiles,
) -> Result<u64, B::Error> {
    let Upload { matrix, format, buffer } = *upload;
    let layout = format.layout(matrix);
    // While the copy from this stage may still run.
    let read = excerpt(matrix, part.expert, part.rows.clone(), files)?;
    let rows = part.of_all(matrix);
    let codes = rows.len() * layout.code_bytes;
    let pairs = rows.len() * layout.pair_bytes;
    let contents = bus.contents(stage)?;
    let (code_part, rest) = contents.split_at_mut(codes);
    format.pack(&read, 0..rows.len(), code_part, &mut rest[..pairs]);
    let mut pieces = vec![(0..codes, rows.start * layout.code_bytes)];
    if pairs > 0 {
        let behind = layout.rows * layout.code_bytes;
        pieces.push((codes..codes + pairs, behind + rows.start * layout.pair_bytes));
    }
    bus.copy(stage, buffer, &pieces)?;
    Ok((codes + pairs) as u64)
}

#[cfg(test)]
mod tests;
