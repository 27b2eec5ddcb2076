//! What a reply must look like: JSON of a schema, a regular expression, a grammar, or calls of tools.
//!
//! [`Formats`] knows a tokenizer and turns a [`Rules`] into a [`Bound`], which tells the engine token
//! by token what may come next.

mod bound;
mod calls;
mod decimal;
mod ecma;
mod ends;
mod forced;
mod keywords;
mod known;
mod library;
mod limits;
mod parameters;
mod patience;
mod pattern;
mod place;
mod plain;
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
use keywords::Fault;
use library::{for_library, with_options};
pub use patience::Patience;
use plain::{Plain, plain};
use vocabulary::Vocabulary;

use crate::parser::ToolSpec;

/// What is said of a format without texts.
const NOTHING_FITS: &str = "no text fits it; let at least one do so";
/// What is said of a format that takes too much work.
const TOO_COMPLEX: &str = "it is too complex; ask for a simpler one";
/// What is said where the library fails without a reason for people.
const UNKEPT_FORM: &str = "it has a form that cannot be kept";
/// White space between the parts of a JSON text: enough for usual indentation, and no place where a
/// model can go on for ever.
const WHITE_SPACE: &str = r"[ \t]{1,24}|\r?\n[ \t]{0,24}";

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

impl Rules<'_> {
    fn is_strict(&self, tool: usize) -> bool {
        self.strict.get(tool) == Some(&true)
    }
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
        let bounds = factory.limits_mut();
        (bounds.verbose_errors, bounds.initial_lexer_fuel) = (false, limits::FUEL);
        bounds.max_items_in_row = limits::MOST_OPEN;
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
        // A call without a token of its own cannot be seen before it is there.
        let may_call =
            rules.calls == CallRule::Auto && !rules.tools.is_empty() && vocabulary.call.is_some();
        let (text, mut unkept) = match rules.format {
            Some(format) => {
                let (text, unkept) = self.format(format, rules.calls)?;
                (Text::Bound(Box::new(text)), unkept)
            }
            None if may_call && rules.strict.contains(&true) => {
                (Text::Free { at_line_start: true }, Vec::new())
            }
            None => return Ok(None),
        };
        let several = rules.parallel && rules.format.is_some();
        let behind = if several { Calls::SeveralBehindTag } else { Calls::OneBehindTag };
        let calls = may_call.then(|| self.calls(rules, behind)).transpose()?;
        let calls = calls.map(|(calls, of_calls)| {
            // Nothing is promised of the others.
            let is_strict = |one: &Unkept| one.tool.is_some_and(|tool| rules.is_strict(tool));
            unkept.extend(of_calls.into_iter().filter(is_strict));
            calls
        });
        Ok(Some(bound(text, calls).with_unkept(unkept)))
    }

    /// The grammar of a format, and what it does not keep.
    fn format(
        &self,
        format: &Format,
        calls: CallRule,
    ) -> Result<(Matcher, Vec<Unkept>), FormatError> {
        self.check(format, calls)?;
        let plain = match format {
            Format::JsonSchema(schema) => plain(schema),
            _ => Plain { schema: json!({ "type": "object" }), told: Vec::new() },
        };
        // Names that are listed have become properties.
        limits::check_schema(&plain.schema).map_err(refused)?;
        let grammar = match format {
            Format::JsonObject | Format::JsonSchema(_) => json_grammar(&plain.schema),
            Format::Regex(text) => GrammarWithLexer::from_regex(text),
            Format::Grammar(text) => {
                GrammarWithLexer::from_lark(keywords::change_schemas(text, for_library))
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
            Format::JsonSchema(_) => {
                let is_faulty = |part: &Value| self.compile(json_grammar(part)).is_err();
                FormatError::Refused { place: place::fault(&plain.schema, is_faulty), reason }
            }
            _ => refused(reason),
        })?;
        let may_end = match format {
            Format::Regex(_) | Format::Grammar(_) => {
                ends::reaches_end(&compiled, &self.formats.vocabulary)
            }
            _ => true,
        };
        let told = plain.told.into_iter().map(|place| Unkept { tool: None, place });
        if may_end { Ok((compiled, told.collect())) } else { Err(refused(NOTHING_FITS)) }
    }

    /// Refuses a format that the library would not refuse, or only after a long time.
    fn check(&self, format: &Format, calls: CallRule) -> Result<(), FormatError> {
        match format {
            Format::JsonObject => Ok(()),
            Format::JsonSchema(schema) => {
                limits::check_schema(schema).map_err(refused)?;
                limits::check_steps(schema).map_err(refused)?;
                match fault(schema) {
                    None => Ok(()),
                    Some(Fault { place, reason }) => Err(FormatError::Refused { place, reason }),
                }
            }
            Format::Regex(text) => {
                limits::check_text(text).map_err(refused)?;
                match pattern::ends_escaped(text) {
                    true => Err(refused("it ends with a backslash that escapes nothing")),
                    false => Ok(()),
                }
            }
            Format::Grammar(text) => {
                limits::check_text(text).map_err(refused)?;
                limits::check_joins(text).map_err(refused)?;
                if calls == CallRule::Never && self.asks_for_call(text) {
                    let reason = "it asks for a call, and `tool_choice` forbids calls";
                    return Err(refused(reason));
                }
                for schema in keywords::schemas_in(text) {
                    limits::check_schema(&schema).map_err(refused)?;
                }
                match keywords::schemas_in(text).find_map(|schema| fault(&schema)) {
                    None => Ok(()),
                    Some(Fault { place, reason }) => {
                        Err(refused(format!("`{place}` of a schema in it: {reason}")))
                    }
                }
            }
            Format::Choice(texts) => {
                let bytes = texts.iter().map(String::len).sum();
                limits::check_size(bytes, limits::LONGEST).map_err(refused)
            }
        }
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

fn json_grammar(schema: &Value) -> GrammarWithLexer {
    let options = json!({ "whitespace_pattern": WHITE_SPACE });
    GrammarWithLexer::from_json_schema(with_options(schema, options))
}

/// What of a schema means nothing, would be kept only nearly, or never comes to an end.
fn fault(schema: &Value) -> Option<Fault> {
    keywords::faults(schema).into_iter().next().or_else(|| ends::endless(schema))
}

fn refused(reason: impl Into<String>) -> FormatError {
    FormatError::Refused { place: String::new(), reason: reason.into() }
}

/// Words of the library where something takes too much work.
const COMPLEX: [&str; 9] = [
    "Unable to determine if regex is empty",
    "fuel",
    "too big",
    "too large",
    "precomputation",
    "Too many items",
    "too many",
    "items; max is",
    "TooComplex",
];

/// The library's words without its traces, and without the names of its own parts.
fn reason(text: &str) -> String {
    let end = ["\n<", "<non-verbose/>", "<backtrace>"].iter().filter_map(|mark| text.find(mark));
    let text = &text[..end.min().unwrap_or(text.len())];
    if COMPLEX.iter().any(|word| text.contains(word)) {
        return TOO_COMPLEX.into();
    }
    if text.contains("NoExtension") {
        return NOTHING_FITS.into();
    }
    if let Some(reason) = keywords::unsupported(text).or_else(|| pattern::fault(text)) {
        return reason;
    }
    if text.contains("coerce_one_of") {
        return "`oneOf` is supported where its members exclude each other; `anyOf` takes its place"
            .into();
    }
    // An assertion of the library that it has caught itself.
    if text.contains("panic") {
        return UNKEPT_FORM.into();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
