//! Choosing a token from a row of logits on the host.

use std::collections::HashMap;

use crate::engine::TokenMask;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Keeps the `top_k` largest; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of largest probabilities that sums to `top_p`.
    pub top_p: f32,
    /// Keeps probabilities of at least `min_p` times the largest.
    pub min_p: f32,
    /// Subtracted from the logit of every token produced so far.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was produced.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of every token seen, prompt included.
    pub repetition_penalty: f32,
    /// Key of the random numbers: the same seed gives the same text, whatever runs beside it.
    pub seed: u64,
    /// Added to the logits of single tokens.
    pub logit_bias: HashMap<u32, f32>,
}

impl Sampling {
    /// The largest logit, ties to the lowest id.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            logit_bias: HashMap::new(),
        }
    }

    /// Whether the largest unmodified logit is wanted, so that the device can choose.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature <= 0.0 && !self.changes_logits()
    }

    fn changes_logits(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
            || !self.logit_bias.is_empty()
    }
}

/// Why no token can be chosen.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum SamplingError {
    /// A logit that could be chosen is NaN or positive infinity, or all are negative infinity.
    #[error(
        "the model's output for token {token} is {value}, need finite numbers; \
         the checkpoint or a kernel is damaged"
    )]
    NotFinite {
        /// The token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// Penalties, biases and mask leave no token with a finite logit.
    #[error(
        "penalties, biases or the required format make the logit of token {token} {value} and leave \
         nothing to choose; use smaller ones, or another format"
    )]
    NothingLeft {
        /// The token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// A parameter outside of its range.
    #[error("{name} is {value}, need {need}")]
    Parameter {
        /// Parameter name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        need: &'static str,
    },
}

/// Tokens seen by a sequence, for penalties.
#[derive(Clone, Debug, Default)]
pub struct TokenCounts {
    seen: HashMap<u32, u32>,
    produced: HashMap<u32, u32>,
}

impl TokenCounts {
    /// Counts a prompt token.
    pub fn add_prompt(&mut self, token: u32) {
        *self.seen.entry(token).or_default() += 1;
    }

    /// Counts a chosen token.
    pub fn add_produced(&mut self, token: u32) {
        self.add_prompt(token);
        *self.produced.entry(token).or_default() += 1;
    }
}

