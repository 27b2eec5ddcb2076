//! Sending, waiting, and starting over after a failure.

use lily_plan::{DeviceError, Plan, PlanId};

use super::MetalDevice;
use crate::arena::FETCH_SLOTS;
use crate::encoder::{Body, Work, record_one};
use crate::machine::{Failure, Host, HostError, NAME};

impl<H: Host> MetalDevice<H> {
    /// Sends bodies; a failure leaves a device that can go on.
    pub(super) fn send(&mut self, bodies: &[Body]) -> Result<(), HostError> {
        let host = &mut self.host;
        let sent = self.stream.submit(bodies, &mut |command| host.execute(command));
        sent.or_else(|error| self.rebuild().and(Err(error)))
    }

    /// Commits what is encoded.
    pub(super) fn close(&mut self) -> Result<(), HostError> {
        let host = &mut self.host;
        let closed = self.stream.close(&mut |command| host.execute(command));
        closed.or_else(|error| self.rebuild().and(Err(error)))
    }

    pub(super) fn rebuild(&mut self) -> Result<(), HostError> {
        self.stream.rebuilt();
        // What they would copy is lost.
        self.pending = [None; FETCH_SLOTS];
        self.host.rebuild()
    }

    /// Waits for a command buffer. If one failed, the device starts over, and the error names a launch.
    pub(super) fn reach(&mut self, serial: u64) -> Result<(), DeviceError> {
        let Err(failure) = self.host.reach(serial) else { return Ok(()) };
        self.rebuild()?;
        Err(self.explain(failure))
    }

    /// Finds the launch that fails, by running those of the command buffer one by one: Metal names the command
    /// buffer only. The sequence's state is lost already.
    fn explain(&mut self, failure: Failure) -> DeviceError {
        let Work::Launch { plan, launch: first } = failure.first else {
            return DeviceError::Unavailable { device: NAME.into(), reason: failure.reason };
        };
        let plan_id = PlanId(plan);
        let Ok(compiled) = self.plan(plan_id) else {
            return DeviceError::Unavailable { device: NAME.into(), reason: failure.reason };
        };
        let plan = compiled.plan.clone();
        let body = compiled.bodies.iter().find(|body| body.first == failure.first);
        let launches: Vec<usize> = body.map_or(vec![first], |body| body.launches.clone());
        for &launch in &launches {
            match self.run_alone(plan_id, launch) {
                Ok(None) => {}
                Ok(Some(again)) => {
                    return failed(&plan, launch, again.reason);
                }
                Err(error) => return error,
            }
        }
        let last = launches.last().map_or(String::new(), |&last| plan.launches()[last].label());
        let reason = format!(
            "{}; the command buffer goes on to {last}, and none of its launches fails alone",
            failure.reason
        );
        failed(&plan, first, reason)
    }

    /// Runs one launch and waits; gives the failure if it fails, with the device started over.
    pub(super) fn run_alone(
        &mut self,
        plan: PlanId,
        launch: usize,
    ) -> Result<Option<Failure>, DeviceError> {
        let prepared = &self.plan(plan)?.launches[launch];
        let body = record_one(prepared, Work::Launch { plan: plan.0, launch });
        Ok(self.run_body(body)?)
    }

    /// Runs one body and waits; gives the failure if it fails, with the device started over.
    pub(super) fn run_body(&mut self, body: Body) -> Result<Option<Failure>, HostError> {
        self.send(&[body])?;
        self.close()?;
        let Err(failure) = self.host.reach(self.stream.serial()) else { return Ok(None) };
        self.rebuild()?;
        Ok(Some(failure))
    }
}

/// A launch that failed, with its label.
pub(super) fn failed(plan: &Plan, launch: usize, reason: String) -> DeviceError {
    let kernel = plan.launches()[launch].label();
    DeviceError::Launch { device: NAME.into(), kernel, launch, reason }
}
