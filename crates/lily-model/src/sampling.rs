//! How tokens are chosen, and the choice from a row of logits on the host.
//!
//! Generator and arithmetic are those of the device ([`lily_kernels::draw`]): equal logits give equal
//! tokens.

use std::cmp::Ordering;
use std::collections::HashMap;

use lily_kernels::draw::{Draw, Largest, MOST};

use crate::engine::TokenMask;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Keeps the `top_k` largest; 0 keeps all. Above 64, and at 0, the host chooses.
    pub top_k: usize,
    /// Keeps the fewest of these, largest first, that have `top_p` of their sum.
    pub top_p: f32,
    /// Of these keeps the ones with at least `min_p` times the largest probability.
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

    /// Whether the largest unmodified logit is wanted.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature <= 0.0 && !self.changes_logits()
    }

    /// The rule by which the device can choose; `None` if that takes the host: logits are changed, or
    /// more candidates are wanted than a device keeps.
    pub fn on_device(&self) -> Option<Draw> {
        if self.changes_logits() {
            None
        } else if self.temperature <= 0.0 {
            Some(Draw::GREEDY)
        } else {
            (1..=MOST).contains(&self.top_k).then(|| self.rule())
        }
    }

    fn rule(&self) -> Draw {
        Draw::new(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)
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
        let (ids, values) = self.candidates(&logits);
        Ok(ids[self.rule().choose(&values, position as u64)])
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

    /// The `top_k` largest logits and their ids, largest first, lowest id first on ties. The other
    /// filters come after: see [`Draw`].
    fn candidates(&self, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let all = 0..logits.len() as u32;
        if (1..=MOST).contains(&self.top_k) {
            let mut largest = Largest::new(self.top_k);
            all.for_each(|id| largest.push(logits[id as usize], id));
            return (largest.ids().into(), largest.values().into());
        }
        let logit = |id: u32| logits[id as usize];
        // There is no NaN.
        let by_logit = |a: &u32, b: &u32| {
            logit(*b).partial_cmp(&logit(*a)).unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        let mut ids: Vec<u32> = all.collect();
        let keep = if self.top_k == 0 { ids.len() } else { self.top_k.min(ids.len()) };
        if keep < ids.len() {
            ids.select_nth_unstable_by(keep - 1, by_logit);
            ids.truncate(keep);
        }
        ids.sort_unstable_by(by_logit);
        let values = ids.iter().map(|&id| logit(id)).collect();
        (ids, values)
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
        let ids = |s: Sampling| -> Vec<u32> {
            let (ids, values) = s.candidates(&logits);
            ids[..s.rule().kept(&values)].to_vec()
        };
        let s = at_temperature(1.0);
        assert_eq!(ids(Sampling { top_k: 2, ..s.clone() }), [1, 3]);
        assert_eq!(ids(Sampling { top_p: 0.75, ..s.clone() }), [1, 3]);
        assert_eq!(ids(Sampling { top_p: 0.81, ..s.clone() }), [1, 3, 2]);
        assert_eq!(ids(Sampling { min_p: 0.25, ..s.clone() }), [1, 3, 2]);
        assert_eq!(ids(s), [1, 3, 2, 0]);
    }

    /// Chi-square against the exact probabilities: five cells leave four degrees of freedom, and a value
    /// above 18.5 comes once in a thousand. The seeds are fixed, so the result is, too.
    #[test]
    fn drawn_tokens_pass_a_chi_square_test_under_every_filter() {
        let logits: Vec<f32> = [0.3f32, 0.25, 0.2, 0.15, 0.1].map(f32::ln).into();
        let s = Sampling { top_k: 20, ..at_temperature(1.0) };
        let settings: [(Sampling, &[f64]); 5] = [
            (s.clone(), &[0.3, 0.25, 0.2, 0.15, 0.1]),
            (Sampling { top_k: 0, ..s.clone() }, &[0.3, 0.25, 0.2, 0.15, 0.1]),
            (Sampling { top_k: 3, ..s.clone() }, &[0.3, 0.25, 0.2]),
            (Sampling { top_p: 0.85, ..s.clone() }, &[0.3, 0.25, 0.2, 0.15]),
            (Sampling { min_p: 0.6, ..s.clone() }, &[0.3, 0.25, 0.2]),
        ];
        let n = 20_000;
        for (i, (s, odds)) in settings.into_iter().enumerate() {
            // Once along positions, once along seeds.
            for along_seeds in [false, true] {
                let mut seen = [0; 5];
                for draw in 0..n {
                    let (seed, position) = if along_seeds { (draw, i) } else { (i, draw) };
                    let s = Sampling { seed: seed as u64, ..s.clone() };
                    seen[choose(&s, &logits, position) as usize] += 1;
                }
                let total: f64 = odds.iter().sum();
                let expected = |p: &f64| n as f64 * p / total;
                let distance: f64 = odds
                    .iter()
                    .zip(seen)
                    .map(|(p, seen)| (f64::from(seen) - expected(p)).powi(2) / expected(p))
                    .sum();
                assert!(distance < 18.5, "{s:?}: {seen:?} has the distance {distance}");
                assert_eq!(seen[odds.len()..].iter().sum::<i32>(), 0, "{s:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn the_device_chooses_where_it_can() {
        let s = Sampling { top_k: 20, top_p: 0.95, ..at_temperature(1.0) };
        assert_eq!(s.on_device(), Some(Draw::new(1.0, 20, 0.95, 0.0, 0)));
        assert_eq!(Sampling::greedy().on_device(), Some(Draw::GREEDY));
        for on_host in [
            Sampling { top_k: 0, ..s.clone() },
            Sampling { top_k: MOST + 1, ..s.clone() },
            Sampling { presence_penalty: 0.1, ..s.clone() },
            Sampling { frequency_penalty: 0.1, ..Sampling::greedy() },
            Sampling { repetition_penalty: 1.1, ..s.clone() },
            Sampling { logit_bias: HashMap::from([(1, 0.5)]), ..s },
        ] {
            assert_eq!(on_host.on_device(), None, "{on_host:?}");
        }
    }

    /// A large vocabulary of few different values: the host's two ways to the largest agree.
    #[test]
    fn more_candidates_than_a_device_keeps_extend_the_same_order() {
        let logits: Vec<f32> = (0..1000).map(|i| (i * 37 % 11) as f32).collect();
        let ids = |top_k| Sampling { top_k, ..at_temperature(1.0) }.candidates(&logits).0;
        assert_eq!(ids(64)[..], ids(65)[..64]);
        assert_eq!(ids(65)[..], ids(0)[..65]);
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
