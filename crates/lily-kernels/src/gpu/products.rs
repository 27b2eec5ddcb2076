//! Which form of matrix products a Metal device takes.

use super::Products;

/// The first macOS whose tensor operations multiply bfloat16 right: before it, users report results that are
/// wrong without an error.
const TENSOR_SYSTEM: (u32, u32) = (26, 2);

impl Products {
    /// The form for a Metal device, decided when a model is loaded.
    ///
    /// `system` is the version of macOS, major and minor; `has_tensors` whether the GPU's family has tensor
    /// operations. Neither is believed alone: `self_test` compiles and runs small products with tensor operations
    /// and says whether every element is right, as [`check_products`](super::check_products) does. It is asked
    /// last, and not on a system that cannot be trusted with the answer, because one small product that is right
    /// proves little there.
    pub fn on_metal(
        system: (u32, u32),
        has_tensors: bool,
        self_test: impl FnOnce() -> bool,
    ) -> Self {
        if system >= TENSOR_SYSTEM && has_tensors && self_test() {
            Self::TensorOperations
        } else {
            Self::SimdgroupMatrix
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_operations_need_the_system_the_family_and_the_self_test() {
        for system in [(26, 2), (26, 3), (27, 0)] {
            for (has_tensors, right) in [(true, true), (true, false), (false, true)] {
                let chosen = Products::on_metal(system, has_tensors, || right);
                let all = has_tensors && right;
                assert_eq!(
                    chosen == Products::TensorOperations,
                    all,
                    "{system:?} {has_tensors} {right}"
                );
            }
        }
    }

    #[test]
    fn no_system_before_26_2_is_even_asked() {
        for system in [(14, 6), (15, 7), (25, 9), (26, 0), (26, 1)] {
            let chosen = Products::on_metal(system, true, || panic!("{system:?} is asked"));
            assert_eq!(chosen, Products::SimdgroupMatrix);
        }
    }

    #[test]
    fn a_family_without_tensor_operations_is_not_asked() {
        let chosen = Products::on_metal((26, 2), false, || panic!("it is asked"));
        assert_eq!(chosen, Products::SimdgroupMatrix);
    }
}
