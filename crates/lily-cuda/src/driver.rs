//! The CUDA driver behind safe types: a device with one stream, memory, functions, graphs.

use std::ffi::{CString, c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::error::CudaError;

fn call<T>(what: &str, outcome: Result<T, DriverError>) -> Result<T, CudaError> {
    outcome.map_err(|error| {
        let text = |s: Result<&std::ffi::CStr, DriverError>| {
            s.map(|s| s.to_string_lossy().into_owned()).unwrap_or_else(|_| format!("{:?}", error.0))
        };
        CudaError::Driver {
            call: what.into(),
            reason: format!("{} ({})", text(error.error_string()), text(error.error_name())),
        }
    })
}

/// What is known about a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Version of the driver's interface, 1000 times the major number.
    pub driver_version: i32,
}

/// An opened GPU with the stream that everything runs on.
pub(crate) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    info: DeviceInfo,
}

// SAFETY: the driver's handles may be used from any thread; every method makes the context current first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Gpu {}

/// Calls that are made before the driver has told its version. Those that follow are in every driver of the least version.
const FIRST_CALLS: [&str; 7] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
];

/// Refuses a library that has the driver's name and not its functions: they are looked up where they are called, and one that is
/// missing there is a panic.
fn check_library() -> Result<(), CudaError> {
    for call in FIRST_CALLS {
        // SAFETY: the library was just loaded; its function is looked up and not called.
        if unsafe { sys::culib().get::<*const ()>(call.as_bytes()) }.is_err() {
            return Err(CudaError::Driver {
                call: call.into(),
                reason: "the library that was found as NVIDIA's driver has no such function".into(),
            });
        }
    }
    Ok(())
}

impl Gpu {
    /// Opens GPU number `index`.
    pub fn open(index: usize) -> Result<Arc<Self>, CudaError> {
        // SAFETY: only looks whether the library can be loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        check_library()?;
        match result::init() {
            // As where CUDA_VISIBLE_DEVICES hides them.
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
                return Err(CudaError::NoGpu { found: 0, wanted: index });
            }
            // Of the toolkit, to link against.
            Err(DriverError(sys::CUresult::CUDA_ERROR_STUB_LIBRARY)) => {
                return Err(CudaError::NoDriver);
            }
            started => call("cuInit", started)?,
        }
        let found = call("cuDeviceGetCount", result::device::get_count())? as usize;
        if index >= found {
            return Err(CudaError::NoGpu { found, wanted: index });
        }
        let device = call("cuDeviceGet", result::device::get(index as i32))?;
        let info = info(device)?;
        // Older ones have no `cuLaunchKernelEx`.
        if info.driver_version < 11_080 {
            return Err(CudaError::OldDriver { found: info.driver_version });
        }
        if info.capability < (8, 0) {
            let found = format!("{}.{}", info.capability.0, info.capability.1);
            return Err(CudaError::TooOld { name: info.name, found });
        }
        // SAFETY: the device exists; the context is released when this value is dropped.
        let context =
            call("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: the context was just retained.
        call("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })?;
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = call("cuStreamCreate", result::stream::create(kind))?;
        Ok(Arc::new(Self { device, context, stream, info }))
    }

    /// What the GPU is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Free and total bytes.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.enter()?;
        let (free, total) = call("cuMemGetInfo", result::mem_get_info())?;
        Ok((free as u64, total as u64))
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context lives as long as `self`.
        call("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }

    /// Waits for everything on the stream.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the stream lives as long as `self`.
        call("cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Whether a fault has made the GPU unusable for this program.
    pub fn is_lost(&self) -> bool {
        self.wait().is_err()
    }

    /// Device memory; not cleared.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<DeviceMemory, CudaError> {
        self.enter()?;
        // SAFETY: freed when the value is dropped, after everything on the stream.
        let allocated = unsafe { result::malloc_sync(bytes.max(16)) };
        if let Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) = allocated {
            return Err(CudaError::Memory { bytes: bytes as u64, free: self.memory()?.0 });
        }
        let pointer = call("cuMemAlloc", allocated)?;
        Ok(DeviceMemory { gpu: self.clone(), pointer, bytes })
    }

    /// Page-locked host memory.
    pub fn pinned(self: &Arc<Self>, bytes: usize) -> Result<PinnedMemory, CudaError> {
        self.enter()?;
        // SAFETY: freed when the value is dropped.
        let pointer = call("cuMemAllocHost", unsafe { result::malloc_host(bytes.max(16), 0) })?;
        Ok(PinnedMemory { gpu: self.clone(), pointer: pointer.cast(), bytes })
    }

    /// Loads machine code and finds a function in it.
    /// `shared` is the shared memory that launches of it ask for beside what the code declares.
    pub fn load(
        self: &Arc<Self>,
        image: &[u8],
        function: &str,
        shared: u32,
    ) -> Result<Function, CudaError> {
        self.enter()?;
        let name = CString::new(function).unwrap_or_default();
        // SAFETY: the image is a whole cubin; the driver checks it.
        let module =
            call("cuModuleLoadData", unsafe { result::module::load_data(image.as_ptr().cast()) })?;
        // SAFETY: the module was just loaded.
        let function =
            call("cuModuleGetFunction", unsafe { result::module::get_function(module, name) });
        let module = Module { gpu: self.clone(), module };
        let function = function?;
        if shared > 0 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found in a module that is held.
            let set =
                unsafe { result::function::set_function_attribute(function, most, shared as i32) };
            call("cuFuncSetAttribute", set)?;
        }
        Ok(Function { function, _module: Arc::new(module) })
    }

