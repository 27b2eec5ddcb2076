//! Products of small f32 matrices that lie in the nearest caches.
//!
//! One form for AVX2 with FMA, taken when the machine has it, and a portable form. The order of a sum
//! depends on its length only.

/// Rows of an f32 matrix inside a slice.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// Elements; the first is that of row 0 and column 0.
    pub values: &'a [f32],
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next.
    pub column_stride: usize,
}

impl<'a> Panel<'a> {
    /// Rows of consecutive elements.
    pub fn rows(values: &'a [f32], row_stride: usize) -> Self {
        Self { values, row_stride, column_stride: 1 }
    }

    /// The transpose of rows of consecutive elements.
    pub fn columns(values: &'a [f32], column_stride: usize) -> Self {
        Self { values, row_stride: 1, column_stride }
    }

    /// Elements that a matrix `[rows, columns]` of this layout spans.
    fn span(&self, rows: usize, columns: usize) -> usize {
        match rows.min(columns) {
            0 => 0,
            _ => (rows - 1) * self.row_stride + (columns - 1) * self.column_stride + 1,
        }
    }
}

/// `C += A B` with `C` `[m, n]`, `A` `[m, k]` and `B` `[k, n]`; the rows of `B` and of `C` are
/// consecutive elements, `b_stride` and `c_stride` apart.
///
/// # Panics
/// If a matrix is not inside its slice, or rows of `C` overlap.
pub fn multiply_add(
    (m, k, n): (usize, usize, usize),
    a: Panel<'_>,
    (b, b_stride): (&[f32], usize),
    (c, c_stride): (&mut [f32], usize),
) {
    assert!(a.values.len() >= a.span(m, k));
    assert!(b.len() >= Panel::rows(b, b_stride).span(k, n));
    assert!(c.len() >= Panel::rows(c, c_stride).span(m, n) && (m <= 1 || c_stride >= n));
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: AVX2 and FMA are there; all three matrices are inside their slices.
        unsafe { avx2::multiply_add((m, k, n), a, (b, b_stride), (c, c_stride)) };
        return;
    }
    multiply_add_portable((m, k, n), a, (b, b_stride), (c, c_stride));
}

