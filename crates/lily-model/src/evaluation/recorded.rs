//! What a reference has recorded of each position: all logits, or the largest of them.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{EvaluationError, Reference, best_and_gap, log_sum_exp};
use crate::weights::{Dtype, HeaderEntry, parse_header};

/// What was recorded of a prompt.
pub(super) enum Recorded {
    /// `[tokens, vocab]`.
    All(Vec<f32>),
    /// Some logits of each position.
    Top {
        /// Logits of a position.
        each: usize,
        /// `[tokens, each]`, the token with the largest logit first.
        ids: Vec<u32>,
        /// `[tokens, each]`.
        logits: Vec<f32>,
        /// Logarithm of the sum of the exponentials of all logits: `[tokens]`.
        sums: Vec<f32>,
    },
}

/// What was recorded of a position.
#[derive(Clone, Copy)]
pub(super) enum Row<'a> {
    All(&'a [f32]),
    Top { ids: &'a [u32], logits: &'a [f32], sum: f32 },
}

impl Recorded {
    /// Refuses what belongs to another model than one with this vocabulary.
    pub(super) fn check(&self, tokens: usize, vocab: usize) -> Result<(), EvaluationError> {
        let width = match self {
            Self::All(logits) if logits.len() == tokens * vocab => return Ok(()),
            Self::All(logits) => logits.len() / tokens.max(1),
            Self::Top { ids, .. } => match ids.iter().max() {
                Some(&largest) if largest as usize >= vocab => largest as usize + 1,
                _ => return Ok(()),
            },
        };
        Err(EvaluationError::Shape {
            name: format!("logits.{tokens}"),
            expected: vec![tokens, vocab],
            found: vec![tokens, width],
        })
    }

    /// What was recorded of a position.
    pub(super) fn row(&self, position: usize, vocab: usize) -> Row<'_> {
        match self {
            Self::All(logits) => Row::All(&logits[position * vocab..][..vocab]),
            Self::Top { each, ids, logits, sums } => {
                let here = position * each..(position + 1) * each;
                Row::Top { ids: &ids[here.clone()], logits: &logits[here], sum: sums[position] }
            }
        }
    }
}

impl Row<'_> {
    /// Whether every token's logit is recorded.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::All(_))
    }

    /// The token with the largest logit, and the distance to the second largest.
    pub(super) fn best_and_gap(&self) -> (usize, f32) {
        match self {
            Self::All(logits) => best_and_gap(logits),
            Self::Top { ids, logits, .. } => {
                let (best, gap) = best_and_gap(logits);
                (ids[best] as usize, gap)
            }
        }
    }

    /// Logarithm of the sum of the exponentials of all logits.
    pub(super) fn log_sum_exp(&self) -> f64 {
        match self {
            Self::All(logits) => log_sum_exp(logits),
            Self::Top { sum, .. } => f64::from(*sum),
        }
    }

    /// Recorded logits with their tokens.
    pub(super) fn logits(&self) -> impl Iterator<Item = (usize, f32)> {
        let (ids, logits) = match self {
            Self::All(logits) => (None, *logits),
            Self::Top { ids, logits, .. } => (Some(*ids), *logits),
        };
        let id = move |at: usize| ids.map_or(at, |ids| ids[at] as usize);
        logits.iter().enumerate().map(move |(at, &logit)| (id(at), logit))
    }

    /// The recorded logit of a token.
    pub(super) fn logit(&self, token: u32) -> Option<f32> {
        match self {
            Self::All(logits) => logits.get(token as usize).copied(),
            Self::Top { ids, logits, .. } => {
                ids.iter().position(|&id| id == token).map(|at| logits[at])
            }
        }
    }
}

#[derive(Deserialize)]
struct Prompts {
    prompts: Vec<Vec<u32>>,
    #[serde(default)]
    greedy: Vec<Vec<u32>>,
}

