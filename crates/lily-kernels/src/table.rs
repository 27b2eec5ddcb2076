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
    advance,
    attn_in,
    attn_out,
    combine,
    embed,
    experts_down,
    experts_gate_up,
    gdn_conv,
    gdn_in,
    gdn_out,
    gdn_scan,
    gdn_step,
    group_experts,
    grouped_down,
    grouped_gate_up,
    head,
    router,
    sample,
    topk,
}
/// All kernels.
pub const KERNELS: &[Kernel] = &[
    crate::gdn_conv::KERNEL,
    crate::gdn_gate::KERNEL,
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
        crate::gdn_gate::tests::cases(),
        crate::gdn_in::tests::cases(),
        crate::gdn_out::tests::cases(),
        crate::gdn_scan::tests::cases(),
        crate::gdn_step::tests::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
