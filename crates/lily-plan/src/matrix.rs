//! Weight matrices as they lie in checkpoint files: rows of one or more tensors, used in place.

use std::ops::Range;

use bytes::Bytes;
use half::{bf16, f16};

/// Weights that share one scale and one bias in the affine quantised formats.
pub const GROUP: usize = 64;

/// How the rows of a stored tensor are encoded.
///
/// The quantised formats are MLX's affine mode: codes packed from the low bits up, and for every
/// [`GROUP`] weights of a row a bfloat16 scale and bias, `w = scale * code + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowFormat {
    /// 4-bit codes, low nibble first in byte order; 0.5625 bytes a weight.
    Q4,
    /// 8-bit codes; 1.0625 bytes a weight.
    Q8,
    /// Plain bfloat16.
    Bf16,
    /// Plain IEEE half.
    F16,
    /// Plain f32.
    F32,
}

impl RowFormat {
    /// Short name as printed in plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4 => "q4",
            Self::Q8 => "q8",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bits of one code or plain value.
    pub fn bits(self) -> usize {
        match self {
            Self::Q4 => 4,
            Self::Q8 => 8,
            Self::Bf16 | Self::F16 => 16,
            Self::F32 => 32,
        }
    }

    /// Whether rows carry scales and biases.
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Q4 | Self::Q8)
    }

    /// Bytes of the codes (or plain values) of one row of `k` weights.
    pub fn code_bytes(self, k: usize) -> usize {
        k * self.bits() / 8
    }

    /// Bytes of the scales of one row; the biases take as many again. 0 for plain formats.
    pub fn scale_bytes(self, k: usize) -> usize {
        if self.is_quantised() { k / GROUP * 2 } else { 0 }
    }

    /// All bytes of one row: codes, scales and biases.
    pub fn row_bytes(self, k: usize) -> usize {
        self.code_bytes(k) + 2 * self.scale_bytes(k)
    }
}

/// Rows of one stored tensor that serve as rows of a [`WeightMatrix`].
///
/// Of the matrix's experts it serves `experts`, and of each of them the rows `first_row`,
/// `first_row + row_step`, … (`rows` of them): gate and up projections interleave with step 2. They
/// are the stored rows `source_row + (expert - experts.start) * expert_stride + i`.
#[derive(Clone, Debug)]
pub struct RowSegment {
    /// Name of the stored tensor, for messages.
    pub tensor: String,
    /// Encoding of the stored rows.
    pub format: RowFormat,
    /// Experts of the matrix that this segment serves.
    pub experts: Range<usize>,
    /// First row of each expert that this segment serves.
    pub first_row: usize,
    /// Distance between consecutive served rows.
    pub row_step: usize,
    /// Served rows of each expert.
    pub rows: usize,
    /// Stored row behind row `first_row` of expert `experts.start`.
    pub source_row: usize,
    /// Stored rows from one expert to the next.
    pub expert_stride: usize,
    /// The whole stored tensor: codes, or plain values. Not aligned.
    pub codes: Bytes,
    /// bfloat16 scales `[stored rows, k / 64]`; empty for plain formats. Not aligned.
    pub scales: Bytes,
    /// bfloat16 biases, as `scales`.
    pub biases: Bytes,
}

impl RowSegment {
    /// A stored tensor that is the whole matrix of one expert, `rows` rows side by side.
    pub fn whole(
        tensor: impl Into<String>,
        format: RowFormat,
        rows: usize,
        codes: Bytes,
        scales: Bytes,
        biases: Bytes,
    ) -> Self {
        Self {
            tensor: tensor.into(),
            format,
            experts: 0..1,
            first_row: 0,
            row_step: 1,
            rows,
            source_row: 0,
            expert_stride: rows,
            codes,
            scales,
            biases,
        }
    }

    fn serves(&self, expert: usize, row: usize) -> bool {
        self.experts.contains(&expert)
            && row >= self.first_row
            && (row - self.first_row).is_multiple_of(self.row_step)
            && (row - self.first_row) / self.row_step < self.rows
    }
}

/// Why a list of segments is not a matrix.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatrixError {
    /// The reduction length must be a whole number of quantisation groups.
    #[error(
        "tensor `{tensor}` has {k} columns, need a multiple of {GROUP} for {format}; \
         use a checkpoint quantised with group size {GROUP}"
    )]
    RaggedGroups {
        /// Stored tensor.
        tensor: String,
        /// Columns found.
        k: usize,
        /// Name of the row format.
        format: &'static str,
    },
    /// A segment points past the end of its tensor.
    #[error(
        "tensor `{tensor}` has {found} bytes of {part}, need {expected}; the file is cut short or its shape is wrong"
    )]
    TooShort {
        /// Stored tensor.
        tensor: String,
        /// Which of its parts: `weight`, `scales` or `biases`.
        part: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// The segments must serve every row exactly once.
    #[error("row {row} of expert {expert} is served by {found} segments, need exactly 1")]
    Coverage {
        /// Expert index.
        expert: usize,
        /// Row of that expert.
        row: usize,
        /// Segments that serve it.
        found: usize,
    },
}

