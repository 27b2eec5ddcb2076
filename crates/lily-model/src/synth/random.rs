//! Random numbers addressed by position, so that blocks can be made in any order by any thread.

/// Odd constant of the golden ratio: consecutive positions become far apart.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// One endless sequence of random words; a word depends only on the seed, the name and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    offset: u64,
    twist: u64,
}

impl Stream {
    /// The stream of `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a over the name, then two rounds of mixing with the seed.
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let offset = mix(hash ^ mix(seed.wrapping_add(STEP)));
        Self { offset, twist: mix(offset ^ STEP) }
    }

    /// Word `position` of the stream.
    #[inline]
    pub fn word(self, position: u64) -> u64 {
        // The twist differs between streams whose counters happen to overlap.
        mix(mix_half(position.wrapping_mul(STEP).wrapping_add(self.offset)) ^ self.twist)
    }
}

/// The top 53 bits of a word as a number in [0, 1).
pub(super) fn uniform(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A nearly normal number of mean 0 and standard deviation 1, within ±3.47.
///
/// The sum of the word's four 16-bit parts: whole numbers, hence the same bits on every machine,
/// which a logarithm and a cosine would not promise.
pub(super) fn normal(word: u64) -> f64 {
    let sum: u64 = (0..4).map(|part| (word >> (16 * part)) & 0xFFFF).sum();
    // Four uniform integers below 2^16: mean 2 (2^16 - 1), variance (2^32 - 1) / 3.
    (sum as f64 - 131_070.0) / (4_294_967_295.0_f64 / 3.0).sqrt()
}

fn mix_half(word: u64) -> u64 {
    (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
fn mix(word: u64) -> u64 {
    let word = mix_half(word);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for value in values {
            n += 1.0;
            sum += value;
            squares += value * value;
        }
        let mean = sum / n;
        (mean, (squares / n - mean * mean).sqrt())
    }

    #[test]
    fn uniform_and_normal_have_the_stated_moments() {
        let stream = Stream::new(1, "moments");
        let (mean, sd) = moments((0..200_000).map(|i| uniform(stream.word(i))));
        assert!((mean - 0.5).abs() < 0.003 && (sd - 12f64.sqrt().recip()).abs() < 0.003);
        let (mean, sd) = moments((0..200_000).map(|i| normal(stream.word(i))));
        assert!(mean.abs() < 0.01 && (sd - 1.0).abs() < 0.01, "{mean} {sd}");
    }

    #[test]
    fn every_nibble_value_is_equally_frequent() {
        let stream = Stream::new(7, "nibbles");
        let mut counts = [0u32; 16];
        for i in 0..20_000 {
            let word = stream.word(i);
            (0..16).for_each(|n| counts[(word >> (4 * n)) as usize & 15] += 1);
        }
        // 20,000 expected each, standard deviation 137.
        assert!(counts.iter().all(|&n| n.abs_diff(20_000) < 700), "{counts:?}");
    }

    #[test]
    fn seed_and_name_select_unrelated_streams() {
        let first = Stream::new(1, "a");
        for other in [Stream::new(2, "a"), Stream::new(1, "b"), Stream::new(0, "a")] {
            let shared: u32 =
                (0..4_000).map(|i| (first.word(i) ^ other.word(i)).count_ones()).sum();
            // Half of 256,000 bits differ, standard deviation 253.
            assert!(shared.abs_diff(128_000) < 1_500, "{shared}");
        }
    }
}
