//! Functions from embedded source, several at once, with their machine code kept in binary archives.
//!
//! An archive saves the back end's work; the front end reads the source at every start. What it is found by:
//! [`archive`](crate::archive).

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lily_plan::CompileTimes;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLDevice as _,
    MTLLibrary as _, MTLPipelineOption,
};

use super::{Gpu, Pipeline, System, message};
use crate::archive::Place;
use crate::machine::{HostError, Wanted};

/// Compiles functions.
pub(super) struct Compiler {
    gpu: Gpu,
    place: Place,
    cache: Option<PathBuf>,
    times: CompileTimes,
}

/// A compiled function with its times.
struct Compiled {
    pipeline: Pipeline,
    front: Duration,
    back: Duration,
    archived: bool,
}

impl Compiler {
    /// A compiler for a GPU; without a `cache` folder nothing is kept.
    pub fn new(gpu: &Gpu, system: &System, cache: Option<PathBuf>) -> Self {
        let place = Place {
            lily: env!("CARGO_PKG_VERSION"),
            gpu: system.name.clone(),
            system: system.version_text.clone(),
        };
        Self { gpu: gpu.clone(), place, cache, times: CompileTimes::default() }
    }

    /// Time spent so far.
    pub fn times(&self) -> CompileTimes {
        self.times
    }

    /// Compiles functions on as many threads as the machine has; the results are in their order.
    pub fn compile(&mut self, wanted: &[Wanted<'_>]) -> Result<Vec<Pipeline>, HostError> {
        let next = AtomicUsize::new(0);
        let workers = thread::available_parallelism().map_or(1, |n| n.get()).min(wanted.len());
        let this = &*self;
        let mut done = thread::scope(|scope| {
            let work = || {
                let mut done = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(wanted) = wanted.get(index) else { return done };
                    done.push((index, autoreleasepool(|_| this.function(wanted))));
                }
            };
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let joined = threads.into_iter().map(|t| t.join().unwrap_or_else(|p| resume_unwind(p)));
            joined.flatten().collect::<Vec<_>>()
        });
        done.sort_by_key(|(index, _)| *index);
        let mut pipelines = Vec::with_capacity(done.len());
        for (_, compiled) in done {
            let compiled = compiled?;
            self.times.front += compiled.front.as_secs_f64();
            self.times.back += compiled.back.as_secs_f64();
            self.times.functions += 1;
            self.times.kept += usize::from(compiled.archived);
            pipelines.push(compiled.pipeline);
        }
        Ok(pipelines)
    }

    fn function(&self, wanted: &Wanted<'_>) -> Result<Compiled, HostError> {
        let refused =
            |message: String| HostError::Compile { kernel: wanted.kernel.into(), message };
        let start = Instant::now();
        let text = NSString::from_str(&wanted.source.text);
        let library = self.gpu.newLibraryWithSource_options_error(&text, None);
        let library = library.map_err(|error| refused(message(&error)))?;
        let name = NSString::from_str(wanted.source.function);
        let function = library.newFunctionWithName(&name);
        let function = function.ok_or_else(|| {
            refused(format!("its text has no function `{}`", wanted.source.function))
        })?;
        let front = start.elapsed();
        let start = Instant::now();
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setComputeFunction(Some(&function));
        // SAFETY: every entry has whole simdgroups, which the device checks against the pipeline.
        unsafe { descriptor.setThreadGroupSizeIsMultipleOfThreadExecutionWidth(true) };
        descriptor.setSupportIndirectCommandBuffers(wanted.indirect);
        let archive = self.archive(wanted);
        if let Some(pipeline) = archive.as_deref().and_then(|path| self.load(&descriptor, path)) {
            return Ok(Compiled { pipeline, front, back: start.elapsed(), archived: true });
        }
        let pipeline = self.gpu.newComputePipelineStateWithDescriptor_options_reflection_error(
            &descriptor,
            MTLPipelineOption::None,
            None,
        );
        let pipeline = pipeline.map_err(|error| refused(message(&error)))?;
        let back = start.elapsed();
        if let Some(path) = archive {
            // Without the archive the next start is slower, and that is all.
            let _ = self.store(&descriptor, &path);
        }
        Ok(Compiled { pipeline, front, back, archived: false })
    }

    /// Where a function's machine code is kept.
    fn archive(&self, wanted: &Wanted<'_>) -> Option<PathBuf> {
        Some(self.cache.as_ref()?.join(self.place.file_name(wanted)))
    }

    /// A pipeline whose machine code is in an archive; `None` if it is not.
    fn load(&self, descriptor: &MTLComputePipelineDescriptor, path: &Path) -> Option<Pipeline> {
        if !path.exists() {
            return None;
        }
        let archive = self.open(Some(path))?;
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive])));
        let options = MTLPipelineOption::FailOnBinaryArchiveMiss;
        let pipeline = self.gpu.newComputePipelineStateWithDescriptor_options_reflection_error(
            descriptor, options, None,
        );
        descriptor.setBinaryArchives(None);
        pipeline.ok()
    }

    /// Writes an archive whole or not at all: another process may do the same.
    fn store(&self, descriptor: &MTLComputePipelineDescriptor, path: &Path) -> Option<()> {
        std::fs::create_dir_all(path.parent()?).ok()?;
        let archive = self.open(None)?;
        archive.addComputePipelineFunctionsWithDescriptor_error(descriptor).ok()?;
        let part = path.with_extension(format!("{}.part", std::process::id()));
        archive.serializeToURL_error(&*url(&part)?).ok()?;
        std::fs::rename(&part, path).ok()
    }

    fn open(&self, path: Option<&Path>) -> Option<Retained<ProtocolObject<dyn MTLBinaryArchive>>> {
        let descriptor = MTLBinaryArchiveDescriptor::new();
        if let Some(path) = path {
            descriptor.setUrl(Some(&*url(path)?));
        }
        self.gpu.newBinaryArchiveWithDescriptor_error(&descriptor).ok()
    }
}

fn url(path: &Path) -> Option<Retained<NSURL>> {
    Some(NSURL::fileURLWithPath(&NSString::from_str(path.to_str()?)))
}
