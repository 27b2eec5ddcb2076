//! Starting over after a fault.
//!
//! A kernel that faults takes the context with it: every later call fails, and what lay in device memory is gone. The
//! context is then given up for a new one, weights are copied and plans recorded again, and the caller hears by
//! [`losses`](lily_plan::Device::losses) that everything else has to be computed again.

use lily_plan::{DeviceError, Plan, PlanId};

use crate::contents::Contents;
use crate::device::{CudaDevice, NAME};
use crate::driver::Gpu;
use crate::error::CudaError;
use crate::fetch::Fetches;

impl CudaDevice {
    /// Starts over if an earlier attempt to do so has failed.
    pub(crate) fn make_ready(&mut self) -> Result<(), DeviceError> {
        if self.is_lost { self.start_over() } else { Ok(()) }
    }

    /// Passes a result on. If the context went with the error, the device has started over by then.
    pub(crate) fn guard<T>(&mut self, result: Result<T, CudaError>) -> Result<T, DeviceError> {
        result.map_err(|error| {
            let after = self.start_over_if_lost();
            after.err().unwrap_or_else(|| error.into())
        })
    }

    /// As [`guard`](Self::guard), for an error of one launch.
    pub(crate) fn guard_launch(
        &mut self,
        plan: &Plan,
        launch: usize,
        result: Result<(), CudaError>,
    ) -> Result<(), DeviceError> {
        result.map_err(|error| {
            let reason = match self.start_over_if_lost() {
                Ok(()) => error.to_string(),
                Err(after) => format!("{error}; after that, {after}"),
            };
            failed(plan, launch, reason)
        })
    }

    /// Names the launch of a plan that was refused as a whole, which ran none of it: for lack of memory, say. A fault of
    /// earlier work, which may come to light here, is not this plan's.
    pub(crate) fn explain_refusal(&mut self, id: PlanId, error: CudaError) -> DeviceError {
        if self.gpu.is_lost() {
            return self.start_over().err().unwrap_or_else(|| error.into());
        }
        let Ok(compiled) = self.plan(id) else { return error.into() };
        let plan = compiled.plan.clone();
        for index in 0..plan.launches().len() {
            let Some(compiled) = self.plans.get(id.0) else { break };
            let gpu = &self.gpu;
            let ran = gpu.launch(&compiled.launches[index], false).and_then(|()| gpu.wait());
            if let Err(error) = self.guard_launch(&plan, index, ran) {
                return error;
            }
        }
        let launches = plan.launches().len();
        failed(&plan, 0, format!("{error}; none of the plan's {launches} launches fails alone"))
    }

    fn start_over_if_lost(&mut self) -> Result<(), DeviceError> {
        if self.gpu.is_lost() { self.start_over() } else { Ok(()) }
    }

    fn start_over(&mut self) -> Result<(), DeviceError> {
        self.is_lost = true;
        let again = self.rebuild().map_err(|error| DeviceError::Unavailable {
            device: NAME.into(),
            reason: format!("the GPU has failed, and starting over fails too: {error}"),
        });
        self.is_lost = again.is_err();
        again
    }

    fn rebuild(&mut self) -> Result<(), DeviceError> {
        self.plans.clear();
        self.functions.clear();
        self.contents = Contents::default();
        self.gpu.abandon();
        self.gpu = Gpu::open(self.index)?;
        self.fetches = Fetches::new(&self.gpu)?;
        self.contents = Contents::new(&self.gpu, &self.buffers, &self.weights, &self.files, None)?;
        for plan in self.recorded.clone() {
            let compiled = self.prepare(&plan)?;
            self.plans.push(compiled);
        }
        self.losses += 1;
        Ok(())
    }
}

fn failed(plan: &Plan, launch: usize, reason: String) -> DeviceError {
    let kernel = plan.launches()[launch].label();
    DeviceError::Launch { device: NAME.into(), kernel, launch, reason }
}
