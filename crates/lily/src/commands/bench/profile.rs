//! Where the time of a step goes, kernel by kernel.

use std::fmt::Write as _;

use lily_model::engine::KernelCost;

/// The costs of a step as a table. Kernels run apart from each other here, so the sum is not the time of
/// the step.
pub fn profile(title: &str, costs: &[KernelCost]) -> String {
    if costs.is_empty() {
        return format!("{title}: this device does not measure its kernels\n");
    }
    let mut out = format!(
        "\n{title}\n{:22} {:>8} {:>12} {:>12} {:>10} {:>10}\n",
        "kernel", "launches", "µs a launch", "µs in all", "GB/s", "TFLOP/s"
    );
    let mut all = 0.0;
    for cost in costs {
        all += cost.seconds;
        let _ = writeln!(
            out,
            "{:22} {:>8} {:>12.2} {:>12.1} {:>10.1} {:>10.2}",
            cost.kernel,
            cost.launches,
            1e6 * cost.seconds / cost.launches as f64,
            1e6 * cost.seconds,
            cost.bytes as f64 / cost.seconds / 1e9,
            cost.flops as f64 / cost.seconds / 1e12
        );
    }
    let _ = writeln!(out, "{:22} {:>8} {:>12} {:>12.1}", "all", "", "", 1e6 * all);
    out
}
