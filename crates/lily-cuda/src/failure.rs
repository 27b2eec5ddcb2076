//! Failures: which launch it was, and whether the GPU can be used after it.
//!
//! A kernel that faults makes the GPU unusable for the whole program, in new contexts too: the driver says so, and a test
//! on an H200 agrees (`docs/decisions/0016-a-fault-loses-the-gpu.md`). What is refused when it is started does no harm.

use lily_plan::{DeviceError, Plan, PlanId, Step};

use crate::device::{CudaDevice, NAME};
use crate::error::CudaError;

/// Set: every launch is waited for, so that a fault is that of a launch with a name.
pub(crate) const LAUNCH_BY_LAUNCH: &str = "LILY_LAUNCH_BY_LAUNCH";

impl CudaDevice {
    /// Fails if a fault has taken the GPU away.
    pub(crate) fn make_sure(&self) -> Result<(), DeviceError> {
        self.lost.clone().map_or(Ok(()), |reason| Err(lost(reason)))
    }

    /// Passes a result on, and takes note of a GPU that went with the error.
    pub(crate) fn guard<T>(&mut self, result: Result<T, CudaError>) -> Result<T, DeviceError> {
        result.map_err(|error| if self.gpu.is_lost() { self.lose(&error) } else { error.into() })
    }

    /// As [`guard`](Self::guard), for an error of one launch, which is named.
    pub(crate) fn guard_launch(
        &mut self,
        plan: &Plan,
        launch: usize,
        result: Result<(), CudaError>,
    ) -> Result<(), DeviceError> {
        result.map_err(|error| {
            if !self.gpu.is_lost() {
                return failed(plan, launch, error.to_string());
            }
            let label = plan.launches()[launch].label();
            let reason =
                format!("kernel `{label}` (launch {launch}) failed: {error}; {START_AGAIN}");
            self.lost = Some(reason.clone());
            failed(plan, launch, format!("{error}; {START_AGAIN}"))
        })
    }

    /// Runs a plan launch by launch, each waited for.
    pub(crate) fn run_in_steps(&mut self, id: PlanId) -> Result<(), DeviceError> {
        let plan = self.plan(id)?.plan.clone();
        for index in 0..plan.launches().len() {
            let launch = &self.plan(id)?.launches[index];
            let ran = self.gpu.launch(launch, false).and_then(|()| self.gpu.wait());
            self.guard_launch(&plan, index, ran)?;
        }
        Ok(())
    }

    /// Names the launch of a plan that was refused as a whole, which ran none of it: for lack of memory, say. A fault of
    /// earlier work, which may come to light here, is not this plan's.
    pub(crate) fn explain_refusal(&mut self, id: PlanId, error: CudaError) -> DeviceError {
        if self.gpu.is_lost() {
            return self.lose(&error);
        }
        if let Err(named) = self.run_in_steps(id) {
            return named;
        }
        match self.plan(id) {
            Ok(compiled) => {
                let launches = compiled.plan.launches().len();
                let reason = format!("{error}; none of the plan's {launches} launches fails alone");
                failed(&compiled.plan, 0, reason)
            }
            Err(unknown) => unknown,
        }
    }

    fn lose(&mut self, error: &CudaError) -> DeviceError {
        let work = match self.last.and_then(|id| self.plans.get(id.0)) {
            None => "no plan".into(),
            Some(compiled) => {
                let launches = compiled.plan.launches().len();
                match compiled.plan.step() {
                    Step::Decode { .. } => format!("a decode step of {launches} launches"),
                    Step::Prefill { tokens, .. } => {
                        format!("a prefill chunk of at most {tokens} tokens, {launches} launches")
                    }
                }
            }
        };
        let reason = format!(
            "{error}, under way was {work}; {START_AGAIN}, with {LAUNCH_BY_LAUNCH}=1 to learn which launch it is"
        );
        lost(self.lost.insert(reason).clone())
    }
}

/// What there is to do about a lost GPU.
const START_AGAIN: &str =
    "after a fault the driver lets this program use the GPU no more: start lily again";

fn lost(reason: String) -> DeviceError {
    DeviceError::Lost { device: NAME.into(), reason }
}

fn failed(plan: &Plan, launch: usize, reason: String) -> DeviceError {
    let kernel = plan.launches()[launch].label();
    DeviceError::Launch { device: NAME.into(), kernel, launch, reason }
}
