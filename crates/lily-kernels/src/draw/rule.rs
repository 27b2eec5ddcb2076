//! The rule by which a token is drawn: the one place for generator and arithmetic.
//!
//! Every device and the host draw with whole numbers, so that equal logits give equal tokens, to the
//! last bit. Floats appear once, in the distance of a logit from the largest: one subtraction and one
//! multiplication, which every machine rounds alike. `prelude/draw.h` has the same functions.
//!
//! Near ties: devices whose logits differ in their last bits may draw different tokens, but only where
//! the random number falls into the small difference of the running sums.

/// Most candidates that a device draws from.
pub const MOST: usize = 64;

/// How the tokens of a sequence are drawn, as kept in its row of the `sampling` buffer.
///
/// The candidates are the `top_k` largest logits, the lowest ids on ties. Their weights are
/// `exp((logit - largest) / temperature)`. Of them remain the fewest that have `top_p` of the sum of all
/// candidates, largest first, and of these the ones with `min_p` of the largest weight or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Steps of 2^-24 octaves in one unit of a logit: `2^24 log2(e) / temperature`.
    scale: f32,
    /// Candidates.
    top_k: u32,
    /// `top_p` in units of 2^-32; the largest value keeps all.
    top_p: u32,
    /// `min_p` in units of 2^-32.
    min_p: u32,
    /// Key of the generator.
    seed: u64,
}

impl Draw {
    /// Words of a row of the `sampling` buffer, all i32: scale (bits of an f32), candidates, top-p,
    /// min-p, seed (low, high), two unused.
    pub const WORDS: usize = 8;

    /// Always the largest logit.
    pub const GREEDY: Self = Self { scale: 1.0, top_k: 1, top_p: u32::MAX, min_p: 0, seed: 0 };

    /// A rule for a temperature above 0; `top_k` of 0 keeps all, `top_p` of 1 and `min_p` of 0 too. The
    /// others are fractions of 1.
    pub fn new(temperature: f32, top_k: usize, top_p: f32, min_p: f32, seed: u64) -> Self {
        let steps = f64::from(1 << FRACTION_BITS) * std::f64::consts::LOG2_E;
        // At 2^96 any two logits that differ are far apart, and the product with one is finite.
        let scale = (steps / f64::from(temperature)).min(2f64.powi(96)) as f32;
        let fraction = |f: f32| (f64::from(f) * 2f64.powi(32)) as u32;
        let top_k = if top_k == 0 { u32::MAX } else { u32::try_from(top_k).unwrap_or(u32::MAX) };
        Self { scale, top_k, top_p: fraction(top_p), min_p: fraction(min_p), seed }
    }

    /// Most candidates.
    pub fn top_k(&self) -> usize {
        self.top_k as usize
    }

    /// The row of the `sampling` buffer.
    pub fn words(&self) -> [i32; Self::WORDS] {
        let Self { scale, top_k, top_p, min_p, seed } = *self;
        let words = [scale.to_bits(), top_k, top_p, min_p, seed as u32, (seed >> 32) as u32, 0, 0];
        words.map(|word| word as i32)
    }

    /// The rule in a row of the `sampling` buffer. A device has 1 to [`MOST`] candidates.
    ///
    /// # Panics
    /// If the row is shorter than [`Self::WORDS`].
    pub fn from_words(words: &[i32]) -> Self {
        let word = |i: usize| words[i] as u32;
        Self {
            scale: f32::from_bits(word(0)),
            top_k: word(1).clamp(1, MOST as u32),
            top_p: word(2),
            min_p: word(3),
            seed: u64::from(word(5)) << 32 | u64::from(word(4)),
        }
    }

    /// How many of the candidates remain. `logits` are finite or negative infinity, the largest first;
    /// that one is finite.
    pub fn kept(&self, logits: &[f32]) -> usize {
        self.remaining(&self.weights(logits)).len()
    }

    /// The candidate that is drawn for a token at `position`; `logits` as for [`kept`](Self::kept).
    pub fn choose(&self, logits: &[f32], position: u64) -> usize {
        let weights = self.weights(logits);
        let remaining = self.remaining(&weights);
        let total: u64 = remaining.iter().sum();
        let target = multiply_high(total, random(self.seed, position));
        let mut sum = 0;
        let drawn = remaining.iter().position(|weight| {
            sum += weight;
            sum > target
        });
        // The target is below the total.
        drawn.unwrap_or(0)
    }

    fn weights(&self, logits: &[f32]) -> Vec<u64> {
        logits.iter().map(|logit| weight(logits[0] - logit, self.scale)).collect()
    }

    fn remaining<'a>(&self, weights: &'a [u64]) -> &'a [u64] {
        let total: u64 = weights.iter().sum();
        let enough = multiply_fraction(total, self.top_p);
        let mut sum = 0;
        let by_top_p = weights.iter().position(|weight| {
            sum += weight;
            sum >= enough
        });
        let by_top_p = by_top_p.map_or(weights.len(), |last| last + 1);
        // Weights fall, so what remains is a prefix.
        let least = multiply_fraction(weights[0], self.min_p);
        let by_min_p = weights.iter().take_while(|weight| **weight >= least).count();
        &weights[..by_top_p.min(by_min_p)]
    }
}

/// Bits behind the point of a distance in octaves.
const FRACTION_BITS: u32 = 24;
/// Bits of the f32 2^30: so many steps are 64 octaves, and the weight is 0.
const FAR: u32 = 0x4e80_0000;
/// Bits behind the point of 2^-x.
const POWER_BITS: u32 = 31;
/// The largest weight is 2^this; sums of 2^24 of them fit.
const WEIGHT_BITS: u32 = 40;

