//! Weight matrices in device memory.
//!
//! A matrix `[experts, rows, k]` is one buffer: first all codes (or plain bfloat16 values), row after row,
//! `k * bits / 8` bytes each; then, for quantised formats, one 4-byte word for every 64 weights of a
//! row: the bfloat16 scale in the low half, the bfloat16 bias in the high half. The bytes are as many as
//! in the checkpoint. `format/affine.h` reads it.

use std::ops::Range;

use lily_plan::{GROUP, RowFormat, Weight, WeightMatrix};

/// Width of all codes of a matrix in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixFormat {
    /// 4-bit codes.
    Q4,
    /// 8-bit codes; 4-bit rows of the same matrix are widened, which changes no weight.
    Q8,
    /// Plain bfloat16; other rows of the same matrix are rounded to it.
    Bf16,
}

impl MatrixFormat {
    /// The narrowest format that holds every row.
    pub fn of(matrix: &WeightMatrix) -> Self {
        Self::of_rows(matrix.segments().iter().map(|s| s.format))
    }

    /// The narrowest format that holds rows of all of these formats.
    pub fn of_rows(rows: impl IntoIterator<Item = RowFormat>) -> Self {
        let formats = rows.into_iter().map(|format| match format {
            RowFormat::Q4 => Self::Q4,
            RowFormat::Q8 => Self::Q8,
            RowFormat::Bf16 | RowFormat::F16 | RowFormat::F32 => Self::Bf16,
        });
        formats.max_by_key(|f| f.bits()).unwrap_or(Self::Q4)
    }

    /// Bits of one code or value: the constant `BITS` of kernels.
    pub fn bits(self) -> u32 {
        match self {
            Self::Q4 => 4,
            Self::Q8 => 8,
            Self::Bf16 => 16,
        }
    }

    /// Where rows lie in the buffer.
    pub fn layout(self, matrix: &WeightMatrix) -> MatrixLayout {
        let k = matrix.k();
        MatrixLayout {
            rows: matrix.experts() * matrix.rows(),
            code_bytes: k * self.bits() as usize / 8,
            pair_bytes: if self == Self::Bf16 { 0 } else { k / GROUP * 4 },
        }
    }

    /// Writes rows of the matrix, counted over all experts: their codes and their words of scale and
    /// bias, each part without gaps.
    ///
    /// # Panics
    /// If a row is out of range or a part has another size.
    pub fn pack(
        self,
        matrix: &WeightMatrix,
        rows: Range<usize>,
        codes: &mut [u8],
        pairs: &mut [u8],
    ) {
        let layout = self.layout(matrix);
        assert_eq!(codes.len(), rows.len() * layout.code_bytes, "bytes of codes");
        assert_eq!(pairs.len(), rows.len() * layout.pair_bytes, "bytes of scales and biases");
        let mut values = vec![0.0; if self == Self::Bf16 { matrix.k() } else { 0 }];
        for (i, at) in rows.enumerate() {
            let row = matrix.row(at / matrix.rows(), at % matrix.rows());
            let to = &mut codes[i * layout.code_bytes..(i + 1) * layout.code_bytes];
            match (self, row.format) {
                (Self::Bf16, RowFormat::Bf16) => to.copy_from_slice(row.codes),
                (Self::Bf16, _) => {
                    row.dequantise(&mut values);
                    for (to, &w) in to.as_chunks_mut::<2>().0.iter_mut().zip(&values) {
                        *to = half::bf16::from_f32(w).to_le_bytes();
                    }
                }
                (Self::Q8, RowFormat::Q4) => {
                    for (to, code) in to.as_chunks_mut::<2>().0.iter_mut().zip(row.codes) {
                        *to = [code & 15, code >> 4];
                    }
                }
                _ => to.copy_from_slice(row.codes),
            }
            let to = &mut pairs[i * layout.pair_bytes..(i + 1) * layout.pair_bytes];
            let of = row.scales.as_chunks::<2>().0.iter().zip(row.biases.as_chunks::<2>().0);
            for (to, (scale, bias)) in to.as_chunks_mut::<4>().0.iter_mut().zip(of) {
                *to = [scale[0], scale[1], bias[0], bias[1]];
            }
        }
    }

    /// The whole matrix.
    pub fn pack_all(self, matrix: &WeightMatrix) -> Vec<u8> {
        let layout = self.layout(matrix);
        let mut out = vec![0; layout.bytes()];
        let (codes, pairs) = out.split_at_mut(layout.rows * layout.code_bytes);
        self.pack(matrix, 0..layout.rows, codes, pairs);
        out
    }
}

