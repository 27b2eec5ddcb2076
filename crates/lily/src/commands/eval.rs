//! `lily eval`: a model against recorded logits.

use std::process::ExitCode;

use anyhow::Result;
use lily_model::engine::EngineOptions;
use lily_model::evaluation::{Evaluation, Reference, evaluate};

use crate::args::EvalArgs;
use crate::model::Source;
use crate::output::{print, print_json};

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<ExitCode> {
    let reference = Reference::open(&args.reference)?;
    let context = reference.longest().max(2);
    let options = EngineOptions { context, all_logits: true, ..EngineOptions::default() };
    let mut loaded = Source::find(&args.model)?.load(&args.model, options)?;
    let e = evaluate(&mut loaded.engine, &reference)?;
    if args.json {
        print_json(&e)?;
    } else {
        print(text(&e))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(e: &Evaluation) -> String {
    // Small references hold none.
    let greedy = match e.greedy_ids {
        0 => String::new(),
        ids => format!("greedy ids            {} of {ids} agree\n", e.greedy_agreeing),
    };
    format!(
        "positions             {}\n\
         same top token        {:.2} %\n  \
           where it is clear   {:.2} % of {} (margin above 0.5)\n\
         largest difference    {:.3e}\n\
         relative rms          {:.3e}\n\
         KL divergence         {:.3e} nats\n\
         perplexity            {:.4} (reference {:.4})\n\
         {greedy}",
        e.positions,
        100.0 * e.top1,
        100.0 * e.clear_top1,
        e.clear_positions,
        e.max_abs,
        e.rms,
        e.kl,
        e.perplexity,
        e.reference_perplexity,
    )
}
