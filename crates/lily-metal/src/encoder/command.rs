//! The calls of the host layer, as values.

use crate::arena::Place;

/// A compiled kernel function, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PipelineId(pub usize);

/// What a dispatch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A launch of a compiled plan.
    Launch {
        /// Index of the plan.
        plan: usize,
        /// Index of the launch in it.
        launch: usize,
    },
    /// A copy of a few bytes into a slot that the host reads.
    Fetch,
}

/// An indirect command buffer of the session, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IndirectId(pub usize);

/// A call on a command of an indirect command buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndirectCall {
    /// `setComputePipelineState`.
    SetPipeline(PipelineId),
    /// `setKernelBuffer:offset:atIndex`.
    SetBuffer {
        /// Argument of the kernel.
        index: u32,
        /// What is bound to it.
        place: Place,
    },
    /// `setBarrier`: the command waits until all commands before it are complete. Comes before its dispatch.
    SetBarrier,
    /// `concurrentDispatchThreadgroups`: ends the command.
    Dispatch {
        /// Threadgroups along x, y, z.
        grid: [u32; 3],
        /// Threads of a threadgroup.
        threads: u32,
        /// What it does.
        work: Work,
    },
}

/// One call. A Metal host forwards each to one method; it decides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `commandBuffer`; serials count up from 1.
    BeginCommandBuffer {
        /// Its number.
        serial: u64,
        /// What its first dispatch does, for messages.
        first: Work,
    },
    /// `computeCommandEncoderWithDispatchType`, concurrent.
    BeginEncoder,
    /// `waitForFence`: nothing of this encoder starts before the fence's last update.
    WaitFence,
    /// `setComputePipelineState`.
    SetPipeline(PipelineId),
    /// `setBuffer:offset:atIndex`.
    SetBuffer {
        /// Argument of the kernel.
        index: u32,
        /// What is bound to it; Metal takes allocation and offset.
        place: Place,
    },
    /// `setBufferOffset:atIndex`: another place in the allocation that is bound there.
    SetOffset {
        /// Argument of the kernel.
        index: u32,
        /// What is bound to it now.
        place: Place,
    },
    /// `memoryBarrierWithScope`, buffers: dispatches behind it see what those in front of it wrote.
    Barrier,
    /// `dispatchThreadgroups`.
    Dispatch {
        /// Threadgroups along x, y, z.
        grid: [u32; 3],
        /// Threads of a threadgroup.
        threads: u32,
        /// What it does.
        work: Work,
    },
    /// `newIndirectCommandBufferWithDescriptor`: concurrent dispatches that set pipeline and buffers themselves, none of
    /// them encoded yet. Takes the place of an earlier one with this index or a higher one. May come at any time.
    NewIndirect {
        /// Its index.
        id: IndirectId,
        /// Commands in it.
        commands: u32,
        /// Buffers of a command, at most.
        buffers: u32,
    },
    /// A call on `indirectComputeCommandAtIndex`. May come at any time before the buffer is executed.
    Encode {
        /// The buffer.
        id: IndirectId,
        /// Index of the command in it.
        command: u32,
        /// The call.
        call: IndirectCall,
    },
    /// `executeCommandsInBuffer:withRange`: all commands. The encoder waits neither before nor behind them, and what was
    /// set in it is not counted on afterwards.
    Execute {
        /// The buffer.
        id: IndirectId,
        /// Commands in it.
        commands: u32,
    },
    /// `updateFence`, after everything of this encoder.
    UpdateFence,
    /// `endEncoding`.
    EndEncoder,
    /// `encodeSignalEvent`: the host's event reaches the serial when the command buffer is done.
    Signal {
        /// Of this command buffer.
        serial: u64,
    },
    /// `commit`.
    Commit,
}
