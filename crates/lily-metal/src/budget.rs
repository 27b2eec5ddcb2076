//! How much memory lily takes on a Mac, decided before any of it is allocated.
//!
//! The limit is what the device itself recommends, less a stated headroom. It covers everything: weights,
//! KV cache, states, scratch. What a session needs is computed elsewhere, from the model's dimensions; here
//! both numbers meet.

use lily_plan::MemoryBudget;

/// What a device says about memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Memory of the machine, `hw.memsize`.
    pub machine: u64,
    /// `recommendedMaxWorkingSetSize`.
    pub recommended: u64,
}

/// Least bytes of the recommended limit that lily leaves free: compiled kernels, command buffers, page
/// rounding, and what other programs, the window server first, hold on the GPU.
pub const LEAST_HEADROOM: u64 = 512 << 20;
/// Share of the recommended limit that stays free where that is more: others hold more on larger machines.
const HEADROOM_SHARE: u64 = 32;

/// Bytes that the weights must leave: with less no useful session starts, and a refusal names the setting
/// that helps.
pub const LEAST_SESSION: u64 = 512 << 20;
/// Bytes beside the weights that a named setting makes room for: a context of 32,768 tokens of
/// Qwen3.6-35B-A3B, which takes 0.94 GB.
pub const ADVISED_SESSION: u64 = 1 << 30;

/// Bytes that the system must keep beside what the GPU may wire: lily names no setting that leaves less.
/// With 90 % of 24 GB wired, a machine has been seen to panic.
pub const SYSTEM_RESERVE: u64 = 4 << 30;

/// The setting's unit.
const MIB: u64 = 1 << 20;
/// A setting that lily names is a multiple of this.
const SETTING_STEP: u64 = 256 * MIB;

/// The memory that lily may take on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    memory: DeviceMemory,
}

/// Weights that do not fit, with the numbers and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the weights take {} and a session at least {}, but of this Mac's {} the GPU may use {}, of which {} stay free; {}",
    gb(*.weights), gb(LEAST_SESSION), gb(.memory.machine), gb(.memory.recommended),
    gb(headroom(.memory.recommended)), advice(.setting_mb, .memory)
)]
pub struct DoesNotFit {
    /// Bytes of the weights.
    pub weights: u64,
    /// The device.
    pub memory: DeviceMemory,
    /// Value of the wired-limit setting that makes it run, in MiB; `None` if none leaves the system enough.
    pub setting_mb: Option<u64>,
}

impl Budget {
    /// The budget of a device.
    pub fn new(memory: DeviceMemory) -> Self {
        Self { memory }
    }

    /// What the device says.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Bytes of the recommended limit that stay free.
    pub fn headroom(&self) -> u64 {
        headroom(self.memory.recommended)
    }

    /// Bytes that lily may allocate, for everything together.
    pub fn limit(&self) -> u64 {
        self.memory.recommended.saturating_sub(self.headroom())
    }

    /// The budget of a model whose weights take `weights` bytes on the device; how much context fits beside
    /// them is the engine's to say.
    ///
    /// # Errors
    /// They leave less than [`LEAST_SESSION`]; the message names the setting that helps, if one does.
    pub fn of_model(&self, weights: u64) -> Result<MemoryBudget, DoesNotFit> {
        let limit = self.limit();
        if weights.checked_add(LEAST_SESSION).is_some_and(|least| least <= limit) {
            return Ok(MemoryBudget { limit, weights });
        }
        let setting_mb = self.setting_mb(weights.saturating_add(ADVISED_SESSION));
        Err(DoesNotFit { weights, memory: self.memory, setting_mb })
    }

    /// The smallest value of `iogpu.wired_limit_mb`, in MiB, with which `bytes` fit; `None` if it would
    /// leave the system less than [`SYSTEM_RESERVE`].
    pub fn setting_mb(&self, bytes: u64) -> Option<u64> {
        // What a setting leaves free grows with it.
        let share = bytes.checked_mul(HEADROOM_SHARE)?.div_ceil(HEADROOM_SHARE - 1);
        let setting = share.max(bytes.checked_add(LEAST_HEADROOM)?);
        let setting = setting.checked_next_multiple_of(SETTING_STEP)?;
        let leaves = self.memory.machine.checked_sub(setting)?;
        (leaves >= SYSTEM_RESERVE).then_some(setting / MIB)
    }

