//! The command queue: one Metal call for each command, and waiting.

use std::collections::VecDeque;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder as _,
    MTLCommandQueue, MTLComputeCommandEncoder, MTLDevice as _, MTLDispatchType, MTLEvent, MTLFence,
    MTLResource, MTLResourceUsage, MTLSharedEvent, MTLSize,
};

use super::indirect::Indirect;
use super::memory::Memory;
use super::residency::Residency;
use super::{Gpu, Pipeline, message};
use crate::encoder::{Command, PipelineId, Work};
use crate::machine::{Failure, HostError};

/// Between two looks at a command buffer whose event does not come, in milliseconds.
const PATIENCE_MS: u64 = 100;

/// A command buffer that is not yet known to be done.
struct Pending {
    serial: u64,
    first: Work,
    buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
}

/// What commands name.
pub(super) struct Known<'a> {
    /// Compiled functions.
    pub pipelines: &'a [Pipeline],
    /// Allocations.
    pub memory: &'a Memory,
    /// Indirect command buffers.
    pub indirect: &'a Indirect,
    /// Each encoder has to be told what it may touch.
    pub loose: bool,
}

impl Known<'_> {
    /// A compiled function.
    pub fn pipeline(&self, PipelineId(index): PipelineId) -> Result<&Pipeline, HostError> {
        self.pipelines.get(index).ok_or_else(|| wrong("no such pipeline"))
    }
}

/// The queue with its fence and event.
pub(super) struct Queue {
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    fence: Retained<ProtocolObject<dyn MTLFence>>,
    event: Retained<ProtocolObject<dyn MTLSharedEvent>>,
    open: Option<Pending>,
    encoder: Option<Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>>,
    committed: VecDeque<Pending>,
    last_seconds: Option<f64>,
}

// SAFETY: Metal's objects may be used from any thread, an encoder and its command buffer by one at a time; they are
// reached through exclusive borrows only.
unsafe impl Send for Queue {}

impl Queue {
    /// A queue of its own.
    pub fn new(gpu: &Gpu) -> Result<Self, HostError> {
        let missing = |what: &str| HostError::Unavailable(format!("Metal gives no {what}"));
        Ok(Self {
            queue: gpu.newCommandQueue().ok_or_else(|| missing("command queue"))?,
            fence: gpu.newFence().ok_or_else(|| missing("fence"))?,
            event: gpu.newSharedEvent().ok_or_else(|| missing("event"))?,
            open: None,
            encoder: None,
            committed: VecDeque::new(),
            last_seconds: None,
        })
    }

    /// Ties memory to everything that the queue runs.
    pub fn attach(&self, residency: Option<&Residency>) {
        if let Some(residency) = residency {
            self.queue.addResidencySet(residency.set());
        }
    }

