//! Teacher-forced evaluation against recorded logits: needs token ids, not a tokenizer.

mod recorded;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::engine::{Engine, EngineError, Generation};
use recorded::{Recorded, Row};

/// A margin above which a choice counts as clear: the difference of the two largest logits.
const CLEAR_GAP: f32 = 0.5;

/// Why an evaluation cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// A file of the reference folder is missing or unreadable.
    #[error(
        "cannot read {path}: {reason}; a reference folder holds prompts.json and logits_*.safetensors or top_*.safetensors"
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The reference does not fit the model.
    #[error(
        "the reference `{name}` has shape {found:?}, need {expected:?}; it belongs to another model"
    )]
    Shape {
        /// Tensor name.
        name: String,
        /// Shape needed.
        expected: Vec<usize>,
        /// Shape found.
        found: Vec<usize>,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Recorded prompts with the logits of every position.
pub struct Reference {
    prompts: Vec<Vec<u32>>,
    /// Ids that follow each prompt greedily.
    greedy: Vec<Vec<u32>>,
    /// What was recorded of each prompt.
    recorded: Vec<Recorded>,
}

/// Result of an evaluation. Field names are part of the command line's contract.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// Positions compared.
    pub positions: usize,
    /// Share of positions with the reference's most likely token.
    pub top1: f64,
    /// Positions where the reference's two largest logits are more than 0.5 apart.
    pub clear_positions: usize,
    /// Share of those with the reference's most likely token.
    pub clear_top1: f64,
    /// Largest difference of a logit.
    pub max_abs: f64,
    /// Root mean square difference of the logits, relative to their own.
    pub rms: f64,
    /// Mean divergence of the next-token distributions, KL(reference ‖ this), in nats.
    pub kl: f64,
    /// Perplexity of the prompts.
    pub perplexity: f64,
    /// The same from the reference's logits.
    pub reference_perplexity: f64,
    /// Whether every recorded greedy id follows.
    pub greedy_equal: bool,
    /// Greedy ids that agree before the first difference of each prompt.
    pub greedy_agreeing: usize,
    /// Recorded greedy ids.
    pub greedy_ids: usize,
}

impl Reference {
    /// Reads a folder with `prompts.json` and one of two files:
    ///
    /// - `logits_*.safetensors`: tensors `logits.LENGTH`, `[tokens, vocab]` f32, for the prompt of that length;
    /// - `top_*.safetensors`, small: `ids.LENGTH` `[tokens, n]` i32 and `logits.LENGTH` `[tokens, n]` f32, each row
    ///   with the largest logits first and the prompt's next token somewhere, and `sum.LENGTH` `[tokens]` f32, the
    ///   logarithm of the sum of the exponentials of all logits.
    ///
    /// # Errors
    /// A file is missing, unreadable, or not of this form.
    pub fn open(folder: &Path) -> Result<Self, EvaluationError> {
        recorded::open(folder)
    }

    /// Records what an engine that keeps all logits computes: the logits of every position, and `ids` greedy ids
    /// after each prompt.
    pub fn record(
        engine: &mut Engine,
        prompts: Vec<Vec<u32>>,
        ids: usize,
    ) -> Result<Self, EngineError> {
        let mut reference = Self { prompts, greedy: Vec::new(), recorded: Vec::new() };
        for prompt in &reference.prompts {
            let sequence = engine.open()?;
            let mut logits = Vec::new();
            engine.evaluate(sequence, prompt, &mut |_, rows| logits.extend_from_slice(rows))?;
            engine.close(sequence);
            reference.recorded.push(Recorded::All(logits));
            reference.greedy.push(greedy(engine, prompt, ids)?);
        }
        Ok(reference)
    }

    /// The first prompts alone, as many as have at most that many positions together, and one at least: for slow
    /// devices.
    pub fn within(mut self, positions: usize) -> Self {
        let mut sum = 0;
        let fits = |prompt: &&Vec<u32>| {
            sum += prompt.len();
            sum <= positions
        };
        let kept = self.prompts.iter().take_while(fits).count().max(1);
        self.prompts.truncate(kept);
        self.recorded.truncate(kept);
        self.greedy.truncate(kept);
        self
    }