impl Sampling {
    /// Refuses parameters outside of their ranges.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let check = |ok: bool, name, value: f32, need| {
            let value = value.to_string();
            if ok { Ok(()) } else { Err(SamplingError::Parameter { name, value, need }) }
        };
        let finite = |v: f32| v.is_finite();
        let t = self.temperature;
        check(finite(t) && t >= 0.0, "temperature", t, "a number of at least 0")?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", self.top_p, "0 < top_p <= 1")?;
        check((0.0..=1.0).contains(&self.min_p), "min_p", self.min_p, "0 <= min_p <= 1")?;
        let r = self.repetition_penalty;
        check(finite(r) && r > 0.0, "repetition_penalty", r, "a number above 0")?;
        let p = self.presence_penalty;
        check(finite(p), "presence_penalty", p, "a finite number")?;
        let f = self.frequency_penalty;
        check(finite(f), "frequency_penalty", f, "a finite number")?;
        let bias = self.logit_bias.values().copied().find(|b| b.is_nan() || *b == f32::INFINITY);
        check(bias.is_none(), "logit_bias", bias.unwrap_or(0.0), "numbers below infinity")
    }

    /// Chooses a token at `position` from the logits `[vocab]`; ids from `vocab_used` on are padding,
    /// and those that are not in `mask` cannot be chosen.
    pub fn choose(
        &self,
        logits: &[f32],
        vocab_used: usize,
        counts: &TokenCounts,
        position: usize,
        mask: Option<&TokenMask>,
    ) -> Result<u32, SamplingError> {
        let mut logits = logits[..vocab_used.min(logits.len())].to_vec();
        if let Some((token, value)) = not_choosable(&logits) {
            return Err(SamplingError::NotFinite { token, value });
        }
        self.apply_penalties(&mut logits, counts);
        if let Some(mask) = mask {
            for (id, logit) in (0..).zip(&mut logits) {
                if !mask.allows(id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        // Penalties and biases have no upper limit, and masks no lower one: they may leave nothing
        // that can be chosen.
        if let Some((token, value)) = not_choosable(&logits) {
            return Err(SamplingError::NothingLeft { token, value });
        }
        if self.temperature <= 0.0 {
            return Ok(argmax(&logits) as u32);
        }
        let candidates = self.candidates(&logits);
        Ok(draw(&candidates, uniform(self.seed, position)))
    }

    fn apply_penalties(&self, logits: &mut [f32], counts: &TokenCounts) {
        if self.repetition_penalty != 1.0 {
            for &token in counts.seen.keys() {
                if let Some(l) = logits.get_mut(token as usize) {
                    let r = self.repetition_penalty;
                    *l = if *l > 0.0 { *l / r } else { *l * r };
                }
            }
        }
        for (&token, &count) in &counts.produced {
            if let Some(l) = logits.get_mut(token as usize) {
                *l -= self.presence_penalty + self.frequency_penalty * count as f32;
            }
        }
        for (&token, &bias) in &self.logit_bias {
            if let Some(l) = logits.get_mut(token as usize) {
                *l += bias;
            }
        }
    }

    /// Tokens that may be drawn with their probabilities, most likely first, lowest id first on ties.
    ///
    /// The filters see the distribution after temperature, in the order top-k, top-p, min-p.
    fn candidates(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let by_logit =
            |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let keep = if self.top_k == 0 { ids.len() } else { self.top_k.min(ids.len()) };
        if keep < ids.len() {
            ids.select_nth_unstable_by(keep - 1, by_logit);
            ids.truncate(keep);
        }
        ids.sort_unstable_by(by_logit);
        let largest = f64::from(logits[ids[0] as usize]);
        let temperature = f64::from(self.temperature);
        let weight = |id: u32| ((f64::from(logits[id as usize]) - largest) / temperature).exp();
        let mut candidates: Vec<(u32, f64)> = ids.into_iter().map(|id| (id, weight(id))).collect();
        let total: f64 = candidates.iter().map(|(_, w)| w).sum();
        for (_, p) in &mut candidates {
            *p /= total;
        }
        let mut sum = 0.0;
        let enough = candidates.iter().position(|(_, p)| {
            sum += p;
            sum >= f64::from(self.top_p)
        });
        candidates.truncate(enough.map_or(candidates.len(), |last| last + 1));
        let least = candidates[0].1 * f64::from(self.min_p);
        candidates.retain(|(_, p)| *p >= least && *p > 0.0);
        candidates
    }
}

/// A logit that keeps any token from being chosen: NaN, positive infinity, or the largest if that is
/// negative infinity.
fn not_choosable(logits: &[f32]) -> Option<(usize, f32)> {
    let bad = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY);
    let bad = bad.or_else(|| logits.iter().all(|l| !l.is_finite()).then_some(0))?;
    Some((bad, logits.get(bad).copied().unwrap_or(f32::NEG_INFINITY)))
}

/// Largest value, lowest index on ties. `values` is not empty and holds no NaN.
fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] {
            best = i;
        }
    }
    best
}

fn draw(candidates: &[(u32, f64)], uniform: f64) -> u32 {
    let total: f64 = candidates.iter().map(|(_, p)| p).sum();
    let mut left = uniform * total;
    for (id, p) in candidates {
        left -= p;
        if left < 0.0 {
            return *id;
        }
    }
    candidates[candidates.len() - 1].0
}