    /// Makes the call of a command.
    pub fn execute(&mut self, command: &Command, known: &Known<'_>) -> Result<(), HostError> {
        match *command {
            Command::BeginCommandBuffer { serial, first } => {
                let buffer =
                    autoreleasepool(|_| self.queue.commandBufferWithUnretainedReferences());
                let buffer = buffer.ok_or_else(|| wrong("a command buffer that Metal refuses"))?;
                self.open = Some(Pending { serial, first, buffer });
            }
            Command::BeginEncoder => {
                let concurrent = MTLDispatchType::Concurrent;
                let buffer = self.buffer()?;
                let encoder =
                    autoreleasepool(|_| buffer.computeCommandEncoderWithDispatchType(concurrent));
                let encoder = encoder.ok_or_else(|| wrong("an encoder that Metal refuses"))?;
                let loose = if known.loose { known.memory.buffers() } else { &[] };
                for buffer in loose {
                    let resource: &ProtocolObject<dyn MTLResource> =
                        ProtocolObject::from_ref(&**buffer);
                    encoder.useResource_usage(
                        resource,
                        MTLResourceUsage::Read | MTLResourceUsage::Write,
                    );
                }
                self.encoder = Some(encoder);
            }
            Command::WaitFence => self.encoder()?.waitForFence(&self.fence),
            Command::SetPipeline(id) => {
                self.encoder()?.setComputePipelineState(known.pipeline(id)?);
            }
            Command::SetBuffer { index, place } => {
                let buffer = known.memory.buffer(place.allocation)?;
                // SAFETY: the index is below the table's 31 entries and the offset inside of the buffer: the encoder's
                // checks say so. The buffer outlives the command buffer: `reach` or `drop` waits first.
                unsafe {
                    self.encoder()?.setBuffer_offset_atIndex(
                        Some(buffer),
                        place.offset as usize,
                        index as usize,
                    );
                }
            }
            Command::SetOffset { index, place } => {
                // SAFETY: as above; a buffer is bound at the index.
                unsafe {
                    self.encoder()?.setBufferOffset_atIndex(place.offset as usize, index as usize);
                }
            }
            Command::Barrier => self.encoder()?.memoryBarrierWithScope(MTLBarrierScope::Buffers),
            Command::Dispatch { grid, threads, .. } => {
                let [width, height, depth] = grid.map(|n| n as usize);
                let threads = MTLSize { width: threads as usize, height: 1, depth: 1 };
                let grid = MTLSize { width, height, depth };
                self.encoder()?.dispatchThreadgroups_threadsPerThreadgroup(grid, threads);
            }
            Command::Execute { id, commands } => {
                let buffer = known.indirect.buffer(id)?;
                // SAFETY: the buffer has so many commands, each of them encoded: the encoder's checks say so. It and what it
                // names outlive the command buffer: `reach` or `drop` waits first.
                unsafe {
                    self.encoder()?.executeCommandsInBuffer_withRange(
                        buffer,
                        NSRange::new(0, commands as usize),
                    );
                }
            }
            // Made and encoded outside of command buffers.
            Command::NewIndirect { .. } | Command::Encode { .. } => {
                return Err(wrong("an indirect command buffer"));
            }
            Command::UpdateFence => self.encoder()?.updateFence(&self.fence),
            Command::EndEncoder => {
                self.encoder()?.endEncoding();
                self.encoder = None;
            }
            Command::Signal { serial } => {
                let event: &ProtocolObject<dyn MTLEvent> = ProtocolObject::from_ref(&*self.event);
                self.buffer()?.encodeSignalEvent_value(event, serial);
            }
            Command::Commit => {
                let pending = self.open.take().ok_or_else(|| wrong("no command buffer"))?;
                pending.buffer.commit();
                self.committed.push_back(pending);
            }
        }
        Ok(())
    }

    /// Waits until the command buffers up to a serial are done.
    pub fn reach(&mut self, serial: u64) -> Result<(), Failure> {
        while let Some(pending) = self.committed.pop_front_if(|pending| pending.serial <= serial) {
            let buffer = &pending.buffer;
            while !self.event.waitUntilSignaledValue_timeoutMS(pending.serial, PATIENCE_MS)
                && buffer.status() != MTLCommandBufferStatus::Error
            {}
            // The event may come a moment before the verdict.
            buffer.waitUntilCompleted();
            if buffer.status() == MTLCommandBufferStatus::Error {
                let reason = buffer.error().map_or("no reason is given".into(), |e| message(&e));
                return Err(Failure { first: pending.first, reason });
            }
            self.last_seconds = Some(buffer.GPUEndTime() - buffer.GPUStartTime());
        }
        Ok(())
    }

    /// Seconds of the command buffer that was last waited for.
    pub fn last_seconds(&self) -> Option<f64> {
        self.last_seconds
    }

    fn buffer(&self) -> Result<&ProtocolObject<dyn MTLCommandBuffer>, HostError> {
        let open = self.open.as_ref().map(|pending| &*pending.buffer);
        open.ok_or_else(|| wrong("no command buffer"))
    }

    fn encoder(&self) -> Result<&ProtocolObject<dyn MTLComputeCommandEncoder>, HostError> {
        self.encoder.as_deref().ok_or_else(|| wrong("no encoder"))
    }
}

impl Drop for Queue {
    /// What is under way uses memory that goes away next.
    fn drop(&mut self) {
        // Metal asserts that an encoder is ended before it goes.
        if let Some(encoder) = self.encoder.take() {
            encoder.endEncoding();
        }
        for pending in self.committed.drain(..) {
            pending.buffer.waitUntilCompleted();
        }
    }
}

/// An error of the order of calls.
pub(super) fn wrong(what: &str) -> HostError {
    HostError::Unavailable(format!("found {what} in the middle of a step; load the model again"))
}
