//! What a kernel's CPU face sees: a launch cut into independent tiles.
//!
//! A tile corresponds to one or more threadgroups: tiles of a launch may run on any thread in any
//! order. The executor (`lily-cpu`) asks for the number of tiles once, before the launch starts, and
//! then runs them all.

pub mod delta;
mod multiply;
pub mod panel;
mod product;
mod project;
mod shared;
mod simd;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use half::bf16;
use lily_plan::WeightMatrix;

pub use multiply::{ProductTiles, TILE_TOKENS};
pub use product::{Block, Inputs, Wanted, multiply};
pub use project::Projection;
pub use shared::SharedSlice;
pub(crate) use simd::Element;
pub use simd::{Level, LevelError, Simd, VARIABLE};

/// Numbers of the matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// f32 inputs.
    Exact,
    /// Inputs rounded to 8 bits with an f32 scale for every 64.
    Int8,
}

/// A bound buffer.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// f32 elements.
    F32(SharedSlice<'a, f32>),
    /// bfloat16 elements.
    Bf16(SharedSlice<'a, bf16>),
    /// i32 elements.
    I32(SharedSlice<'a, i32>),
    /// A weight matrix, in place.
    Matrix(&'a WeightMatrix),
}

/// One launch, as its tiles see it.
pub struct CpuLaunch<'a> {
    /// Argument struct as bytes.
    pub args: &'a [u8],
    /// Buffers in the order of the launch's bindings.
    pub operands: &'a [Operand<'a>],
    /// Numbers of the matrix products.
    pub numerics: Numerics,
    /// Vector operations of this machine.
    pub simd: Simd,
    /// Differs from every other run of a launch in this process: what a thread has prepared for one
    /// tile serves the later ones.
    pub stamp: u64,
}

/// A stamp that no other run has.
pub fn next_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<'a> CpuLaunch<'a> {
    /// The argument struct.
    pub fn args<A: bytemuck::Pod>(&self) -> A {
        bytemuck::pod_read_unaligned(self.args)
    }

    /// An f32 buffer.
    ///
    /// # Panics
    /// If the plan bound another element type; the executor turns a panic into an error that names
    /// the kernel.
    pub fn f32(&self, binding: usize) -> SharedSlice<'a, f32> {
        match self.operands[binding] {
            Operand::F32(slice) => slice,
            _ => panic!("binding {binding} is not f32"),
        }
    }

    /// An i32 buffer. Panics as [`f32`](Self::f32).
    pub fn i32(&self, binding: usize) -> SharedSlice<'a, i32> {
        match self.operands[binding] {
            Operand::I32(slice) => slice,
            _ => panic!("binding {binding} is not i32"),
        }
    }

    /// A weight matrix. Panics as [`f32`](Self::f32).
    pub fn matrix(&self, binding: usize) -> &'a WeightMatrix {
        match self.operands[binding] {
            Operand::Matrix(matrix) => matrix,
            _ => panic!("binding {binding} is not a matrix"),
        }
    }

    /// The whole control block. No launch but the last of a plan writes it, and that one has a
    /// single tile.
    pub fn control(&self, binding: usize) -> &'a [i32] {
        let slice = self.i32(binding);
        // SAFETY: only `sample`, `draw` and `advance` write the control block; each runs as one tile and
        // reads it before it writes.
        unsafe { slice.read(0..slice.len()) }
    }
}

/// Memory of one thread that lives from tile to tile, so that tiles do not allocate.
#[derive(Default)]
pub struct Scratch {
    /// Prepared inputs of matrix products.
    pub inputs: Inputs,
    /// Float work space; a tile finds anything in it.
    pub floats: Vec<f32>,
    /// A second work space.
    pub more: Vec<f32>,
}

/// A kernel's CPU face.
#[derive(Clone, Copy)]
pub struct CpuFace {
    /// Number of tiles of the next run; 0 when every row is halted.
    pub tiles: fn(&CpuLaunch<'_>) -> usize,
    /// Runs one tile.
    pub run: fn(&CpuLaunch<'_>, usize, &mut Scratch),
}

/// Part `tile` of `0..n` cut into parts of `size`.
pub fn part(n: usize, size: usize, tile: usize) -> Range<usize> {
    (tile * size).min(n)..((tile + 1) * size).min(n)
}