/// A number in 0..1 that depends on seed and position alone (the splitmix64 finaliser, twice).
fn uniform(seed: u64, position: usize) -> f64 {
    let mix = |mut z: u64| {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (mix(mix(seed) ^ position as u64) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_temperature(temperature: f32) -> Sampling {
        Sampling { temperature, ..Sampling::greedy() }
    }

    fn choose(s: &Sampling, logits: &[f32], position: usize) -> u32 {
        s.choose(logits, logits.len(), &TokenCounts::default(), position, None).unwrap()
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equal_logits_and_never_padding() {
        let logits = [0.5, 2.0, 2.0, 9.0];
        let s = Sampling::greedy();
        assert_eq!(s.choose(&logits, 3, &TokenCounts::default(), 0, None), Ok(1));
    }

    #[test]
    fn logits_that_are_not_finite_are_refused_unless_they_are_padding() {
        let counts = TokenCounts::default();
        let s = at_temperature(1.0);
        let nan = [0.0, f32::NAN, 1.0];
        assert!(matches!(
            s.choose(&nan, 3, &counts, 0, None),
            Err(SamplingError::NotFinite { token: 1, .. })
        ));
        assert!(s.choose(&nan, 1, &counts, 0, None).is_ok());
        assert!(s.choose(&[f32::NEG_INFINITY, 0.0], 2, &counts, 0, None).is_ok());
        for s in [Sampling::greedy(), s] {
            let none = s.choose(&[f32::NEG_INFINITY; 2], 2, &counts, 0, None);
            assert!(matches!(none, Err(SamplingError::NotFinite { token: 0, .. })), "{none:?}");
        }
    }

    #[test]
    fn penalties_and_biases_that_leave_nothing_to_choose_are_refused() {
        let mut counts = TokenCounts::default();
        counts.add_produced(1);
        let greedy = Sampling::greedy;
        let bias = |value| HashMap::from([(0, value), (1, value)]);
        for (s, token) in [
            (Sampling { logit_bias: bias(f32::NEG_INFINITY), ..greedy() }, 0),
            (Sampling { repetition_penalty: 1e-39, ..greedy() }, 1),
            (Sampling { logit_bias: bias(f32::MAX), ..greedy() }, 0),
        ] {
            for temperature in [0.0, 1.0] {
                let s = Sampling { temperature, ..s.clone() };
                let result = s.choose(&[2e38, 3e38], 2, &counts, 0, None);
                assert!(
                    matches!(result, Err(SamplingError::NothingLeft { token: t, .. }) if t == token),
                    "{result:?}"
                );
            }
        }
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln).into();
        let s = Sampling { seed: 7, ..at_temperature(1.0) };
        let n = 20_000;
        let mut seen = [0; 4];
        for position in 0..n {
            seen[choose(&s, &logits, position) as usize] += 1;
        }
        for (count, p) in seen.iter().zip([0.5, 0.3, 0.15, 0.05]) {
            let sd = (n as f64 * p * (1.0 - p)).sqrt();
            assert!((f64::from(*count) - n as f64 * p).abs() < 4.0 * sd, "{seen:?}");
        }
    }

    #[test]
    fn filters_keep_the_sets_they_name() {
        let logits: Vec<f32> = [0.05f32, 0.5, 0.15, 0.3].map(f32::ln).into();
        let ids = |s: Sampling| -> Vec<u32> { s.candidates(&logits).iter().map(|c| c.0).collect() };
        let s = at_temperature(1.0);
        assert_eq!(ids(Sampling { top_k: 2, ..s.clone() }), [1, 3]);
        assert_eq!(ids(Sampling { top_p: 0.75, ..s.clone() }), [1, 3]);
        assert_eq!(ids(Sampling { top_p: 0.81, ..s.clone() }), [1, 3, 2]);
        assert_eq!(ids(Sampling { min_p: 0.25, ..s.clone() }), [1, 3, 2]);
        assert_eq!(ids(s), [1, 3, 2, 0]);
    }

    #[test]
    fn equal_seed_and_position_give_equal_tokens() {
        let logits = vec![0.0; 50];
        let run = |seed| -> Vec<u32> {
            let s = Sampling { seed, ..at_temperature(1.0) };
            (0..20).map(|p| choose(&s, &logits, p)).collect()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn penalties_and_bias_move_the_choice() {
        let logits = [1.0, 0.9, 0.0];
        let mut counts = TokenCounts::default();
        counts.add_produced(0);
        let choose = |s: Sampling| s.choose(&logits, 3, &counts, 0, None).unwrap();
        let greedy = Sampling::greedy();
        assert_eq!(choose(Sampling { presence_penalty: 0.2, ..greedy.clone() }), 1);
        assert_eq!(choose(Sampling { frequency_penalty: 0.2, ..greedy.clone() }), 1);
        assert_eq!(choose(Sampling { repetition_penalty: 1.2, ..greedy.clone() }), 1);
        let logit_bias = HashMap::from([(2, 5.0)]);
        assert_eq!(choose(Sampling { logit_bias, ..greedy }), 2);
    }

    #[test]
    fn parameters_outside_of_their_ranges_are_refused_by_name() {
        let s = Sampling { top_p: 0.0, ..Sampling::greedy() };
        assert_eq!(s.validate().unwrap_err().to_string(), "top_p is 0, need 0 < top_p <= 1");
        assert!(at_temperature(f32::NAN).validate().is_err());
    }
}
