//! What a person may ask for, in a request or on the command line: one rule for both.

use std::ops::RangeInclusive;

/// Randomness of the choice; 0 takes the most likely token.
pub const TEMPERATURE: RangeInclusive<f64> = 0.0..=2.0;
/// Probability of the set of tokens that are kept; 0 keeps the most likely one alone.
pub const TOP_P: RangeInclusive<f64> = 0.0..=1.0;
/// Share of the largest probability that a token must have.
pub const MIN_P: RangeInclusive<f64> = 0.0..=1.0;
/// Subtracted from logits: `presence_penalty` and `frequency_penalty`.
pub const PENALTY: RangeInclusive<f64> = -2.0..=2.0;
/// Divides logits.
pub const REPETITION_PENALTY: RangeInclusive<f64> = 0.01..=100.0;
/// Added to the logit of a token.
pub const LOGIT_BIAS: RangeInclusive<f64> = -100.0..=100.0;
/// Fewest tokens to which an answer is limited.
pub const FEWEST_TOKENS: usize = 1;

/// The value of `top_p` for the sampler, which keeps one token at least.
pub fn top_p(asked: f32) -> f32 {
    asked.max(f32::MIN_POSITIVE)
}
