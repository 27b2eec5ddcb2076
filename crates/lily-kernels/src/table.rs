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
    attn_in,
    attn_out,
    embed,
    gdn_in,
    gdn_out,
}
/// All kernels.
pub const KERNELS: &[Kernel] =
    &[crate::gdn_in::KERNEL, crate::gdn_out::KERNEL, crate::gdn_step::KERNEL];
pub const KERNELS: &[Kernel] = &[
    crate::experts_down::KERNEL,
    crate::experts_gate_up::KERNEL,
    crate::gdn_in::KERNEL,
    crate::router::KERNEL,
    crate::topk::KERNEL,
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
    [crate::gdn_in::tests::cases(), crate::gdn_out::tests::cases(), crate::gdn_step::tests::cases()]
        .into_iter()
        .flatten()
        .collect()
    [
        crate::experts_down::tests::cases(),
        crate::experts_gate_up::tests::cases(),
        crate::gdn_in::tests::cases(),
        crate::router::tests::cases(),
        crate::topk::tests::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