    /// Longest sequence that an evaluation runs.
    pub fn longest(&self) -> usize {
        let greedy = |i: usize| self.greedy.get(i).map_or(0, Vec::len);
        let lengths = self.prompts.iter().enumerate().map(|(i, p)| p.len() + greedy(i));
        lengths.max().unwrap_or(0)
    }
}

/// Sums over positions.
#[derive(Default)]
struct Sums {
    positions: usize,
    top1: usize,
    clear: usize,
    clear_top1: usize,
    max_abs: f64,
    square_error: f64,
    square: f64,
    kl: f64,
    nll: f64,
    reference_nll: f64,
    predicted: usize,
}

impl Sums {
    fn add(&mut self, got: &[f32], want: Row<'_>, next: Option<u32>) {
        self.positions += 1;
        let (best, gap) = want.best_and_gap();
        let same = usize::from(best_and_gap(got).0 == best);
        self.top1 += same;
        if gap > CLEAR_GAP {
            self.clear += 1;
            self.clear_top1 += same;
        }
        for (id, w) in want.logits() {
            let g = got[id];
            let d = f64::from(g) - f64::from(w);
            // A NaN must not pass for a small difference.
            self.max_abs = if d.is_nan() { f64::INFINITY } else { self.max_abs.max(d.abs()) };
            self.square_error += d * d;
            self.square += f64::from(w).powi(2);
        }
        let (got_sum, want_sum) = (log_sum_exp(got), want.log_sum_exp());
        let (mut got_share, mut want_share) = (0.0, 0.0);
        for (id, w) in want.logits() {
            let (g, w) = (f64::from(got[id]) - got_sum, f64::from(w) - want_sum);
            self.kl += w.exp() * (w - g);
            got_share += g.exp();
            want_share += w.exp();
        }
        // Tokens that were not recorded count as one.
        let (got_rest, want_rest) = (1.0 - got_share, 1.0 - want_share);
        if !want.is_whole() && got_rest > 0.0 && want_rest > 0.0 {
            self.kl += want_rest * (want_rest / got_rest).ln();
        }
        if let Some(next) = next
            && let Some(recorded) = want.logit(next)
        {
            self.nll += got_sum - f64::from(got[next as usize]);
            self.reference_nll += want_sum - f64::from(recorded);
            self.predicted += 1;
        }
    }

    /// Mean divergence, which is never below 0: what rounding leaves there is nothing.
    fn divergence(&self) -> f64 {
        let mean = self.kl / self.positions.max(1) as f64;
        // A NaN stays one.
        if mean < 0.0 { 0.0 } else { mean }
    }
}

/// Runs all prompts of a reference; the engine should keep all logits.
pub fn evaluate(engine: &mut Engine, reference: &Reference) -> Result<Evaluation, EvaluationError> {
    let vocab = engine.shape().vocab;
    let mut sums = Sums::default();
    for (prompt, want) in reference.prompts.iter().zip(&reference.recorded) {
        want.check(prompt.len(), vocab)?;
        let sequence = engine.open()?;
        engine.evaluate(sequence, prompt, &mut |first, logits| {
            for (i, got) in logits.chunks(vocab).enumerate() {
                let at = first + i;
                let next = prompt.get(at + 1).copied();
                sums.add(got, want.row(at, vocab), next);
            }
        })?;
        engine.close(sequence);
    }
    let (mut agreeing, mut ids) = (0, 0);
    for (prompt, want) in reference.prompts.iter().zip(&reference.greedy) {
        let got = greedy(engine, prompt, want.len())?;
        agreeing += got.iter().zip(want).take_while(|(g, w)| g == w).count();
        ids += want.len();
    }
    let share = |n: usize, of: usize| if of == 0 { 1.0 } else { n as f64 / of as f64 };
    let perplexity = |nll: f64| (nll / sums.predicted.max(1) as f64).exp();
    Ok(Evaluation {
        positions: sums.positions,
        top1: share(sums.top1, sums.positions),
        clear_positions: sums.clear,
        clear_top1: share(sums.clear_top1, sums.clear),
        max_abs: sums.max_abs,
        rms: (sums.square_error / sums.square).sqrt(),
        kl: sums.divergence(),
        perplexity: perplexity(sums.nll),
        reference_perplexity: perplexity(sums.reference_nll),
        greedy_equal: agreeing == ids,
        greedy_agreeing: agreeing,
        greedy_ids: ids,
    })
}

