//! The kernel table: every kernel that a plan may name.

use lily_plan::ReferenceFn;

use crate::cpu::CpuFace;
use crate::gpu::GpuFace;

/// A kernel with its faces.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Name, as in plans.
    pub name: &'static str,
    /// The oracle.
    pub reference: ReferenceFn,
    /// The CPU kernel.
    pub cpu: CpuFace,
    /// The Metal text; `None` while it has none, and then GPUs refuse the kernel by name.
    pub gpu: Option<GpuFace>,
}

/// One line for each kernel folder.
macro_rules! kernels {
    ($($kernel:ident,)*) => {
        /// All kernels.
        pub const KERNELS: &[Kernel] = &[$(crate::$kernel::KERNEL),*];

        /// Conformance cases of all kernels.
        #[cfg(any(test, feature = "testing"))]
        pub fn cases() -> Vec<crate::conformance::Case> {
            cases_of(|_| true)
        }

        /// Conformance cases of the kernels that are `wanted`; the others' are not built.
        #[cfg(any(test, feature = "testing"))]
        pub fn cases_of(wanted: impl Fn(&Kernel) -> bool) -> Vec<crate::conformance::Case> {
            let mut cases = Vec::new();
            $(if wanted(&crate::$kernel::KERNEL) {
                cases.extend(crate::$kernel::tests::cases());
            })*
            cases
        }

        /// A test for each kernel, so that one can be run alone: under Miri each takes its time.
        #[cfg(test)]
        mod cpu_face_writes_inside_its_declared_ranges_and_nowhere_else {
            $(#[test]
            fn $kernel() {
                crate::conformance::tests::check_face(&crate::$kernel::KERNEL);
            })*
        }
    };
}

kernels! {
    advance,
    attn_flash,
    attn_in,
    attn_merge_gate,
    attn_out,
    attn_prepare,
    attn_short,
    attn_split,
    attn_split_prepare,
    combine,
    draw,
    embed,
    experts_down,
    experts_gate_up,
    gdn_chunk_prepare,
    gdn_chunk_scan,
    gdn_conv,
    gdn_gate,
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

/// Finds a kernel by name.
pub fn find(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|k| k.name == name)
}

/// Finds the reference of a kernel by name.
pub fn reference(name: &str) -> Option<ReferenceFn> {
    find(name).map(|k| k.reference)
}
