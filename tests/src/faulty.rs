//! A device with a kernel that fails at one launch, as a GPU does: late, and with everything in its buffers lost.

use std::sync::{Arc, Mutex, MutexGuard};

use lily_plan::{
    BufferId, BufferKind, Buffers, Device, DeviceError, Fetch, Fusions, Plan, PlanId, Precision,
    Step, Weights,
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
    /// While it runs, every time: the next call that waits hears of it, and the device starts over.
    Late,
    /// As [`Kind::Late`], but only once.
    LateOnce,
    /// When it is started: nothing of the plan runs, and nothing is lost.
    AtOnce,
}

/// What a test sets and looks at while an engine owns the device.
#[derive(Clone, Default)]
pub struct Switch(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    losses: u64,
}

impl Switch {
    /// Sets the fault, or removes it.
    pub fn set(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    /// How often the device has started over.
    pub fn losses(&self) -> u64 {
        self.state().losses
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while it is locked")
    }
}

/// A device whose launch fails when its switch says so.
pub struct Faulty {
    inner: Box<dyn Device>,
    switch: Switch,
    plans: Vec<Arc<Plan>>,
    /// A launch has failed, and nobody has heard of it.
    is_broken: bool,
}

impl Faulty {
    /// A device that works until its switch is set.
    pub fn new(inner: Box<dyn Device>) -> (Self, Switch) {
        let switch = Switch::default();
        (Self { inner, switch: switch.clone(), plans: Vec::new(), is_broken: false }, switch)
    }

    /// The fault that `plan` meets now.
    fn met(&self, plan: PlanId) -> Option<Fault> {
        let mut state = self.switch.state();
        let fault = state.fault.as_mut().filter(|f| (f.step)(self.plans[plan.0].step()))?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        let met = *fault;
        if met.kind == Kind::LateOnce {
            state.fault = None;
        }
        Some(met)
    }

    fn failed(&self, plan: PlanId, launch: usize) -> DeviceError {
        DeviceError::Launch {
            device: self.name().into(),
            kernel: self.plans[plan.0].launches()[launch].label(),
            launch,
            reason: "an illegal address".into(),
        }
    }

    /// Starts over: garbage in all buffers.
    fn lose(&mut self) {
        self.is_broken = false;
        self.switch.state().losses += 1;
        for (id, buffer) in self.inner.buffers().clone().iter() {
            if buffer.kind != BufferKind::Weight {
                let garbage = vec![0xff; buffer.bytes() as usize];
                self.inner.write(id, 0, &garbage).expect("the buffer is there");
            }
        }
    }

    /// Whoever waits hears of a launch that has failed.
    fn hear(&mut self) -> Result<(), DeviceError> {
        if !self.is_broken {
            return Ok(());
        }
        self.lose();
        let (device, reason) = (self.name().into(), "an illegal address".into());
        Err(DeviceError::Unavailable { device, reason })
    }
}

impl Device for Faulty {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn precision(&self) -> Precision {
        self.inner.precision()
    }

    fn fusions(&self) -> Fusions {
        self.inner.fusions()
    }

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
        if self.is_broken {
            // A GPU takes work and does none of it.
            return Ok(());
        }
        let Some(fault) = self.met(plan) else { return self.inner.submit(plan) };
        if fault.kind == Kind::AtOnce {
            return Err(self.failed(plan, fault.launch));
        }
        for launch in 0..fault.launch {
            self.inner.run_launch(plan, launch)?;
        }
        self.is_broken = true;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.hear()?;
        self.inner.wait()
    }

    fn losses(&self) -> u64 {
        self.switch.losses()
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        self.hear()?;
        let fault = self.switch.state().fault;
        let step = self.plans[plan.0].step();
        if fault.is_some_and(|f| (f.step)(step) && f.launch == launch && f.after == 0) {
            self.lose();
            return Err(self.failed(plan, launch));
        }
        self.inner.run_launch(plan, launch)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.hear()?;
        self.inner.read(buffer, offset, out)
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        // Takes it, as it takes plans.
        if self.is_broken { Ok(()) } else { self.inner.write(buffer, offset, data) }
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
        if self.is_broken {
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
