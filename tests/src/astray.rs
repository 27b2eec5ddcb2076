//! A device whose decode steps go astray when a switch says so: they are told of a position far behind the cache, and
//! read there. On a GPU that is a real fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lily_plan::{
    Buffers, Device, DeviceError, Plan, PlanId, Step, Weights, control, forward_device, write_i32,
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
    forward_device!(inner: name, precision, fusions, memory_budget, weight_files, wait, read, write, buffers, fetch, fetched);

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

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        if launch == 0 {
            self.mislead(plan)?;
        }
        self.inner.run_launch(plan, launch)
    }
}
