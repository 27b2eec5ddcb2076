//! `lily chat`: a conversation in the terminal, or through a pipe.

mod lines;
mod session;

use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use lily_chat::{DialogueOptions, Input};
use lily_model::engine::{CacheMemory, EngineOptions};
use lily_model::sampling::Sampling;

use crate::args::ChatArgs;
use crate::interrupt::Interrupt;
use crate::model::Source;
use crate::output::{ReaderLeft, note_failure};
use crate::terminal::Screen;
use lines::Lines;
use session::Session;

/// Positions of the context unless the command line says otherwise.
const CONTEXT: usize = 8192;

const HELP: &str = "\
/help            this list
/reset           start a new conversation
/system TEXT     set the system prompt; without TEXT show it, with - remove it
/think on|off    let the model think before it answers, or not
/stats           speed, tokens, use of the context
/quit            leave; so does Ctrl-D
A line that ends in \\ goes on in the next one; so does a text between two \"\"\".
// at the beginning sends a text that begins with /.
Ctrl-C stops an answer; Up brings back what was sent before.";

/// Runs the command.
pub fn run(args: &ChatArgs) -> Result<ExitCode> {
    let source = Source::find(&args.model)?;
    let encoder = source
        .encoder("a chat needs a chat template; `lily run --raw` and `--tokens` do without")?;
    let context = match args.ctx {
        Some(context) => context,
        None => source.config()?.max_position_embeddings.min(CONTEXT),
    };
    let seed = args.sampling.seed.unwrap_or_else(clock_seed);
    let sampling = Sampling { seed, ..args.sampling.over(source.defaults()?.sampling()) };
    if let (true, Some(option)) = (sampling.temperature <= 0.0, args.sampling.needs_temperature()) {
        bail!(
            "{option} has no effect, because this model's generation_config.json asks for the most \
             likely token; add --temperature"
        );
    }
    let (name, builtin) = (source.name.clone(), source.is_builtin());
    // Templates leave thoughts out of later prompts, which then part from what was generated.
    let engine = EngineOptions { context, cache: CacheMemory::Spare, ..EngineOptions::default() };
    let loaded = source.load(&args.model, engine)?;
    args.sampling.check_bias(loaded.engine.shape().vocab_used)?;
    let options = DialogueOptions {
        system: args.answer.system.clone(),
        enable_thinking: args.answer.thinking(builtin),
        preserve_thinking: args.preserve_thinking.then_some(true),
        max_tokens: args.max_tokens,
        stop_ids: loaded.stop_ids.clone(),
        stop: args.answer.stop.clone(),
        sampling,
    };
    let interrupt = Interrupt::new().context("cannot take over Ctrl-C")?;
    let mut screen = Screen::new(args.answer.hide_thinking);
    let mut lines = Lines::new()?;
    if lines.is_interactive() {
        screen.note(&format!("{name}; /help lists commands, Ctrl-D leaves"));
    }
    let mut session = Session::new(name, loaded, encoder, options, args.answer.json);
    let mut failed = false;
    while let Some(line) = lines.next()? {
        let result = match line {
            Input::Text(text) => interrupt.during(|stop| session.answer(&text, &mut screen, stop)),
            Input::Command(name, rest) => match command(&mut session, &screen, &name, &rest) {
                Ok(Next::Quit) => break,
                Ok(Next::Go) => Ok(()),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = result {
            // Nobody reads any more.
            if error.is::<ReaderLeft>() || error.is::<io::Error>() {
                return Err(error);
            }
            failed = true;
            note_failure(&error);
        }
    }
    // At a terminal the person has seen it; a script needs the status.
    Ok(if failed && !lines.is_interactive() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

enum Next {
    Go,
    Quit,
}

fn command(session: &mut Session, screen: &Screen, name: &str, rest: &str) -> Result<Next> {
    let options = &mut session.dialogue.options;
    match (name, rest) {
        ("help", _) => screen.say(HELP)?,
        ("quit" | "exit", _) => return Ok(Next::Quit),
        ("reset", _) => {
            session.reset();
            screen.note("a new conversation");
        }
        ("stats", _) => screen.say(&session.stats())?,
        ("system", "") => screen.say(options.system.as_deref().unwrap_or("no system prompt"))?,
        ("system", "-") => {
            options.system = None;
            screen.note("the system prompt is removed");
        }
        ("system", text) => {
            options.system = Some(text.to_owned());
            screen.note("the system prompt is set; earlier turns stay");
        }
        ("think", "on") => {
            options.enable_thinking = Some(true);
            screen.note("answers begin with a thought");
        }
        ("think", "off") => {
            options.enable_thinking = Some(false);
            screen.note("answers come without a thought");
        }
        ("think", _) => bail!("expected /think on or /think off"),
        _ => {
            bail!("unknown command `/{name}`; /help lists them, // sends a text that begins with /")
        }
    }
    Ok(Next::Go)
}

/// A seed that differs from run to run.
fn clock_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| u64::from(time.subsec_nanos()) ^ time.as_secs().rotate_left(32))
}
