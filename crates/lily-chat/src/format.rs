//! What a reply must look like: JSON of a schema, a regular expression, a grammar, or calls of tools.
//!
//! [`Formats`] knows a tokenizer and turns a [`Rules`] into a [`Bound`], which tells the engine token
//! by token what may come next.

mod bound;
mod calls;
mod ends;
mod forced;
mod known;
mod parameters;
mod patience;
mod pattern;
mod place;
mod strings;
mod tags;
#[cfg(test)]
mod tests;
mod vocabulary;
mod words;

use std::sync::Arc;

use lily_text::Tokenizer;
use llguidance::api::{GrammarWithLexer, StopReason, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use bound::Text;
pub use bound::{Bound, Unkept};
use calls::Calls;
pub use patience::Patience;
use vocabulary::Vocabulary;

use crate::parser::ToolSpec;

/// Largest schema, or list of texts, in bytes.
const LONGEST: usize = 256 << 10;
/// Longest grammar or expression, in bytes: some take time by the square of their length.
const LONGEST_GRAMMAR: usize = 16 << 10;
/// Work for the lexer of a format: about a tenth of a second.
const FUEL: u64 = 400_000;
/// Largest product of the different `multipleOf` of a schema: a number is divided digit by digit, each remainder is a
/// state, and where several hold, each combination of remainders.
const LARGEST_STEPS: f64 = 10_000.0;
/// What is said of a format without texts.
const NOTHING_FITS: &str = "no text fits it";
/// Deepest nesting of brackets in a grammar or an expression.
const DEEPEST: usize = 200;
/// White space between the parts of a JSON text: enough for any indentation, and no place where a
/// model can go on for ever.
const WHITE_SPACE: &str = r"[ \t]{1,64}|\r?\n[ \t]{0,64}";

/// Tokens that end no value of a call, whatever stands in front of them: they are allowed or not as a
/// whole, which spares a walk over all of them at each new line of a value.
const OUTSIDE_TAGS: &str = "[^<]+";

/// What a text must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// A JSON object.
    JsonObject,
    /// JSON that fits a schema.
    JsonSchema(Value),
    /// All of it matches an expression, in the syntax of Rust's `regex`.
    Regex(String),
    /// A grammar in llguidance's form of Lark.
    Grammar(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Whether a reply calls tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRule {
    /// The model decides. If one of the tools is strict, calls are bound once they begin.
    Auto,
    /// The reply consists of calls, one at least.
    Required,
    /// There is no call, although the model is shown tools.
    Never,
}

/// Everything that binds a reply.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// What the answer looks like; free without it.
    pub format: Option<&'a Format>,
    /// What may be called; with [`CallRule::Required`] at least one tool.
    pub tools: &'a [ToolSpec],
    /// Which of the tools are strict: their calls are bound also where the model decides to make
    /// them, and a schema that cannot be kept in all its parts is refused. The others may be left out.
    pub strict: &'a [bool],
    /// Whether there must be calls.
    pub calls: CallRule,
    /// Whether there may be several.
    pub parallel: bool,
}

/// Why a format cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The format has no meaning or is beyond all bounds.
    #[error("{reason}")]
    Refused {
        /// Where in the schema, such as `.properties.a`; empty for all of it.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A call of a tool cannot be bound.
    #[error("{reason}")]
    Tool {
        /// Which of the tools.
        tool: usize,
        /// Where in the schema of its parameters, such as `.properties.a`; empty for all of it.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// Nobody waits for it any more.
    #[error("the work on the format was given up")]
    GivenUp,
    /// The model's vocabulary allows no formats.
    #[error("no format can be kept: {0}")]
    Unavailable(String),
}

/// Makes formats for one model.
pub struct Formats {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
}

impl Formats {
    /// Formats in the vocabulary of a tokenizer, for texts that end with one of `stop_ids`. Takes
    /// about a second for a published vocabulary.
    ///
    /// # Errors
    /// There is no token that ends a text, or the vocabulary is too large.
    pub fn new(tokenizer: &Tokenizer, stop_ids: &[u32]) -> Result<Self, FormatError> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, stop_ids)?);
        let mut slices = SlicedBiasComputer::general_slices();
        slices.push(OUTSIDE_TAGS.into());
        let factory = ParserFactory::new(
            &vocabulary::env(&vocabulary),
            InferenceCapabilities::default(),
            &slices,
        );
        let mut factory = factory.map_err(|error| FormatError::Unavailable(error.to_string()))?;
        factory.quiet();
        let limits = factory.limits_mut();
        (limits.verbose_errors, limits.initial_lexer_fuel) = (false, FUEL);
        Ok(Self { vocabulary, factory })
    }

    /// What keeps a reply to its rules; `None` if they leave it free.
    ///
    /// # Errors
    /// A format has no meaning, is not supported or is too large; a tool cannot be called.
    pub fn bind(&self, rules: &Rules<'_>) -> Result<Option<Bound>, FormatError> {
        self.bind_with(rules, &Patience::default())
    }

    /// The same; the work ends early, between two of its steps, once `patience` does.
    ///
    /// # Errors
    /// As [`Formats::bind`], and [`FormatError::GivenUp`].
    pub fn bind_with(
        &self,
        rules: &Rules<'_>,
        patience: &Patience,
    ) -> Result<Option<Bound>, FormatError> {
        Maker { formats: self, patience }.bind(rules)
    }
}

