//! What a reference kernel sees: its arguments, the buffers it may read, and stores.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::Buffers;
use crate::interpreter::{HostBuffer, POISON_I32};
use crate::launch::Launch;

/// Values on their way into a buffer; applied after the launch, so that reads see the state before.
pub(crate) enum Store {
    F32 { first: usize, values: Vec<f32> },
    I32 { first: usize, values: Vec<i32> },
}

impl Store {
    pub(crate) fn range(&self) -> Range<usize> {
        match self {
            Self::F32 { first, values } => *first..first + values.len(),
            Self::I32 { first, values } => *first..first + values.len(),
        }
    }

    pub(crate) fn has_poison(&self) -> bool {
        match self {
            Self::F32 { values, .. } => values.iter().any(|v| v.is_nan()),
            Self::I32 { values, .. } => values.contains(&POISON_I32),
        }
    }
}

/// The view of one launch. Bindings are addressed by their index in the launch.
pub struct ReferenceIo<'a> {
    launch: &'a Launch,
    buffers: &'a Buffers,
    views: Vec<Option<HostBuffer>>,
    stores: Vec<Vec<Store>>,
}

impl<'a> ReferenceIo<'a> {
    pub(crate) fn new(
        launch: &'a Launch,
        buffers: &'a Buffers,
        views: Vec<Option<HostBuffer>>,
    ) -> Self {
        let stores = launch.bindings.iter().map(|_| Vec::new()).collect();
        Self { launch, buffers, views, stores }
    }

    pub(crate) fn into_stores(self) -> Vec<Vec<Store>> {
        self.stores
    }

    /// The launch's argument struct.
    ///
    /// # Panics
    /// If `A` is not the struct that was recorded: the kernel table is wrong.
    pub fn args<A: bytemuck::Pod>(&self) -> A {
        bytemuck::pod_read_unaligned(&self.launch.args)
    }

    /// Shape of a bound buffer.
    pub fn shape(&self, binding: usize) -> &'a [usize] {
        &self.buffers.get(self.launch.bindings[binding].buffer).shape
    }

    /// A float buffer, whole; weight matrices are dense, row-major. Memory outside of the declared
    /// exact reads is NaN in checked mode.
    ///
    /// # Panics
    /// If the binding is not declared as a read of a float buffer: the reference is wrong.
    pub fn f32(&self, binding: usize) -> Arc<Vec<f32>> {
        match &self.views[binding] {
            Some(HostBuffer::F32(v)) => v.clone(),
            _ => panic!("{} does not declare a float read {binding}", self.launch.label()),
        }
    }

    /// An integer buffer, whole.
    ///
    /// # Panics
    /// If the binding is not declared as a read of an integer buffer: the reference is wrong.
    pub fn i32(&self, binding: usize) -> Arc<Vec<i32>> {
        match &self.views[binding] {
            Some(HostBuffer::I32(v)) => v.clone(),
            _ => panic!("{} does not declare an integer read {binding}", self.launch.label()),
        }
    }

    /// Stores floats from element `first` of the flat buffer on; bfloat16 buffers round them.
    pub fn store(&mut self, binding: usize, first: usize, values: impl Into<Vec<f32>>) {
        self.stores[binding].push(Store::F32 { first, values: values.into() });
    }

    /// Stores integers from element `first` of the flat buffer on.
    pub fn store_i32(&mut self, binding: usize, first: usize, values: impl Into<Vec<i32>>) {
        self.stores[binding].push(Store::I32 { first, values: values.into() });
    }
}
