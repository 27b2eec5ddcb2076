//! Teacher-forced evaluation against recorded logits: needs token ids, not a tokenizer.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::{Engine, EngineError, Generation};
use crate::weights::{Dtype, parse_header};

/// A margin above which a choice counts as clear: the difference of the two largest logits.
const CLEAR_GAP: f32 = 0.5;

/// Why an evaluation cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// A file of the reference folder is missing or unreadable.
    #[error(
        "cannot read {path}: {reason}; a reference folder holds prompts.json and logits_*.safetensors"
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
    /// `[tokens, vocab]` of each prompt.
    logits: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct Prompts {
    prompts: Vec<Vec<u32>>,
    #[serde(default)]
    greedy: Vec<Vec<u32>>,
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
    /// Reads a folder with `prompts.json` and `logits_*.safetensors` (tensors `logits.LENGTH`).
    pub fn open(folder: &Path) -> Result<Self, EvaluationError> {
        let path = folder.join("prompts.json");
        let fail =
            |path: &Path, reason: String| EvaluationError::File { path: path.into(), reason };
        let text = std::fs::read_to_string(&path).map_err(|e| fail(&path, e.to_string()))?;
        let prompts: Prompts =
            serde_json::from_str(&text).map_err(|e| fail(&path, e.to_string()))?;
        let path = find_logits(folder)?;
        let file = std::fs::read(&path).map_err(|e| fail(&path, e.to_string()))?;
        let header = parse_header(&file).map_err(|e| fail(&path, e.to_string()))?;
        let mut logits = Vec::new();
        for prompt in &prompts.prompts {
            let name = format!("logits.{}", prompt.len());
            let entry =
                header.get(&name).ok_or_else(|| fail(&path, format!("no tensor `{name}`")))?;
            if entry.dtype != Dtype::F32 || entry.shape.first() != Some(&prompt.len()) {
                let expected = vec![prompt.len()];
                return Err(EvaluationError::Shape { name, expected, found: entry.shape.clone() });
            }
            let bytes = file.get(entry.bytes.clone()).unwrap_or(&[]);
            let values = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            logits.push(values.collect());
        }
        Ok(Self { prompts: prompts.prompts, greedy: prompts.greedy, logits })
    }

    /// Records what an engine that keeps all logits computes: the logits of every position, and `ids` greedy ids
    /// after each prompt.
    pub fn record(
        engine: &mut Engine,
        prompts: Vec<Vec<u32>>,
        ids: usize,
    ) -> Result<Self, EngineError> {
        let mut recorded = Self { prompts, greedy: Vec::new(), logits: Vec::new() };
        for prompt in &recorded.prompts {
            let sequence = engine.open()?;
            let mut logits = Vec::new();
            engine.evaluate(sequence, prompt, &mut |_, rows| logits.extend_from_slice(rows))?;
            engine.close(sequence);
            recorded.logits.push(logits);
            recorded.greedy.push(greedy(engine, prompt, ids)?);
        }
        Ok(recorded)
    }

    /// Longest sequence that an evaluation runs.
    pub fn longest(&self) -> usize {
        let greedy = |i: usize| self.greedy.get(i).map_or(0, Vec::len);
        let lengths = self.prompts.iter().enumerate().map(|(i, p)| p.len() + greedy(i));
        lengths.max().unwrap_or(0)
    }
}

/// `logits_hf32.safetensors`, or the first of that pattern.
fn find_logits(folder: &Path) -> Result<PathBuf, EvaluationError> {
    let preferred = folder.join("logits_hf32.safetensors");
    if preferred.exists() {
        return Ok(preferred);
    }
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let matching = names.filter(|p| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("logits_") && name.ends_with(".safetensors")
    });
    matching.min().ok_or(EvaluationError::File { path: preferred, reason: "not found".into() })
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
    fn add(&mut self, got: &[f32], want: &[f32], next: Option<u32>) {
        self.positions += 1;
        let (best, gap) = best_and_gap(want);
        let same = usize::from(best_and_gap(got).0 == best);
        self.top1 += same;
        if gap > CLEAR_GAP {
            self.clear += 1;
            self.clear_top1 += same;
        }
        for (&g, &w) in got.iter().zip(want) {
            let d = f64::from(g) - f64::from(w);
            // A NaN must not pass for a small difference.
            self.max_abs = if d.is_nan() { f64::INFINITY } else { self.max_abs.max(d.abs()) };
            self.square_error += d * d;
            self.square += f64::from(w).powi(2);
        }
        let (got_sum, want_sum) = (log_sum_exp(got), log_sum_exp(want));
        let log_ratio = |g: f32, w: f32| (f64::from(w) - want_sum) - (f64::from(g) - got_sum);
        self.kl += got
            .iter()
            .zip(want)
            .map(|(&g, &w)| (f64::from(w) - want_sum).exp() * log_ratio(g, w))
            .sum::<f64>();
        if let Some(next) = next.map(|n| n as usize) {
            self.nll += got_sum - f64::from(got[next]);
            self.reference_nll += want_sum - f64::from(want[next]);
            self.predicted += 1;
        }
    }
}

/// Runs all prompts of a reference; the engine should keep all logits.
pub fn evaluate(engine: &mut Engine, reference: &Reference) -> Result<Evaluation, EvaluationError> {
    let vocab = engine.shape().vocab;
    let mut sums = Sums::default();
    for (prompt, want) in reference.prompts.iter().zip(&reference.logits) {
        if want.len() != prompt.len() * vocab {
            return Err(EvaluationError::Shape {
                name: format!("logits.{}", prompt.len()),
                expected: vec![prompt.len(), vocab],
                found: vec![prompt.len(), want.len() / prompt.len().max(1)],
            });
        }
        let sequence = engine.open()?;
        engine.evaluate(sequence, prompt, &mut |first, logits| {
            for (i, got) in logits.chunks(vocab).enumerate() {
                let at = first + i;
                let next = prompt.get(at + 1).copied();
                sums.add(got, &want[at * vocab..(at + 1) * vocab], next);
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
        kl: sums.kl / sums.positions.max(1) as f64,
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
        sums.add(&row, &row, Some(1));
        assert_eq!((sums.top1, sums.clear_top1, sums.max_abs), (1, 1, 0.0));
        assert!(sums.kl.abs() < 1e-12 && sums.nll == sums.reference_nll);
        sums.add(&[0.1, f32::NAN, -1.0], &row, None);
        assert_eq!(sums.max_abs, f64::INFINITY);
    }
}