/// Work on one format.
struct Maker<'a> {
    formats: &'a Formats,
    patience: &'a Patience,
}

impl Maker<'_> {
    fn bind(&self, rules: &Rules<'_>) -> Result<Option<Bound>, FormatError> {
        let vocabulary = &self.formats.vocabulary;
        let bound = |text, calls| Bound::new(Arc::clone(vocabulary), text, calls);
        if rules.calls == CallRule::Required {
            let calls = if rules.parallel { Calls::Several } else { Calls::One };
            let (matcher, unkept) = self.calls(rules, calls)?;
            let bound = bound(Text::Bound(Box::new(matcher)), None);
            return Ok(Some(bound.with_unkept(unkept)));
        }
        let calls = |calls| self.calls(rules, calls).map(|(matcher, _)| matcher);
        // A call without a token of its own cannot be seen before it is there.
        let may_call =
            rules.calls == CallRule::Auto && !rules.tools.is_empty() && vocabulary.call.is_some();
        if let Some(format) = rules.format {
            let behind = if rules.parallel { Calls::SeveralBehindTag } else { Calls::OneBehindTag };
            let calls = may_call.then(|| calls(behind)).transpose()?;
            let text = self.format(format, rules.calls)?;
            return Ok(Some(bound(Text::Bound(Box::new(text)), calls)));
        }
        if !may_call || !rules.strict.contains(&true) {
            return Ok(None);
        }
        let free = Text::Free { at_line_start: true };
        Ok(Some(bound(free, Some(calls(Calls::OneBehindTag)?))))
    }

    fn format(&self, format: &Format, calls: CallRule) -> Result<Matcher, FormatError> {
        let (size, most) = match format {
            Format::JsonObject => (0, LONGEST),
            Format::JsonSchema(schema) => (schema.to_string().len(), LONGEST),
            Format::Regex(text) | Format::Grammar(text) => (text.len(), LONGEST_GRAMMAR),
            Format::Choice(texts) => (texts.iter().map(String::len).sum(), LONGEST),
        };
        if size > most {
            let reason = format!("it has {size} bytes, but at most {most} are supported");
            return Err(refused(reason));
        }
        let grammar = match format {
            Format::JsonObject => json_grammar(json!({ "type": "object" })),
            Format::JsonSchema(schema) => {
                if let Some(place) = place::cut_pattern(schema) {
                    let reason = "it ends with a backslash that escapes nothing".into();
                    return Err(FormatError::Refused { place, reason });
                }
                if !ends::is_finite(schema) {
                    return Err(refused("no finite text fits it"));
                }
                json_grammar(schema.clone())
            }
            Format::Regex(text) => {
                check_nesting(text)?;
                if pattern::ends_escaped(text) {
                    return Err(refused("it ends with a backslash that escapes nothing"));
                }
                GrammarWithLexer::from_regex(text)
            }
            Format::Grammar(text) => {
                check_nesting(text)?;
                if calls == CallRule::Never && self.asks_for_call(text) {
                    let reason = "it asks for a call, and `tool_choice` forbids calls";
                    return Err(refused(reason));
                }
                check_product(written_steps(text)).map_err(refused)?;
                GrammarWithLexer::from_lark(text.clone())
            }
            Format::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| calls::literal(text)).collect();
                GrammarWithLexer::from_lark(format!("start: {}", texts.join(" | ")))
            }
        };
        let compiled = self.compile(grammar);
        if self.patience.has_ended() {
            return Err(FormatError::GivenUp);
        }
        let compiled = compiled.map_err(|reason| match format {
            Format::JsonSchema(schema) => {
                let place = place::fault(schema, |part| {
                    let compiled = self.compile(json_grammar(part.clone()));
                    compiled.is_err()
                });
                FormatError::Refused { place, reason }
            }
            _ => refused(reason),
        })?;
        let may_end = match format {
            Format::Regex(_) | Format::Grammar(_) => {
                ends::reaches_end(&compiled, &self.formats.vocabulary)
            }
            _ => true,
        };
        if may_end { Ok(compiled) } else { Err(refused(NOTHING_FITS)) }
    }

    /// Whether a grammar has the token that begins a call, by its name or by its number.
    fn asks_for_call(&self, grammar: &str) -> bool {
        let Some(call) = self.formats.vocabulary.call else { return false };
        let by_number = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bounds = first.trim().parse::<u32>().ok().zip(last.trim().parse::<u32>().ok());
            bounds.is_some_and(|(first, last)| (first..=last).contains(&call))
        };
        tags::named_in(grammar).any(|name| {
            let numbers = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
            name == "tool_call"
                || numbers.is_some_and(|numbers| match numbers.strip_prefix('^') {
                    Some(others) => !others.split(',').any(by_number),
                    None => numbers == "*" || numbers.split(',').any(by_number),
                })
        })
    }

    fn compile(&self, grammar: GrammarWithLexer) -> Result<Matcher, String> {
        if self.patience.has_ended() {
            return Err(FormatError::GivenUp.to_string());
        }
        if let Some(schema) = &grammar.json_schema {
            check_steps(schema)?;
        }
        let grammar = TopLevelGrammar::from_grammar(grammar);
        let parser = self.formats.factory.create_parser(grammar);
        let mut matcher = Matcher::new(Ok(parser.map_err(|error| reason(&error.to_string()))?));
        // A format that nothing fits is found here and not in the middle of a reply.
        match matcher.compute_mask() {
            Ok(_) => Ok(matcher),
            Err(_) if matcher.stop_reason() == StopReason::NoExtensionBias => {
                Err(NOTHING_FITS.into())
            }
            Err(error) => Err(reason(&error.to_string())),
        }
    }
}

