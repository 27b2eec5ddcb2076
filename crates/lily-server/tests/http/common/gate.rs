//! The CPU behind a gate, and with faults that can be switched on.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use lily_cpu::CpuDevice;
use lily_plan::{BufferId, Device, DeviceError, PlanId, forward_device};

pub const SOUND: u8 = 0;
pub const ERROR: u8 = 1;
pub const PANIC: u8 = 2;
pub const NOT_A_NUMBER: u8 = 3;
/// One step fails, then all is well.
pub const ERROR_ONCE: u8 = 4;
/// One step panics, then all is well.
pub const PANIC_ONCE: u8 = 5;
/// The device is lost for good.
pub const LOST: u8 = 6;
/// Bytes of a row of the tiny model's logits.
const LOGITS_BYTES: usize = 512 * 4;

/// What a test changes while a device is at work.
#[derive(Clone, Default)]
pub struct Switch {
    fault: Arc<AtomicU8>,
    /// Steps that may begin; `None` for any number.
    steps: Arc<(Mutex<Option<usize>>, Condvar)>,
}

impl Switch {
    /// From now on every step has this fault.
    pub fn set(&self, fault: u8) {
        self.fault.store(fault, Ordering::SeqCst);
    }

    /// From now on no step begins.
    pub fn shut(&self) {
        self.let_pass(Some(0));
    }

    /// So many steps begin, and no other.
    pub fn let_pass(&self, steps: Option<usize>) {
        *self.steps.0.lock().unwrap() = steps;
        self.steps.1.notify_all();
    }

    /// Steps go on.
    pub fn open(&self) {
        self.let_pass(None);
    }

    /// The fault of this step.
    fn take(&self) -> u8 {
        let fault = self.fault.load(Ordering::SeqCst);
        if fault == ERROR_ONCE || fault == PANIC_ONCE {
            self.set(SOUND);
        }
        fault
    }

    fn pass(&self) {
        let mut steps = self.steps.0.lock().unwrap();
        while *steps == Some(0) {
            steps = self.steps.1.wait(steps).unwrap();
        }
        *steps = steps.map(|left| left - 1);
    }
}

/// The CPU with a switch.
pub struct Gated {
    inner: CpuDevice,
    switch: Switch,
}

impl Gated {
    pub fn new(switch: &Switch) -> Box<Self> {
        Box::new(Self { inner: super::device(), switch: switch.clone() })
    }
}

impl Device for Gated {
    forward_device!(inner: name, precision, allocate, compile, wait, run_launch, write, buffers);

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        self.switch.pass();
        match self.switch.take() {
            ERROR | ERROR_ONCE => Err(DeviceError::Usage("a broken wire".into())),
            LOST => {
                let (device, reason) = ("cuda".into(), "a kernel has faulted".into());
                Err(DeviceError::Lost { device, reason })
            }
            PANIC | PANIC_ONCE => panic!("a fault that nobody foresaw"),
            _ => self.inner.submit(plan),
        }
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(buffer, offset, out)?;
        if self.switch.fault.load(Ordering::SeqCst) == NOT_A_NUMBER && out.len() == LOGITS_BYTES {
            out.fill(0xff);
        }
        Ok(())
    }
}
