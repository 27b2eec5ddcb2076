//! Indirect command buffers: one Metal call for each call on a command.

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLDevice as _, MTLIndirectCommandBuffer, MTLIndirectCommandBufferDescriptor,
    MTLIndirectCommandType, MTLIndirectComputeCommand as _, MTLResourceOptions, MTLSize,
};

use super::Gpu;
use super::queue::{Known, wrong};
use crate::encoder::{IndirectCall, IndirectId};
use crate::machine::HostError;

/// A Metal object.
type Buffer = Retained<ProtocolObject<dyn MTLIndirectCommandBuffer>>;

/// The indirect command buffers of a session.
#[derive(Default)]
pub(super) struct Indirect {
    buffers: Vec<Buffer>,
}

// SAFETY: Metal's objects may be used from any thread; commands are encoded through an exclusive borrow of the host only.
unsafe impl Send for Indirect {}

impl Indirect {
    /// Makes a buffer in place of those from its index on.
    pub fn make(
        &mut self,
        gpu: &Gpu,
        IndirectId(index): IndirectId,
        commands: u32,
        buffers: u32,
    ) -> Result<(), HostError> {
        let descriptor = MTLIndirectCommandBufferDescriptor::new();
        descriptor.setCommandTypes(MTLIndirectCommandType::ConcurrentDispatch);
        descriptor.setInheritPipelineState(false);
        descriptor.setInheritBuffers(false);
        descriptor.setMaxKernelBufferBindCount(buffers as usize);
        // SAFETY: none: kernels declare their threadgroup memory themselves.
        unsafe { descriptor.setMaxKernelThreadgroupMemoryBindCount(0) };
        // Hazards are the encoder's business, as with all memory.
        let options =
            MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        // SAFETY: the count is within the device's limit: the encoder's checks say so.
        let buffer = unsafe {
            gpu.newIndirectCommandBufferWithDescriptor_maxCommandCount_options(
                &descriptor,
                commands as usize,
                options,
            )
        };
        let buffer = buffer.ok_or_else(|| HostError::Unavailable(REFUSED.into()))?;
        self.buffers.truncate(index);
        self.buffers.push(buffer);
        Ok(())
    }

    /// A buffer.
    pub fn buffer(
        &self,
        IndirectId(index): IndirectId,
    ) -> Result<&ProtocolObject<dyn MTLIndirectCommandBuffer>, HostError> {
        let buffer = self.buffers.get(index).ok_or_else(|| wrong("no indirect command buffer"))?;
        Ok(buffer)
    }

    /// Makes a call on a command.
    pub fn encode(
        &self,
        id: IndirectId,
        command: u32,
        call: IndirectCall,
        known: &Known<'_>,
    ) -> Result<(), HostError> {
        let buffer = self.buffer(id)?;
        autoreleasepool(|_| {
            // SAFETY: the buffer has the command: the encoder's checks say so.
            let command = unsafe { buffer.indirectComputeCommandAtIndex(command as usize) };
            match call {
                IndirectCall::SetPipeline(pipeline) => {
                    command.setComputePipelineState(known.pipeline(pipeline)?);
                }
                IndirectCall::SetBuffer { index, place } => {
                    let buffer = known.memory.buffer(place.allocation)?;
                    // SAFETY: the index is below the bind count and the offset inside of the buffer: the encoder's checks
                    // say so. The memory goes after this does.
                    unsafe {
                        command.setKernelBuffer_offset_atIndex(
                            buffer,
                            place.offset as usize,
                            index as usize,
                        );
                    }
                }
                IndirectCall::SetBarrier => command.setBarrier(),
                IndirectCall::Dispatch { grid, threads, .. } => {
                    let [width, height, depth] = grid.map(|n| n as usize);
                    let threads = MTLSize { width: threads as usize, height: 1, depth: 1 };
                    let grid = MTLSize { width, height, depth };
                    command.concurrentDispatchThreadgroups_threadsPerThreadgroup(grid, threads);
                }
            }
            Ok(())
        })
    }
}

/// What a refusal says.
const REFUSED: &str = "Metal gives no indirect command buffer; run without --encode-once";
