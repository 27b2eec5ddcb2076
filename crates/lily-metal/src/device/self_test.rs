//! Whether a GPU's tensor operations multiply right.

use lily_kernels::gpu::check_products;

use super::MetalDevice;
use crate::chip::SelfTest;
use crate::machine::Host;

impl<H: Host> MetalDevice<H> {
    /// Runs products with known results in the form with tensor operations, before anything is allocated, and
    /// tells the host how they came out.
    pub(super) fn test_tensors(&mut self) {
        // The form in question is in force while it is asked.
        self.host.tested(SelfTest::Passed);
        let result = match check_products(self) {
            Ok(()) => SelfTest::Passed,
            // A text that does not compile is a failure like a wrong number: kernels take the other form.
            Err(_) => SelfTest::Failed,
        };
        self.host.tested(result);
        // How fast it is depends on the form.
        self.limits = self.host.limits();
    }
}
