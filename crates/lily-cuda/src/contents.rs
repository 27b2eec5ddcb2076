//! All buffers of a session in device memory, with the weights in theirs.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use lily_kernels::gpu::stored::{Unreadable, WeightFiles};
use lily_kernels::gpu::{MatrixFormat, weight_bytes};
use lily_plan::{BufferKind, Buffers, Weight, WeightWatch, Weights};

use crate::driver::{DeviceMemory, Event, Gpu, PinnedMemory};
use crate::error::CudaError;
use crate::upload::{Bus, Upload, upload};

/// Buffers by index.
#[derive(Default)]
pub(crate) struct Contents {
    /// Where they lie.
    pub memory: Vec<DeviceMemory>,
    /// Formats of those that are weight matrices.
    pub formats: Vec<Option<MatrixFormat>>,
}

impl Contents {
    /// Allocates all buffers and copies the weights, which `files` hold. Other buffers are not cleared.
    pub fn new(
        gpu: &Arc<Gpu>,
        buffers: &Buffers,
        weights: &Weights,
        files: &WeightFiles,
        watch: Option<&WeightWatch>,
    ) -> Result<Self, CudaError> {
        let mut contents = Self::default();
        let mut uploads = Vec::new();
        for (id, buffer) in buffers.iter() {
            let weight = weights.get(&buffer.name).filter(|_| buffer.kind == BufferKind::Weight);
            let bytes = weight.map_or(buffer.bytes() as usize, weight_bytes);
            let mut memory = gpu.allocate(bytes)?;
            let mut format = None;
            match weight {
                Some(Weight::Matrix(matrix)) => {
                    let found = MatrixFormat::of(matrix);
                    format = Some(found);
                    uploads.push(Upload { matrix, format: found, buffer: id.index() });
                }
                Some(Weight::Vector(values)) => memory.write(0, bytemuck::cast_slice(values))?,
                None => {}
            }
            contents.memory.push(memory);
            contents.formats.push(format);
        }
        let total = uploads.iter().map(|u| u.format.layout(u.matrix).bytes() as u64).sum();
        let hear = |bytes| {
            if let Some(watch) = watch {
                watch(bytes, total);
            }
        };
        let threads = thread::available_parallelism().map_or(1, |n| n.get());
        let bus = GpuBus { gpu, memory: &contents.memory };
        upload(&bus, &uploads, files, threads, &hear)?;
        gpu.wait()?;
        Ok(contents)
    }
}

/// The bus between host and GPU.
struct GpuBus<'a> {
    gpu: &'a Arc<Gpu>,
    memory: &'a [DeviceMemory],
}

/// A buffer, and the mark behind the last copy from it.
struct Stage {
    memory: PinnedMemory,
    copied: Option<Event>,
}

impl Bus for GpuBus<'_> {
    type Stage = Stage;
    type Error = CudaError;

    fn stage(&self, bytes: usize) -> Result<Stage, CudaError> {
        Ok(Stage { memory: self.gpu.pinned(bytes)?, copied: None })
    }

    fn contents<'a>(&self, stage: &'a mut Stage) -> Result<&'a mut [u8], CudaError> {
        if let Some(copied) = stage.copied.take() {
            copied.wait()?;
        }
        Ok(stage.memory.bytes_mut())
    }

    fn copy(
        &self,
        stage: &mut Stage,
        buffer: usize,
        pieces: &[(Range<usize>, usize)],
    ) -> Result<(), CudaError> {
        for (part, to) in pieces {
            self.memory[buffer].write_pinned(*to, &stage.memory, part.clone())?;
        }
        stage.copied = Some(self.gpu.mark()?);
        Ok(())
    }
}

impl From<Unreadable> for CudaError {
    fn from(error: Unreadable) -> Self {
        Self::Weights(error)
    }
}