/// Where the rows of a matrix lie in its buffer: all codes, then all words of scale and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    /// Rows of all experts.
    pub rows: usize,
    /// Bytes of the codes, or plain values, of a row.
    pub code_bytes: usize,
    /// Bytes of a row's words of scale and bias; 0 for plain matrices.
    pub pair_bytes: usize,
}

impl MatrixLayout {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.code_bytes + self.pair_bytes
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }
}

/// Bytes that a weight takes in device memory.
pub fn weight_bytes(weight: &Weight) -> usize {
    match weight {
        Weight::Matrix(matrix) => MatrixFormat::of(matrix).layout(matrix).bytes(),
        Weight::Vector(values) => 4 * values.len(),
    }
}

#[cfg(test)]
mod tests {
    use lily_plan::RowSegment;

    use super::*;

    /// A matrix of one row for each format, `k` 64.
    fn matrix(formats: &[RowFormat]) -> WeightMatrix {
        let segment = |(row, &format): (usize, &RowFormat)| RowSegment {
            tensor: "t".into(),
            format,
            experts: 0..1,
            first_row: row,
            row_step: 1,
            rows: 1,
            source_row: 0,
            expert_stride: 0,
            codes: (0..format.code_bytes(64)).map(|i| (37 * i + row) as u8 & 0x3f).collect(),
            scales: [0x80, 0xbe].repeat(format.scale_bytes(64) / 2).into(),
            biases: [0x00, 0x40].repeat(format.scale_bytes(64) / 2).into(),
        };
        let segments = formats.iter().enumerate().map(segment).collect();
        WeightMatrix::new(1, formats.len(), 64, segments).expect("one segment for each row")
    }

    /// The weights of a packed matrix, read back.
    fn unpack(format: MatrixFormat, layout: MatrixLayout, bytes: &[u8]) -> Vec<f32> {
        let bf16 = |at: usize| half::bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        let weight = |row: usize, i: usize| {
            let codes = &bytes[row * layout.code_bytes..];
            let code = match format {
                MatrixFormat::Q4 => codes[i / 2] >> (4 * (i % 2)) & 15,
                MatrixFormat::Q8 => codes[i],
                MatrixFormat::Bf16 => return bf16(row * layout.code_bytes + 2 * i),
            };
            let pair = layout.rows * layout.code_bytes + row * layout.pair_bytes;
            bf16(pair) * f32::from(code) + bf16(pair + 2)
        };
        (0..layout.rows).flat_map(|row| (0..64).map(move |i| weight(row, i))).collect()
    }

    #[test]
    fn packing_keeps_every_weight_and_the_size() {
        use RowFormat::{Bf16, F32, Q4, Q8};
        for (rows, format) in [
            (&[Q4, Q4][..], MatrixFormat::Q4),
            (&[Q8, Q8], MatrixFormat::Q8),
            (&[Q4, Q8, Q4], MatrixFormat::Q8),
            (&[Bf16], MatrixFormat::Bf16),
            (&[Bf16, F32, Q4], MatrixFormat::Bf16),
        ] {
            let matrix = matrix(rows);
            assert_eq!(MatrixFormat::of(&matrix), format, "{rows:?}");
            let layout = format.layout(&matrix);
            let packed = format.pack_all(&matrix);
            assert_eq!(packed.len(), layout.bytes());
            let mut want = vec![0.0; rows.len() * 64];
            for (row, want) in want.chunks_mut(64).enumerate() {
                matrix.row(0, row).dequantise(want);
            }
            if format == MatrixFormat::Bf16 {
                want.iter_mut().for_each(|w| *w = half::bf16::from_f32(*w).to_f32());
            } else if rows.iter().all(|r| *r == rows[0]) {
                assert_eq!(packed.len() as u64, matrix.total_bytes());
            }
            assert_eq!(unpack(format, layout, &packed), want, "{rows:?}");
        }
    }

    #[test]
    fn parts_packed_apart_make_the_whole() {
        let matrix = matrix(&[RowFormat::Q4, RowFormat::Q8, RowFormat::Q4]);
        let format = MatrixFormat::Q8;
        let layout = format.layout(&matrix);
        let whole = format.pack_all(&matrix);
        for row in 0..3 {
            let mut codes = vec![0; layout.code_bytes];
            let mut pairs = vec![0; layout.pair_bytes];
            format.pack(&matrix, row..row + 1, &mut codes, &mut pairs);
            assert_eq!(codes, whole[row * layout.code_bytes..][..layout.code_bytes]);
            let at = 3 * layout.code_bytes + row * layout.pair_bytes;
            assert_eq!(pairs, whole[at..][..layout.pair_bytes]);
        }
    }
}
