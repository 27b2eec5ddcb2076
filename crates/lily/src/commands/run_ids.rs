//! `lily run --tokens` of a model without a tokenizer: ids in, ids out.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use lily_chat::{FinishReason, Timings};
use lily_model::engine::{Finish, Generation, Progress};
use lily_model::sampling::Sampling;
use serde_json::json;

use crate::answer::{SHORT_ANSWER, summary};
use crate::args::RunArgs;
use crate::model::Source;

/// Runs the command.
pub fn run(args: &RunArgs, source: Source) -> Result<ExitCode> {
    let max_tokens = args.max_tokens.unwrap_or(SHORT_ANSWER);
    let needed = args.tokens.len() + max_tokens;
    let mut loaded = source.load(&args.model, args.ctx.unwrap_or(needed.max(2)), false)?;
    let generation = Generation {
        limit: max_tokens,
        stop_ids: if args.ignore_stop { Vec::new() } else { loaded.stop_ids },
        sampling: args.sampling.over(Sampling::greedy()),
    };
    let sequence = loaded.engine.open()?;
    let start = Instant::now();
    let mut first_token = Duration::ZERO;
    let mut tokens = Vec::new();
    let mut print_error = None;
    let finish = loaded.engine.generate(sequence, &args.tokens, &generation, &mut |progress| {
        let Progress::Token(token) = progress else { return ControlFlow::Continue(()) };
        if tokens.is_empty() {
            first_token = start.elapsed();
        }
        if !args.answer.json {
            print_error = print_token(token, tokens.is_empty()).err();
        }
        tokens.push(token);
        // A reader that went away ends the work.
        if print_error.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(error) = print_error {
        return Err(error.into());
    }
    let finish = match finish {
        Finish::Stop(_) => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
        Finish::Cancelled => FinishReason::Cancelled,
    };
    let timings = Timings {
        first_token,
        total: start.elapsed(),
        prompt_tokens: args.tokens.len(),
        completion_tokens: tokens.len(),
    };
    if args.answer.json {
        super::print_json(&json!({
            "text": null,
            "reasoning": null,
            "tool_calls": [],
            "tokens": tokens,
            "finish_reason": finish.name(),
            "usage": {
                "prompt_tokens": args.tokens.len(),
                "completion_tokens": tokens.len(),
                "total_tokens": args.tokens.len() + tokens.len(),
                "prompt_tokens_details": { "cached_tokens": 0 },
            },
            "timings": {
                "load_s": loaded.load_time.as_secs_f64(),
                "first_token_s": first_token.as_secs_f64(),
                "prefill_tok_s": timings.prefill_tok_s(),
                "decode_tok_s": timings.decode_tok_s(),
            },
        }))?;
    } else {
        println!();
        eprintln!("{}", summary(finish, &timings, loaded.load_time));
    }
    Ok(ExitCode::SUCCESS)
}

fn print_token(token: u32, first: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{}{token}", if first { "" } else { "," })?;
    out.flush()
}
