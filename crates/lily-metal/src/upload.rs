//! Weights into device memory, in the kernels' layout, by several threads.
//!
//! Memory is shared with the GPU, so what is packed is where it stays. What is read of the files goes past the page
//! cache, in parts of a few megabytes: weights are never in memory twice.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use lily_kernels::gpu::MatrixFormat;
use lily_plan::{MappedFile, RowSegment, WeightMatrix};

/// Bytes of weights that a thread packs at once, about.
const PART_BYTES: usize = 4 << 20;

/// A file could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the weights in {}: {source}; check the disk, or download the model again", path.display())]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// Files that mapped weights are slices of, open for positioned reads.
#[derive(Debug, Default)]
pub struct WeightFiles {
    files: Vec<(MappedFile, File)>,
}

impl WeightFiles {
    /// Opens files; `prepare` sets how they are read. A file that cannot be opened again is read through its mapping.
    pub fn open(mapped: Vec<MappedFile>, prepare: impl Fn(&File)) -> Self {
        let open = |mapped: MappedFile| {
            if cfg!(not(unix)) {
                return None;
            }
            let file = File::open(&mapped.path).ok()?;
            prepare(&file);
            Some((mapped, file))
        };
        Self { files: mapped.into_iter().filter_map(open).collect() }
    }

    /// A copy of mapped bytes: from their file if it is here.
    fn read(&self, bytes: &[u8]) -> Result<Bytes, Unreadable> {
        let address = |bytes: &[u8]| bytes.as_ptr() as usize;
        let holds = |(mapped, _): &&(MappedFile, File)| {
            let start = address(&mapped.bytes);
            start <= address(bytes) && address(bytes) + bytes.len() <= start + mapped.bytes.len()
        };
        let Some((mapped, file)) = self.files.iter().find(holds) else {
            return Ok(Bytes::copy_from_slice(bytes));
        };
        let mut copy = vec![0; bytes.len()];
        let offset = (address(bytes) - address(&mapped.bytes)) as u64;
        read_at(file, &mut copy, offset)
            .map_err(|source| Unreadable { path: mapped.path.clone(), source })?;
        Ok(copy.into())
    }
}

#[cfg(unix)]
fn read_at(file: &File, to: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, offset)
}

#[cfg(not(unix))]
fn read_at(_file: &File, _to: &mut [u8], _offset: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Packs a matrix into its place. Threads take parts of its rows in turn.
///
/// # Errors
/// A file cannot be read.
pub fn matrix(
    matrix: &WeightMatrix,
    format: MatrixFormat,
    files: &WeightFiles,
    to: &mut [u8],
    threads: usize,
) -> Result<(), Unreadable> {
    let layout = format.layout(matrix);
    let (mut codes, mut pairs) = to.split_at_mut(layout.rows * layout.code_bytes);
    let mut parts = Vec::new();
    let most = (PART_BYTES / layout.row_bytes()).max(1);
    for expert in 0..matrix.experts() {
        for first in (0..matrix.rows()).step_by(most) {
            let rows = first..(first + most).min(matrix.rows());
            let own_codes;
            (own_codes, codes) = codes.split_at_mut(rows.len() * layout.code_bytes);
            let own_pairs;
            (own_pairs, pairs) = pairs.split_at_mut(rows.len() * layout.pair_bytes);
            parts.push((expert, rows, own_codes, own_pairs));
        }
    }
    let workers = threads.min(parts.len());
    let parts = Mutex::new(parts.into_iter());
    let work = || loop {
        let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((expert, rows, codes, pairs)) = part else { return Ok(()) };
        let count = rows.len();
        let read = excerpt(matrix, expert, rows, files)?;
        format.pack(&read, 0..count, codes, pairs);
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let joined =
            others.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        std::iter::once(work()).chain(joined.collect::<Vec<_>>()).collect()
    })
}

