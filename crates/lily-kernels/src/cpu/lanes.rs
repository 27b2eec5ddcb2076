//! Sums kept in eight lanes: the one order of summation of all levels.

/// Running sums of one result.
pub(super) const LANES: usize = 8;

/// Adds up the lanes: halves, quarters, then the last two.
pub(super) fn sum_lanes(l: [f32; LANES]) -> f32 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}
