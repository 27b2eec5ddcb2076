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
         largest difference    {}\n\
         relative rms          {}\n\
         KL divergence         {} nats\n\
         perplexity            {:.4} (reference {:.4})\n\
         {greedy}",
        e.positions,
        100.0 * e.top1,
        100.0 * e.clear_top1,
        e.clear_positions,
        plain(e.max_abs),
        plain(e.rms),
        plain(e.kl),
        e.perplexity,
        e.reference_perplexity,
    )
}

/// A number with four digits that count, and at most nine behind the point.
fn plain(value: f64) -> String {
    const MOST_PLACES: i32 = 9;
    let leading = value.abs().log10().floor();
    if !leading.is_finite() {
        return value.to_string();
    }
    let places = (3.0 - leading).clamp(0.0, f64::from(MOST_PLACES)) as usize;
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_without_exponents() {
        for (value, text) in [
            (3.718_04, "3.718"),
            (0.012_345_6, "0.01235"),
            (25.812, "25.81"),
            (123_456.7, "123457"),
            (6.0e-11, "0.000000000"),
            (2.5e-7, "0.000000250"),
            (0.0, "0"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(plain(value), text);
        }
    }
}
