//! Mapped weights brought into memory while the first steps run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use lily_plan::Weights;

use super::pages::{populate, want_huge_mapped};
use super::tensors;

/// Bytes asked for at a time; between two of them the thread looks whether it is still wanted.
const PIECE: usize = 16 << 20;

/// A thread that touches the weights ahead of the first steps. It ends when it has touched all, or when
/// this is dropped.
pub(crate) struct Prefetch {
    stop: Arc<AtomicBool>,
    /// Gives the bytes that the system was asked for with success.
    thread: Option<JoinHandle<u64>>,
}

impl Prefetch {
    /// Starts, if there is something to do. The thread keeps the mappings alive.
    pub(crate) fn start(weights: &Weights) -> Option<Self> {
        let tensors = tensors(weights);
        if tensors.is_empty() {
            return None;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let work = {
            let stop = stop.clone();
            move || touch(&tensors, &stop)
        };
        let thread = thread::Builder::new().name("lily-prefetch".into()).spawn(work).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }

    /// Waits until all is touched; gives the bytes.
    #[cfg(test)]
    pub(super) fn finish(mut self) -> u64 {
        self.thread.take().expect("it is taken here alone").join().expect("it does not panic")
    }
}

fn touch(tensors: &BTreeMap<(usize, usize), Bytes>, stop: &AtomicBool) -> u64 {
    let mut touched = 0;
    // What is still to be read from the disk is then read into huge pages, where the file system has them.
    want_huge_mapped(tensors.values().map(Bytes::as_ref));
    for piece in tensors.values().flat_map(|tensor| tensor.chunks(PIECE)) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if populate(piece) {
            touched += piece.len() as u64;
        }
    }
    touched
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does nothing that panics.
            let _ = thread.join();
        }
    }
}
