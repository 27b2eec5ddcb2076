//! Devices around another, as tests of faults have them: what they do not change, the inner one does.

/// Methods of [`Device`](crate::Device), each handed on to the device in a field: `forward_device!(inner: name, wait);`
/// inside of an `impl`. A method that has a default and is neither named nor written keeps its default.
#[macro_export]
macro_rules! forward_device {
    ($inner:ident: $($method:ident),+ $(,)?) => {
        $($crate::forward_device!(@ $method $inner);)+
    };
    (@ name $inner:ident) => {
        fn name(&self) -> &str {
            self.$inner.name()
        }
    };
    (@ precision $inner:ident) => {
        fn precision(&self) -> $crate::Precision {
            self.$inner.precision()
        }
    };
    (@ fusions $inner:ident) => {
        fn fusions(&self) -> $crate::Fusions {
            self.$inner.fusions()
        }
    };
    (@ memory_budget $inner:ident) => {
        fn memory_budget(
            &self,
            weights: &$crate::Weights,
        ) -> Result<Option<$crate::MemoryBudget>, $crate::DeviceError> {
            self.$inner.memory_budget(weights)
        }
    };
    (@ weight_files $inner:ident) => {
        fn weight_files(&mut self, files: Vec<$crate::MappedFile>) {
            self.$inner.weight_files(files);
        }
    };
    (@ allocate $inner:ident) => {
        fn allocate(
            &mut self,
            buffers: &::std::sync::Arc<$crate::Buffers>,
            weights: $crate::Weights,
        ) -> Result<(), $crate::DeviceError> {
            self.$inner.allocate(buffers, weights)
        }
    };
    (@ compile $inner:ident) => {
        fn compile(
            &mut self,
            plan: &::std::sync::Arc<$crate::Plan>,
        ) -> Result<$crate::PlanId, $crate::DeviceError> {
            self.$inner.compile(plan)
        }
    };
    (@ submit $inner:ident) => {
        fn submit(&mut self, plan: $crate::PlanId) -> Result<(), $crate::DeviceError> {
            self.$inner.submit(plan)
        }
    };
    (@ wait $inner:ident) => {
        fn wait(&mut self) -> Result<(), $crate::DeviceError> {
            self.$inner.wait()
        }
    };
    (@ run_launch $inner:ident) => {
        fn run_launch(
            &mut self,
            plan: $crate::PlanId,
            launch: usize,
        ) -> Result<(), $crate::DeviceError> {
            self.$inner.run_launch(plan, launch)
        }
    };
    (@ read $inner:ident) => {
        fn read(
            &mut self,
            buffer: $crate::BufferId,
            offset: usize,
            out: &mut [u8],
        ) -> Result<(), $crate::DeviceError> {
            self.$inner.read(buffer, offset, out)
        }
    };
    (@ write $inner:ident) => {
        fn write(
            &mut self,
            buffer: $crate::BufferId,
            offset: usize,
            data: &[u8],
        ) -> Result<(), $crate::DeviceError> {
            self.$inner.write(buffer, offset, data)
        }
    };
    (@ buffers $inner:ident) => {
        fn buffers(&self) -> &::std::sync::Arc<$crate::Buffers> {
            self.$inner.buffers()
        }
    };
    (@ fetch $inner:ident) => {
        fn fetch(
            &mut self,
            buffer: $crate::BufferId,
            offset: usize,
            bytes: usize,
        ) -> Result<$crate::Fetch, $crate::DeviceError> {
            self.$inner.fetch(buffer, offset, bytes)
        }
    };
    (@ fetched $inner:ident) => {
        fn fetched(&mut self, fetch: $crate::Fetch) -> Result<$crate::Fetch, $crate::DeviceError> {
            self.$inner.fetched(fetch)
        }
    };
}