impl std::fmt::Debug for Formats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Formats").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

fn json_grammar(mut schema: Value) -> GrammarWithLexer {
    if !schema.is_object() {
        schema = json!({ "allOf": [schema] });
    }
    schema["x-guidance"] = json!({ "whitespace_pattern": WHITE_SPACE });
    GrammarWithLexer::from_json_schema(schema)
}

fn refused(reason: impl Into<String>) -> FormatError {
    FormatError::Refused { place: String::new(), reason: reason.into() }
}

/// The library's words without its traces.
fn reason(text: &str) -> String {
    let end = ["\n<", "<non-verbose/>", "<backtrace>"].iter().filter_map(|mark| text.find(mark));
    let text = &text[..end.min().unwrap_or(text.len())];
    if text.contains("fuel") || text.contains("too big") || text.contains("precomputation") {
        return "it is too complex".into();
    }
    if text.contains("coerce_one_of") {
        return "`oneOf` is supported where its members exclude each other; `anyOf` takes its place"
            .into();
    }
    // An assertion of the library that it has caught itself.
    if text.contains("panic") {
        return "it has a form that cannot be kept".into();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Refuses a schema with steps that make too many states.
fn check_steps(schema: &Value) -> Result<(), String> {
    let mut steps = Vec::new();
    collect_steps(schema, &mut steps);
    check_product(steps)
}

fn check_product(mut steps: Vec<f64>) -> Result<(), String> {
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let product: f64 = steps.iter().map(|step| step.max(1.0)).product();
    if product > LARGEST_STEPS {
        return Err(format!(
            "the product of all different `multipleOf` is {product:.0}, but at most {LARGEST_STEPS} is supported"
        ));
    }
    Ok(())
}

/// Steps of the schemas that stand in the text of a grammar.
fn written_steps(grammar: &str) -> Vec<f64> {
    let behind = grammar.split("\"multipleOf\"").skip(1);
    let number = |text: &str| {
        let text = text.trim_start().strip_prefix(':')?.trim_start();
        let is_part = |c: char| c.is_ascii_digit() || ".+-eE".contains(c);
        text[..text.find(|c| !is_part(c)).unwrap_or(text.len())].parse().ok()
    };
    behind.filter_map(number).collect()
}

fn collect_steps(schema: &Value, steps: &mut Vec<f64>) {
    match schema {
        Value::Object(members) => {
            steps.extend(members.get("multipleOf").and_then(Value::as_f64));
            members.values().for_each(|member| collect_steps(member, steps));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_steps(item, steps)),
        _ => {}
    }
}

/// Brackets are read by recursion.
fn check_nesting(text: &str) -> Result<(), FormatError> {
    let (mut depth, mut deepest) = (0i64, 0i64);
    let mut repeated = 0;
    for c in text.chars() {
        depth += match c {
            '(' | '[' | '{' => 1,
            ')' | ']' | '}' => -1,
            _ => 0,
        };
        deepest = deepest.max(depth);
        repeated = if c == '~' { repeated + 1 } else { 0 };
        deepest = deepest.max(repeated);
    }
    if deepest > DEEPEST as i64 {
        return Err(refused(format!(
            "it is nested {deepest} deep, but at most {DEEPEST} is supported"
        )));
    }
    Ok(())
}
