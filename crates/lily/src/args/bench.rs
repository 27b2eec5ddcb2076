//! Arguments of `lily bench`.

use std::path::{Path, PathBuf, absolute};

use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::{ModelArgs, conflict, preset};

/// `lily bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Random weights of these shapes in memory instead of a model: qwen3.6-35b-a3b, tiny, or a
    /// config.json.
    #[arg(long, value_name = "NAME|FILE.json", conflicts_with = "model", value_parser = preset)]
    pub preset: Option<String>,
    /// Prompt lengths, in tokens; without it 256, 512 and so on to 131072, as far as the model's
    /// context goes.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = length)]
    pub lengths: Vec<usize>,
    /// Tokens to decode after each prompt.
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = count(1 << 22))]
    pub decode: usize,
    /// Draw tokens (temperature 1.0, top-k 20, top-p 0.95) instead of taking the most likely ones.
    #[arg(long)]
    pub sampled: bool,
    /// Measurements of each length; the median counts.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = count(1000))]
    pub reps: usize,
    /// Print the time of every kernel, for a decode step and a prefill chunk after the longest prompt.
    #[arg(long)]
    pub profile: bool,
    /// Also write the figures to this file as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also draw prefill and decode speed over the length into this file, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// Longest prompt, in tokens.
const LONGEST: usize = 1 << 23;

fn length(text: &str) -> Result<usize, String> {
    let length = text.parse().ok().filter(|length| (1..=LONGEST).contains(length));
    length.ok_or_else(|| format!("expected lengths from 1 to {LONGEST}, such as 128,2048"))
}

/// Lengths where none are asked for.
const LENGTHS: [usize; 10] = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072];

impl BenchArgs {
    /// The prompt lengths for a model of this context: those that were asked for, or all usual ones that it was
    /// made for, and at least one.
    pub fn lengths(&self, context: usize) -> Vec<usize> {
        if !self.lengths.is_empty() {
            return self.lengths.clone();
        }
        let fit = LENGTHS.iter().filter(|&&length| length + self.decode < context).count();
        LENGTHS[..fit.max(1)].to_vec()
    }

    /// Checks what has a meaning or none whatever the model is.
    ///
    /// # Errors
    /// Figures and chart would be written over each other.
    pub fn check(&self) -> Result<(), clap::Error> {
        match (&self.json, &self.plot) {
            (Some(json), Some(plot)) if is_same(json, plot) => {
                Err(conflict("bench", "--json and --plot name one file; give each its own"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether two names lead to one file, as far as they tell.
fn is_same(first: &Path, second: &Path) -> bool {
    absolute(first).ok() == absolute(second).ok()
}

/// A number from 1 to `most`; lengths and tokens together stay below the longest context.
fn count(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}
