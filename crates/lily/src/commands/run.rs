//! `lily run`: tokens after a prompt.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lily_model::engine::{Finish, Generation};
use lily_model::sampling::Sampling;
use serde_json::json;

use crate::args::RunArgs;
use crate::model::load;
use crate::output::{note, print, print_json};

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let sampling = sampling(args);
    sampling.validate()?;
    let needed = args.tokens.len().saturating_add(args.max_tokens);
    let mut loaded = load(&args.model, args.ctx.unwrap_or(needed.max(2)), false)?;
    let vocab = loaded.engine.shape().vocab_used;
    if let Some((id, _)) = args.logit_bias.iter().find(|(id, _)| *id as usize >= vocab) {
        bail!("--logit-bias names token {id}, need an id below {vocab}");
    }
    let generation = Generation {
        limit: args.max_tokens,
        stop_ids: if args.ignore_stop { Vec::new() } else { loaded.stop_ids },
        sampling,
    };
    let sequence = loaded.engine.open()?;
    let start = Instant::now();
    let mut first_token = Duration::ZERO;
    let mut tokens = Vec::new();
    let mut print_error = None;
    let finish = loaded.engine.generate(sequence, &args.tokens, &generation, &mut |token| {
        if tokens.is_empty() {
            first_token = start.elapsed();
        }
        if !args.json {
            let comma = if tokens.is_empty() { "" } else { "," };
            print_error = print(format_args!("{comma}{token}")).err();
        }
        tokens.push(token);
        // A reader that went away ends the work.
        if print_error.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(error) = print_error {
        return Err(error);
    }
    let timings = Timings::new(args.tokens.len(), tokens.len(), first_token, start.elapsed());
    if args.json {
        print_json(&json!({
            "text": null,
            "reasoning": null,
            "tool_calls": [],
            "tokens": tokens,
            "finish_reason": reason(finish),
            "usage": {
                "prompt_tokens": args.tokens.len(),
                "completion_tokens": tokens.len(),
                "total_tokens": args.tokens.len() + tokens.len(),
            },
            "timings": {
                "load_s": loaded.load_time.as_secs_f64(),
                "first_token_s": timings.first_token.as_secs_f64(),
                "prefill_tok_s": timings.prefill_tok_s,
                "decode_tok_s": timings.decode_tok_s,
            },
        }))?;
    } else {
        print("\n")?;
        note(format_args!(
            "{}: {} prompt tokens at {} tok/s, {} tokens at {} tok/s; loaded in {:.1} s",
            reason(finish),
            args.tokens.len(),
            rate(timings.prefill_tok_s),
            tokens.len(),
            rate(timings.decode_tok_s),
            loaded.load_time.as_secs_f64()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn sampling(args: &RunArgs) -> Sampling {
    Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        repetition_penalty: args.repetition_penalty,
        seed: args.seed,
        logit_bias: args.logit_bias.iter().copied().collect(),
    }
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop(_) => "stop",
        Finish::Length => "length",
        Finish::Cancelled => "cancelled",
    }
}

struct Timings {
    first_token: Duration,
    prefill_tok_s: Option<f64>,
    /// Of the tokens after the first.
    decode_tok_s: Option<f64>,
}

impl Timings {
    fn new(prompt: usize, produced: usize, first_token: Duration, total: Duration) -> Self {
        let rate = |n: usize, time: Duration| {
            (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
        };
        Self {
            first_token,
            prefill_tok_s: rate(prompt, first_token),
            decode_tok_s: rate(produced.saturating_sub(1), total.saturating_sub(first_token)),
        }
    }
}

fn rate(value: Option<f64>) -> String {
    value.map_or("–".into(), |v| format!("{v:.1}"))
}
