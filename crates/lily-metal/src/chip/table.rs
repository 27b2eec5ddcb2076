//! Apple's chips. Core counts and bandwidths are Apple's published specifications of the Macs that have
//! them; families are those of Apple's Metal feature set tables (May 2026).

use super::{Gpu, GpuFamily};

/// A chip, in all of its core counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Name as Metal reports it.
    pub name: &'static str,
    /// Generation of its GPU.
    pub family: GpuFamily,
    /// Its variants, fewest cores first; at least one.
    pub variants: &'static [Variant],
}

/// A chip with a number of cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// GPU cores.
    pub cores: u32,
    /// Memory bandwidth in GB/s.
    pub bandwidth_gb_s: f64,
}

impl Chip {
    /// The name on the command line: `m4-max`.
    pub fn short_name(&self) -> String {
        self.name.trim_start_matches("Apple ").to_ascii_lowercase().replace(' ', "-")
    }

    /// The variant with the fewest cores.
    pub fn smallest(&self) -> &'static Variant {
        &self.variants[0]
    }

    /// The variant with the most cores.
    pub fn largest(&self) -> &'static Variant {
        &self.variants[self.variants.len() - 1]
    }

    /// The GPU of a variant.
    pub fn gpu(&self, variant: &Variant) -> Gpu {
        Gpu {
            name: self.name.into(),
            family: self.family,
            cores: variant.cores,
            bandwidth_gb_s: variant.bandwidth_gb_s,
            known: true,
        }
    }
}

const fn chip(name: &'static str, family: GpuFamily, variants: &'static [Variant]) -> Chip {
    Chip { name, family, variants }
}

const fn v(cores: u32, bandwidth_gb_s: f64) -> Variant {
    Variant { cores, bandwidth_gb_s }
}

use GpuFamily::{Apple7, Apple8, Apple9, Apple10};

/// Every chip of a Mac that has been published, oldest first. There is no Ultra of M4, and none of M5 so
/// far.
pub const CHIPS: &[Chip] = &[
    chip("Apple M1", Apple7, &[v(7, 68.0), v(8, 68.0)]),
    chip("Apple M1 Pro", Apple7, &[v(14, 200.0), v(16, 200.0)]),
    chip("Apple M1 Max", Apple7, &[v(24, 400.0), v(32, 400.0)]),
    chip("Apple M1 Ultra", Apple7, &[v(48, 800.0), v(64, 800.0)]),
    chip("Apple M2", Apple8, &[v(8, 100.0), v(10, 100.0)]),
    chip("Apple M2 Pro", Apple8, &[v(16, 200.0), v(19, 200.0)]),
    chip("Apple M2 Max", Apple8, &[v(30, 400.0), v(38, 400.0)]),
    chip("Apple M2 Ultra", Apple8, &[v(60, 800.0), v(76, 800.0)]),
    chip("Apple M3", Apple9, &[v(8, 100.0), v(10, 100.0)]),
    chip("Apple M3 Pro", Apple9, &[v(14, 150.0), v(18, 150.0)]),
    chip("Apple M3 Max", Apple9, &[v(30, 300.0), v(40, 400.0)]),
    chip("Apple M3 Ultra", Apple9, &[v(60, 819.0), v(80, 819.0)]),
    chip("Apple M4", Apple9, &[v(8, 120.0), v(10, 120.0)]),
    chip("Apple M4 Pro", Apple9, &[v(16, 273.0), v(20, 273.0)]),
    chip("Apple M4 Max", Apple9, &[v(32, 410.0), v(40, 546.0)]),
    chip("Apple M5", Apple10, &[v(8, 153.0), v(10, 153.0)]),
    chip("Apple M5 Pro", Apple10, &[v(16, 307.0), v(20, 307.0)]),
    chip("Apple M5 Max", Apple10, &[v(32, 460.0), v(40, 614.0)]),
];
