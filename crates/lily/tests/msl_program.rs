//! The program on the MSL test device; needs clang.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[path = "cli/support.rs"]
#[allow(dead_code)]
mod support;

use serde_json::json;

use support::{golden, lily, program};

#[test]
fn doctor_finds_every_metal_text_ok() {
    let object = lily(&["doctor", "--device", "msl-test", "--json"]).json();
    assert_eq!((&object["device"], &object["failed"]), (&json!("msl-test"), &json!(0)));
    let kernels = object["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), lily_kernels::table::KERNELS.len());
    for kernel in kernels {
        assert!(kernel["ok"] == true && kernel["cases"].as_u64().unwrap() > 0, "{kernel}");
    }
}

#[test]
fn doctor_fails_and_says_why_where_texts_cannot_be_compiled() {
    let empty = tempfile::tempdir().unwrap();
    let mut doctor = program();
    doctor.env("LILY_CLANG", "/nowhere/clang++").env("LILY_MSL_CACHE", empty.path());
    let output = doctor.args(["doctor", "--device", "msl-test", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["failed"], lily_kernels::table::KERNELS.len());
    let reason = object["kernels"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("/nowhere/clang++"), "{reason}");
}

#[test]
fn eval_runs_a_golden_model_through_its_metal_texts() {
    let model = golden("heads");
    let eval = ["eval", "-m", &model, "--reference", &model, "--device", "msl-test", "--json"];
    let object = lily(&eval).json();
    assert!(object["clear_top1"].as_f64().unwrap() >= 0.98, "{object}");
    // Rounded to bfloat16 on the way, as no other device of this machine does.
    let rms = object["rms"].as_f64().unwrap();
    assert!((1e-3..0.047).contains(&rms), "{object}");
}
