use lily_plan::EntryRow;

use super::*;
use crate::chip::CHIPS;

fn row(index: usize, stage: usize, bytes: u64, flops: u64, tensors: Option<&str>) -> LaunchRow {
    let entry = |value: &str| EntryRow {
        function: "f",
        constants: [("TENSOR_OPERATIONS", value.to_owned())].into(),
        grid_used: [6, 5, 4],
        threads_used: 96,
    };
    LaunchRow {
        index,
        stage,
        kernel: "k",
        layer: Some(index),
        grid: [2, 3, 1],
        threads: 64,
        reads: Vec::new(),
        writes: Vec::new(),
        bytes_read: bytes / 2,
        bytes_written: bytes - bytes / 2,
        flops,
        entry: tensors.map(entry),
    }
}

fn table(list: Vec<LaunchRow>) -> PlanTable {
    let stages = list.iter().map(|row| row.stage + 1).max().unwrap_or(0);
    let bytes = list.iter().map(moved).sum();
    PlanTable {
        launches: list.len(),
        stages,
        bytes_read: bytes,
        bytes_written: 0,
        bytes_per_token: bytes,
        flops_per_token: 0,
        launches_under_2mb: 0,
        list,
    }
}

fn m5_max() -> Gpu {
    Gpu::by_short_name("m5-max").unwrap()
}

fn close(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= 1e-9 * wanted.abs(), "{found}, expected {wanted}");
}

#[test]
fn the_published_reads_come_out_again_with_their_floor() {
    let gpu = m5_max();
    for (bytes, gb_s) in READS {
        let table = table(vec![row(0, 0, bytes as u64, 0, None)]);
        let found = predict(&table, 1, &gpu, Products::SimdgroupMatrix);
        close(found.step_us, bytes / gb_s / 1e3);
    }
}

#[test]
fn more_bytes_never_take_less_time_and_bandwidth_stays_below_the_published_one() {
    for chip in CHIPS {
        let gpu = chip.gpu(chip.largest());
        let mut last = 0.0;
        for bytes in (0..120).map(|i| (1.25f64.powi(i)) as u64) {
            let gb_s = bandwidth_gb_s(&gpu, bytes);
            assert!(gb_s > 0.5 * gpu.bandwidth_gb_s && gb_s < gpu.bandwidth_gb_s, "{gb_s}");
            let us = bytes as f64 / gb_s;
            assert!(us >= last, "{} {bytes}", chip.name);
            last = us;
        }
    }
}

#[test]
fn launches_of_one_stage_share_its_floor() {
    let gpu = m5_max();
    let apart = table(vec![row(0, 0, 0, 0, None), row(1, 1, 0, 0, None)]);
    let together = table(vec![row(0, 0, 0, 0, None), row(1, 0, 0, 0, None)]);
    let us = |t: &PlanTable| predict(t, 1, &gpu, Products::SimdgroupMatrix);
    close(us(&apart).step_us, 2.0 * FLOOR_US);
    close(us(&together).step_us, FLOOR_US);
    close(us(&together).floors_us, FLOOR_US);
    assert_eq!(us(&together).launches[0].bound, Bound::Floor);
    close(us(&apart).step_us_range[0], 2.0 * FLOORS_US[0]);
    close(us(&apart).tok_s_range[0], 1e6 / (2.0 * FLOORS_US[1]));
}

#[test]
fn a_launch_takes_the_longer_of_bytes_and_arithmetic_at_the_rate_of_its_form() {
    let gpu = m5_max();
    let flops = 1_000_000_000_000;
    let list = vec![
        row(0, 0, 1000, flops, None),
        row(1, 1, 1000, flops, Some("1")),
        row(2, 2, 256_000_000, 1000, Some("0")),
    ];
    let found = predict(&table(list), 32, &gpu, Products::TensorOperations);
    close(found.launches[0].us, FLOOR_US + 1e6 / (SIMDGROUP_TFLOPS * 40.0));
    close(found.launches[1].us, FLOOR_US + 1e6 / (TENSOR_TFLOPS * 40.0));
    let bounds: Vec<_> = found.launches.iter().map(|l| l.bound).collect();
    assert_eq!(bounds, [Bound::Arithmetic, Bound::Arithmetic, Bound::Bytes]);
    let sizes: Vec<_> = found.launches.iter().map(|l| (l.threadgroups, l.threads)).collect();
    assert_eq!(sizes, [(6, 64), (120, 96), (120, 96)]);
    close(found.tok_s, 32e6 / found.step_us);
}

#[test]
fn small_launches_are_counted_with_their_shares() {
    let list = vec![row(0, 0, 1_999_999, 0, None), row(1, 1, 2_000_000, 0, None)];
    let found = predict(&table(list), 1, &m5_max(), Products::SimdgroupMatrix);
    assert_eq!(found.small_launches, 1);
    close(found.small_share_of_bytes, 1_999_999.0 / 3_999_999.0);
    close(found.small_share_of_time, found.launches[0].us / found.step_us);
    let text = found.text();
    assert!(text.starts_with("prediction for Apple M5 Max, Apple10, 40 GPU cores, 614 GB/s, "));
    assert!(
        text.contains("\n2 launches in 2 stages; 1 launches move under 2 MB: 50.0 % "),
        "{text}"
    );
    assert!(text.contains("\npredicted, not measured: "), "{text}");
}

#[test]
fn the_longest_command_buffer_is_the_longest_part_between_cuts() {
    let stages = (0..4).map(|stage| row(stage, stage, 4 << 20, 0, None)).collect();
    let whole = predict(&table(stages), 1, &m5_max(), Products::SimdgroupMatrix);
    assert_eq!((whole.command_buffers, whole.longest_command_buffer_us), (1, whole.step_us));
    let us: Vec<f64> = whole.launches.iter().map(|launch| launch.us).collect();
    let cut = whole.clone().cut(&[1, 3], None);
    assert_eq!(cut.command_buffers, 3);
    close(cut.longest_command_buffer_us, us[1] + us[2]);
    assert!(cut.text().contains("in 3 command buffers of up to "), "{}", cut.text());
    assert!(whole.text().contains(" in one command buffer, "), "{}", whole.text());
    assert!(!cut.text().contains(" may hold the GPU for longer "), "{}", cut.text());
    let label = whole.launches[2].label.clone();
    let text = whole.cut(&[1, 3], Some(2)).text();
    assert!(
        text.contains(&format!("\n{label} may hold the GPU for longer than the 1 s of ")),
        "{text}"
    );
}
