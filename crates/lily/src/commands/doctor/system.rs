//! What a bug report needs to know, whatever the device.

use std::env::consts::{ARCH, OS};
use std::fmt;
#[cfg(not(target_os = "macos"))]
use std::fs;

use lily_cuda::CudaError;
use serde::Serialize;

use crate::args::DeviceChoice;
use crate::device;
use crate::output::sentence;

/// The program, the machine that it runs on, and whether a GPU was looked for.
#[derive(Serialize)]
pub struct System {
    /// Version of lily.
    lily: &'static str,
    /// The operating system with its version and instruction set.
    os: String,
    /// The processor's name, where the system says.
    processor: Option<String>,
    /// Bytes of memory of the machine, where the system says.
    memory: Option<u64>,
    /// Why no GPU is looked at; none where one is.
    no_gpu: Option<String>,
}

impl System {
    /// Looks at the machine. `device` is the one that was opened for `choice`.
    pub fn look(choice: DeviceChoice, device: &str) -> Self {
        let no_gpu = (device == "cpu").then(|| match choice {
            DeviceChoice::Auto => match device::cuda() {
                Err(CudaError::NoDriver) => "found no NVIDIA driver".into(),
                Err(error) => sentence(&error.into()),
                Ok(_) => "there is an NVIDIA GPU, but it is not used".into(),
            },
            _ => "not looked for, because of --device cpu".into(),
        });
        Self {
            lily: env!("CARGO_PKG_VERSION"),
            os: format!("{}, {ARCH}", os().unwrap_or_else(|| OS.into())),
            processor: processor(),
            memory: memory(),
            no_gpu,
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: &str| writeln!(f, "{name:21} {value}");
        let unknown = || "the system does not say".to_owned();
        line("lily", self.lily)?;
        line("operating system", &self.os)?;
        line("processor", &self.processor.clone().unwrap_or_else(unknown))?;
        let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        line("machine memory", &self.memory.map_or_else(unknown, gb))?;
        self.no_gpu.as_deref().map_or(Ok(()), |reason| line("GPU", reason))
    }
}

/// What stands behind the first `key` of a text of lines `key: value` or `key=value`.
#[cfg(not(target_os = "macos"))]
fn value_of(text: &str, key: &str, separator: char) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(separator));
    let (_, value) = pairs.find(|(name, _)| name.trim() == key)?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// Linux: the distribution, and the kernel's version.
#[cfg(not(target_os = "macos"))]
fn os() -> Option<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = value_of(&release, "PRETTY_NAME", '=').unwrap_or_else(|| OS.into());
    Some(format!("{name}, kernel {}", kernel.trim()))
}

#[cfg(not(target_os = "macos"))]
fn processor() -> Option<String> {
    value_of(&fs::read_to_string("/proc/cpuinfo").ok()?, "model name", ':')
}

#[cfg(not(target_os = "macos"))]
fn memory() -> Option<u64> {
    kib(&value_of(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal", ':')?)
}

/// Bytes of a figure such as `1024 kB`.
#[cfg(not(target_os = "macos"))]
fn kib(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a program of macOS prints.
#[cfg(target_os = "macos")]
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

#[cfg(target_os = "macos")]
fn os() -> Option<String> {
    said_by("/usr/bin/sw_vers", &["-productVersion"]).map(|version| format!("macOS {version}"))
}

#[cfg(target_os = "macos")]
fn processor() -> Option<String> {
    said_by("/usr/sbin/sysctl", &["-n", "machdep.cpu.brand_string"])
}

#[cfg(target_os = "macos")]
fn memory() -> Option<u64> {
    said_by("/usr/sbin/sysctl", &["-n", "hw.memsize"])?.parse().ok()
}

#[cfg(all(test, not(target_os = "macos")))]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_files_of_linux() {
        let cpu = "processor\t: 0\nmodel name\t: A: fast one\nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(value_of(cpu, "model name", ':').as_deref(), Some("A: fast one"));
        assert_eq!(value_of("CPU part\t: 0xd0c\n", "model name", ':'), None);
        let release = "NAME=\"D\"\nPRETTY_NAME=\"D 13 (t)\"\n";
        assert_eq!(value_of(release, "PRETTY_NAME", '=').as_deref(), Some("D 13 (t)"));
        let memory = value_of("MemTotal:       24 kB\nMemFree: 1 kB\n", "MemTotal", ':');
        assert_eq!(memory.as_deref().and_then(kib), Some(24 * 1024));
        assert_eq!(kib("24 MB"), None);
    }
}
