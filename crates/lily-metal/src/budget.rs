//! How much memory lily takes on a Mac, decided before any of it is allocated.
//!
//! The limit is what the device itself recommends, less a stated headroom. It covers everything: weights, KV cache,
//! states, scratch. What a session needs is computed elsewhere, from the model's dimensions; here both numbers meet.

/// What a device says about memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Memory of the machine, `hw.memsize`.
    pub machine: u64,
    /// `recommendedMaxWorkingSetSize`.
    pub recommended: u64,
}

/// Least bytes of the recommended limit that lily leaves free: compiled kernels, command buffers, argument structs, page
/// rounding, and what other programs, the window server first, hold on the GPU.
pub const LEAST_HEADROOM: u64 = 512 << 20;
/// Share of the recommended limit that stays free where that is more: others hold more on larger machines.
const HEADROOM_SHARE: u64 = 32;

/// Bytes that the system must keep beside what the GPU may wire: lily names no setting that leaves less. With 90 % of 24 GB
/// wired, a machine has been seen to panic.
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

/// A model that does not fit, with the numbers and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the weights take {} and the smallest session {}, but of this Mac's {} the GPU may use {}, of which {} stay free; {}",
    gb(*.weights), gb(*.session), gb(.memory.machine), gb(.memory.recommended),
    gb(headroom(.memory.recommended)), advice(.setting_mb, .memory)
)]
pub struct DoesNotFit {
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the smallest session that is worth starting.
    pub session: u64,
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

    /// Bytes for everything but the weights, once `weights` bytes of those are there. `least` are the bytes of the
    /// smallest session that is worth starting.
    ///
    /// # Errors
    /// Both together are above the limit; the message names the setting that helps, if one does.
    pub fn session_limit(&self, weights: u64, least: u64) -> Result<u64, DoesNotFit> {
        match self.limit().checked_sub(weights) {
            Some(left) if left >= least => Ok(left),
            _ => Err(DoesNotFit {
                weights,
                session: least,
                memory: self.memory,
                setting_mb: self.setting_mb(weights.saturating_add(least)),
            }),
        }
    }

    /// The smallest value of `iogpu.wired_limit_mb`, in MiB, with which `bytes` fit; `None` if it would leave the
    /// system less than [`SYSTEM_RESERVE`].
    pub fn setting_mb(&self, bytes: u64) -> Option<u64> {
        // The limit that remains of a setting grows with it, by 31 of every 32 bytes at least.
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
    fn what_is_left_of_the_weights_is_the_sessions() {
        let budget = mac(32 * GIB, 21 * GIB);
        let limit = budget.limit();
        assert_eq!(budget.session_limit(limit - 100, 100), Ok(100));
        assert_eq!(budget.session_limit(0, 0), Ok(limit));
        let refused = budget.session_limit(limit - 100, 101).unwrap_err();
        assert_eq!((refused.weights, refused.session), (limit - 100, 101));
        assert!(budget.session_limit(u64::MAX, 1).is_err());
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
        let text = |budget: Budget| {
            budget.session_limit(19_508_789_376, 400_000_000).unwrap_err().to_string()
        };
        assert_eq!(
            text(mac(24 * GIB, 16 * GIB)),
            "the weights take 19.51 GB and the smallest session 0.40 GB, but of this Mac's 25.77 GB the GPU may use \
             17.18 GB, of which 0.54 GB stay free; run `sudo sysctl iogpu.wired_limit_mb=19712`, which holds until the \
             next restart and leaves the system 5.10 GB"
        );
        let text = text(mac(16 * GIB, 11 * GIB));
        assert!(text.ends_with("use a smaller model or a Mac with more memory"), "{text}");
        assert!(!text.contains("sysctl"), "{text}");
    }
}
