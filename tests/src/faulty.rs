//! A device with a launch that fails as on a GPU: refused when it is started, or late and for good.

use std::sync::{Arc, Mutex, MutexGuard};

use lily_plan::{
    BufferId, Buffers, Device, DeviceError, Fetch, Plan, PlanId, Step, Weights, forward_device,
};

/// The launch that fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Plans that have it.
    pub step: fn(Step) -> bool,
    /// Its index.
    pub launch: usize,
    /// How it fails.
    pub kind: Kind,
    /// Plans that run well before it first fails.
    pub after: usize,
}

/// Ticket of a fetch that a launch which has failed comes before.
const BEHIND_THE_FAULT: u64 = u64::MAX;

/// How a launch fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// When it is started: nothing of the plan runs, and the device can go on.
    Refused,
    /// While it runs: the next call that waits hears of it, and the device is lost.
    Fault,
}

/// What a test sets and looks at while an engine owns the device.
#[derive(Clone, Default)]
pub struct Switch(Arc<Mutex<Option<Fault>>>);

impl Switch {
    /// Sets the fault, or removes it.
    pub fn set(&self, fault: Option<Fault>) {
        *self.fault() = fault;
    }

    fn fault(&self) -> MutexGuard<'_, Option<Fault>> {
        self.0.lock().expect("no panic while it is locked")
    }
}

/// A device whose launch fails when its switch says so.
pub struct Faulty {
    inner: Box<dyn Device>,
    switch: Switch,
    plans: Vec<Arc<Plan>>,
    /// A launch has failed.
    is_lost: bool,
}

impl Faulty {
    /// A device that works until its switch is set.
    pub fn new(inner: Box<dyn Device>) -> (Self, Switch) {
        let switch = Switch::default();
        (Self { inner, switch: switch.clone(), plans: Vec::new(), is_lost: false }, switch)
    }

    /// The fault that `plan` meets now.
    fn met(&self, plan: PlanId) -> Option<Fault> {
        let mut fault = self.switch.fault();
        let fault = fault.as_mut().filter(|fault| (fault.step)(self.plans[plan.0].step()))?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        Some(*fault)
    }

    /// Whoever waits hears of a launch that has failed.
    fn hear(&self) -> Result<(), DeviceError> {
        let (device, reason) = (self.name().into(), "an illegal address".into());
        if self.is_lost { Err(DeviceError::Lost { device, reason }) } else { Ok(()) }
    }
}

impl Device for Faulty {
    forward_device!(inner: name, precision, fusions, buffers);

    fn allocate(&mut self, buffers: &Arc<Buffers>, weights: Weights) -> Result<(), DeviceError> {
        self.plans.clear();
        self.inner.allocate(buffers, weights)
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        let id = self.inner.compile(plan)?;
        assert_eq!(id.0, self.plans.len(), "plans are numbered in their order");
        self.plans.push(plan.clone());
        Ok(id)
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        if self.is_lost {
            // A GPU takes work and does none of it.
            return Ok(());
        }
        let Some(fault) = self.met(plan) else { return self.inner.submit(plan) };
        if fault.kind == Kind::Refused {
            return Err(DeviceError::Launch {
                device: self.name().into(),
                kernel: self.plans[plan.0].launches()[fault.launch].label(),
                launch: fault.launch,
                reason: "out of memory".into(),
            });
        }
        for launch in 0..fault.launch {
            self.inner.run_launch(plan, launch)?;
        }
        self.is_lost = true;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.hear()?;
        self.inner.wait()
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        self.hear()?;
        self.inner.run_launch(plan, launch)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.hear()?;
        self.inner.read(buffer, offset, out)
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        // Takes it, as it takes plans.
        if self.is_lost { Ok(()) } else { self.inner.write(buffer, offset, data) }
    }

    fn fetch(
        &mut self,
        buffer: BufferId,
        offset: usize,
        bytes: usize,
    ) -> Result<Fetch, DeviceError> {
        if self.is_lost {
            let mut fetch = Fetch::ready(bytes)?;
            fetch.ticket = BEHIND_THE_FAULT;
            return Ok(fetch);
        }
        self.inner.fetch(buffer, offset, bytes)
    }

    fn fetched(&mut self, fetch: Fetch) -> Result<Fetch, DeviceError> {
        if fetch.ticket == BEHIND_THE_FAULT {
            self.hear()?;
        }
        self.inner.fetched(fetch)
    }
}
