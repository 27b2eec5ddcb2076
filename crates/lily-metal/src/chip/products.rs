//! The form of matrix products: `simdgroup_matrix`, which every Apple GPU has, or Metal 4 tensor
//! operations.

use std::fmt;

use lily_kernels::gpu::Products;

use super::GpuFamily;

/// Version of macOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OsVersion {
    /// 15, 26.
    pub major: u32,
    /// Number behind the first dot.
    pub minor: u32,
}

/// The first macOS on which lily asks for tensor operations. Metal 4 came with 26.0; MLX uses its tensor
/// kernels from 26.2 on, and what it does not trust is not trusted here.
pub const TENSOR_OS: OsVersion = OsVersion { major: 26, minor: 2 };

/// What a product by tensor operations gave, compared with numbers that are known exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTest {
    /// Every number was right.
    Passed,
    /// The text did not compile, or a number was wrong.
    Failed,
    /// It was not run.
    NotRun,
}

/// A form of products with the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductsChoice {
    /// The form.
    pub products: Products,
    /// Why.
    pub reason: Reason,
}

/// Why a form was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The GPU has units for tensor operations, the system is new enough, and the self-test passed.
    Tensor,
    /// macOS is older than [`TENSOR_OS`].
    OldSystem,
    /// The GPU has no units for tensor operations: they would run on the same units as
    /// `simdgroup_matrix`, with more overhead.
    NoUnits,
    /// The self-test failed.
    SelfTestFailed,
    /// The self-test was not run: a claim of the family alone is not believed.
    NotTested,
}

/// Chooses the form of matrix products. Tensor operations need all three: a family that has units for them,
/// a system whose compiler is trusted with them, and a self-test whose numbers were right.
pub fn choose_products(os: OsVersion, family: GpuFamily, self_test: SelfTest) -> ProductsChoice {
    let reason = match self_test {
        _ if os < TENSOR_OS => Reason::OldSystem,
        _ if family < GpuFamily::Apple10 => Reason::NoUnits,
        SelfTest::Failed => Reason::SelfTestFailed,
        SelfTest::NotRun => Reason::NotTested,
        SelfTest::Passed => Reason::Tensor,
    };
    let products = match reason {
        Reason::Tensor => Products::TensorOperations,
        _ => Products::SimdgroupMatrix,
    };
    ProductsChoice { products, reason }
}

impl ProductsChoice {
    /// Whether a self-test could change the choice: without one, a host need not compile its text.
    pub fn wants_self_test(os: OsVersion, family: GpuFamily) -> bool {
        choose_products(os, family, SelfTest::NotRun).reason == Reason::NotTested
    }
}

impl fmt::Display for OsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "macOS {}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor => write!(f, "tensor operations: the self-test passed"),
            Self::OldSystem => write!(f, "simdgroup_matrix: tensor operations need {TENSOR_OS}"),
            Self::NoUnits => write!(f, "simdgroup_matrix: no units for tensor operations"),
            Self::SelfTestFailed => {
                write!(f, "simdgroup_matrix: the self-test of tensor operations failed")
            }
            Self::NotTested => write!(f, "simdgroup_matrix: tensor operations were not tested"),
        }
    }
}
