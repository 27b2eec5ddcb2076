//! Options of `--device metal` that are there to be measured.

use clap::{Args, Error};

use super::{DeviceChoice, conflict};

/// How decode steps go to the GPU of a Mac.
#[derive(Clone, Copy, Args)]
pub struct MetalArgs {
    /// Encode each kind of decode step once, into indirect command buffers, not each time (Metal only; nobody has measured
    /// which is faster).
    #[arg(long)]
    pub encode_once: bool,
    /// Commit the first N stages of a decode step before the others are encoded (Metal only; as above).
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub commit_early: usize,
}

impl MetalArgs {
    /// Checks that the device has what is asked of it.
    ///
    /// # Errors
    /// An option is given and another device is named.
    pub fn check(self, command: &str, device: DeviceChoice) -> Result<(), Error> {
        let stray = match self {
            Self { encode_once: true, .. } => "--encode-once",
            Self { commit_early: 1.., .. } => "--commit-early",
            Self { .. } => return Ok(()),
        };
        if device == DeviceChoice::Metal {
            return Ok(());
        }
        Err(conflict(command, &format!("{stray} has no effect without --device metal")))
    }
}
