//! Memory of rows to come, asked for while others are multiplied: the processor's own prefetch cannot
//! follow sixteen rows at once.

use std::ops::Range;

use lily_plan::WeightMatrix;

use super::packed::Rows;
use crate::cpu::simd::{Isa, ROWS};

/// Bytes that memory is read by.
const LINE: usize = 64;
/// Bytes of codes from what is multiplied to what is asked for: a thread reads them in several times
/// the latency of memory.
const DISTANCE: usize = 32 << 10;

/// Rows of an expert's part of a matrix, and where their thread is likely to go on.
#[derive(Clone, Debug)]
pub struct Block {
    /// The expert.
    pub expert: usize,
    /// Its rows.
    pub rows: Range<usize>,
    /// Expert and row that follow.
    then: (usize, usize),
}

impl Block {
    /// The same, where another row of some expert than the next one follows.
    pub fn before(self, expert: usize, row: usize) -> Self {
        Self { then: (expert, row), ..self }
    }
}

impl From<(usize, Range<usize>)> for Block {
    fn from((expert, rows): (usize, Range<usize>)) -> Self {
        let then = (expert, rows.end);
        Self { expert, rows, then }
    }
}

/// The rows ahead of each sixteen rows of a block.
pub(super) struct Course<'a> {
    /// Sixteens from those that are multiplied to those ahead.
    distance: usize,
    /// Sixteens of the block.
    count: usize,
    /// The first that follow the block.
    then: Rows<'a>,
}

impl<'a> Course<'a> {
    pub(super) fn new(matrix: &'a WeightMatrix, block: &Block) -> Self {
        let (expert, row) = block.then;
        // Behind the last row nothing is known to follow: the last one serves.
        let first = row.min(matrix.rows() - 1);
        let rows = first..matrix.rows().min(first + ROWS);
        let mut then = Rows::nowhere(matrix.k());
        then.find(matrix, expert.min(matrix.experts() - 1), rows);
        let count = block.rows.len().div_ceil(ROWS);
        // Of what follows elsewhere no more is known than that it is as long.
        let most = if block.then == (block.expert, block.rows.end) { usize::MAX } else { count };
        Self {
            distance: (DISTANCE / (ROWS * matrix.k() / 2).max(1)).clamp(1, most.max(1)),
            count,
            then,
        }
    }

    /// That of rows behind which nothing is known.
    pub(super) fn nowhere(k: usize) -> Self {
        Self { distance: 0, count: usize::MAX, then: Rows::nowhere(k) }
    }

    /// The rows ahead of the `n`-th sixteen of the block, which is the `nth` of `rows`.
    #[inline(always)]
    pub(super) fn ahead<'s>(&'s self, n: usize, rows: &'s Rows<'a>, nth: usize) -> Ahead<'s> {
        let (rows, sixteens) = match (n + self.distance).checked_sub(self.count) {
            None => (rows, nth + self.distance),
            Some(behind) => (&self.then, behind),
        };
        let (codes, factors) = rows.step();
        Ahead::new(rows, (codes.wrapping_mul(sixteens), factors.wrapping_mul(sixteens)))
    }
}

/// Memory that is asked for group by group: that of rows which lie some bytes behind others. There need
/// not be any, since any address will do.
#[derive(Clone)]
pub(super) struct Ahead<'a> {
    rows: &'a Rows<'a>,
    /// Bytes from codes, and from scales or biases, of `rows` on.
    by: (usize, usize),
    codes: Place,
    scales: Place,
    biases: Place,
    /// Whether it is the biases' turn, after the scales'.
    biases_turn: bool,
}

impl<'a> Ahead<'a> {
    #[inline(always)]
    fn new(rows: &'a Rows<'a>, by: (usize, usize)) -> Self {
        let [codes, scales, biases] = [Place { row: 0, at: 0 }; 3];
        Self { rows, by, codes, scales, biases, biases_turn: false }
    }

