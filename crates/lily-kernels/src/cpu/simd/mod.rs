//! The instruction set in use, and operations on whole slices.
//!
//! Kernel bodies are written once over [`Isa`]; [`Simd`] runs them with the instruction set that it
//! stands for. Products of 8-bit inputs and quantised rows give the same bits everywhere; sums of f32
//! have a fixed order in each set, so two runs give the same bits, and sets differ by rounding only.

mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(test)]
mod tests;
mod vectors;
#[cfg(target_arch = "x86_64")]
mod ymm;
#[cfg(target_arch = "x86_64")]
mod zmm;

use std::fmt;

use half::bf16;

pub(super) use isa::{Isa, Kernel, ROWS, TURNED_BYTES, WORDS};
pub(crate) use vectors::Element;

/// The environment variable that chooses an instruction set.
pub const VARIABLE: &str = "LILY_CPU_ISA";

/// An instruction set with an entry of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// Plain Rust: any machine, and Miri.
    Portable,
    /// AVX2 with FMA and F16C: x86-64 machines since 2013.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-VNNI beside AVX2: Intel since 2021, AMD since 2024.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX-512 VNNI with vectors of 256 bits: what AVX-VNNI runs, in the other encoding.
    #[cfg(target_arch = "x86_64")]
    Avx512Vl,
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON: every AArch64 machine.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON with dotprod: since 2018.
    #[cfg(target_arch = "aarch64")]
    NeonDotProd,
    /// NEON with i8mm: since 2020.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
}

impl Level {
    /// All of this architecture, each before those that are preferred to it.
    pub const ALL: &[Self] = &[
        Self::Portable,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512Vl,
        #[cfg(target_arch = "x86_64")]
        Self::AvxVnni,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "aarch64")]
        Self::Neon,
        #[cfg(target_arch = "aarch64")]
        Self::NeonDotProd,
        #[cfg(target_arch = "aarch64")]
        Self::NeonI8mm,
    ];

    /// Its name in [`VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vl => "avx512vl",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProd => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => "neon-i8mm",
        }
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        /// All of these features.
        #[cfg(target_arch = "x86_64")]
        macro_rules! has {
            ($($feature:tt),*) => { true $(&& is_x86_feature_detected!($feature))* };
        }
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has!("avx2", "fma", "f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => has!("avx2", "fma", "f16c", "avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vl => has!("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx512Vl.is_available() && has!("avx512bw", "avx512dq", "avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => !cfg!(miri),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProd => !cfg!(miri) && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => {
                Self::NeonDotProd.is_available() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "plain Rust",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2 with FMA and F16C",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => "AVX2 with AVX-VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vl => "AVX-512 with VNNI, 256 bits",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "AVX-512 with VNNI",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "NEON",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProd => "NEON with dotprod",
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => "NEON with i8mm",
        })
    }
}

/// Why an instruction set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LevelError {
    /// No instruction set of this architecture has the name.
    #[error("`{name}` is no instruction set of this program; {VARIABLE} takes {known}, or nothing")]
    Unknown {
        /// What was asked for.
        name: String,
        /// All names, with commas.
        known: String,
    },
    /// The machine lacks it.
    #[error("this processor has no {level}; {VARIABLE} can be {usable} here, or nothing")]
    Missing {
        /// What was asked for.
        level: Level,
        /// The names that this machine can use, with commas.
        usable: String,
    },
}

/// The instruction set in use. Holding a value proves that this machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd {
    level: Level,
}

