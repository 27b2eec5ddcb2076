//! Weight matrices in device memory.
//!
//! A matrix `[experts, rows, k]` is one buffer: first all codes (or plain bfloat16 values), row after row,
//! `k * bits / 8` bytes each; then, for quantised formats, one 4-byte word for every 64 weights of a
//! row: the bfloat16 scale in the low half, the bfloat16 bias in the high half. The bytes are as many as
//! in the checkpoint. `format/affine.h` reads it.

use lily_plan::{GROUP, RowFormat, WeightMatrix};

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
        let widest = matrix.segments().iter().map(|s| match s.format {
            RowFormat::Q4 => Self::Q4,
            RowFormat::Q8 => Self::Q8,
            RowFormat::Bf16 | RowFormat::F16 | RowFormat::F32 => Self::Bf16,
        });
        widest.max_by_key(|f| f.bits()).unwrap_or(Self::Q4)
    }

    /// Bits of one code or value: the constant `BITS` of kernels.
    pub fn bits(self) -> u32 {
        match self {
            Self::Q4 => 4,
            Self::Q8 => 8,
            Self::Bf16 => 16,
        }
    }

    /// Bytes of a matrix with `weights` weights in rows of whole groups.
    pub fn bytes(self, weights: usize) -> usize {
        let pairs = if self == Self::Bf16 { 0 } else { weights / GROUP * 4 };
        weights * self.bits() as usize / 8 + pairs
    }

    /// Writes rows of the matrix, counted over all experts, where they belong in `out`, the whole
    /// buffer.
    ///
    /// # Panics
    /// If `out` is shorter than the matrix or a row is out of range.
    pub fn pack(self, matrix: &WeightMatrix, rows: std::ops::Range<usize>, out: &mut [u8]) {
        let k = matrix.k();
        let all_rows = matrix.experts() * matrix.rows();
        let (row_bytes, groups) = (k * self.bits() as usize / 8, k / GROUP);
        let (codes, pairs) = out.split_at_mut(all_rows * row_bytes);
        let mut values = vec![0.0; if self == Self::Bf16 { k } else { 0 }];
        for at in rows {
            let row = matrix.row(at / matrix.rows(), at % matrix.rows());
            let to = &mut codes[at * row_bytes..(at + 1) * row_bytes];
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
            if self != Self::Bf16 {
                let to = &mut pairs[at * groups * 4..(at + 1) * groups * 4];
                let of = row.scales.as_chunks::<2>().0.iter().zip(row.biases.as_chunks::<2>().0);
                for (to, (scale, bias)) in to.as_chunks_mut::<4>().0.iter_mut().zip(of) {
                    *to = [scale[0], scale[1], bias[0], bias[1]];
                }
            }
        }
    }
}
