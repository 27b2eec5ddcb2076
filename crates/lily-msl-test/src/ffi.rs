//! The runtime and compiled kernels as libraries: every call into them.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::NonNull;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW, Symbol};
use lily_kernels::gpu::translate::{BufferParam, Translation};

use crate::compiler::Build;
use crate::memory::Block;
use crate::symbols;

/// Argument of a launch, as in `runtime/lily_runtime.h`.
#[repr(C)]
struct Buffer {
    data: *mut c_void,
    bytes: u64,
    writable: u32,
}

/// As in `runtime/dispatch.cpp`.
#[repr(C)]
struct Launch {
    entry: *const c_void,
    buffers: *const Buffer,
    n_buffers: u32,
    threads: u32,
    grid: [u32; 3],
    checked: u32,
    reverse: u32,
    workers: u32,
}

/// As in `runtime/dispatch.cpp`.
#[repr(C)]
struct RawFailure {
    message: [c_char; 2048],
    file: [c_char; 512],
    line: u64,
    in_text: u32,
}

/// The loaded runtime.
pub(crate) struct Runtime {
    allocate: Symbol<unsafe extern "C" fn(u64) -> *mut c_void>,
    free: Symbol<unsafe extern "C" fn(*mut c_void)>,
    dispatch: Symbol<unsafe extern "C" fn(*const Launch, *mut RawFailure) -> i32>,
    // Behind the symbols: they are gone before it.
    _library: Library,
}

impl Runtime {
    /// Loads the runtime; kernels that are loaded later find its functions.
    pub fn load(path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: the library is the one that this crate compiled from `runtime/`: it has no initialisers
        // beyond those of C++'s library, and its functions have the types given.
        unsafe {
            let library = Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL)?;
            Ok(Self {
                allocate: library.get(b"lily_allocate\0")?,
                free: library.get(b"lily_free\0")?,
                dispatch: library.get(b"lily_dispatch\0")?,
                _library: library,
            })
        }
    }

    /// `bytes` of device memory; `None` if there is no room.
    pub fn allocate(&self, bytes: u64) -> Option<NonNull<u8>> {
        // SAFETY: the function takes any size.
        NonNull::new(unsafe { (self.allocate)(bytes) }.cast())
    }

    /// # Safety
    /// The memory is of [`allocate`](Self::allocate), and nobody uses it any more.
    pub unsafe fn free(&self, data: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { (self.free)(data.as_ptr().cast()) }
    }
}

/// A compiled kernel.
pub struct Kernel {
    entry: *const c_void,
    runtime: &'static Runtime,
    name: String,
    buffers: Vec<BufferParam>,
    max_threads: u32,
    build: Build,
    _library: Library,
}

// SAFETY: the entry point is a function without state of its own; the runtime locks what it shares.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// A buffer argument of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    pub(crate) data: NonNull<u8>,
    pub(crate) bytes: u64,
    pub(crate) block: PhantomData<&'a Block>,
}

/// Grid of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Threadgroups along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
}

/// Order in which threads and threadgroups run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The first one first.
    Forward,
    /// The last one first; and other lanes run between two atomic operations.
    Reverse,
}

/// Why a launch failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Failure {
    /// File and line of the kernel's text; the address in its library if no tool gives the line.
    pub place: String,
    /// What happened, to which thread.
    pub message: String,
}

impl Kernel {
    pub(crate) fn load(
        runtime: &'static Runtime,
        path: &Path,
        translation: &Translation,
        build: Build,
    ) -> Result<Self, libloading::Error> {
        // SAFETY: the library is a translation's, compiled by this crate: no initialisers, and these two
        // symbols with these types.
        let (library, entry, max_threads) = unsafe {
            let library = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL)?;
            let entry: Symbol<*const c_void> = library.get(b"lily_entry\0")?;
            let max_threads: Symbol<*const u32> = library.get(b"lily_max_threads\0")?;
            let (entry, max_threads) = (entry.into_raw(), *max_threads.into_raw().cast::<u32>());
            (library, entry.cast_const(), max_threads)
        };
        Ok(Self {
            entry,
            runtime,
            name: translation.function.clone(),
            buffers: translation.buffers.clone(),
            max_threads,
            build,
            _library: library,
        })
    }

    /// Name of the kernel function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Buffer arguments.
    pub fn buffers(&self) -> &[BufferParam] {
        &self.buffers
    }

    /// Runs a launch on `workers` threads; a checked one on one thread.
    pub fn run(
        &self,
        geometry: Geometry,
        bindings: &[Binding<'_>],
        order: Order,
        workers: usize,
    ) -> Result<(), Failure> {
        let here = |message: String| Failure { place: self.name.clone(), message };
        let Geometry { grid, threads } = geometry;
        if threads == 0 || !threads.is_multiple_of(32) || threads > self.max_threads.min(1024) {
            let limit = self.max_threads.min(1024);
            return Err(here(format!(
                "{threads} threads in a threadgroup, need a multiple of 32 up to {limit}"
            )));
        }
        if bindings.len() != self.buffers.len() {
            let (found, need) = (bindings.len(), self.buffers.len());
            return Err(here(format!("{found} buffers, the kernel takes {need}")));
        }
        let buffers: Vec<_> = bindings
            .iter()
            .zip(&self.buffers)
            .map(|(binding, param)| Buffer {
                data: binding.data.as_ptr().cast(),
                bytes: binding.bytes,
                writable: u32::from(!param.is_const),
            })
            .collect();
        let launch = Launch {
            entry: self.entry,
            buffers: buffers.as_ptr(),
            n_buffers: buffers.len() as u32,
            threads,
            grid,
            checked: u32::from(self.build == Build::Checked),
            reverse: u32::from(order == Order::Reverse),
            workers: workers as u32,
        };
        let mut failure = RawFailure { message: [0; 2048], file: [0; 512], line: 0, in_text: 0 };
        // SAFETY: both point to live values. The bindings borrow blocks, which give no references to their
        // memory and stay with this thread until the call is over. An access outside of them ends the launch.
        if unsafe { (self.runtime.dispatch)(&launch, &mut failure) } == 0 {
            return Ok(());
        }
        let (file, message) = (text(&failure.file), text(&failure.message));
        let place = match (file.is_empty(), failure.in_text != 0) {
            (true, _) => self.name.clone(),
            (_, true) => format!("{file}:{}", failure.line),
            (_, false) => symbols::place(&file, failure.line),
        };
        Err(Failure { place, message })
    }
}

/// A string in an array, up to its zero.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
