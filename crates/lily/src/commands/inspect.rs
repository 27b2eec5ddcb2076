//! `lily inspect`: what a checkpoint folder holds.

use std::process::ExitCode;

use anyhow::Result;
use lily_files::Files;
use lily_model::{Inspection, TextFile};
use lily_text::{ChatTemplate, TextError, Tokenizer};

use crate::args::InspectArgs;
use crate::model::Source;
use crate::output::{print, print_json};

/// Runs the command; fails if the checkpoint does not run.
pub fn run(args: &InspectArgs) -> Result<ExitCode> {
    let source = Source::locate_or_builtin(args.model.as_deref())?;
    let files = source.files();
    let mut inspection = Inspection::of(files);
    let tokenizer = tokenizer(files);
    let template = template(files, tokenizer.file.is_some());
    inspection.add(tokenizer);
    inspection.add(template);
    if args.json {
        print_json(&inspection)?;
    } else {
        print(&inspection)?;
    }
    Ok(if inspection.supported { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tokenizer(files: Files<'_>) -> TextFile {
    let found = Tokenizer::open(files).map(|_| "tokenizer.json".to_owned());
    text_file("tokenizer", found, "only `lily run --tokens` works")
}

/// The template stands in a file of its own, or in `tokenizer_config.json`.
fn template(files: Files<'_>, has_tokenizer: bool) -> TextFile {
    let name = |template: &ChatTemplate| {
        let name = template.file().file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let found = ChatTemplate::open(files).map(|template| name(&template));
    let without = match has_tokenizer {
        true => "no chat; `lily run --raw` and `--tokens` do without",
        false => "no chat",
    };
    text_file("template", found, without)
}

fn text_file(
    part: &'static str,
    found: Result<String, TextError>,
    without: &'static str,
) -> TextFile {
    match found {
        Ok(file) => TextFile { part, file: Some(file), error: None, without },
        Err(TextError::Missing { .. }) => TextFile { part, file: None, error: None, without },
        Err(error) => TextFile { part, file: None, error: Some(error.to_string()), without },
    }
}
