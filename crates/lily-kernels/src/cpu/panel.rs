//! Products of small f32 matrices that lie in the nearest caches. The order of a sum depends on its
//! length only.

#![allow(clippy::needless_range_loop)] // one index names vectors of several arrays alike

use super::Simd;
use super::simd::{Isa, Kernel, TURNED_BYTES, WORDS};

/// Rows of a block: with two vectors of columns each they hide the latency of a multiply-add, and
/// leave registers for the factors.
const ROWS: usize = 6;

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
    simd: Simd,
    (m, k, n): (usize, usize, usize),
    a: Panel<'_>,
    (b, b_stride): (&[f32], usize),
    (c, c_stride): (&mut [f32], usize),
) {
    assert!(a.values.len() >= a.span(m, k));
    assert!(b.len() >= Panel::rows(b, b_stride).span(k, n));
    assert!(c.len() >= Panel::rows(c, c_stride).span(m, n) && (m <= 1 || c_stride >= n));
    simd.run(Product {
        m,
        n,
        a: a.values.as_ptr(),
        b: b.as_ptr(),
        c: c.as_mut_ptr(),
        layout: Layout {
            k,
            a_row: a.row_stride,
            a_column: a.column_stride,
            b: b_stride,
            c: c_stride,
        },
    });
}

/// Strides and reduction length of a product.
#[derive(Clone, Copy)]
struct Layout {
    k: usize,
    a_row: usize,
    a_column: usize,
    b: usize,
    c: usize,
}

/// A product whose matrices are inside their slices.
struct Product {
    m: usize,
    n: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    layout: Layout,
}

impl Kernel for Product {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let mut row = 0;
        while row < self.m {
            // SAFETY: `rows` rows from `row` on are inside A and C.
            unsafe {
                match usize::min(self.m - row, ROWS) {
                    1 => self.stripe::<S, 1>(s, row),
                    2 => self.stripe::<S, 2>(s, row),
                    3 => self.stripe::<S, 3>(s, row),
                    4 => self.stripe::<S, 4>(s, row),
                    5 => self.stripe::<S, 5>(s, row),
                    _ => self.stripe::<S, ROWS>(s, row),
                }
            }
            row += ROWS;
        }
    }
}

impl Product {
    /// `R` rows of C from `row` on, all columns.
    ///
    /// # Safety
    /// A and C have them.
    #[inline(always)]
    unsafe fn stripe<S: Isa, const R: usize>(&self, s: S, row: usize) {
        let layout = self.layout;
        // SAFETY: each block ends at or before column `n`.
        unsafe {
            let (a, c) = (self.a.add(row * layout.a_row), self.c.add(row * layout.c));
            let mut column = 0;
            while column + 2 * S::LANES <= self.n {
                block::<S, R, 2>(s, layout, a, self.b.add(column), c.add(column));
                column += 2 * S::LANES;
            }
            if column + S::LANES <= self.n {
                block::<S, R, 1>(s, layout, a, self.b.add(column), c.add(column));
                column += S::LANES;
            }
            for row in 0..R {
                for column in column..self.n {
                    let c = c.add(row * layout.c + column);
                    for p in 0..layout.k {
                        let a = *a.add(row * layout.a_row + p * layout.a_column);
                        *c += a * *self.b.add(p * layout.b + column);
                    }
                }
            }
        }
    }
}

