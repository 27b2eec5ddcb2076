//! The plan: a recorded list of kernel launches with declared reads and writes.

mod matrix;

pub use matrix::{GROUP, MatrixError, RowFormat, RowRef, RowSegment, Weight, WeightMatrix};
