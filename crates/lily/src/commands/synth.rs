//! `lily synth`: random checkpoints.

use std::process::ExitCode;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use lily_chat::{TokenizerFiles, vocab_size, write_tokenizer};
use lily_model::synth::{Existing, SynthOptions, config_for, truncate_layers, write};
use serde_json::json;

use crate::args::SynthArgs;
use crate::output::{print, print_json};

/// Runs the command.
pub fn run(args: &SynthArgs) -> Result<ExitCode> {
    let mut config = config_for(&args.preset)?;
    if let Some(layers) = args.layers {
        truncate_layers(&mut config, layers)?;
    }
    let vocab = vocab_size(&config);
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let options =
        SynthOptions { seed: args.seed, existing, ..SynthOptions::new(config, &args.out) };
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "{msg} [{bar:30}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left",
    )?);
    let result = write(&options, &mut |progress| {
        bar.set_length(progress.bytes_total);
        bar.set_message(progress.file.to_string());
        bar.set_position(progress.bytes_done);
    });
    bar.finish_and_clear();
    let report = result?;
    let keep = if report.reused { TokenizerFiles::Keep } else { TokenizerFiles::Replace };
    let tokenizer = write_tokenizer(&args.out, vocab, keep)?;
    if args.json {
        print_json(&json!({
            "out": args.out,
            "files": report.files,
            "tensors": report.tensors,
            "bytes": report.bytes,
            "reused": report.reused,
            "tokenizer_files": tokenizer,
        }))?;
    } else {
        let verb = if report.reused { "already holds" } else { "now holds" };
        print(format_args!(
            "{} {verb} {} tensors, {} bytes, in {} weight file(s)\n",
            args.out.display(),
            report.tensors,
            report.bytes,
            report.files
        ))?;
        if tokenizer.is_empty() {
            print(format_args!(
                "no tokenizer: a vocabulary of {vocab} is below the {} of all bytes and control tokens\n",
                lily_text::SYNTH_MIN_VOCAB
            ))?;
        } else {
            print(format_args!("tokenizer: {}\n", tokenizer.join(", ")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
