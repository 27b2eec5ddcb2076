//! The form of matrix products with Metal 4 tensor operations, which the conformance tests do not take.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;

use lily_kernels::conformance::{Bar, Case, cases_in, check};
use lily_kernels::gpu::Products;
use lily_kernels::table::{self, Kernel};
use lily_msl_test::{MslOptions, MslTestDevice};

/// Kernels whose prefill form is a product of tiles.
const PRODUCTS: [&str; 6] =
    ["attn_in", "attn_out", "gdn_in", "gdn_out", "grouped_down", "grouped_gate_up"];

#[test]
fn products_by_tensor_operations_agree_with_their_references() {
    let wanted = |kernel: &Kernel| PRODUCTS.contains(&kernel.name);
    // Chunks of one tile, and of several of which the last is ragged.
    let chosen = [("hidden 128", "tokens: 33"), ("hidden 192", "tokens: 70")];
    let prefill = |case: &Case| {
        chosen.iter().any(|(shape, step)| case.name.contains(shape) && case.name.contains(step))
    };
    let mut ran = BTreeSet::new();
    for case in cases_in(Bar::Bf16.precision(), || table::cases_of(wanted)) {
        if !prefill(&case) {
            continue;
        }
        let products = Products::TensorOperations;
        let options = MslOptions { products, ..MslOptions::default() };
        let result = check(&mut MslTestDevice::new(options), &case, Bar::Bf16);
        assert_eq!(result, Ok(()), "{}", case.name);
        ran.insert(case.plan.launches()[0].kernel);
    }
    assert_eq!(ran.into_iter().collect::<Vec<_>>(), PRODUCTS);
}
