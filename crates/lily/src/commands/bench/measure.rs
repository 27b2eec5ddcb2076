//! The figures of one prompt length.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lily_model::engine::{Engine, Generation, Progress};
use lily_model::plan::Choice;
use lily_model::sampling::Sampling;
use serde::Serialize;

use crate::args::BenchArgs;

/// Medians over the repetitions of one length, with the slowest and the fastest.
#[derive(Serialize)]
pub struct Row {
    /// Tokens of the prompt.
    pub length: usize,
    /// Tokens of the prompt read in a second.
    pub prefill_tok_s: f64,
    /// Of the slowest and of the fastest round.
    pub prefill_spread: [f64; 2],
    /// From the start to the first token.
    pub time_to_first_token_ms: f64,
    /// Tokens decoded in a second, behind the prompt.
    pub decode_tok_s: f64,
    /// Of the slowest and of the fastest round.
    pub decode_spread: [f64; 2],
    /// Launches of a decode step behind the prompt.
    pub decode_launches: usize,
    /// Stages of that step.
    pub decode_stages: usize,
    /// Bytes that the step reads and writes, by its plan.
    pub decode_bytes_per_token: u64,
    /// Bytes moved in a second while decoding.
    pub decode_bytes_per_second: f64,
    /// The same as a share of what the device reads in a second, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_bandwidth_share: Option<f64>,
}

/// One length: a round that is not counted, then `reps` rounds. `bandwidth` is what the device reads in
/// a second, in bytes.
pub fn measure(
    engine: &mut Engine,
    length: usize,
    args: &BenchArgs,
    bandwidth: Option<f64>,
) -> Result<Row> {
    let used = engine.shape().vocab_used as u64;
    // Distinct ids, so that no round of tokens repeats a pattern of experts.
    let prompt: Vec<u32> =
        (0..length as u64).map(|i| (i.wrapping_mul(2_654_435_761) % used) as u32).collect();
    let sampling = if args.sampled { sampled() } else { Sampling::greedy() };
    let generation = Generation { limit: args.decode + 1, sampling, ..Generation::default() };
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for rep in 0..=args.reps {
        let sequence = engine.open()?;
        let start = Instant::now();
        let (mut first, mut last, mut tokens) = (None, start, 0usize);
        engine.generate(sequence, &prompt, &generation, &mut |progress| {
            if let Progress::Token(_) = progress {
                last = Instant::now();
                first.get_or_insert(last);
                tokens += 1;
            }
            ControlFlow::Continue(())
        })?;
        engine.close(sequence);
        let first = first.context("no token was chosen")?;
        ensure!(tokens == args.decode + 1, "{tokens} tokens were chosen, need {}", args.decode + 1);
        if rep > 0 {
            prefill.push((first - start).as_secs_f64());
            decode.push((last - first).as_secs_f64() / args.decode as f64);
        }
    }
    let (prefill, decode) = (Times::new(prefill), Times::new(decode));
    let length_f = length as f64;
    let step = engine.decode_table(length, choice(args))?;
    let bytes = step.bytes_read + step.bytes_written;
    let bytes_per_second = bytes as f64 / decode.median;
    Ok(Row {
        length,
        prefill_tok_s: length_f / prefill.median,
        prefill_spread: [length_f / prefill.slowest, length_f / prefill.fastest],
        time_to_first_token_ms: 1e3 * prefill.median,
        decode_tok_s: 1.0 / decode.median,
        decode_spread: [1.0 / decode.slowest, 1.0 / decode.fastest],
        decode_launches: step.launches,
        decode_stages: step.stages,
        decode_bytes_per_token: bytes,
        decode_bytes_per_second: bytes_per_second,
        decode_bandwidth_share: bandwidth.map(|most| bytes_per_second / most),
    })
}

/// Who chooses the tokens of a decode step.
pub fn choice(args: &BenchArgs) -> Choice {
    if args.sampled { Choice::Draw } else { Choice::Device }
}

/// What the reference checkpoint asks for.
fn sampled() -> Sampling {
    Sampling { temperature: 1.0, top_k: 20, top_p: 0.95, ..Sampling::greedy() }
}

/// Seconds of some rounds.
struct Times {
    fastest: f64,
    median: f64,
    slowest: f64,
}

impl Times {
    fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self {
            fastest: seconds[0],
            median: seconds[seconds.len() / 2],
            slowest: seconds[seconds.len() - 1],
        }
    }
}