/// Some rows of an expert as a matrix of their own, read from their files.
fn excerpt(
    matrix: &WeightMatrix,
    expert: usize,
    rows: Range<usize>,
    files: &WeightFiles,
) -> Result<WeightMatrix, Unreadable> {
    let mut segments = Vec::new();
    for segment in matrix.segments().iter().filter(|s| s.experts.contains(&expert)) {
        // Of the rows that the segment serves, those from `begin` to `end` are wanted.
        let before = |row: usize| row.saturating_sub(segment.first_row).div_ceil(segment.row_step);
        let begin = before(rows.start).min(segment.rows);
        let end = before(rows.end).min(segment.rows);
        if begin == end {
            continue;
        }
        let stored =
            segment.source_row + (expert - segment.experts.start) * segment.expert_stride + begin;
        let part = |bytes: &Bytes, row: usize| {
            files.read(&bytes[stored * row..(stored + end - begin) * row])
        };
        let k = matrix.k();
        segments.push(RowSegment {
            tensor: segment.tensor.clone(),
            format: segment.format,
            experts: 0..1,
            first_row: segment.first_row + begin * segment.row_step - rows.start,
            row_step: segment.row_step,
            rows: end - begin,
            source_row: 0,
            expert_stride: 0,
            codes: part(&segment.codes, segment.format.code_bytes(k))?,
            scales: part(&segment.scales, segment.format.scale_bytes(k))?,
            biases: part(&segment.biases, segment.format.scale_bytes(k))?,
        });
    }
    Ok(WeightMatrix::new(1, rows.len(), matrix.k(), segments)
        .expect("every row of a matrix is served once, so every one of some rows is"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use lily_plan::{GROUP, RowFormat};

    use super::*;

    /// A matrix of 3 experts: 6 interleaved rows of two tensors for the first two, another tensor's for the last; with
    /// the bytes that its tensors are slices of.
    fn matrix_in(bytes: &Bytes) -> WeightMatrix {
        let (k, format) = (2 * GROUP, RowFormat::Q4);
        let (codes, scales) = (format.code_bytes(k), format.scale_bytes(k));
        let mut at = 0;
        let mut take = |n: usize| {
            at += n;
            bytes.slice(at - n..at)
        };
        let mut segment = |experts: Range<usize>, first_row, row_step, rows, source_row| {
            let expert_stride = rows + 1;
            let stored = source_row + experts.len() * expert_stride;
            RowSegment {
                tensor: "t".into(),
                format,
                experts,
                first_row,
                row_step,
                rows,
                source_row,
                expert_stride,
                codes: take(stored * codes),
                scales: take(stored * scales),
                biases: take(stored * scales),
            }
        };
        let segments =
            vec![segment(0..2, 0, 2, 3, 1), segment(0..2, 1, 2, 3, 0), segment(2..3, 0, 1, 6, 2)];
        WeightMatrix::new(3, 6, k, segments).expect("a whole matrix")
    }

    fn noise() -> Bytes {
        (0..16_384u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f).collect()
    }

    #[test]
    fn packed_parts_are_the_packed_matrix_for_any_threads_and_any_cut() {
        let matrix = matrix_in(&noise());
        for format in [MatrixFormat::Q4, MatrixFormat::Q8, MatrixFormat::Bf16] {
            let whole = format.pack_all(&matrix);
            for threads in [1, 2, 7] {
                let mut packed = vec![0; whole.len()];
                let files = WeightFiles::default();
                super::matrix(&matrix, format, &files, &mut packed, threads).expect("it is mapped");
                assert_eq!(packed, whole);
            }
        }
        for (first, last) in [(0, 1), (1, 4), (3, 6), (5, 6)] {
            for expert in 0..3 {
                let part = excerpt(&matrix, expert, first..last, &WeightFiles::default());
                let part = part.expect("it is mapped");
                for row in first..last {
                    let (got, want) = (part.row(0, row - first), matrix.row(expert, row));
                    assert_eq!((got.codes, got.scales), (want.codes, want.scales));
                    assert_eq!(got.biases, want.biases);
                }
            }
        }
    }

    /// The file holds other bytes than its mapping is said to, so what is packed shows where it was read.
    #[test]
    fn bytes_of_a_file_are_read_from_it_at_their_place() {
        let mapped = noise();
        let other: Bytes = mapped.iter().map(|b| b ^ 0x15).collect();
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&other).expect("it is written");
        let prepared = std::cell::Cell::new(0);
        let listed = vec![
            MappedFile { path: "no such file".into(), bytes: noise() },
            MappedFile { path: file.path().into(), bytes: mapped.clone() },
        ];
        let files = WeightFiles::open(listed, |_| prepared.set(prepared.get() + 1));
        assert_eq!(prepared.get(), 1);
        let (matrix, expected) = (matrix_in(&mapped), matrix_in(&other));
        let format = MatrixFormat::Q4;
        let mut packed = vec![0; format.layout(&matrix).bytes()];
        super::matrix(&matrix, format, &files, &mut packed, 2).expect("the file is there");
        assert_eq!(packed, format.pack_all(&expected));

        file.as_file().set_len(1000).expect("it is cut");
        let error = super::matrix(&matrix, format, &files, &mut packed, 2).unwrap_err();
        assert!(error.to_string().starts_with("cannot read the weights in "), "{error}");
    }
}