/// As [`Reference::open`].
pub(super) fn open(folder: &Path) -> Result<Reference, EvaluationError> {
    let path = folder.join("prompts.json");
    let fail = |path: &Path, reason: String| EvaluationError::File { path: path.into(), reason };
    let text = std::fs::read_to_string(&path).map_err(|e| fail(&path, e.to_string()))?;
    let prompts: Prompts = serde_json::from_str(&text).map_err(|e| fail(&path, e.to_string()))?;
    let (path, all) = find(folder)?;
    let bytes = std::fs::read(&path).map_err(|e| fail(&path, e.to_string()))?;
    let header = parse_header(&bytes).map_err(|e| fail(&path, e.to_string()))?;
    let file = File { path, bytes, header };
    let read = |prompt: &Vec<u32>| if all { file.all(prompt) } else { file.top(prompt) };
    let recorded = prompts.prompts.iter().map(read).collect::<Result<_, _>>()?;
    Ok(Reference { prompts: prompts.prompts, greedy: prompts.greedy, recorded })
}

/// The file with logits, and whether it has all of them.
fn find(folder: &Path) -> Result<(PathBuf, bool), EvaluationError> {
    let preferred = folder.join("logits_hf32.safetensors");
    if preferred.exists() {
        return Ok((preferred, true));
    }
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let all = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let begins = |start: &str| name.ends_with(".safetensors") && name.starts_with(start);
        if begins("logits_") { Some(true) } else { begins("top_").then_some(false) }
    };
    let matching = names.filter_map(|path| all(&path).map(|all| (path, all)));
    matching.min().ok_or(EvaluationError::File { path: preferred, reason: "not found".into() })
}

struct File {
    path: PathBuf,
    bytes: Vec<u8>,
    header: std::collections::BTreeMap<String, HeaderEntry>,
}

impl File {
    fn all(&self, prompt: &[u32]) -> Result<Recorded, EvaluationError> {
        let (_, values) = self.tensor("logits", prompt, Dtype::F32)?;
        Ok(Recorded::All(values.map(f32::from_le_bytes).collect()))
    }

    fn top(&self, prompt: &[u32]) -> Result<Recorded, EvaluationError> {
        let (shape, ids) = self.tensor("ids", prompt, Dtype::I32)?;
        let ids: Vec<u32> = ids.map(u32::from_le_bytes).collect();
        let (_, logits) = self.tensor("logits", prompt, Dtype::F32)?;
        let logits: Vec<f32> = logits.map(f32::from_le_bytes).collect();
        let (_, sums) = self.tensor("sum", prompt, Dtype::F32)?;
        let sums: Vec<f32> = sums.map(f32::from_le_bytes).collect();
        let each = shape.get(1).copied().unwrap_or(0);
        let expected = prompt.len() * each;
        if each == 0
            || ids.len() != expected
            || logits.len() != expected
            || sums.len() != prompt.len()
        {
            let name = format!("ids.{}", prompt.len());
            let (expected, found) = (vec![prompt.len(), each.max(1)], shape);
            return Err(EvaluationError::Shape { name, expected, found });
        }
        Ok(Recorded::Top { each, ids, logits, sums })
    }

    /// Shape and elements of a prompt's tensor; its first dimension is that of the prompt.
    fn tensor(
        &self,
        kind: &str,
        prompt: &[u32],
        dtype: Dtype,
    ) -> Result<(Vec<usize>, impl Iterator<Item = [u8; 4]>), EvaluationError> {
        let name = format!("{kind}.{}", prompt.len());
        let entry = self.header.get(&name).ok_or_else(|| EvaluationError::File {
            path: self.path.clone(),
            reason: format!("no tensor `{name}`"),
        })?;
        if entry.dtype != dtype || entry.shape.first() != Some(&prompt.len()) {
            let expected = vec![prompt.len()];
            return Err(EvaluationError::Shape { name, expected, found: entry.shape.clone() });
        }
        let bytes: Range<usize> = entry.bytes.clone();
        let bytes = self.bytes.get(bytes).unwrap_or(&[]);
        Ok((entry.shape.clone(), bytes.as_chunks::<4>().0.iter().copied()))
    }
}
