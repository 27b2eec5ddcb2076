//! `lily doctor`.

use serde_json::{Value, json};

use crate::support::{fields, lily};

#[test]
fn doctor_finds_every_kernel_of_the_processor_ok() {
    let object = lily(&["doctor", "--device", "cpu", "--json"]).json();
    let all =
        ["compile_times", "device", "failed", "kernels", "launches", "machine", "model", "system"];
    assert_eq!(fields(&object), all);
    let system = &object["system"];
    assert_eq!(fields(system), ["lily", "memory", "no_gpu", "os", "processor"]);
    assert_eq!(system["lily"], env!("CARGO_PKG_VERSION"));
    assert!(system["os"].as_str().unwrap().ends_with(std::env::consts::ARCH), "{system}");
    assert!(system["memory"].as_u64().unwrap() > 1 << 28, "{system}");
    assert!(system["no_gpu"].as_str().unwrap().contains("--device cpu"), "{system}");
    assert_eq!((&object["launches"], &object["compile_times"]), (&Value::Null, &Value::Null));
    assert_eq!(object["model"]["ok"], json!(true), "{object}");
    assert_eq!((&object["device"], &object["failed"]), (&json!("cpu"), &json!(0)));
    let machine = &object["machine"];
    let facts = ["cores", "instruction_set", "memory_limit", "read_bandwidth", "threads"];
    assert_eq!(fields(machine), facts);
    assert!(machine["threads"].as_u64().unwrap() > 0, "{machine}");
    assert!(machine["cores"].as_str().unwrap().contains(" cores"), "{machine}");
    assert!(machine["read_bandwidth"].as_f64().unwrap() > 1e8, "{machine}");
    let kernels = object["kernels"].as_array().unwrap();
    let names: Vec<&str> = kernels.iter().map(|k| k["name"].as_str().unwrap()).collect();
    let table: Vec<&str> = lily_kernels::table::KERNELS.iter().map(|k| k.name).collect();
    assert_eq!(names, table);
    let row = ["cases", "failed_cases", "name", "ok", "reason", "worst_error"];
    for kernel in kernels {
        assert_eq!(fields(kernel), row);
        assert_eq!((&kernel["ok"], &kernel["reason"]), (&json!(true), &Value::Null), "{kernel}");
        assert!(kernel["cases"].as_u64().unwrap() > 0, "{kernel}");
    }
    // Products round their inputs to 8 bits: without any difference nothing was compared.
    let worst =
        |name| kernels[table.iter().position(|k| *k == name).unwrap()]["worst_error"].clone();
    assert!(worst("attn_in").as_f64().unwrap() > 1e-4, "{object}");
}

#[test]
fn doctor_prints_a_line_for_each_kernel() {
    let text = lily(&["doctor", "--device", "cpu"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.stdout.starts_with("lily                  "), "{text:?}");
    assert!(text.stdout.contains("\ndevice                cpu\ninstruction set "), "{text:?}");
    assert_eq!(text.stdout.matches(" cores").count(), 1, "{text:?}");
    let ok = text.stdout.lines().filter(|line| line.ends_with("  ok")).count();
    assert_eq!(ok, lily_kernels::table::KERNELS.len(), "{text:?}");
    let last = format!("all {ok} kernels agree with their references, and a whole model agrees\n");
    assert!(text.stdout.ends_with(&last), "{text:?}");
}
