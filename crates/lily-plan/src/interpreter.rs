//! Runs any plan with the reference kernels, slowly and in plain sight.
//!
//! In checked mode every launch sees copies in which all memory outside of its declared exact reads
//! is poison, and its writes are compared with its declared exact writes: nothing outside, nothing
//! left out.

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;

use crate::buffer::{BufferId, BufferKind, Buffers, Element, Region};
use crate::device::{Device, DeviceError, PlanId, Precision, Weights, check_weights};
use crate::launch::Launch;
use crate::live::{Live, Memory};
use crate::matrix::Weight;
use crate::plan::Plan;
use crate::reference::{ReferenceIo, Store};

/// Runs one launch in plain Rust.
pub type ReferenceFn = fn(&mut ReferenceIo<'_>);

/// Exact read boxes and exact write boxes of every binding of a launch.
type ExactRegions = (Vec<Vec<Region>>, Vec<Vec<Region>>);

/// Finds the reference of a kernel by name.
pub type ReferenceTable = fn(&str) -> Option<ReferenceFn>;

/// Fills memory that must not be read or left unwritten.
pub(crate) const POISON_I32: i32 = i32::MIN / 3;

/// A buffer of the interpreter. Floats are held as f32; bfloat16 buffers hold rounded values.
#[derive(Clone)]
pub(crate) enum HostBuffer {
    F32(Arc<Vec<f32>>),
    I32(Arc<Vec<i32>>),
}

impl HostBuffer {
    fn poisoned(element: Element, elements: usize) -> Self {
        match element {
            Element::I32 => Self::I32(Arc::new(vec![POISON_I32; elements])),
            _ => Self::F32(Arc::new(vec![f32::NAN; elements])),
        }
    }
}

struct HostMemory(Vec<HostBuffer>);

impl Memory for HostMemory {
    fn f32(&self, buffer: BufferId) -> &[f32] {
        match &self.0[buffer.index()] {
            HostBuffer::F32(v) => v,
            HostBuffer::I32(_) => &[],
        }
    }

    fn i32(&self, buffer: BufferId) -> &[i32] {
        match &self.0[buffer.index()] {
            HostBuffer::I32(v) => v,
            HostBuffer::F32(_) => &[],
        }
    }
}

/// The reference device. Weights are held dense in f32: meant for small models.
pub struct Interpreter {
    table: ReferenceTable,
    precision: Precision,
    checked: bool,
    buffers: Arc<Buffers>,
    memory: HostMemory,
    plans: Vec<Arc<Plan>>,
    ran: HashMap<&'static str, usize>,
}

impl Interpreter {
    /// An interpreter without buffers. `checked` enforces the declared ranges.
    pub fn new(table: ReferenceTable, precision: Precision, checked: bool) -> Self {
        Self {
            table,
            precision,
            checked,
            buffers: Arc::default(),
            memory: HostMemory(Vec::new()),
            plans: Vec::new(),
            ran: HashMap::new(),
        }
    }

    /// How often each kernel ran.
    pub fn ran(&self) -> &HashMap<&'static str, usize> {
        &self.ran
    }

    fn run(&mut self, plan: &Plan, index: usize) -> Result<(), DeviceError> {
        let launch = &plan.launches()[index];
        let fail = |reason: String| DeviceError::Launch {
            device: "interpreter".into(),
            kernel: launch.label(),
            launch: index,
            reason,
        };
        let reference = (self.table)(launch.kernel).ok_or_else(|| DeviceError::MissingKernel {
            device: "interpreter".into(),
            kernel: launch.kernel.into(),
            launch: index,
        })?;
        let (reads, writes) = self.exact_regions(plan, launch).map_err(&fail)?;
        let views = launch.bindings.iter().zip(&reads).map(|(binding, regions)| {
            let whole = &self.memory.0[binding.buffer.index()];
            match (binding.read.is_some(), self.checked) {
                (false, _) => None,
                (true, false) => Some(whole.clone()),
                (true, true) => Some(self.only(binding.buffer, whole, regions)),
            }
        });
        let mut io = ReferenceIo::new(launch, &self.buffers, views.collect());
        reference(&mut io);
        let stores = io.into_stores();
        if self.checked {
            self.check_stores(launch, &writes, &stores).map_err(&fail)?;
        }
        self.commit(launch, stores).map_err(&fail)?;
        *self.ran.entry(launch.kernel).or_default() += 1;
        Ok(())
    }

    /// Exact boxes of every binding, as they stand before the launch.
    fn exact_regions(&self, plan: &Plan, launch: &Launch) -> Result<ExactRegions, String> {
        if !self.checked {
            let none = vec![Vec::new(); launch.bindings.len()];
            return Ok((none.clone(), none));
        }
        let control = |name: &str| self.buffers.find(name).map_or(&[][..], |b| self.memory.i32(b));
        let live =
            Live::new(plan.step(), control("control"), control("prompt"), Some(&self.memory));
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        for binding in &launch.bindings {
            let shape = &self.buffers.get(binding.buffer).shape;
            for (access, out) in [(&binding.read, &mut reads), (&binding.write, &mut writes)] {
                let regions = access.as_ref().map_or(Vec::new(), |a| a.exact(&live));
                if let Some(access) = access {
                    for region in &regions {
                        if !region.fits(shape) || !access.bound.contains(region, shape) {
                            return Err(format!(
                                "exact range {}{region} leaves its static bound {}",
                                binding.role, access.bound
                            ));
                        }
                    }
                }
                out.push(regions);
            }
        }
        Ok((reads, writes))
    }

    /// A copy in which everything outside of `regions` is poison.
    fn only(&self, id: BufferId, whole: &HostBuffer, regions: &[Region]) -> HostBuffer {
        let buffer = self.buffers.get(id);
        if regions == [Region::whole()] {
            return whole.clone();
        }
        let mut copy = HostBuffer::poisoned(buffer.element, buffer.elements());
        for region in regions {
            region.for_each_run(&buffer.shape, |run| match (&mut copy, whole) {
                (HostBuffer::F32(to), HostBuffer::F32(from)) => {
                    Arc::make_mut(to)[run.clone()].copy_from_slice(&from[run]);
                }
                (HostBuffer::I32(to), HostBuffer::I32(from)) => {
                    Arc::make_mut(to)[run.clone()].copy_from_slice(&from[run]);
                }
                _ => {}
            });
        }
        copy
    }

    fn check_stores(
        &self,
        launch: &Launch,
        writes: &[Vec<Region>],
        stores: &[Vec<Store>],
    ) -> Result<(), String> {
        for ((binding, regions), stores) in launch.bindings.iter().zip(writes).zip(stores) {
            if regions.is_empty() && stores.is_empty() {
                continue;
            }
            let buffer = self.buffers.get(binding.buffer);
            let mut state = vec![0u8; buffer.elements()];
            for region in regions {
                region.for_each_run(&buffer.shape, |run| state[run].fill(1));
            }
            for store in stores {
                for element in store.range() {
                    match state.get_mut(element) {
                        Some(0) | None => {
                            return Err(format!(
                                "writes element {element} of {} outside of its exact range",
                                binding.role
                            ));
                        }
                        Some(state) => *state = 2,
                    }
                }
                if store.has_poison() {
                    return Err(format!("writes poison to {}", binding.role));
                }
            }
            if let Some(element) = state.iter().position(|&s| s == 1) {
                return Err(format!("leaves element {element} of {} unwritten", binding.role));
            }
        }
        Ok(())
    }

    fn commit(&mut self, launch: &Launch, stores: Vec<Vec<Store>>) -> Result<(), String> {
        for (binding, stores) in launch.bindings.iter().zip(stores) {
            let rounds = self.buffers.get(binding.buffer).element == Element::Bf16;
            for store in stores {
                match (store, &mut self.memory.0[binding.buffer.index()]) {
                    (Store::F32 { first, values }, HostBuffer::F32(to)) => {
                        let to = &mut Arc::make_mut(to)[first..first + values.len()];
                        for (to, v) in to.iter_mut().zip(values) {
                            *to = if rounds { bf16::from_f32(v).to_f32() } else { v };
                        }
                    }
                    (Store::I32 { first, values }, HostBuffer::I32(to)) => {
                        Arc::make_mut(to)[first..first + values.len()].copy_from_slice(&values);
                    }
                    _ => return Err(format!("stores the wrong element type to {}", binding.role)),
                }
            }
        }
        Ok(())
    }
}

