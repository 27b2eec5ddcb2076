//! `lily eval`: a model against recorded logits.

use std::process::ExitCode;

use anyhow::Result;
use lily_model::evaluation::{Reference, evaluate};

use crate::args::EvalArgs;
use crate::model::load;

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<ExitCode> {
    let reference = Reference::open(&args.reference)?;
    let mut loaded = load(&args.model, reference.longest().max(2), true)?;
    let e = evaluate(&mut loaded.engine, &reference)?;
    if args.json {
        super::print_json(&e)?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("positions             {}", e.positions);
    println!("same top token        {:.2} %", 100.0 * e.top1);
    println!(
        "  where it is clear   {:.2} % of {} (margin above 0.5)",
        100.0 * e.clear_top1,
        e.clear_positions
    );
    println!("largest difference    {:.3e}", e.max_abs);
    println!("relative rms          {:.3e}", e.rms);
    println!("KL divergence         {:.3e} nats", e.kl);
    println!("perplexity            {:.4} (reference {:.4})", e.perplexity, e.reference_perplexity);
    println!("greedy ids            {} of {} agree", e.greedy_agreeing, e.greedy_ids);
    Ok(ExitCode::SUCCESS)
}