fn greedy(engine: &mut Engine, prompt: &[u32], limit: usize) -> Result<Vec<u32>, EngineError> {
    let sequence = engine.open()?;
    let generation = Generation { limit, ..Generation::default() };
    let mut ids = Vec::new();
    engine.generate(sequence, prompt, &generation, &mut |progress| {
        ids.extend(progress.token());
        ControlFlow::Continue(())
    })?;
    engine.close(sequence);
    Ok(ids)
}

/// Index of the largest value, lowest on ties, and its distance to the second largest.
fn best_and_gap(values: &[f32]) -> (usize, f32) {
    let (mut best, mut second) = (0, f32::NEG_INFINITY);
    for (i, &v) in values.iter().enumerate().skip(1) {
        if v > values[best] {
            second = values[best];
            best = i;
        } else {
            second = second.max(v);
        }
    }
    (best, values[best] - second)
}

fn log_sum_exp(values: &[f32]) -> f64 {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = values.iter().map(|&v| f64::from(v - max).exp()).sum();
    f64::from(max) + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_give_perfect_scores_and_a_nan_gives_the_worst() {
        let row = [0.1, 2.0, -1.0];
        let mut sums = Sums::default();
        sums.add(&row, Row::All(&row), Some(1));
        assert_eq!((sums.top1, sums.clear_top1, sums.max_abs), (1, 1, 0.0));
        assert!(sums.kl.abs() < 1e-12 && sums.nll == sums.reference_nll);
        sums.add(&[0.1, f32::NAN, -1.0], Row::All(&row), None);
        assert_eq!(sums.max_abs, f64::INFINITY);
        assert!(sums.divergence().is_nan());
    }

    #[test]
    fn a_divergence_below_zero_is_what_rounding_left() {
        for (kl, mean) in [(-6e-11, 0.0), (0.0, 0.0), (0.5, 0.25)] {
            assert_eq!(Sums { kl, positions: 2, ..Sums::default() }.divergence(), mean);
        }
    }

    #[test]
    fn a_few_recorded_logits_give_what_all_give_where_they_say_enough() {
        let (all, got) = ([0.1, 2.0, -1.0, 1.9], [0.2, 1.9, -1.1, 2.0]);
        let sum = log_sum_exp(&all) as f32;
        let (mut whole, mut few) = (Sums::default(), Sums::default());
        whole.add(&got, Row::All(&all), Some(2));
        few.add(&got, Row::Top { ids: &[1, 3, 2], logits: &[2.0, 1.9, -1.0], sum }, Some(2));
        assert_eq!((few.top1, few.clear, few.predicted), (whole.top1, whole.clear, 1));
        assert_eq!(
            (few.top1, few.clear),
            (0, 0),
            "another token is the largest, by a narrow margin"
        );
        assert!((few.nll - whole.nll).abs() < 1e-9);
        assert!((few.reference_nll - whole.reference_nll).abs() < 1e-6);
        assert!((few.kl - whole.kl).abs() < 1e-6, "one token is not recorded, and it is the rest");
        // A row without the next token says nothing about it.
        few.add(&got, Row::Top { ids: &[1], logits: &[2.0], sum }, Some(0));
        assert_eq!((few.positions, few.predicted), (2, 1));
    }
}