    /// The budget of the same machine with the wired-limit setting at `mb` MiB.
    pub fn with_setting(&self, mb: u64) -> Self {
        Self { memory: DeviceMemory { recommended: mb * MIB, ..self.memory } }
    }
}

fn headroom(recommended: u64) -> u64 {
    LEAST_HEADROOM.max(recommended / HEADROOM_SHARE)
}

fn gb(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

fn advice(setting_mb: &Option<u64>, memory: &DeviceMemory) -> String {
    match setting_mb {
        Some(mb) => format!(
            "run `sudo sysctl iogpu.wired_limit_mb={mb}`, which holds until the next restart and leaves the system {}",
            gb(memory.machine - mb * MIB)
        ),
        None => {
            "no setting leaves the system enough beside them: use a smaller model or a Mac with more memory".into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn mac(machine: u64, recommended: u64) -> Budget {
        Budget::new(DeviceMemory { machine, recommended })
    }

    #[test]
    fn the_headroom_is_half_a_gib_and_a_32nd_of_large_limits() {
        assert_eq!(mac(24 * GIB, 16 * GIB).headroom(), 512 << 20);
        assert_eq!(mac(128 * GIB, 96 * GIB).headroom(), 3 * GIB);
        assert_eq!(mac(128 * GIB, 96 * GIB).limit(), 93 * GIB);
        assert_eq!(mac(8 * GIB, 0).limit(), 0);
    }

    #[test]
    fn weights_must_leave_room_for_a_session() {
        let budget = mac(32 * GIB, 21 * GIB);
        let limit = budget.limit();
        let weights = limit - LEAST_SESSION;
        assert_eq!(budget.of_model(weights), Ok(MemoryBudget { limit, weights }));
        assert_eq!(budget.of_model(weights + 1).unwrap_err().weights, weights + 1);
        assert_eq!(budget.of_model(u64::MAX).unwrap_err().setting_mb, None);
    }

    #[test]
    fn the_setting_that_is_named_is_enough_and_the_next_smaller_one_is_not() {
        for machine in [16, 24, 32, 36, 48, 64, 128] {
            let budget = mac(machine * GIB, machine * GIB / 2);
            for bytes in (0..130).map(|n| n * GIB + 12_345_678) {
                let Some(mb) = budget.setting_mb(bytes) else {
                    assert!(
                        bytes + SYSTEM_RESERVE + GIB / 2 + SETTING_STEP > machine * GIB * 31 / 32
                    );
                    continue;
                };
                assert!(mb * MIB + SYSTEM_RESERVE <= machine * GIB);
                assert!(budget.with_setting(mb).limit() >= bytes, "{machine} {bytes}");
                assert!(budget.with_setting(mb - SETTING_STEP / MIB).limit() < bytes);
            }
        }
        assert_eq!(mac(u64::MAX, 0).setting_mb(u64::MAX), None);
    }

    #[test]
    fn a_refusal_is_one_sentence_with_the_numbers_and_the_setting() {
        let text = |budget: Budget| budget.of_model(19_508_789_376).unwrap_err().to_string();
        assert_eq!(
            text(mac(24 * GIB, 16 * GIB)),
            "the weights take 19.51 GB and a session at least 0.54 GB, but of this Mac's 25.77 GB the GPU may use 17.18 \
             GB, of which 0.54 GB stay free; run `sudo sysctl iogpu.wired_limit_mb=20480`, which holds until the next \
             restart and leaves the system 4.29 GB"
        );
        let text = text(mac(16 * GIB, 11 * GIB));
        assert!(text.ends_with("use a smaller model or a Mac with more memory"), "{text}");
        assert!(!text.contains("sysctl"), "{text}");
    }
}
