//! The `Device` trait on the CPU: plans run where they are submitted, stage by stage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lily_kernels::cpu::{CpuFace, CpuLaunch, Numerics, Operand, Simd};
use lily_kernels::table;
use lily_plan::{
    BufferId, BufferKind, Buffers, Device, DeviceError, Element, Plan, PlanId, Precision, Weight,
    Weights, check_weights,
};

use crate::arena::Block;
use crate::pool::Pool;

/// How the CPU device runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Numbers of the matrix products; `Exact` also keeps the KV cache in f32.
    pub numerics: Numerics,
    /// Threads; 0 takes the machine's.
    pub threads: usize,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { numerics: Numerics::Int8, threads: 0 }
    }
}

/// A buffer's memory.
enum Storage {
    Block(Block),
    Weight(Weight),
    /// A small weight, widened: read like an f32 buffer.
    Vector(Block),
}

/// A compiled plan: kernels resolved.
struct Compiled {
    plan: Arc<Plan>,
    faces: Vec<CpuFace>,
}

/// The CPU as a device.
pub struct CpuDevice {
    options: CpuOptions,
    simd: Simd,
    pool: Pool,
    buffers: Arc<Buffers>,
    storage: Vec<Storage>,
    plans: Vec<Compiled>,
}

impl CpuDevice {
    /// A device without buffers.
    pub fn new(options: CpuOptions) -> Self {
        Self {
            options,
            simd: Simd::detect(),
            pool: Pool::new(options.threads),
            buffers: Arc::default(),
            storage: Vec::new(),
            plans: Vec::new(),
        }
    }

    fn run(&mut self, plan: PlanId, index: usize) -> Result<(), DeviceError> {
        let compiled = &self.plans[plan.0];
        let launch = &compiled.plan.launches()[index];
        let operands: Vec<Operand<'_>> =
            launch.bindings.iter().map(|b| operand(&self.storage[b.buffer.index()])).collect();
        let launch_view = CpuLaunch {
            args: &launch.args,
            operands: &operands,
            numerics: self.options.numerics,
            simd: self.simd,
        };
        let (face, pool) = (compiled.faces[index], &mut self.pool);
        catch_unwind(AssertUnwindSafe(|| pool.run(face, &launch_view))).map_err(|cause| {
            let reason = cause
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| cause.downcast_ref::<&str>().map(|s| s.to_string()))
                .unwrap_or_else(|| "panicked".into());
            DeviceError::Launch {
                device: "cpu".into(),
                kernel: launch.label(),
                launch: index,
                reason,
            }
        })
    }
}

fn operand(storage: &Storage) -> Operand<'_> {
    match storage {
        Storage::Block(block) | Storage::Vector(block) => block.operand(),
        Storage::Weight(Weight::Matrix(matrix)) => Operand::Matrix(matrix),
        Storage::Weight(Weight::Vector(_)) => unreachable!("vectors are stored as blocks"),
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }

    fn precision(&self) -> Precision {
        match self.options.numerics {
            Numerics::Exact => Precision::EXACT,
            Numerics::Int8 => Precision { act: Element::F32, kv: Element::Bf16 },
        }
    }

    fn allocate(
        &mut self,
        buffers: &Arc<Buffers>,
        mut weights: Weights,
    ) -> Result<(), DeviceError> {
        check_weights(buffers, &weights)?;
        self.plans.clear();
        self.storage.clear();
        self.buffers = buffers.clone();
        for (_, buffer) in buffers.iter() {
            let weight = match buffer.kind {
                BufferKind::Weight => weights.remove(&buffer.name),
                _ => None,
            };
            self.storage.push(match weight {
                Some(Weight::Vector(values)) => {
                    let mut block = Block::new(Element::F32, 4 * values.len() as u64)?;
                    block.bytes_mut().copy_from_slice(bytemuck::cast_slice(&values));
                    Storage::Vector(block)
                }
                Some(matrix) => Storage::Weight(matrix),
                None => Storage::Block(Block::new(buffer.element, buffer.bytes())?),
            });
        }
        Ok(())
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        let mut faces = Vec::new();
        for (index, launch) in plan.launches().iter().enumerate() {
            let kernel = table::find(launch.kernel).ok_or_else(|| DeviceError::MissingKernel {
                device: "cpu".into(),
                kernel: launch.kernel.into(),
                launch: index,
            })?;
            faces.push(kernel.cpu);
        }
        self.plans.push(Compiled { plan: plan.clone(), faces });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        (0..self.plans[plan.0].faces.len()).try_for_each(|index| self.run(plan, index))
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        self.run(plan, launch)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let name = &self.buffers.get(buffer).name;
        let outside = || DeviceError::Usage(format!("read outside of {name}"));
        let Storage::Block(block) = &self.storage[buffer.index()] else {
            return Err(DeviceError::Usage(format!(
                "{name} is a weight, weights are not read back"
            )));
        };
        out.copy_from_slice(block.bytes().get(offset..offset + out.len()).ok_or_else(outside)?);
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        let name = &self.buffers.get(buffer).name;
        let outside = || DeviceError::Usage(format!("write outside of {name}"));
        let Storage::Block(block) = &mut self.storage[buffer.index()] else {
            return Err(DeviceError::Usage(format!("{name} is a weight, weights are not written")));
        };
        let to = block.bytes_mut().get_mut(offset..offset + data.len()).ok_or_else(outside)?;
        to.copy_from_slice(data);
        Ok(())
    }

    fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }
}
