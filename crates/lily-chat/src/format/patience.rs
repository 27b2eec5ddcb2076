//! Work that somebody may give up on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody still waits for a format; copies belong to the same work.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<AtomicBool>);

impl Patience {
    /// Nobody waits any more: the work ends at its next step.
    pub fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether nobody waits any more.
    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
