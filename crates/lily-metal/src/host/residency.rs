//! One residency set for all memory of a session, kept alive by a heartbeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLAllocation, MTLDevice as _, MTLResidencySet, MTLResidencySetDescriptor};

use super::memory::Memory;
use super::{Gpu, message};
use crate::idle::{BEAT, Beat, Idle};
use crate::machine::HostError;

/// The set, in the hands of the queue and of the heartbeat.
#[derive(Clone)]
struct Set(Retained<ProtocolObject<dyn MTLResidencySet>>);

// SAFETY: after its one commit in `Residency::new` nothing is added or removed; requests and their end, which the
// heartbeat sends, and the queue's use of the set may come from any thread.
unsafe impl Send for Set {}
// SAFETY: as above.
unsafe impl Sync for Set {}

/// The set with its heartbeat, which ends when this is dropped.
pub(super) struct Residency {
    set: Set,
    start: Instant,
    /// Milliseconds from `start` to the last work.
    last_use: Arc<AtomicU64>,
    end: Option<Sender<()>>,
    heart: Option<JoinHandle<()>>,
}

impl Residency {
    /// Makes all memory resident; `keep` is how long it stays so after the last work.
    pub fn new(gpu: &Gpu, memory: &Memory, keep: Duration) -> Result<Self, HostError> {
        let descriptor = MTLResidencySetDescriptor::new();
        let set = gpu
            .newResidencySetWithDescriptor_error(&descriptor)
            .map_err(|error| HostError::Unavailable(message(&error)))?;
        for buffer in memory.buffers() {
            let allocation: &ProtocolObject<dyn MTLAllocation> =
                ProtocolObject::from_ref(&**buffer);
            set.addAllocation(allocation);
        }
        set.commit();
        set.requestResidency();
        let (set, start, last_use) = (Set(set), Instant::now(), Arc::new(AtomicU64::new(0)));
        let (end, ended) = mpsc::channel();
        let (beating, used) = (set.clone(), last_use.clone());
        let heart = std::thread::Builder::new().name("lily-residency".into()).spawn(move || {
            let Set(set) = &beating;
            let mut idle = Idle::new(keep);
            while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                let last = Duration::from_millis(used.load(Ordering::Relaxed));
                match idle.beat(start.elapsed().saturating_sub(last)) {
                    Beat::Request => set.requestResidency(),
                    Beat::Release => set.endResidency(),
                    Beat::Nothing => {}
                }
            }
            set.endResidency();
        });
        let heart = heart.map_err(|error| HostError::Unavailable(error.to_string()))?;
        Ok(Self { set, start, last_use, end: Some(end), heart: Some(heart) })
    }

    /// The set.
    pub fn set(&self) -> &ProtocolObject<dyn MTLResidencySet> {
        &self.set.0
    }

    /// Notes work.
    pub fn used(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_use.store(now, Ordering::Relaxed);
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(heart) = self.heart.take() {
            // A heart that panicked has nothing left to end.
            let _ = heart.join();
        }
    }
}