    /// Starts a kernel after everything on the stream. With `overlap` its blocks may start while the kernel
    /// before it ends: it must wait for that kernel's results itself.
    pub fn launch(&self, launch: &KernelLaunch, overlap: bool) -> Result<(), CudaError> {
        self.enter()?;
        let mut parameters: Vec<*mut c_void> = Vec::with_capacity(1 + launch.pointers.len());
        parameters.push(launch.args.as_ptr().cast_mut().cast());
        parameters.extend(launch.pointers.iter().map(|p| std::ptr::from_ref(p).cast_mut().cast()));
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let [x, y, z] = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: c_uint::from(overlap),
        };
        // SAFETY: the function takes the argument struct and then these pointers, which the device checked
        // against the kernel's signature; the driver copies the parameters before it returns.
        let status = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                launch.function.function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        call("cuLaunchKernelEx", status.result())
    }

    /// Records what `record` launches instead of running it.
    pub fn record(
        self: &Arc<Self>,
        record: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        self.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as `self`.
        call("cuStreamBeginCapture", unsafe { result::stream::begin_capture(self.stream, mode) })?;
        let recorded = record();
        // SAFETY: the capture was begun above and ends here in any case.
        let graph = call("cuStreamEndCapture", unsafe { result::stream::end_capture(self.stream) });
        recorded?;
        let graph = graph?;
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph was just captured; it is not needed after its executable form is made.
        let executable =
            call("cuGraphInstantiate", unsafe { result::graph::instantiate(graph, flags) });
        // SAFETY: as above.
        call("cuGraphDestroy", unsafe { result::graph::destroy(graph) })?;
        Ok(Graph { gpu: self.clone(), executable: executable? })
    }

    /// Runs a graph after everything on the stream.
    pub fn run(&self, graph: &Graph) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: graph and stream are alive.
        call("cuGraphLaunch", unsafe { result::graph::launch(graph.executable, self.stream) })
    }

    /// A mark on the stream.
    pub fn mark(self: &Arc<Self>) -> Result<Event, CudaError> {
        self.enter()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = call("cuEventCreate", result::event::create(flags))?;
        let event = Event { gpu: self.clone(), event };
        // SAFETY: event and stream are alive.
        call("cuEventRecord", unsafe { result::event::record(event.event, self.stream) })?;
        Ok(event)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Nothing can be done about errors here; the process may be ending.
        if self.enter().is_ok() {
            // SAFETY: nothing uses stream and context any more: all other values hold this one.
            unsafe {
                let _ = result::stream::destroy(self.stream);
                let _ = result::primary_ctx::release(self.device);
            }
        }
    }
}

