//! A device whose decode steps go astray when a switch says so: they are told of a position far behind the cache, and
//! read there. On a GPU that is a real fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lily_plan::{
    BufferId, Buffers, Device, DeviceError, Fetch, Fusions, MappedFile, MemoryBudget, Plan, PlanId,
    Precision, Step, Weights, control, write_i32,
};

/// Farther than any memory reaches.
const POSITION: i32 = 1 << 30;

/// The device.
pub struct Astray {
    inner: Box<dyn Device>,
    plans: Vec<Arc<Plan>>,
    switch: Arc<AtomicBool>,
}

impl Astray {
    /// A device that works while its switch is off.
    pub fn new(inner: Box<dyn Device>) -> (Self, Arc<AtomicBool>) {
        let switch = Arc::new(AtomicBool::new(false));
        (Self { inner, plans: Vec::new(), switch: switch.clone() }, switch)
    }

    /// Leads steps of the first sequence alone astray.
    fn mislead(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        let is_alone = self.plans[plan.0].step() == Step::Decode { batch: 1 };
        if !is_alone || !self.switch.load(Ordering::Relaxed) {
            return Ok(());
        }
        let id = self.inner.buffers().find("control").expect("plans have a control block");
        write_i32(self.inner.as_mut(), id, control::POSITION, &[POSITION])
    }
}

impl Device for Astray {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn precision(&self) -> Precision {
        self.inner.precision()
    }

    fn fusions(&self) -> Fusions {
        self.inner.fusions()
    }

    fn memory_budget(&self, weights: &Weights) -> Result<Option<MemoryBudget>, DeviceError> {
        self.inner.memory_budget(weights)
    }

    fn weight_files(&mut self, files: Vec<MappedFile>) {
        self.inner.weight_files(files);
    }

    fn allocate(&mut self, buffers: &Arc<Buffers>, weights: Weights) -> Result<(), DeviceError> {
        self.plans.clear();
        self.inner.allocate(buffers, weights)
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        self.plans.push(plan.clone());
        self.inner.compile(plan)
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        self.mislead(plan)?;
        self.inner.submit(plan)
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.inner.wait()
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        if launch == 0 {
            self.mislead(plan)?;
        }
        self.inner.run_launch(plan, launch)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(buffer, offset, out)
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(buffer, offset, data)
    }

    fn buffers(&self) -> &Arc<Buffers> {
        self.inner.buffers()
    }

    fn fetch(
        &mut self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
    ) -> Result<Fetch, DeviceError> {
        self.inner.fetch(buffer, offset, bytes)
    }

    fn fetched(&mut self, fetch: Fetch) -> Result<Fetch, DeviceError> {
        self.inner.fetched(fetch)
    }
}
