//! Weights read into anonymous memory, by several threads at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use lily_kernels::gpu::stored::{Unreadable, WeightFiles};
use lily_plan::{DeviceError, RowSegment, Weight, WeightMatrix, Weights, on_threads};
use memmap2::MmapMut;

use super::pages::want_huge;
use super::{key, tensors};

/// Every tensor begins at a cache line.
const ALIGN: usize = 64;
/// Bytes of a read: large enough for the full speed of a disk, small enough that threads end together.
const PIECE: usize = 8 << 20;
/// Least threads: a disk is fastest with several reads under way.
const LEAST_THREADS: usize = 4;
/// Most threads: memory or the disk is the limit.
const MOST_THREADS: usize = 16;

/// Bytes of a tensor with what lies between it and the next.
pub(super) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// A part of a tensor and the memory that it is read into.
struct Piece<'a> {
    tensor: &'a Bytes,
    offset: usize,
    to: &'a mut [u8],
}

/// The same weights with their matrices in anonymous memory, each stored tensor once. `watch` hears of
/// the bytes read so far and of all, on any thread.
///
/// # Errors
/// The memory is not there, or a file cannot be read.
pub(crate) fn copy(
    weights: Weights,
    files: &WeightFiles,
    threads: usize,
    watch: &(dyn Fn(u64, u64) + Sync),
) -> Result<Weights, DeviceError> {
    let tensors = tensors(&weights);
    let bytes: usize = tensors.values().map(|tensor| padded(tensor.len())).sum();
    if bytes == 0 {
        return Ok(weights);
    }
    let mut memory = MmapMut::map_anon(bytes).map_err(|error| DeviceError::Memory {
        device: "cpu".into(),
        bytes: bytes as u64,
        reason: format!("{error}; use --load map, which leaves the weights in the page cache"),
    })?;
    want_huge(&memory);
    let mut places = BTreeMap::new();
    let mut pieces = Vec::new();
    let mut rest = &mut memory[..];
    let mut next = 0;
    for (key, tensor) in &tensors {
        let (to, behind) = rest.split_at_mut(padded(tensor.len()));
        rest = behind;
        let parts = to[..tensor.len()].chunks_mut(PIECE).enumerate();
        pieces.extend(parts.map(|(i, to)| Piece { tensor, offset: i * PIECE, to }));
        places.insert(*key, next..next + tensor.len());
        next += padded(tensor.len());
    }
    read(pieces, files, threads, watch).map_err(|error| DeviceError::Unavailable {
        device: "cpu".into(),
        reason: error.to_string(),
    })?;
    let memory = Bytes::from_owner(memory);
    let moved = |bytes: &Bytes| match places.get(&key(bytes)) {
        Some(place) => memory.slice(place.clone()),
        None => Bytes::new(),
    };
    Ok(weights.into_iter().map(|(name, weight)| (name, with_tensors(weight, &moved))).collect())
}

/// A weight with other memory behind its tensors.
fn with_tensors(weight: Weight, moved: &dyn Fn(&Bytes) -> Bytes) -> Weight {
    let matrix = match weight {
        Weight::Matrix(matrix) => matrix,
        Weight::Vector(values) => return Weight::Vector(values),
    };
    let segment = |s: &RowSegment| RowSegment {
        codes: moved(&s.codes),
        scales: moved(&s.scales),
        biases: moved(&s.biases),
        ..s.clone()
    };
    let segments = matrix.segments().iter().map(segment).collect();
    let same = WeightMatrix::new(matrix.experts(), matrix.rows(), matrix.k(), segments);
    Weight::Matrix(same.expect("the segments are those of a matrix, with as many bytes"))
}

/// Reads all pieces. The threads that read them touch the memory first, so on a machine of several
/// memory nodes the pieces lie where these threads ran: spread over all nodes.
fn read(
    pieces: Vec<Piece<'_>>,
    files: &WeightFiles,
    threads: usize,
    watch: &(dyn Fn(u64, u64) + Sync),
) -> Result<(), Unreadable> {
    let total = pieces.iter().map(|piece| piece.to.len() as u64).sum();
    let count = pieces.len();
    let pieces: Vec<_> = pieces.into_iter().map(|piece| Mutex::new(Some(piece))).collect();
    let (next, done, failed) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let first = Mutex::new(None);
    let work = || {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let piece = piece.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(Piece { tensor, offset, to }) = piece else { continue };
            if failed.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = files.fill(tensor, offset, to) {
                failed.store(true, Ordering::Relaxed);
                first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            let bytes = to.len() as u64;
            watch(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
        }
    };
    on_threads(threads.clamp(LEAST_THREADS, MOST_THREADS).min(count), work);
    first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