/// [`multiply_add`] in plain Rust.
fn multiply_add_portable(
    (m, k, n): (usize, usize, usize),
    a: Panel<'_>,
    (b, b_stride): (&[f32], usize),
    (c, c_stride): (&mut [f32], usize),
) {
    for i in 0..m {
        let row = &mut c[i * c_stride..i * c_stride + n];
        for p in 0..k {
            let factor = a.values[i * a.row_stride + p * a.column_stride];
            for (c, b) in row.iter_mut().zip(&b[p * b_stride..p * b_stride + n]) {
                *c += factor * b;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! AVX2 and FMA form: blocks of C stay in registers over all of k.

    use std::arch::x86_64::*;

    use super::Panel;

    /// Rows of a block: 6 rows of two registers leave room for two of B and one of A.
    const ROWS: usize = 6;

    /// Strides and reduction length of a product.
    #[derive(Clone, Copy)]
    struct Layout {
        k: usize,
        a_row: usize,
        a_column: usize,
        b: usize,
        c: usize,
    }

    /// # Safety
    /// AVX2 and FMA are there; the matrices are inside their slices.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn multiply_add(
        (m, k, n): (usize, usize, usize),
        a: Panel<'_>,
        (b, b_stride): (&[f32], usize),
        (c, c_stride): (&mut [f32], usize),
    ) {
        let (a_row, a_column) = (a.row_stride, a.column_stride);
        let layout = Layout { k, a_row, a_column, b: b_stride, c: c_stride };
        let (a, b, c) = (a.values.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        for row in (0..m).step_by(ROWS) {
            let rows = ROWS.min(m - row);
            // SAFETY: `rows` rows from `row` on are inside A and C.
            unsafe {
                let (a, c) = (a.wrapping_add(row * a_row), c.wrapping_add(row * c_stride));
                match rows {
                    1 => stripe::<1>(layout, n, a, b, c),
                    2 => stripe::<2>(layout, n, a, b, c),
                    3 => stripe::<3>(layout, n, a, b, c),
                    4 => stripe::<4>(layout, n, a, b, c),
                    5 => stripe::<5>(layout, n, a, b, c),
                    _ => stripe::<ROWS>(layout, n, a, b, c),
                }
            }
        }
    }

    /// `R` rows of C, all columns.
    ///
    /// # Safety
    /// AVX2 and FMA are there; A, B and C have `R` rows (B: `k`) of the layout.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn stripe<const R: usize>(
        layout: Layout,
        n: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) {
        let mut column = 0;
        // SAFETY: each block ends at or before column `n`.
        unsafe {
            while column + 16 <= n {
                block::<R, 2>(layout, a, b.wrapping_add(column), c.wrapping_add(column));
                column += 16;
            }
            if column + 8 <= n {
                block::<R, 1>(layout, a, b.wrapping_add(column), c.wrapping_add(column));
                column += 8;
            }
            for row in 0..R {
                for column in column..n {
                    let c = c.add(row * layout.c + column);
                    for p in 0..layout.k {
                        let a = *a.add(row * layout.a_row + p * layout.a_column);
                        *c += a * *b.add(p * layout.b + column);
                    }
                }
            }
        }
    }

    /// `R` rows of C, `8 V` columns.
    ///
    /// # Safety
    /// AVX2 and FMA are there; the block is inside the matrices.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn block<const R: usize, const V: usize>(
        layout: Layout,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) {
        let mut sums = [[_mm256_setzero_ps(); V]; R];
        for p in 0..layout.k {
            // SAFETY: row `p` of B and column `p` of A are inside the matrices.
            unsafe {
                let mut columns = [_mm256_setzero_ps(); V];
                for (v, columns) in columns.iter_mut().enumerate() {
                    *columns = _mm256_loadu_ps(b.add(p * layout.b + 8 * v));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let a = _mm256_broadcast_ss(&*a.add(r * layout.a_row + p * layout.a_column));
                    for v in 0..V {
                        sums[v] = _mm256_fmadd_ps(a, columns[v], sums[v]);
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                // SAFETY: the block is inside C.
                unsafe {
                    let c = c.add(r * layout.c + 8 * v);
                    _mm256_storeu_ps(c, _mm256_add_ps(_mm256_loadu_ps(c), sum));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_every_edge_agree_with_the_portable_form() {
        let value = |i: usize| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5;
        let all = [(1, 1, 1), (5, 3, 7), (7, 0, 8), (0, 4, 8), (6, 9, 16), (13, 64, 41)];
        // The long ones are for vectors, which Miri does not have.
        for &(m, k, n) in if cfg!(miri) { &all[..4] } else { &all[..] } {
            let a: Vec<f32> = (0..(m + 1) * (k + 2)).map(value).collect();
            let b: Vec<f32> = (0..k * (n + 1)).map(|i| value(i + 11)).collect();
            let c: Vec<f32> = (0..m * (n + 3)).map(|i| value(i + 5)).collect();
            for panel in [Panel::rows(&a, k + 2), Panel::columns(&a, m + 1)] {
                let (mut want, mut got) = (c.clone(), c.clone());
                multiply_add_portable((m, k, n), panel, (&b, n + 1), (&mut want, n + 3));
                multiply_add((m, k, n), panel, (&b, n + 1), (&mut got, n + 3));
                let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
                assert!(!want.iter().zip(&got).any(far), "m {m}, k {k}, n {n}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a.values.len()")]
    fn a_matrix_outside_of_its_slice_is_refused() {
        multiply_add((2, 3, 1), Panel::rows(&[0.0; 5], 3), (&[0.0; 3], 1), (&mut [0.0; 2], 1));
    }
}
