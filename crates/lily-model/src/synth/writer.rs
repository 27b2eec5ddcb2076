//! Making and writing the tensors on all cores, in bounded memory.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

use super::folder::{self, Claim, Todo, failed};
use super::plan::{Shard, SynthPlan, plan};
use super::{SynthError, SynthOptions, SynthProgress, SynthReport};

/// Bytes that one thread makes and writes at a time; a multiple of every element size.
const BLOCK_BYTES: u64 = 1 << 20;

/// More threads than this wait for the disk, not for numbers.
const MAX_THREADS: usize = 16;

/// Writes a random checkpoint and reports progress on the calling thread.
///
/// Files have temporary names until all are complete. On any error, and when stopped, everything
/// written is removed; a run that is killed leaves only files under temporary names, which the
/// next run replaces. Memory use is a block of 1 MiB for each thread.
///
/// # Errors
/// The configuration is not supported, the folder holds something else, the disk is too small, or
/// a file operation fails.
pub fn write(
    options: &SynthOptions,
    progress: &mut dyn FnMut(SynthProgress<'_>),
) -> Result<SynthReport, SynthError> {
    write_plan(options, &plan(&options.config, options.seed)?, progress)
}

pub(super) fn write_plan(
    options: &SynthOptions,
    plan: &SynthPlan,
    progress: &mut dyn FnMut(SynthProgress<'_>),
) -> Result<SynthReport, SynthError> {
    let report = |reused| SynthReport {
        files: plan.shards.len(),
        tensors: plan.tensors(),
        bytes: plan.tensor_bytes(),
        reused,
    };
    if folder::inspect(options, plan)? == Todo::Nothing {
        return Ok(report(true));
    }
    let claim = Claim::new(&options.out, plan)?;
    let paths: Vec<PathBuf> = plan.files().map(|(name, _)| claim.partial(name)).collect();
    for (shard, path) in plan.shards.iter().zip(&paths) {
        start(shard, path).map_err(failed("write", path))?;
    }
    let stop = AtomicBool::new(false);
    let asked = || options.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed));
    fill_all(plan, &paths, &stop, &mut |update| {
        progress(update);
        if asked() {
            stop.store(true, Ordering::Relaxed);
        }
    })?;
    if asked() || stop.into_inner() {
        return Err(SynthError::Cancelled);
    }
    claim.keep(plan)?;
    Ok(report(false))
}

/// Creates a file with its header and its full length.
fn start(shard: &Shard, path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&shard.head)?;
    file.set_len(shard.bytes)
}

/// A part of one tensor.
struct Block {
    shard: usize,
    tensor: usize,
    /// First byte inside the tensor.
    first: u64,
    bytes: u64,
}

fn blocks(plan: &SynthPlan) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (shard, tensors) in plan.shards.iter().map(|shard| &shard.tensors).enumerate() {
        for (tensor, placed) in tensors.iter().enumerate() {
            for first in (0..placed.bytes).step_by(BLOCK_BYTES as usize) {
                let bytes = BLOCK_BYTES.min(placed.bytes - first);
                blocks.push(Block { shard, tensor, first, bytes });
            }
        }
    }
    blocks
}

/// Makes all blocks, handing them to threads in file order.
fn fill_all(
    plan: &SynthPlan,
    paths: &[PathBuf],
    stop: &AtomicBool,
    progress: &mut dyn FnMut(SynthProgress<'_>),
) -> Result<(), SynthError> {
    let blocks = blocks(plan);
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let (mut bytes_done, bytes_total) = (0, plan.tensor_bytes());
    thread::scope(|scope| {
        // The receiver lives inside the scope: if the caller panics, sending fails and threads end.
        let (sender, updates) = mpsc::channel();
        for thread in 0..threads {
            let (sender, blocks, next) = (sender.clone(), &blocks, &next);
            let work = move || fill_some(plan, paths, blocks, next, stop, &sender);
            match thread::Builder::new().spawn_scoped(scope, work) {
                Ok(_) => {}
                Err(source) if thread == 0 => return Err(SynthError::NoThread { source }),
                // Those that run do all of it.
                Err(_) => break,
            }
        }
        drop(sender);
        for update in updates {
            let block: &Block = update?;
            bytes_done += block.bytes;
            let file = plan.shards[block.shard].name.as_str();
            progress(SynthProgress { bytes_done, bytes_total, file });
        }
        Ok(())
    })
}

/// One thread's work: the next block that nobody has taken, until there is none.
fn fill_some<'a>(
    plan: &SynthPlan,
    paths: &[PathBuf],
    blocks: &'a [Block],
    next: &AtomicUsize,
    stop: &AtomicBool,
    sender: &Sender<Result<&'a Block, SynthError>>,
) {
    let mut buffer = Vec::new();
    let mut open: Option<(usize, File)> = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
        let placed = plan.shards[block.shard].tensors[block.tensor];
        buffer.resize(block.bytes as usize, 0);
        placed.values.fill(block.first, &mut buffer);
        let mut put = || {
            let file = match &mut open {
                Some((shard, file)) if *shard == block.shard => file,
                other => {
                    let file = File::options().write(true).open(&paths[block.shard])?;
                    &mut other.insert((block.shard, file)).1
                }
            };
            file.seek(SeekFrom::Start(placed.offset + block.first))?;
            file.write_all(&buffer)
        };
        let done = put().map_err(failed("write", &paths[block.shard])).map(|()| block);
        let failed = done.is_err();
        // Sending fails when the caller has given up.
        if sender.send(done).is_err() || failed {
            break;
        }
    }
}