impl Device for Interpreter {
    fn name(&self) -> &str {
        "interpreter"
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn allocate(&mut self, buffers: &Arc<Buffers>, weights: Weights) -> Result<(), DeviceError> {
        check_weights(buffers, &weights)?;
        self.buffers = buffers.clone();
        self.plans.clear();
        self.memory.0 = buffers
            .iter()
            .map(|(_, b)| match (b.kind, weights.get(&b.name)) {
                (BufferKind::Weight, Some(weight)) => HostBuffer::F32(Arc::new(dense(weight))),
                _ => HostBuffer::poisoned(b.element, b.elements()),
            })
            .collect();
        Ok(())
    }

    fn compile(&mut self, plan: &Arc<Plan>) -> Result<PlanId, DeviceError> {
        for (index, launch) in plan.launches().iter().enumerate() {
            if (self.table)(launch.kernel).is_none() {
                return Err(DeviceError::MissingKernel {
                    device: self.name().into(),
                    kernel: launch.kernel.into(),
                    launch: index,
                });
            }
        }
        self.plans.push(plan.clone());
        Ok(PlanId(self.plans.len() - 1))
    }

    fn submit(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        let plan = self.plans[plan.0].clone();
        (0..plan.launches().len()).try_for_each(|index| self.run(&plan, index))
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run_launch(&mut self, plan: PlanId, launch: usize) -> Result<(), DeviceError> {
        let plan = self.plans[plan.0].clone();
        self.run(&plan, launch)
    }

    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let declared = self.buffers.get(buffer);
        let size = declared.element.bytes().unwrap_or(4);
        let range = offset / size..(offset + out.len()) / size;
        let outside = || DeviceError::Usage(format!("read outside of {}", declared.name));
        match &self.memory.0[buffer.index()] {
            HostBuffer::I32(v) => {
                let v = v.get(range).ok_or_else(outside)?;
                out.copy_from_slice(bytemuck::cast_slice(v));
            }
            HostBuffer::F32(v) if size == 2 => {
                let v = v.get(range).ok_or_else(outside)?;
                for (to, v) in out.as_chunks_mut::<2>().0.iter_mut().zip(v) {
                    *to = bf16::from_f32(*v).to_le_bytes();
                }
            }
            HostBuffer::F32(v) => {
                let v = v.get(range).ok_or_else(outside)?;
                out.copy_from_slice(bytemuck::cast_slice(v));
            }
        }
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        let declared = self.buffers.get(buffer);
        let size = declared.element.bytes().unwrap_or(4);
        let range = offset / size..(offset + data.len()) / size;
        let outside = || DeviceError::Usage(format!("write outside of {}", declared.name));
        match &mut self.memory.0[buffer.index()] {
            HostBuffer::I32(v) => {
                let v = Arc::make_mut(v).get_mut(range).ok_or_else(outside)?;
                bytemuck::cast_slice_mut(v).copy_from_slice(data);
            }
            HostBuffer::F32(v) if size == 2 => {
                let v = Arc::make_mut(v).get_mut(range).ok_or_else(outside)?;
                for (v, bytes) in v.iter_mut().zip(data.as_chunks::<2>().0) {
                    *v = bf16::from_le_bytes(*bytes).to_f32();
                }
            }
            HostBuffer::F32(v) => {
                let v = Arc::make_mut(v).get_mut(range).ok_or_else(outside)?;
                bytemuck::cast_slice_mut(v).copy_from_slice(data);
            }
        }
        Ok(())
    }

    fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }
}

fn dense(weight: &Weight) -> Vec<f32> {
    match weight {
        Weight::Vector(v) => v.clone(),
        Weight::Matrix(m) => {
            let mut out = vec![0.0; m.experts() * m.rows() * m.k()];
            for (i, row) in out.chunks_mut(m.k()).enumerate() {
                m.row(i / m.rows(), i % m.rows()).dequantise(row);
            }
            out
        }
    }
}