/// A logical matrix `[experts, rows, k]` over stored rows; `experts` is 1 for a plain matrix.
#[derive(Clone, Debug)]
pub struct WeightMatrix {
    experts: usize,
    rows: usize,
    k: usize,
    segments: Vec<RowSegment>,
}

impl WeightMatrix {
    /// Builds the matrix and proves that every row is served once and lies inside its tensor.
    pub fn new(
        experts: usize,
        rows: usize,
        k: usize,
        segments: Vec<RowSegment>,
    ) -> Result<Self, MatrixError> {
        let mut served = vec![0u8; experts * rows];
        for segment in &segments {
            check_segment(segment, k)?;
            for expert in segment.experts.clone() {
                for i in 0..segment.rows {
                    let row = segment.first_row + i * segment.row_step;
                    if expert >= experts || row >= rows {
                        return Err(MatrixError::Coverage { expert, row, found: 0 });
                    }
                    served[expert * rows + row] += 1;
                }
            }
        }
        match served.iter().position(|&n| n != 1) {
            Some(at) => Err(MatrixError::Coverage {
                expert: at / rows,
                row: at % rows,
                found: usize::from(served[at]),
            }),
            None => Ok(Self { experts, rows, k, segments }),
        }
    }

    /// Experts; 1 for a plain matrix.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Rows (outputs) of each expert.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns (the reduction length).
    pub fn k(&self) -> usize {
        self.k
    }

    /// The segments, in the order given.
    pub fn segments(&self) -> &[RowSegment] {
        &self.segments
    }

    /// Bytes of all rows.
    pub fn total_bytes(&self) -> u64 {
        let rows = |s: &RowSegment| (s.experts.len() * s.rows) as u64;
        self.segments.iter().map(|s| rows(s) * s.format.row_bytes(self.k) as u64).sum()
    }

    /// One row, in place.
    ///
    /// # Panics
    /// If `expert` or `row` is out of range.
    #[inline]
    pub fn row(&self, expert: usize, row: usize) -> RowRef<'_> {
        assert!(expert < self.experts && row < self.rows, "row {row} of expert {expert}");
        let segment = self
            .segments
            .iter()
            .find(|s| s.serves(expert, row))
            .expect("the constructor proved that every row is served");
        let stored = segment.source_row
            + (expert - segment.experts.start) * segment.expert_stride
            + (row - segment.first_row) / segment.row_step;
        let (codes, scales) =
            (segment.format.code_bytes(self.k), segment.format.scale_bytes(self.k));
        RowRef {
            format: segment.format,
            codes: &segment.codes[stored * codes..(stored + 1) * codes],
            scales: &segment.scales[stored * scales..(stored + 1) * scales],
            biases: &segment.biases[stored * scales..(stored + 1) * scales],
        }
    }
}

fn check_segment(segment: &RowSegment, k: usize) -> Result<(), MatrixError> {
    let tensor = || segment.tensor.clone();
    let format = segment.format;
    if format.is_quantised() && !k.is_multiple_of(GROUP) {
        return Err(MatrixError::RaggedGroups { tensor: tensor(), k, format: format.name() });
    }
    let stored = segment.source_row
        + segment.experts.len().saturating_sub(1) * segment.expert_stride
        + segment.rows;
    let scales = format.scale_bytes(k);
    for (part, bytes, row) in [
        ("weight", &segment.codes, format.code_bytes(k)),
        ("scales", &segment.scales, scales),
        ("biases", &segment.biases, scales),
    ] {
        if bytes.len() < stored * row {
            return Err(MatrixError::TooShort {
                tensor: tensor(),
                part,
                expected: stored * row,
                found: bytes.len(),
            });
        }
    }
    Ok(())
}

/// One stored row, borrowed from its file. No part is aligned.
#[derive(Clone, Copy, Debug)]
pub struct RowRef<'a> {
    /// Encoding of the row.
    pub format: RowFormat,
    /// Codes, or plain values.
    pub codes: &'a [u8],
    /// bfloat16 scales, one for each group; empty for plain formats.
    pub scales: &'a [u8],
    /// bfloat16 biases, as `scales`.
    pub biases: &'a [u8],
}

