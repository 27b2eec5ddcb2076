//! Where the weights are while a model runs: in their mapped files, or in memory of the program's own.

mod copy;
#[allow(unsafe_code)]
mod pages;
mod prefetch;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use lily_plan::{Weight, WeightMatrix, Weights};

pub(crate) use copy::copy;
pub(crate) use pages::want_huge;
pub(crate) use prefetch::Prefetch;

/// Where the weights are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Load {
    /// In their mapped files, which lie in the page cache: nothing is copied, a second start finds them
    /// there, and the system may take the memory back when others need it.
    #[default]
    Map,
    /// In anonymous memory, read from the files at the start: the system does not take it back while
    /// the model runs.
    Read,
}

/// The stored tensors of all matrices, each once, by their address and length.
fn tensors(weights: &Weights) -> BTreeMap<(usize, usize), Bytes> {
    let matrices = weights.values().filter_map(|weight| match weight {
        Weight::Matrix(matrix) => Some(matrix),
        Weight::Vector(_) => None,
    });
    let segments = matrices.flat_map(WeightMatrix::segments);
    let parts = segments.flat_map(|s| [&s.codes, &s.scales, &s.biases]);
    parts.filter(|bytes| !bytes.is_empty()).map(|bytes| (key(bytes), bytes.clone())).collect()
}

fn key(bytes: &Bytes) -> (usize, usize) {
    (bytes.as_ptr() as usize, bytes.len())
}

/// Bytes that [`copy`] takes for the weights.
pub(crate) fn copied_bytes(weights: &Weights) -> u64 {
    tensors(weights).values().map(|bytes| copy::padded(bytes.len()) as u64).sum()
}
