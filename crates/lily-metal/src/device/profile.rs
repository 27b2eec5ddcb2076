//! Time of each kernel of a plan, by the GPU's own clock.

use lily_plan::{DeviceError, KernelTime, PlanId};

use super::MetalDevice;
use super::recover::failed;
use crate::encoder::{Work, record_chain};
use crate::machine::Host;

impl<H: Host> MetalDevice<H> {
    /// All launches of each kernel, one after the other in one command buffer, `runs` times behind one that is not
    /// counted. Empty if the host has no clock.
    pub(super) fn kernel_times(
        &mut self,
        plan: PlanId,
        runs: usize,
    ) -> Result<Vec<KernelTime>, DeviceError> {
        let recorded = self.plan(plan)?.plan.clone();
        let mut kernels: Vec<&'static str> = Vec::new();
        for launch in recorded.launches() {
            if !kernels.contains(&launch.kernel) {
                kernels.push(launch.kernel);
            }
        }
        let mut times = Vec::new();
        for kernel in kernels {
            let launches = recorded.launches().iter().enumerate();
            let own: Vec<usize> =
                launches.filter_map(|(i, l)| (l.kernel == kernel).then_some(i)).collect();
            let launches = &self.plan(plan)?.launches;
            let work =
                |&launch: &usize| (launches[launch].clone(), Work::Launch { plan: plan.0, launch });
            let chain: Vec<_> = own.iter().map(work).collect();
            let body = record_chain(&chain);
            let mut seconds = 0.0;
            for run in 0..=runs.max(1) {
                if let Some(failure) = self.run_body(body.clone())? {
                    return Err(failed(&recorded, own[0], failure.reason));
                }
                let Some(time) = self.host.last_seconds() else { return Ok(Vec::new()) };
                seconds += if run == 0 { 0.0 } else { time };
            }
            let seconds = seconds / runs.max(1) as f64;
            times.push(KernelTime { kernel, launches: own.len(), seconds });
        }
        Ok(times)
    }
}
