//! Weight matrices in parts, read from their files by whoever packs them.
//!
//! A device that copies its weights takes a matrix in parts of a few megabytes, on several threads, and reads each
//! part from its file instead of touching the mapping: reads in large pieces are as fast as the disk, page faults
//! are not.

#[cfg(any(test, feature = "testing"))]
pub mod example;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;
use lily_plan::{MappedFile, RowSegment, WeightMatrix};

use super::matrix::MatrixLayout;

/// Some rows of an expert of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The expert.
    pub expert: usize,
    /// Its rows.
    pub rows: Range<usize>,
}

impl Part {
    /// The rows counted over all experts of the matrix.
    pub fn of_all(&self, matrix: &WeightMatrix) -> Range<usize> {
        let first = self.expert * matrix.rows();
        first + self.rows.start..first + self.rows.end
    }
}

/// A matrix cut into parts of at most `bytes` in device memory, and of at least one row, in the order of the rows.
pub fn parts(matrix: &WeightMatrix, layout: MatrixLayout, bytes: usize) -> Vec<Part> {
    let most = (bytes / layout.row_bytes()).max(1);
    let mut parts = Vec::new();
    for expert in 0..matrix.experts() {
        for first in (0..matrix.rows()).step_by(most) {
            parts.push(Part { expert, rows: first..(first + most).min(matrix.rows()) });
        }
    }
    parts
}

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

    /// A part of mapped bytes: read from their file if it is here, else as it is mapped.
    fn read(&self, bytes: &Bytes, part: Range<usize>) -> Result<Bytes, Unreadable> {
        let bytes = bytes.slice(part);
        if self.find(&bytes).is_none() {
            return Ok(bytes);
        }
        let mut copy = vec![0; bytes.len()];
        self.fill(&bytes, 0, &mut copy)?;
        Ok(copy.into())
    }

    /// Fills memory with mapped bytes from `offset` on: read from their file if it is here, else copied.
    ///
    /// # Errors
    /// The file cannot be read.
    ///
    /// # Panics
    /// There are not as many bytes.
    pub fn fill(&self, bytes: &Bytes, offset: usize, to: &mut [u8]) -> Result<(), Unreadable> {
        let from = &bytes[offset..offset + to.len()];
        let Some((mapped, file)) = self.find(from) else {
            to.copy_from_slice(from);
            return Ok(());
        };
        let offset = (from.as_ptr() as usize - mapped.bytes.as_ptr() as usize) as u64;
        read_at(file, to, offset).map_err(|source| Unreadable { path: mapped.path.clone(), source })
    }

    /// The file that mapped bytes are part of.
    fn find(&self, bytes: &[u8]) -> Option<&(MappedFile, File)> {
        let address = |bytes: &[u8]| bytes.as_ptr() as usize;
        let holds = |(mapped, _): &&(MappedFile, File)| {
            let start = address(&mapped.bytes);
            start <= address(bytes) && address(bytes) + bytes.len() <= start + mapped.bytes.len()
        };
        self.files.iter().find(holds)
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

/// Some rows of an expert as a matrix of their own, read from their files.
///
/// # Errors
/// A file cannot be read.
pub fn excerpt(
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
            files.read(bytes, stored * row..(stored + end - begin) * row)
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

    use crate::gpu::MatrixFormat;

    use super::example::{matrix_in, noise};
    use super::*;

    /// The matrix as packed by parts.
    fn packed(matrix: &WeightMatrix, format: MatrixFormat, files: &WeightFiles) -> Vec<u8> {
        let layout = format.layout(matrix);
        let mut out = vec![0; layout.bytes()];
        let (codes, pairs) = out.split_at_mut(layout.rows * layout.code_bytes);
        for part in parts(matrix, layout, 2 * layout.row_bytes()) {
            let rows = part.of_all(matrix);
            let read = excerpt(matrix, part.expert, part.rows, files).expect("it is there");
            let codes = &mut codes[rows.start * layout.code_bytes..rows.end * layout.code_bytes];
            let pairs = &mut pairs[rows.start * layout.pair_bytes..rows.end * layout.pair_bytes];
            format.pack(&read, 0..rows.len(), codes, pairs);
        }
        out
    }

    #[test]
    fn packed_parts_are_the_packed_matrix() {
        let matrix = matrix_in(&noise());
        for format in [MatrixFormat::Q4, MatrixFormat::Q8, MatrixFormat::Bf16] {
            let files = WeightFiles::default();
            assert_eq!(packed(&matrix, format, &files), format.pack_all(&matrix));
        }
        let layout = MatrixFormat::Q4.layout(&matrix);
        assert_eq!(parts(&matrix, layout, 0).len(), 18, "a row is never cut");
        assert_eq!(parts(&matrix, layout, usize::MAX).len(), 3, "a part is of one expert");
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
        assert_eq!(packed(&matrix, format, &files), format.pack_all(&expected));

        file.as_file().set_len(1000).expect("it is cut");
        let error = excerpt(&matrix, 2, 0..6, &files).unwrap_err();
        assert!(error.to_string().starts_with("cannot read the weights in "), "{error}");
    }
}
