//! `lily run --tokens` of a model without a tokenizer: ids in, ids out.

use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Result;
use lily_chat::{Turn, complete_ids};
use lily_model::engine::{EngineOptions, Generation};
use lily_model::sampling::Sampling;
use serde_json::Value;

use super::run::context;
use crate::answer::{SHORT_ANSWER, summary};
use crate::args::RunArgs;
use crate::model::Source;
use crate::output::{note, print, print_json};

/// Runs the command.
pub fn run(args: &RunArgs, source: &Source) -> Result<ExitCode> {
    let sampling = args.sampling.over(Sampling::greedy());
    sampling.validate()?;
    let max_tokens = args.max_tokens.unwrap_or(SHORT_ANSWER);
    let context = context(args, args.tokens.len(), max_tokens);
    let mut loaded =
        source.load(&args.model, EngineOptions { context, ..EngineOptions::default() })?;
    let generation = Generation {
        limit: max_tokens,
        stop_ids: if args.ignore_stop { Vec::new() } else { loaded.stop_ids },
        sampling,
        ..Generation::default()
    };
    args.sampling.check_bias(loaded.engine.shape().vocab_used)?;
    let sequence = loaded.engine.open()?;
    let engine = &mut loaded.engine;
    let mut separator = "";
    let mut print_error: Option<anyhow::Error> = None;
    let outcome = complete_ids(engine, sequence, &args.tokens, &generation, &mut |token| {
        if !args.answer.json {
            print_error = print(format_args!("{separator}{token}")).err();
            separator = ",";
        }
        // A reader that went away ends the work.
        if print_error.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(error) = print_error {
        return Err(error);
    }
    if args.answer.json {
        let turn = Turn { outcome, prompt_tokens: args.tokens.len(), reused_tokens: 0 };
        let mut object = turn.json(loaded.load_time);
        object["text"] = Value::Null;
        print_json(&object)?;
    } else {
        print("\n")?;
        note(summary((outcome.finish, &outcome.timings), max_tokens, false, loaded.load_time));
    }
    Ok(ExitCode::SUCCESS)
}
