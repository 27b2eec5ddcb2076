//! The kernel table: every kernel that a plan may name.

use lily_plan::ReferenceFn;

use crate::cpu::CpuFace;

/// A kernel with its faces.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Name, as in plans.
    pub name: &'static str,
    /// The oracle.
    pub reference: ReferenceFn,
    /// The CPU kernel.
    pub cpu: CpuFace,
}

/// All kernels.
pub const KERNELS: &[Kernel] = &[
    crate::combine::KERNEL,
    crate::experts_down::KERNEL,
    crate::experts_gate_up::KERNEL,
    crate::gdn_in::KERNEL,
    crate::group_experts::KERNEL,
    crate::grouped_down::KERNEL,
    crate::grouped_gate_up::KERNEL,
    crate::router::KERNEL,
    crate::topk::KERNEL,
    crate::advance::KERNEL,
    crate::attn_in::KERNEL,
    crate::attn_out::KERNEL,
    crate::embed::KERNEL,
    crate::gdn_in::KERNEL,
    crate::head::KERNEL,
    crate::sample::KERNEL,
];
/// One line for each kernel folder.
macro_rules! kernels {
    ($($kernel:ident,)*) => {
        /// All kernels.
        pub const KERNELS: &[Kernel] = &[$(crate::$kernel::KERNEL),*];

        /// Conformance cases of all kernels.
        #[cfg(any(test, feature = "testing"))]
        pub fn cases() -> Vec<crate::conformance::Case> {
            [$(crate::$kernel::tests::cases()),*].into_iter().flatten().collect()
        }
    };
}

kernels! {
    attn_in,
    attn_out,
    embed,
    experts_down,
    experts_gate_up,
    gdn_in,
    gdn_out,
    gdn_step,
    router,
    topk,
}
/// All kernels.
pub const KERNELS: &[Kernel] = &[
    crate::gdn_conv::KERNEL,
    crate::gdn_in::KERNEL,
    crate::gdn_out::KERNEL,
    crate::gdn_scan::KERNEL,
    crate::gdn_step::KERNEL,
];

/// Finds a kernel by name.
pub fn find(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|k| k.name == name)
}

/// Finds the reference of a kernel by name.
pub fn reference(name: &str) -> Option<ReferenceFn> {
    find(name).map(|k| k.reference)
}

/// Conformance cases of all kernels.
#[cfg(any(test, feature = "testing"))]
pub fn cases() -> Vec<crate::conformance::Case> {
    [
        crate::gdn_conv::tests::cases(),
        crate::gdn_in::tests::cases(),
        crate::gdn_out::tests::cases(),
        crate::gdn_scan::tests::cases(),
        crate::gdn_step::tests::cases(),
        crate::combine::tests::cases(),
        crate::experts_down::tests::cases(),
        crate::experts_gate_up::tests::cases(),
        crate::gdn_in::tests::cases(),
        crate::group_experts::tests::cases(),
        crate::grouped_down::tests::cases(),
        crate::grouped_gate_up::tests::cases(),
        crate::router::tests::cases(),
        crate::topk::tests::cases(),
        crate::advance::tests::cases(),
        crate::attn_in::tests::cases(),
        crate::attn_out::tests::cases(),
        crate::embed::tests::cases(),
        crate::gdn_in::tests::cases(),
        crate::head::tests::cases(),
        crate::sample::tests::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
