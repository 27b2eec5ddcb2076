//! Arguments of `lily doctor`.

use clap::Args;

use super::DeviceChoice;

/// `lily doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Device to look at.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Run every case of every kernel, not only the smallest of each kind.
    #[arg(long)]
    pub full: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}
