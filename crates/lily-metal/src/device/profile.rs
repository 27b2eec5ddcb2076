//! Time of each kernel of a plan, by the GPU's own clock.

use lily_plan::{DeviceError, KernelTime, PlanId};

use super::MetalDevice;
use super::recover::failed;
use crate::encoder::{SUBMISSION_SECONDS, Work, record_chain};
use crate::machine::Host;

impl<H: Host> MetalDevice<H> {
    /// All launches of each kernel, one after the other in as few command buffers as may be, `runs` times behind one that is not
    /// counted. Empty if the host has no clock.
    pub(super) fn kernel_times(
        &mut self,
        plan: PlanId,
        runs: usize,
    ) -> Result<Vec<KernelTime>, DeviceError> {
        let compiled = self.plan(plan)?;
        let recorded = compiled.plan.clone();
        let estimate = &compiled.estimate;
        let estimates = estimate.launch_seconds(estimate.last_position());
        let mut times = Vec::new();
        for (kernel, own) in recorded.by_kernel() {
            let launches = &self.plan(plan)?.launches;
            let work =
                |&launch: &usize| (launches[launch].clone(), Work::Launch { plan: plan.0, launch });
            let bodies: Vec<_> = bounded(&own, &estimates)
                .map(|part| record_chain(&part.iter().map(work).collect::<Vec<_>>()))
                .collect();
            let mut seconds = 0.0;
            for run in 0..=runs.max(1) {
                for body in &bodies {
                    if let Some(failure) = self.run_body(body.clone())? {
                        return Err(failed(&recorded, body.launches[0], failure.reason));
                    }
                    let Some(time) = self.host.last_seconds() else { return Ok(Vec::new()) };
                    seconds += if run == 0 { 0.0 } else { time };
                }
            }
            let seconds = seconds / runs.max(1) as f64;
            times.push(KernelTime { kernel, launches: own.len(), seconds });
        }
        Ok(times)
    }
}

/// Launches in parts of which none is estimated to hold the GPU for longer than a command buffer may, but for a launch
/// that does alone.
fn bounded<'a>(launches: &'a [usize], estimates: &[f64]) -> impl Iterator<Item = &'a [usize]> {
    let mut spent = 0.0;
    let mut starts = Vec::new();
    for (at, &launch) in launches.iter().enumerate() {
        spent += estimates[launch];
        if at == 0 || spent > SUBMISSION_SECONDS {
            starts.push(at);
            spent = estimates[launch];
        }
    }
    let ends: Vec<usize> = starts.iter().copied().skip(1).chain([launches.len()]).collect();
    starts.into_iter().zip(ends).map(|(start, end)| &launches[start..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_holds_the_gpu_no_longer_than_a_command_buffer_may() {
        let parts = |launches: &[usize], estimates: &[f64]| -> Vec<Vec<usize>> {
            bounded(launches, estimates).map(<[usize]>::to_vec).collect()
        };
        let estimates = [0.4, 0.4, 18.0, 0.4, 0.2, 0.4].map(|share| share * SUBMISSION_SECONDS);
        assert_eq!(parts(&[0, 1, 3, 4, 5], &estimates), [vec![0, 1], vec![3, 4, 5]]);
        assert_eq!(parts(&[0, 2, 3], &estimates), [[0], [2], [3]]);
        assert_eq!(parts(&[4], &estimates), [[4]]);
    }
}