/// `R` rows of C, `V` vectors of columns; they stay in registers over all of k.
///
/// # Safety
/// The block is inside the matrices.
#[inline(always)]
unsafe fn block<S: Isa, const R: usize, const V: usize>(
    s: S,
    layout: Layout,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
) {
    let mut sums = [[s.splat(0.0); V]; R];
    for p in 0..layout.k {
        // SAFETY: row `p` of B and column `p` of A are inside the matrices.
        unsafe {
            let mut columns = [s.splat(0.0); V];
            for (v, columns) in columns.iter_mut().enumerate() {
                *columns = s.load(b.add(p * layout.b + v * S::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = s.splat(*a.add(r * layout.a_row + p * layout.a_column));
                for v in 0..V {
                    sums[v] = s.mul_add(a, columns[v], sums[v]);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (v, &sum) in sums.iter().enumerate() {
            // SAFETY: the block is inside C.
            unsafe {
                let c = c.add(r * layout.c + v * S::LANES);
                s.store(c, s.add(s.load(c), sum));
            }
        }
    }
}

/// An element type of a matrix that is turned.
pub trait Turned: bytemuck::Pod {
    /// As f32.
    fn widen(self) -> f32;
}

impl Turned for f32 {
    fn widen(self) -> f32 {
        self
    }
}

impl Turned for half::bf16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// The transpose of `rows` rows of `width` elements, widened: `out` `[width, stride]`, zero from column
/// `rows` on.
///
/// # Panics
/// If the matrices are not inside their slices.
pub fn turn<T: Turned>(
    simd: Simd,
    from: &[T],
    (rows, width): (usize, usize),
    (out, stride): (&mut [f32], usize),
) {
    assert!(from.len() >= rows * width && out.len() >= width * stride && stride >= rows);
    simd.run(Turn { from, rows, width, out, stride });
}

struct Turn<'a, T> {
    from: &'a [T],
    rows: usize,
    width: usize,
    out: &'a mut [f32],
    stride: usize,
}

impl<T: Turned> Kernel for Turn<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let (rows, width, stride) = (self.rows, self.width, self.stride);
        // Elements of 32 bytes, and of one word of them.
        let (block, each) = (TURNED_BYTES / size_of::<T>(), 4 / size_of::<T>());
        let (whole_rows, whole) = (rows / S::LANES * S::LANES, width / block * block);
        let (from, out) = (self.from.as_ptr().cast::<u8>(), self.out.as_mut_ptr());
        let mut first = 0;
        while first < whole_rows {
            let mut places = [from; 16];
            for (i, place) in places[..S::LANES].iter_mut().enumerate() {
                *place = from.wrapping_add((first + i) * width * size_of::<T>());
            }
            let mut at = 0;
            while at < whole {
                // SAFETY: `LANES` rows have a block from element `at` on, and so has `out`.
                unsafe {
                    let words = s.transpose(places.as_ptr(), at * size_of::<T>());
                    for i in 0..WORDS {
                        let to = out.add((at + i * each) * stride + first);
                        if each == 1 {
                            s.store(to, s.as_f32(words[i]));
                        } else {
                            s.store(to, s.bf16_low(words[i]));
                            s.store(to.add(stride), s.bf16_high(words[i]));
                        }
                    }
                }
                at += block;
            }
            first += S::LANES;
        }
        for i in 0..width {
            let first = if i < whole { whole_rows } else { 0 };
            for row in first..rows {
                self.out[i * stride + row] = self.from[row * width + i].widen();
            }
            self.out[i * stride + rows..(i + 1) * stride].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_every_edge_agree_with_plain_sums() {
        let value = |i: usize| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5;
        let all = [(1, 1, 1), (5, 3, 7), (7, 0, 8), (0, 4, 8), (6, 9, 16), (13, 64, 73)];
        // The long ones are for vectors, which Miri does not have.
        for &(m, k, n) in if cfg!(miri) { &all[..4] } else { &all[..] } {
            let a: Vec<f32> = (0..(m + 1) * (k + 2)).map(value).collect();
            let b: Vec<f32> = (0..k * (n + 1)).map(|i| value(i + 11)).collect();
            let c: Vec<f32> = (0..m * (n + 3)).map(|i| value(i + 5)).collect();
            for panel in [Panel::rows(&a, k + 2), Panel::columns(&a, m + 1)] {
                let mut want = c.clone();
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let term = |p: usize| {
                        panel.values[i * panel.row_stride + p * panel.column_stride]
                            * b[p * (n + 1) + j]
                    };
                    want[i * (n + 3) + j] += (0..k).map(term).sum::<f32>();
                }
                for simd in Simd::available() {
                    let mut got = c.clone();
                    multiply_add(simd, (m, k, n), panel, (&b, n + 1), (&mut got, n + 3));
                    let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
                    assert!(!want.iter().zip(&got).any(far), "{simd:?} m {m}, k {k}, n {n}");
                }
            }
        }
    }

    #[test]
    fn matrices_are_turned_whatever_their_edges() {
        let all = [(0, 3, 2), (1, 1, 1), (5, 8, 7), (16, 32, 16), (37, 50, 40)];
        for &(rows, width, stride) in if cfg!(miri) { &all[..4] } else { &all[..] } {
            let values: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
            let short: Vec<half::bf16> =
                values.iter().map(|&v| half::bf16::from_f32(v % 251.0)).collect();
            for simd in Simd::available() {
                let (mut plain, mut wide) =
                    (vec![f32::NAN; width * stride], vec![f32::NAN; width * stride]);
                turn(simd, &values, (rows, width), (&mut plain, stride));
                turn(simd, &short, (rows, width), (&mut wide, stride));
                for (i, row) in (0..width).flat_map(|i| (0..stride).map(move |row| (i, row))) {
                    let at = row * width + i;
                    let want = match row < rows {
                        true => (values[at], short[at].to_f32()),
                        false => (0.0, 0.0),
                    };
                    let got = (plain[i * stride + row], wide[i * stride + row]);
                    assert_eq!(got, want, "{simd:?} {rows} {width} {i} {row}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "a.values.len()")]
    fn a_matrix_outside_of_its_slice_is_refused() {
        multiply_add(
            Simd::detect(),
            (2, 3, 1),
            Panel::rows(&[0.0; 5], 3),
            (&[0.0; 3], 1),
            (&mut [0.0; 2], 1),
        );
    }
}