/// Weight of a logit that is `below` the largest: `2^40 exp(-below / temperature)`.
fn weight(below: f32, scale: f32) -> u64 {
    let steps = below * scale;
    // By bits: it may be infinite, which fast arithmetic on a GPU excludes.
    if steps.to_bits() >= FAR {
        return 0;
    }
    let steps = steps as u32;
    let power = half_power(steps & ((1 << FRACTION_BITS) - 1));
    (u64::from(power) << (WEIGHT_BITS - POWER_BITS)) >> (steps >> FRACTION_BITS)
}

/// `2^31 2^-x` for `fraction = 2^24 x` below 2^24: the series of `exp(-x ln 2)` in nested form, twelve
/// terms, each rounded down. Right within 2^-28, and it falls as the fraction grows.
fn half_power(fraction: u32) -> u32 {
    const ONE: u32 = 1 << POWER_BITS;
    const LN_2: u64 = 0xb172_17f7; // 2^32 ln 2
    let x = (u64::from(fraction << (POWER_BITS - FRACTION_BITS)) * LN_2) >> 32;
    let mut power = ONE;
    for i in (1..=12).rev() {
        power = ONE - ((x * u64::from(power)) >> POWER_BITS) as u32 / i;
    }
    power
}

/// The random number of a token: a function of seed and position alone (the splitmix64 finaliser,
/// twice), so that a seed gives the same text whatever runs beside it.
fn random(seed: u64, position: u64) -> u64 {
    mix(mix(seed) ^ position)
}

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `a b / 2^64`, rounded down.
fn multiply_high(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// `a b / 2^32`, rounded down; all of `a` for the largest fraction.
fn multiply_fraction(a: u64, b: u32) -> u64 {
    if b == u32::MAX { a } else { ((u128::from(a) * u128::from(b)) >> 32) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_powers_are_right_within_two_to_the_minus_28_and_fall() {
        let mut before = u32::MAX;
        for fraction in (0..1 << FRACTION_BITS).step_by(if cfg!(miri) { 99_991 } else { 61 }) {
            let power = half_power(fraction);
            let exact = (-f64::from(fraction) / f64::from(1 << FRACTION_BITS)).exp2();
            let error = f64::from(power) / f64::from(1u32 << POWER_BITS) - exact;
            assert!(error.abs() < 2f64.powi(-28), "2^-({fraction} / 2^24) is off by {error}");
            assert!(power < before);
            before = power;
        }
        // Neighbours too, and over the border of an octave.
        for fraction in [0, 1, 77, 1 << 20, (1 << 24) - 3] {
            assert!(half_power(fraction) > half_power(fraction + 1));
        }
        assert!(half_power((1 << 24) - 1) > half_power(0) / 2);
    }

    #[test]
    fn weights_are_exponentials_and_end_where_they_vanish() {
        for (temperature, below) in [(1.0, 0.0), (1.0, 1.5), (0.7, 3.25), (2.5, 8.0), (0.1, 0.01)] {
            let draw = Draw::new(temperature, 0, 1.0, 0.0, 0);
            let found = weight(below, draw.scale) as f64 / 2f64.powi(WEIGHT_BITS as i32);
            let exact = (-f64::from(below) / f64::from(temperature)).exp();
            assert!((found / exact - 1.0).abs() < 2e-6, "{found} for {exact}");
        }
        let scale = |temperature| Draw::new(temperature, 0, 1.0, 0.0, 0).scale;
        assert_eq!(weight(f32::INFINITY, scale(1.0)), 0);
        assert_eq!(weight(f32::MAX, scale(f32::MIN_POSITIVE)), 0);
        assert_eq!(weight(1e-6, scale(f32::from_bits(1))), 0);
        assert_eq!(weight(0.0, scale(f32::from_bits(1))), 1 << WEIGHT_BITS);
        assert!(weight(1e9, scale(f32::MAX)) > 1 << (WEIGHT_BITS - 1));
    }

    #[test]
    fn sampling_rows_keep_what_they_are_given() {
        let draw = Draw::new(0.8, 20, 0.95, 0.05, 0xfedc_ba98_7654_3210);
        assert_eq!(Draw::from_words(&draw.words()), draw);
        assert_eq!(Draw::from_words(&Draw::GREEDY.words()), Draw::GREEDY);
        assert_eq!(Draw::from_words(&[0; Draw::WORDS]).top_k(), 1);
        assert_eq!(Draw::from_words(&[-1; Draw::WORDS]).top_k(), MOST);
    }

    #[test]
    fn filters_keep_the_sets_they_name() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln).into();
        let kept = |top_p, min_p| Draw::new(1.0, 0, top_p, min_p, 0).kept(&logits);
        assert_eq!(kept(1.0, 0.0), 4);
        assert_eq!(kept(0.75, 0.0), 2);
        assert_eq!(kept(0.81, 0.0), 3);
        assert_eq!(kept(1.0, 0.25), 3);
        assert_eq!(kept(0.75, 0.7), 1);
        assert_eq!(kept(1e-20, 0.0), 1);
        assert_eq!(Draw::new(1.0, 0, 1.0, 1.0, 0).kept(&[2.0, 2.0, 1.999_999]), 2);
    }

    #[test]
    fn choices_are_fixed_by_seed_and_position() {
        // Recorded once; another generator or another arithmetic would give other texts for old seeds.
        let logits: Vec<f32> = (0..20).map(|i| -0.25 * i as f32).collect();
        let draw = Draw::new(1.0, 20, 0.95, 0.0, 42);
        let chosen: Vec<usize> = (0..12).map(|position| draw.choose(&logits, position)).collect();
        assert_eq!(chosen, [1, 9, 2, 10, 1, 8, 4, 0, 9, 11, 4, 3]);
    }
}
