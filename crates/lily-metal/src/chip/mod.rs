//! Which Apple GPU a Mac has, and what lily does with it.
//!
//! [`Gpu`] is a chip with its core count. It is found by the name that Metal reports, or by a short name
//! such as `m5-max` for plans of a machine that is not there. [`Policy`] is what lily chooses for it; only
//! numbers live here, what is legal is decided by the kernels.

mod footprint;
mod policy;
mod products;
mod table;

use std::fmt;

pub use footprint::{Footprint, FootprintError, MAX_THREADS, SIMD_WIDTH, THREADGROUP_BYTES};
pub use policy::Policy;
pub use products::{OsVersion, ProductsChoice, Reason, SelfTest, TENSOR_OS, choose_products};
pub use table::{CHIPS, Chip, Variant};

/// Generation of an Apple GPU, as `MTLGPUFamily` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuFamily {
    /// M1.
    Apple7,
    /// M2.
    Apple8,
    /// M3 and M4.
    Apple9,
    /// M5: the first with units for tensor operations.
    Apple10,
}

impl GpuFamily {
    /// All of them, oldest first.
    pub const ALL: [Self; 4] = [Self::Apple7, Self::Apple8, Self::Apple9, Self::Apple10];

    /// The number of `MTLGPUFamily`, for `supportsFamily`.
    pub fn number(self) -> i64 {
        match self {
            Self::Apple7 => 1007,
            Self::Apple8 => 1008,
            Self::Apple9 => 1009,
            Self::Apple10 => 1010,
        }
    }

    /// The newest family for which `supports` holds, given [`number`](Self::number); `None` for GPUs that
    /// lily does not run on.
    pub fn newest(supports: impl Fn(i64) -> bool) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|family| supports(family.number()))
    }
}

impl fmt::Display for GpuFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Apple{}", self.number() - 1000)
    }
}

/// A GPU: a chip of the table with its number of cores, or one that the table does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Name as Metal reports it: `Apple M4 Max`.
    pub name: String,
    /// Generation.
    pub family: GpuFamily,
    /// GPU cores.
    pub cores: u32,
    /// Memory bandwidth in GB/s as published; for unknown chips the lowest of the table.
    pub bandwidth_gb_s: f64,
    /// Whether the table has the chip.
    pub known: bool,
}

/// A short name that the table does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no chip `{name}`; the chips are {known}")]
pub struct UnknownChip {
    /// What was asked for.
    pub name: String,
    /// Short names of all chips, with their core counts.
    pub known: String,
}

impl Gpu {
    /// The GPU that a Mac has. `device_name` is the name that Metal reports, `family` the newest family
    /// that the device supports, `cores` the number of GPU cores where the system says. A chip that the
    /// table does not have, such as one that came later or a virtual machine's, gets the family's defaults.
    pub fn of_device(device_name: &str, family: GpuFamily, cores: Option<u32>) -> Self {
        let chip = CHIPS.iter().find(|chip| chip.name == device_name.trim());
        let Some(chip) = chip else {
            let slowest = CHIPS.iter().flat_map(|chip| chip.variants);
            let bandwidth_gb_s = slowest.map(|v| v.bandwidth_gb_s).fold(f64::INFINITY, f64::min);
            let cores = cores.unwrap_or(UNKNOWN_CORES);
            return Self { name: device_name.into(), family, cores, bandwidth_gb_s, known: false };
        };
        // The largest variant that has no more cores than the device; without a count the smallest.
        let fits = |v: &&Variant| cores.is_some_and(|cores| v.cores <= cores);
        let variant = chip.variants.iter().rev().find(fits).unwrap_or(chip.smallest());
        let cores = cores.unwrap_or(variant.cores);
        // What the device says about itself comes before the table.
        Self { family, cores, ..chip.gpu(variant) }
    }

    /// A GPU by short name: `m5-max` is the largest variant, `m5-max-32` the one with 32 cores.
    ///
    /// # Errors
    /// The table does not have it; the message lists what it has.
    pub fn by_short_name(name: &str) -> Result<Self, UnknownChip> {
        let wanted = name.trim().to_ascii_lowercase();
        let of = |chip: &Chip| {
            let short = chip.short_name();
            let rest = wanted.strip_prefix(&short)?;
            let variant = match rest.strip_prefix('-') {
                None if rest.is_empty() => Some(chip.largest()),
                None => None,
                Some(cores) => chip.variants.iter().find(|v| v.cores.to_string() == cores),
            };
            variant.map(|v| chip.gpu(v))
        };
        CHIPS.iter().find_map(of).ok_or_else(|| {
            let counts = |chip: &Chip| {
                let cores: Vec<_> = chip.variants.iter().map(|v| v.cores.to_string()).collect();
                format!("{} ({} cores)", chip.short_name(), cores.join(" or "))
            };
            let known: Vec<_> = CHIPS.iter().map(counts).collect();
            UnknownChip { name: name.into(), known: known.join(", ") }
        })
    }
}

/// Cores of a chip that nothing is known about: as many as the smallest M2.
const UNKNOWN_CORES: u32 = 8;

#[cfg(test)]
mod tests;
