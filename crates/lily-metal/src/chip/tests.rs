use lily_kernels::gpu::Products;

use super::*;

#[test]
fn every_chip_is_found_by_the_name_that_metal_reports_and_by_its_short_name() {
    for chip in CHIPS {
        for variant in chip.variants {
            let wanted = chip.gpu(variant);
            let found = Gpu::of_device(chip.name, chip.family, Some(variant.cores));
            assert_eq!(found, wanted);
            let short = format!("{}-{}", chip.short_name(), variant.cores);
            assert_eq!(Gpu::by_short_name(&short), Ok(wanted));
        }
        assert_eq!(Gpu::by_short_name(&chip.short_name()), Ok(chip.gpu(chip.largest())));
        assert_eq!(Gpu::of_device(chip.name, chip.family, None), chip.gpu(chip.smallest()));
    }
    assert_eq!(Gpu::by_short_name("M5-Max").unwrap().name, "Apple M5 Max");
}

#[test]
fn the_table_is_in_order_and_holds_no_name_twice() {
    let mut names: Vec<_> = CHIPS.iter().map(|chip| chip.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CHIPS.len());
    assert!(CHIPS.is_sorted_by_key(|chip| chip.family));
    for chip in CHIPS {
        assert!(!chip.variants.is_empty(), "{}", chip.name);
        assert!(chip.variants.is_sorted_by(|a, b| a.cores < b.cores), "{}", chip.name);
        assert!(chip.variants.is_sorted_by_key(|v| v.bandwidth_gb_s), "{}", chip.name);
        // A slip of a digit would show.
        for v in chip.variants {
            let share = v.bandwidth_gb_s / f64::from(v.cores);
            assert!((8.0..=20.0).contains(&share), "{} {share}", chip.name);
        }
    }
}

#[test]
fn an_unknown_short_name_is_refused_with_all_that_are_known() {
    for name in ["m6", "m5-max-33", "m5-ultra", "m5-maximal", "", "max"] {
        let text = Gpu::by_short_name(name).unwrap_err().to_string();
        assert!(text.starts_with(&format!("there is no chip `{name}`; the chips are m1 (7 or 8")));
        for chip in CHIPS {
            assert!(text.contains(&format!("{} (", chip.short_name())), "{text}");
        }
    }
}

#[test]
fn an_unknown_chip_gets_the_safe_defaults_of_what_it_reports() {
    for (name, cores) in [("Apple M9 Max", Some(90)), ("Apple Paravirtual device", None)] {
        let gpu = Gpu::of_device(name, GpuFamily::Apple7, cores);
        assert!(!gpu.known);
        assert_eq!((gpu.family, gpu.cores), (GpuFamily::Apple7, cores.unwrap_or(8)));
        assert_eq!(gpu.bandwidth_gb_s, 68.0);
        let policy = Policy::new(&gpu, Products::SimdgroupMatrix);
        assert!(policy.chunk.is_power_of_two());
    }
    // A later count of cores than the table's is the device's own.
    let gpu = Gpu::of_device("Apple M4 Max", GpuFamily::Apple9, Some(36));
    assert_eq!((gpu.cores, gpu.bandwidth_gb_s, gpu.known), (36, 410.0, true));
}

#[test]
fn the_newest_family_is_taken_and_gpus_before_m1_are_none() {
    assert_eq!(GpuFamily::newest(|n| n <= 1009), Some(GpuFamily::Apple9));
    assert_eq!(GpuFamily::newest(|_| true), Some(GpuFamily::Apple10));
    assert_eq!(GpuFamily::newest(|n| n < 1007), None);
    assert_eq!(GpuFamily::Apple10.to_string(), "Apple10");
}

#[test]
fn tensor_operations_need_family_and_system_and_a_passed_self_test() {
    use SelfTest::{Failed, NotRun, Passed};
    let os = |major, minor| OsVersion { major, minor };
    let mut tensor = Vec::new();
    for version in [os(15, 6), os(26, 0), os(26, 1), os(26, 2), os(27, 0)] {
        for family in GpuFamily::ALL {
            for test in [Passed, Failed, NotRun] {
                let choice = choose_products(version, family, test);
                let is_tensor = choice.products == Products::TensorOperations;
                assert_eq!(is_tensor, choice.reason == Reason::Tensor);
                assert_eq!(choice.reason.to_string().starts_with("tensor"), is_tensor);
                if is_tensor {
                    tensor.push((version, family, test));
                }
            }
        }
    }
    let m5 = GpuFamily::Apple10;
    assert_eq!(tensor, [(os(26, 2), m5, Passed), (os(27, 0), m5, Passed)]);
    assert_eq!(choose_products(os(26, 2), m5, Failed).reason, Reason::SelfTestFailed);
    assert_eq!(choose_products(os(26, 1), m5, Failed).reason, Reason::OldSystem);
    assert_eq!(choose_products(os(27, 0), GpuFamily::Apple9, Passed).reason, Reason::NoUnits);
    // The self-test is run only where it decides.
    assert!(ProductsChoice::wants_self_test(os(26, 4), m5));
    assert!(!ProductsChoice::wants_self_test(os(26, 1), m5));
    assert!(!ProductsChoice::wants_self_test(os(26, 4), GpuFamily::Apple9));
}