fn info(device: sys::CUdevice) -> Result<DeviceInfo, CudaError> {
    use sys::CUdevice_attribute as A;
    let attribute = |a| {
        // SAFETY: the device exists.
        call("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, a) })
    };
    let mut driver_version = 0;
    // SAFETY: writes one number.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut driver_version) };
    call("cuDriverGetVersion", status.result())?;
    Ok(DeviceInfo {
        name: call("cuDeviceGetName", result::device::get_name(device))?,
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        // SAFETY: the device exists.
        memory_bytes: call("cuDeviceTotalMem", unsafe { result::device::total_mem(device) })?
            as u64,
        l2_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as u64,
        driver_version,
    })
}

/// Memory on the GPU.
pub(crate) struct DeviceMemory {
    gpu: Arc<Gpu>,
    pointer: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// Its address on the GPU.
    pub fn address(&self) -> u64 {
        self.pointer
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies into it after everything on the stream; `data` may be reused at once.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), CudaError> {
        self.copy_in(offset, data)
    }

    fn copy_in(&self, offset: usize, data: &[u8]) -> Result<(), CudaError> {
        assert!(offset + data.len() <= self.bytes, "write of {} at {offset}", data.len());
        self.gpu.enter()?;
        let to = self.pointer + offset as u64;
        // SAFETY: the range is inside; pageable memory is copied before the call returns.
        let copied = unsafe { result::memcpy_htod_async(to, data, self.gpu.stream) };
        call("cuMemcpyHtoDAsync", copied)
    }

    /// Starts a copy of a part of page-locked memory, which must stay as it is until a mark made after it has
    /// passed. Several threads may copy to parts that do not overlap.
    ///
    /// # Panics
    /// If a range is outside.
    pub fn write_pinned(
        &self,
        offset: usize,
        data: &PinnedMemory,
        part: Range<usize>,
    ) -> Result<(), CudaError> {
        self.copy_in(offset, &data.bytes_of()[part])
    }

    /// Sets every byte after everything on the stream.
    pub fn fill(&mut self, byte: u8) -> Result<(), CudaError> {
        self.gpu.enter()?;
        // SAFETY: the range is all of the memory.
        let filled =
            unsafe { result::memset_d8_async(self.pointer, byte, self.bytes, self.gpu.stream) };
        call("cuMemsetD8Async", filled)
    }

    /// Copies out of it after everything on the stream, and waits.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), CudaError> {
        assert!(offset + out.len() <= self.bytes, "read of {} at {offset}", out.len());
        self.gpu.enter()?;
        let from = self.pointer + offset as u64;
        // SAFETY: the range is inside, and the copy has ended when `wait` returns.
        let copied = unsafe { result::memcpy_dtoh_async(out, from, self.gpu.stream) };
        call("cuMemcpyDtoHAsync", copied)?;
        self.gpu.wait()
    }
}

impl DeviceMemory {
    /// Starts a copy out of it into page-locked memory, which must not be looked at before a mark made
    /// after it has passed.
    ///
    /// # Panics
    /// If a range is outside.
    pub fn read_pinned(
        &self,
        offset: usize,
        to: &mut PinnedMemory,
        part: Range<usize>,
    ) -> Result<(), CudaError> {
        assert!(offset + part.len() <= self.bytes, "read of {} at {offset}", part.len());
        self.gpu.enter()?;
        let (from, stream) = (self.pointer + offset as u64, self.gpu.stream);
        // SAFETY: the range is inside; the caller leaves the memory alone until the copy has ended.
        let copied = unsafe { result::memcpy_dtoh_async(&mut to.bytes_mut()[part], from, stream) };
        call("cuMemcpyDtoHAsync", copied)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: nothing on the stream uses it any more.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}

/// Page-locked host memory.
pub(crate) struct PinnedMemory {
    gpu: Arc<Gpu>,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// Its contents.
    pub fn bytes_of(&self) -> &[u8] {
        // SAFETY: allocated with this size, and initialised by the system or by `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    /// Its contents.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: no copy uses it any more.
            let _ = unsafe { result::free_host(self.pointer.cast()) };
        }
    }
}

struct Module {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: no function of it runs or will run: functions and graphs hold the module.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// A kernel function.
#[derive(Clone)]
pub(crate) struct Function {
    function: sys::CUfunction,
    _module: Arc<Module>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Function {}

/// A kernel with everything that it is started with.
pub(crate) struct KernelLaunch {
    /// The function.
    pub function: Function,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory beside what the code declares, in bytes.
    pub shared: u32,
    /// The argument struct, first parameter.
    pub args: Vec<u8>,
    /// Addresses, the further parameters.
    pub pointers: Vec<u64>,
}

/// A recorded sequence of kernels.
pub(crate) struct Graph {
    gpu: Arc<Gpu>,
    executable: sys::CUgraphExec,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: it does not run any more.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

/// A mark on the stream.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// Waits until the stream has passed it.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.gpu.enter()?;
        // SAFETY: the event was recorded.
        call("cuEventSynchronize", unsafe { result::event::synchronize(self.event) })
    }

    /// Milliseconds from an earlier mark to this one; waits for both.
    pub fn since(&self, earlier: &Self) -> Result<f32, CudaError> {
        self.gpu.enter()?;
        // SAFETY: both events were recorded.
        unsafe {
            call("cuEventSynchronize", result::event::synchronize(self.event))?;
            call("cuEventElapsedTime", result::event::elapsed(earlier.event, self.event))
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: nothing refers to it; the driver keeps a pending mark alive itself.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