    /// Asks for as much as a group of sixteen rows has: `bytes` of codes, and a line of scales or of
    /// biases, of which it has half a line each. A row has `row_bytes` of codes and `factor_bytes` of
    /// scales.
    #[inline(always)]
    pub(super) fn prefetch<S: Isa>(
        &mut self,
        s: S,
        (bytes, row_bytes): (usize, usize),
        factor_bytes: usize,
    ) {
        let (codes, factors) = self.by;
        let from = self.codes.next(&self.rows.codes, bytes, row_bytes).wrapping_add(codes);
        for line in 0..bytes / LINE {
            s.prefetch(from.wrapping_add(line * LINE));
        }
        let from = match self.biases_turn {
            true => self.biases.next(&self.rows.biases, LINE, factor_bytes),
            false => self.scales.next(&self.rows.scales, LINE, factor_bytes),
        };
        s.prefetch(from.wrapping_add(factors));
        self.biases_turn = !self.biases_turn;
    }
}

/// A place in sixteen rows, row after row as they lie in memory: faster than a line of every row in
/// turn.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    at: usize,
}

impl Place {
    /// This place; then it is `bytes` further on.
    #[inline(always)]
    fn next(&mut self, rows: &[*const u8; ROWS], bytes: usize, row_bytes: usize) -> *const u8 {
        let here = rows[self.row % ROWS].wrapping_add(self.at);
        self.at += bytes;
        while self.at >= row_bytes {
            self.at -= row_bytes;
            self.row += 1;
        }
        here
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lily_plan::{GROUP, RowFormat, RowSegment};

    use super::*;

    /// Two experts of 64 rows, four sixteens each.
    fn matrix(k: usize) -> WeightMatrix {
        let rows = 128;
        let codes = Bytes::from(vec![0; rows * RowFormat::Q4.code_bytes(k)]);
        let factors = Bytes::from(vec![0; 2 * rows * k / GROUP]);
        let whole = RowSegment::whole("test", RowFormat::Q4, rows, codes, factors.clone(), factors);
        let segment = RowSegment { experts: 0..2, rows: 64, expert_stride: 64, ..whole };
        WeightMatrix::new(2, 64, k, vec![segment]).unwrap()
    }

    fn found(matrix: &WeightMatrix, expert: usize, first: usize) -> Rows<'_> {
        let mut rows = Rows::nowhere(matrix.k());
        rows.find(matrix, expert, first..first + ROWS);
        rows
    }

    /// The first codes and scales that are asked for during each sixteen of a block.
    fn asked(matrix: &WeightMatrix, block: impl Into<Block>) -> Vec<(*const u8, *const u8)> {
        let block = block.into();
        let course = Course::new(matrix, &block);
        let mut rows = Rows::nowhere(matrix.k());
        rows.find(matrix, block.expert, block.rows.clone());
        let ask = |n: usize| {
            let Ahead { rows, by, .. } = course.ahead(n, &rows, n);
            (rows.codes[0].wrapping_add(by.0), rows.scales[0].wrapping_add(by.1))
        };
        (0..rows.len() / ROWS).map(ask).collect()
    }

    fn places(matrix: &WeightMatrix, rows: &[(usize, usize)]) -> Vec<(*const u8, *const u8)> {
        let place = |&(expert, first): &(usize, usize)| {
            let rows = found(matrix, expert, first);
            (rows.codes[0], rows.scales[0])
        };
        rows.iter().map(place).collect()
    }

    #[test]
    fn what_is_asked_for_lies_ahead_in_the_block_and_then_where_its_thread_goes_on() {
        // Sixteen rows have 16 KB of codes, half of the distance.
        let m = matrix(2048);
        let on = asked(&m, (0, 0..32));
        assert_eq!(on, places(&m, &[(0, 32), (0, 48)]));
        let elsewhere = asked(&m, Block::from((0, 0..64)).before(1, 16));
        assert_eq!(elsewhere, places(&m, &[(0, 32), (0, 48), (1, 16), (1, 32)]));
    }

    #[test]
    fn of_what_follows_elsewhere_no_more_is_asked_for_than_the_block_has() {
        // The distance is eight sixteens; the block has two.
        let m = matrix(512);
        let elsewhere = asked(&m, Block::from((1, 0..32)).before(0, 32));
        assert_eq!(elsewhere, places(&m, &[(0, 32), (0, 48)]));
    }
}
