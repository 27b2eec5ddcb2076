//! The form of matrix products with Metal 4 tensor operations, which the conformance tests do not take.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;

use lily_kernels::conformance::{Bar, Case, cases_in, check, run};
use lily_kernels::gpu::{Products, Target, check_products};
use lily_kernels::table::{self, Kernel};
use lily_msl_test::{MslOptions, MslTestDevice};

/// Kernels whose prefill form has products of tiles.
const PRODUCTS: [&str; 7] =
    ["attn_flash", "attn_in", "attn_out", "gdn_in", "gdn_out", "grouped_down", "grouped_gate_up"];

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
        if prefill(&case) {
            assert_eq!(check_case(&case, false, false), Ok(()), "{}", case.name);
            ran.insert(case.plan.launches()[0].kernel);
        }
    }
    assert_eq!(ran.into_iter().collect::<Vec<_>>(), PRODUCTS);
}

/// Its text is another one than that of the common form: all cases whose heads it takes.
#[test]
fn attention_by_tensor_operations_agrees_in_both_orders_and_passes_the_checks() {
    let mut checked = 0;
    for case in cases_in(Bar::Bf16.precision(), || table::cases_of(|k| k.name == "attn_flash")) {
        let launch = &case.plan.launches()[0];
        let (_, entry) = TENSORS.entry(launch, 0, &[]).expect("an entry");
        if entry.function != "attn_flash_tensors" {
            continue;
        }
        for reverse in [false, true] {
            assert_eq!(check_case(&case, false, reverse), Ok(()), "{}, {reverse}", case.name);
        }
        let turn = checked % 2 == 1;
        assert_eq!(check_case(&case, true, turn), Ok(()), "checked, {}, {turn}", case.name);
        checked += 1;
    }
    assert!(checked >= 6, "only {checked} cases take this form");
}

/// What a Metal device is asked before it takes this form.
#[test]
fn the_self_test_of_products_passes_in_both_forms() {
    for products in [Products::SimdgroupMatrix, Products::TensorOperations] {
        let options = MslOptions { products, ..MslOptions::default() };
        let result = check_products(&mut MslTestDevice::new(options));
        assert!(result.is_ok(), "{products:?}: {result:?}");
    }
}

/// The test device with tensor operations.
const TENSORS: Target = Target { products: Products::TensorOperations, ..Target::TEST };

/// The checked build is for the checks alone: its results are those of the fast one.
fn check_case(case: &Case, checked: bool, reverse: bool) -> Result<(), String> {
    let products = Products::TensorOperations;
    let options = MslOptions { products, checked, reverse, ..MslOptions::default() };
    let device = &mut MslTestDevice::new(options);
    if checked {
        return run(device, case, &case.contents).map(drop).map_err(|e| e.to_string());
    }
    check(device, case, Bar::Bf16)
}
