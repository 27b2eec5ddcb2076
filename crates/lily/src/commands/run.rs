//! `lily run`: one answer.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail, ensure};
use lily_chat::{
    Bound, CallRule, CompletionRequest, Format, FormatError, Formats, Rules, Turn, complete,
    parse_json,
};
use lily_model::engine::{CONTEXTS, EngineOptions};
use lily_model::sampling::Sampling;
use lily_text::{ChatInput, Markers, Prompt, TemplateOptions, TextError, Thinking, Tokenizer};
use serde_json::json;

use super::run_ids;
use crate::answer::{SHORT_ANSWER, Stream, summary};
use crate::args::RunArgs;
use crate::model::Source;
use crate::output::{note, print_json, written};
use crate::terminal::Screen;

/// Begins files of some editors.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Tokens of the answer to a question without `--max-tokens`.
const LONG_ANSWER: usize = 1024;

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let format = args.json_schema.as_deref().map(schema).transpose()?;
    let source = Source::find(&args.model)?;
    let Some((tokenizer, prompt)) = prompt(args, &source)? else {
        return run_ids::run(args, &source);
    };
    let max_tokens =
        args.max_tokens.unwrap_or(if args.prompt.is_some() { LONG_ANSWER } else { SHORT_ANSWER });
    let sampling = args.sampling.over(Sampling::greedy());
    sampling.validate()?;
    let context = context(args, prompt.ids.len(), max_tokens);
    let mut loaded =
        source.load(&args.model, EngineOptions { context, ..EngineOptions::default() })?;
    args.sampling.check_bias(loaded.engine.shape().vocab_used)?;
    let (prompt_tokens, load_time) = (prompt.ids.len(), loaded.load_time);
    let format = match &format {
        Some(format) => bound(format, &tokenizer, &loaded.stop_ids)?,
        None => None,
    };
    let request = CompletionRequest {
        thinking: prompt.thinking,
        prompt: prompt.ids,
        max_tokens,
        stop_ids: if args.ignore_stop { Vec::new() } else { loaded.stop_ids },
        stop: args.answer.stop.clone(),
        tools: Vec::new(),
        sampling,
        thinking_budget: None,
        logprobs: None,
        format,
    };
    let mut screen = Screen::new(args.answer.hide_thinking);
    let mut stream = Stream::new(&mut screen, prompt_tokens, args.answer.json);
    let sequence = loaded.engine.open()?;
    let outcome = complete(&mut loaded.engine, sequence, &tokenizer, &request, &mut |event| {
        stream.event(event)
    });
    written(stream.finish())?;
    let outcome = outcome?;
    if args.answer.json {
        print_json(&Turn { outcome, prompt_tokens, reused_tokens: 0 }.json(load_time))?;
    } else {
        let has_stop_strings = !args.answer.stop.is_empty();
        let end = (outcome.finish, &outcome.timings);
        screen.note(&summary(end, max_tokens, has_stop_strings, load_time));
    }
    Ok(ExitCode::SUCCESS)
}

/// The schema in a file.
fn schema(file: &Path) -> Result<Format> {
    let name = file.display();
    let text = fs::read(file).with_context(|| format!("the schema {name} cannot be read"))?;
    // Some editors put it there.
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
    let schema = parse_json(text).with_context(|| format!("{name} cannot be used as JSON"))?;
    Ok(Format::JsonSchema(schema))
}

/// What keeps the answer to a format.
fn bound(format: &Format, tokenizer: &Tokenizer, stop_ids: &[u32]) -> Result<Option<Bound>> {
    let rules = Rules {
        format: Some(format),
        tools: &[],
        strict: &[],
        calls: CallRule::Auto,
        parallel: false,
    };
    let bound = Formats::new(tokenizer, stop_ids)?.bind(&rules).map_err(|error| match &error {
        FormatError::Refused { place, .. } if !place.is_empty() => {
            anyhow!("the schema cannot be kept at {place}: {error}")
        }
        error => anyhow!("the schema cannot be kept: {error}"),
    })?;
    for unkept in bound.iter().flat_map(Bound::unkept) {
        note(format_args!("lily: {} of the schema is not kept", unkept.place));
    }
    Ok(bound)
}

/// Positions for a prompt and its answer, unless the command line says how many.
pub fn context(args: &RunArgs, prompt_tokens: usize, max_tokens: usize) -> usize {
    let needed = prompt_tokens.saturating_add(max_tokens);
    args.ctx.unwrap_or(needed.clamp(*CONTEXTS.start(), *CONTEXTS.end()))
}

/// The ids to continue, and the tokenizer for what follows; `None` for ids of a model that has no
/// tokenizer.
fn prompt(args: &RunArgs, source: &Source) -> Result<Option<(Tokenizer, Prompt)>> {
    if let Some(text) = &args.prompt {
        let encoder =
            source.encoder("a question needs a chat template; --raw and --tokens do without")?;
        let question = text_or_stdin(text)?;
        ensure!(!question.trim().is_empty(), "the question is empty, need some text");
        let system = args.answer.system.iter().map(|text| ("system", text.clone()));
        let messages: Vec<_> = system
            .chain([("user", question)])
            .map(|(role, content)| json!({ "role": role, "content": content }))
            .collect();
        let options = TemplateOptions {
            enable_thinking: args.answer.thinking(source.is_builtin()),
            ..TemplateOptions::default()
        };
        let input = ChatInput { messages: &messages, tools: None, options: &options };
        let prompt = encoder.encode(&input, Markers::Plain)?;
        return Ok(Some((encoder.tokenizer().clone(), prompt)));
    }
    let tokenizer = match Tokenizer::open(source.files()) {
        Ok(tokenizer) => tokenizer,
        Err(error) if args.raw.is_none() => {
            if !args.answer.stop.is_empty() {
                bail!("a stop string needs a tokenizer, but {error}");
            }
            if !matches!(error, TextError::Missing { .. }) {
                note(format_args!("lily: warning: {error}; ids go in and out"));
            }
            return Ok(None);
        }
        Err(error) => return Err(error).context("a text needs a tokenizer; --tokens does without"),
    };
    // Whoever writes the whole text may write control tokens.
    let (text, ids) = match &args.raw {
        Some(text) => {
            let text = text_or_stdin(text)?;
            let ids = tokenizer.encode(&text, Markers::Control)?;
            (text, ids)
        }
        None => (String::new(), args.tokens.clone()),
    };
    Ok(Some((tokenizer, Prompt { ids, text, thinking: Thinking::Absent })))
}

/// The text, or all of standard input for `-`.
fn text_or_stdin(text: &str) -> Result<String> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut read = String::new();
    std::io::stdin().read_to_string(&mut read).context("standard input is no UTF-8 text")?;
    Ok(read)
}
