//! Ctrl-C.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// Exit status of a program that Ctrl-C ended.
pub const INTERRUPTED: i32 = 128 + SIGINT;

/// Stops the answer that is being given; without one it ends the program, as usual.
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    idle: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over Ctrl-C.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub fn new() -> io::Result<Self> {
        let interrupt =
            Self { asked: Arc::new(AtomicBool::new(false)), idle: Arc::new(AtomicBool::new(true)) };
        flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&interrupt.idle))?;
        flag::register(SIGINT, Arc::clone(&interrupt.asked))?;
        Ok(interrupt)
    }

    /// Runs `work`, during which Ctrl-C only sets the flag that it gets.
    pub fn during<T>(&self, work: impl FnOnce(&AtomicBool) -> T) -> T {
        self.asked.store(false, Ordering::Relaxed);
        self.idle.store(false, Ordering::Relaxed);
        let result = work(&self.asked);
        self.idle.store(true, Ordering::Relaxed);
        result
    }
}
