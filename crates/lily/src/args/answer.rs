//! Arguments of the commands that answer, and of completions and manual pages.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use clap_complete::Shell;
use lily_model::asked;
use lily_model::sampling::Sampling;

use super::{ModelArgs, context, max_tokens};

/// A token id.
fn id(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "expected token ids, whole numbers such as 17,4,256")
}

/// `lily run`.
#[derive(Args)]
#[command(group(ArgGroup::new("input").required(true)))]
// Greedy unless a temperature is given, so these would do nothing; a chat may get one elsewhere.
#[command(mut_arg("top_k", |arg| arg.requires("temperature")))]
#[command(mut_arg("top_p", |arg| arg.requires("temperature")))]
#[command(mut_arg("min_p", |arg| arg.requires("temperature")))]
#[command(mut_arg("seed", |arg| arg.requires("temperature")))]
pub struct RunArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// A question, put into the model's chat template; `-` reads it from standard input.
    #[arg(group = "input")]
    pub prompt: Option<String>,
    /// A text to continue, without the template; `-` reads it from standard input.
    #[arg(
        long,
        value_name = "TEXT",
        group = "input",
        allow_hyphen_values = true,
        conflicts_with_all = ["system", "think", "no_think", "hide_thinking"]
    )]
    pub raw: Option<String>,
    /// Token ids to continue, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "IDS",
        value_parser = id,
        group = "input",
        conflicts_with_all = ["system", "think", "no_think", "hide_thinking"]
    )]
    pub tokens: Vec<u32>,
    /// Most tokens to generate; without it 1024 for a PROMPT, and 128 otherwise.
    #[arg(long, value_name = "N", value_parser = max_tokens())]
    pub max_tokens: Option<usize>,
    /// Positions of the context; without it, what the prompt and --max-tokens need.
    #[arg(long, value_name = "TOKENS", value_parser = context())]
    pub ctx: Option<usize>,
    /// Go on after the model's stop tokens.
    #[arg(long)]
    pub ignore_stop: bool,
    /// Let the answer be JSON that fits the schema in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ignore_stop", "tokens"])]
    pub json_schema: Option<PathBuf>,
    /// What is said before, how it is shown and where it ends.
    #[command(flatten)]
    pub answer: AnswerArgs,
    /// How tokens are chosen; greedy without a temperature.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// `lily chat`.
#[derive(Args)]
pub struct ChatArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Most tokens of an answer; without it what the context holds.
    #[arg(long, value_name = "N", value_parser = max_tokens())]
    pub max_tokens: Option<usize>,
    /// Positions of the context; without it 8192, or less if the model was made for less.
    #[arg(long, value_name = "TOKENS", value_parser = context())]
    pub ctx: Option<usize>,
    /// Leave earlier thoughts in the conversation: usually the model then reads only what is new in each turn.
    #[arg(long)]
    pub preserve_thinking: bool,
    /// What is said before, how it is shown and where it ends.
    #[command(flatten)]
    pub answer: AnswerArgs,
    /// How tokens are chosen; the checkpoint's generation_config.json decides what is not given.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Arguments that `lily run` and `lily chat` share.
#[derive(Args)]
pub struct AnswerArgs {
    /// System prompt.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub system: Option<String>,
    /// Let the model think first. Without this and --no-think the checkpoint's template decides, which
    /// lets Qwen3.6 think; the built-in model does not think here, only in `lily serve`.
    #[arg(long, conflicts_with = "no_think")]
    pub think: bool,
    /// Answer without thinking, as the built-in model does anyway.
    #[arg(long)]
    pub no_think: bool,
    /// Do not show the thought, which is dimmed, or between <think> and </think> in a pipe.
    #[arg(long, conflicts_with = "json")]
    pub hide_thinking: bool,
    /// End the answer before this text; may be given several times.
    #[arg(
        long,
        value_name = "STRING",
        allow_hyphen_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub stop: Vec<String>,
    /// Print one JSON object for each answer.
    #[arg(long)]
    pub json: bool,
}

impl AnswerArgs {
    /// Whether the answer begins with a thought; `None` leaves it to the template.
    pub fn thinking(&self, builtin: bool) -> Option<bool> {
        match (self.think, self.no_think) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            // It answers as well without, and sooner. `lily serve` has one rule for all models, which is
            // the template's: clients see what they will see of the real one.
            _ => builtin.then_some(false),
        }
    }
}

/// How tokens are chosen.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness; 0 takes the most likely token.
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number(asked::TEMPERATURE))]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Keep the smallest set of tokens with this probability.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number(asked::TOP_P))]
    pub top_p: Option<f32>,
    /// Keep tokens with at least this share of the largest probability.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number(asked::MIN_P))]
    pub min_p: Option<f32>,
    /// Subtracted from the logits of tokens generated before.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = number(asked::PENALTY)
    )]
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logits for each time a token was generated before.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = number(asked::PENALTY)
    )]
    pub frequency_penalty: Option<f32>,
    /// Divides the logits of tokens seen before.
    #[arg(
        long,
        value_name = "X",
        value_parser = number(asked::REPETITION_PENALTY)
    )]
    pub repetition_penalty: Option<f32>,
    /// Key of the random numbers: the same seed gives the same tokens.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Added to the logit of a token; may be given several times.
    #[arg(long, value_name = "ID=VALUE", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
}

impl SamplingArgs {
    /// What was asked for, and `base` where nothing was.
    pub fn over(&self, base: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.map_or(base.top_p, asked::top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            seed: self.seed.unwrap_or(base.seed),
            logit_bias: self.logit_bias.iter().copied().collect(),
        }
    }
}

impl SamplingArgs {
    /// The first option given that a greedy choice would leave without effect, if nothing else makes
    /// it random.
    pub fn needs_temperature(&self) -> Option<&'static str> {
        let given = [
            (self.top_k.is_some(), "--top-k"),
            (self.top_p.is_some(), "--top-p"),
            (self.min_p.is_some(), "--min-p"),
            (self.seed.is_some(), "--seed"),
        ];
        let first = given.iter().find(|(given, _)| *given && self.temperature.is_none());
        first.map(|(_, name)| *name)
    }

    /// Refuses a bias on a token that the model does not have, and two on one token.
    ///
    /// # Errors
    /// As said.
    pub fn check_bias(&self, vocab: usize) -> Result<()> {
        let mut seen = HashSet::new();
        for (id, _) in &self.logit_bias {
            ensure!(
                (*id as usize) < vocab,
                "--logit-bias names token {id}, need an id below {vocab}"
            );
            ensure!(seen.insert(id), "--logit-bias names token {id} twice, need one value for it");
        }
        Ok(())
    }
}

/// `lily completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `lily man`.
#[derive(Args)]
pub struct ManArgs {
    /// Folder to write the pages of all commands to.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// A number in a range.
fn number(
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
        let need =
            || format!("it is {value}, need a number from {} to {}", range.start(), range.end());
        range.contains(&value).then_some(value as f32).ok_or_else(need)
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=VALUE, such as 42=-5")?;
    let id = id.trim().parse().map_err(|e| format!("`{id}` is no token id: {e}"))?;
    let value = number(asked::LOGIT_BIAS)(value.trim())?;
    Ok((id, value))
}