impl Simd {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        let level = Level::ALL.iter().rev().find(|level| level.is_available());
        Self { level: *level.unwrap_or(&Level::Portable) }
    }

    /// The instruction set with this name.
    ///
    /// # Errors
    /// If there is none, or the machine lacks it.
    pub fn named(name: &str) -> Result<Self, LevelError> {
        let names = |levels: &[Level]| {
            levels.iter().map(|level| level.name()).collect::<Vec<_>>().join(", ")
        };
        let level = Level::ALL
            .iter()
            .find(|level| level.name() == name)
            .ok_or_else(|| LevelError::Unknown { name: name.into(), known: names(Level::ALL) })?;
        if !level.is_available() {
            let usable: Vec<Level> = Self::available().iter().map(|simd| simd.level).collect();
            return Err(LevelError::Missing { level: *level, usable: names(&usable) });
        }
        Ok(Self { level: *level })
    }

    /// The instruction set that [`VARIABLE`] names; the best one if it is not set or empty.
    ///
    /// # Errors
    /// As [`named`](Self::named).
    pub fn from_environment() -> Result<Self, LevelError> {
        match std::env::var_os(VARIABLE) {
            Some(name) if !name.is_empty() => Self::named(&name.to_string_lossy()),
            _ => Ok(Self::detect()),
        }
    }

    /// Plain Rust, for tests and for machines without a known instruction set.
    pub fn portable() -> Self {
        Self { level: Level::Portable }
    }

    /// All instruction sets of this machine, the portable one first and the best one last.
    pub fn available() -> Vec<Self> {
        let available = Level::ALL.iter().filter(|level| level.is_available());
        available.map(|&level| Self { level }).collect()
    }

    /// The instruction set.
    pub fn level(self) -> Level {
        self.level
    }

    /// Runs a kernel compiled for the instruction set.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.level {
            Level::Portable => portable::run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level is only set after the machine was seen to have it.
            Level::Avx2 => unsafe { ymm::run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::AvxVnni => unsafe { ymm::run_avx_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512Vl => unsafe { ymm::run_avx512_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512 => unsafe { zmm::run(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::Neon => unsafe { neon::run_neon(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::NeonDotProd => unsafe { neon::run_dotprod(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::NeonI8mm => unsafe { neon::run_i8mm(kernel) },
        }
    }

    /// Asks for the memory of a slice that is read soon.
    #[inline]
    pub fn ask(self, x: &[f32]) {
        self.run(vectors::Ask(x));
    }

    /// `sum a[i] * b[i]`, in f32. The shorter length counts, here and below.
    #[inline]
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        self.run(vectors::Dot(a, b))
    }

    /// `sum a[i] * b[i]` with bfloat16 `b`.
    #[inline]
    pub fn dot_bf16(self, a: &[f32], b: &[bf16]) -> f32 {
        self.run(vectors::Dot(a, b))
    }

    /// `y += alpha * x`.
    #[inline]
    pub fn axpy(self, alpha: f32, x: &[f32], y: &mut [f32]) {
        self.run(vectors::Axpy(alpha, x, y));
    }

    /// `y += alpha * x` with bfloat16 `x`.
    #[inline]
    pub fn axpy_bf16(self, alpha: f32, x: &[bf16], y: &mut [f32]) {
        self.run(vectors::Axpy(alpha, x, y));
    }

    /// `y += a ∘ x`.
    #[inline]
    pub fn add_product(self, a: &[f32], x: &[f32], y: &mut [f32]) {
        self.run(vectors::AddProduct(a, x, y));
    }

    /// `x ← e^x` with a relative error below 1e-6, for finite x; at least `e^-87`.
    #[inline]
    pub fn exp(self, x: &mut [f32]) {
        self.run(vectors::Exp(x));
    }

    /// `x ← x sigmoid(x)` with a relative error below 1e-6.
    #[inline]
    pub fn silu(self, x: &mut [f32]) {
        self.run(vectors::Silu(x));
    }

    /// `h = silu(gate) * up` of pairs (gate, up), with a relative error below 1e-6.
    #[inline]
    pub fn gated(self, pairs: &[[f32; 2]], h: &mut [f32]) {
        self.run(vectors::Gated(pairs, h));
    }

    /// `to = from`, widened.
    #[inline]
    pub(crate) fn widen<T: Element>(self, from: &[T], to: &mut [f32]) {
        self.run(vectors::Widen(from, to));
    }

    /// `y *= alpha`.
    #[inline]
    pub fn scale(self, alpha: f32, y: &mut [f32]) {
        self.run(vectors::Scale(alpha, y));
    }
}