impl RowRef<'_> {
    /// Code `i` of a quantised row.
    fn code(&self, i: usize) -> f32 {
        match self.format {
            RowFormat::Q4 => f32::from((self.codes[i / 2] >> (4 * (i % 2))) & 15),
            _ => f32::from(self.codes[i]),
        }
    }

    /// Writes the row's `k` weights to `out`: `scale * code + bias`, one rounding to f32.
    pub fn dequantise(&self, out: &mut [f32]) {
        let pair = |bytes: &[u8], i: usize| [bytes[2 * i], bytes[2 * i + 1]];
        match self.format {
            RowFormat::Q4 | RowFormat::Q8 => {
                for (g, group) in out.chunks_mut(GROUP).enumerate() {
                    let scale = bf16::from_le_bytes(pair(self.scales, g)).to_f32();
                    let bias = bf16::from_le_bytes(pair(self.biases, g)).to_f32();
                    for (i, w) in group.iter_mut().enumerate() {
                        *w = scale * self.code(g * GROUP + i) + bias;
                    }
                }
            }
            RowFormat::Bf16 => {
                for (i, w) in out.iter_mut().enumerate() {
                    *w = bf16::from_le_bytes(pair(self.codes, i)).to_f32();
                }
            }
            RowFormat::F16 => {
                for (i, w) in out.iter_mut().enumerate() {
                    *w = f16::from_le_bytes(pair(self.codes, i)).to_f32();
                }
            }
            RowFormat::F32 => {
                for (w, bytes) in out.iter_mut().zip(self.codes.as_chunks::<4>().0) {
                    *w = f32::from_le_bytes(*bytes);
                }
            }
        }
    }
}

/// What the plan's weight buffers are bound to when a model is loaded.
#[derive(Clone, Debug)]
pub enum Weight {
    /// A matrix, in place in its files.
    Matrix(WeightMatrix),
    /// A small unquantised tensor (norms, convolution, gates), widened to f32, row-major.
    Vector(Vec<f32>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(format: RowFormat, codes: Vec<u8>, scales: Vec<u8>, biases: Vec<u8>) -> RowSegment {
        RowSegment::whole("t", format, 1, codes.into(), scales.into(), biases.into())
    }

    fn bf16_bytes(x: f32) -> Vec<u8> {
        bf16::from_f32(x).to_le_bytes().to_vec()
    }

    #[test]
    fn q4_takes_the_low_nibble_first_and_allows_negative_scales() {
        let codes = (0..32u8).map(|i| (2 * i % 16) | (((2 * i + 1) % 16) << 4)).collect();
        let s = segment(RowFormat::Q4, codes, bf16_bytes(-0.5), bf16_bytes(3.0));
        let m = WeightMatrix::new(1, 1, 64, vec![s]).unwrap();
        let mut row = [0.0; 64];
        m.row(0, 0).dequantise(&mut row);
        for (i, w) in row.iter().enumerate() {
            assert_eq!(*w, -0.5 * (i % 16) as f32 + 3.0);
        }
        assert_eq!(m.total_bytes(), 36);
    }

    #[test]
    fn interleaved_segments_serve_alternate_rows_of_every_expert() {
        let values = |base: f32| -> Vec<u8> {
            (0..6).flat_map(|i| (base + i as f32).to_le_bytes()).collect()
        };
        let part = |first_row, base| RowSegment {
            experts: 0..2,
            first_row,
            row_step: 2,
            rows: 3,
            expert_stride: 3,
            ..segment(RowFormat::F32, values(base), vec![], vec![])
        };
        let m = WeightMatrix::new(2, 6, 1, vec![part(0, 0.0), part(1, 100.0)]).unwrap();
        let mut w = [0.0];
        m.row(1, 2).dequantise(&mut w);
        assert_eq!(w, [4.0]);
        m.row(0, 5).dequantise(&mut w);
        assert_eq!(w, [102.0]);
    }

    #[test]
    fn missing_doubled_and_cut_rows_are_refused() {
        let plain = || segment(RowFormat::F32, vec![0; 4], vec![], vec![]);
        let missing = WeightMatrix::new(1, 2, 1, vec![plain()]).unwrap_err();
        assert_eq!(missing, MatrixError::Coverage { expert: 0, row: 1, found: 0 });
        let doubled = WeightMatrix::new(1, 1, 1, vec![plain(), plain()]).unwrap_err();
        assert_eq!(doubled, MatrixError::Coverage { expert: 0, row: 0, found: 2 });
        let cut = WeightMatrix::new(1, 1, 2, vec![plain()]).unwrap_err();
        assert!(cut.to_string().contains("has 4 bytes of weight, need 8"), "{cut}");
    }
}
