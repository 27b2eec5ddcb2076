//! The grammar of tool calls, in the form in which the template shows them to the model.
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! Parameters come in the order of the schema, those that are not required may be left out. A
//! string is free text up to the first `</parameter>`; other values are JSON, printed as templates
//! print it.

use std::fmt::Write;

use serde_json::Value;

use super::FormatError;
use super::library::with_options;
use super::parameters::{FREE, Parameter, Parameters, Rules, ValueRule};
use super::tags;
use super::vocabulary::{CALL, CALL_END, Vocabulary};
use crate::parser::ToolSpec;

/// Longest name in a tag that a parser takes for one, in bytes.
const LONGEST_NAME: usize = 128;
/// Longest name of a parameter that the model thinks of, in characters of at most four bytes.
const LONGEST_KEY: usize = LONGEST_NAME / 4;
/// Most parameters of a tool whose schema names none.
const MOST_FREE: usize = 64;

/// How calls may stand in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// One, from its tag on.
    One,
    /// One or more, from the tag of the first on.
    Several,
    /// One, from behind its tag on.
    OneBehindTag,
    /// One or more, from behind the tag of the first on.
    SeveralBehindTag,
}

/// A tool and what its calls keep of its schema.
pub(crate) struct Callable<'a> {
    pub tool: &'a ToolSpec,
    pub parameters: Parameters,
}

/// The text of a grammar for calls of tools, one at least.
pub(crate) fn grammar(
    tools: &[Callable<'_>],
    calls: Calls,
    vocabulary: &Vocabulary,
) -> Result<String, FormatError> {
    let tag = |tag: &str| match vocabulary.tokenizer.id_of(tag) {
        Some(_) => tag.to_owned(),
        None => literal(tag),
    };
    let (open, close) = (tag(CALL), tag(CALL_END));
    let start = match calls {
        Calls::One => format!("{open} rest"),
        Calls::Several => format!("{open} rest (\"\\n\" {open} rest)*"),
        Calls::OneBehindTag => "rest".into(),
        Calls::SeveralBehindTag => format!("rest (\"\\n\" {open} rest)*"),
    };
    let names: Vec<String> = (0..tools.len()).map(|index| format!("f{index}")).collect();
    let mut text =
        format!("start: {start}\nrest: \"\\n\" ({}) \"\\n\" {close}\n", names.join(" | "));
    let mut writer = Writer { text: &mut text, has_text: false };
    for (index, tool) in tools.iter().enumerate() {
        writer.function(index, tool)?;
    }
    Ok(text)
}

/// What stands inside of a function, or the place in the schema of what cannot, and why.
type Body<'a> = Result<String, (&'a str, &'static str)>;

struct Writer<'a> {
    text: &'a mut String,
    /// Whether the terminal of free text is there.
    has_text: bool,
}

impl Writer<'_> {
    fn function(&mut self, index: usize, callable: &Callable<'_>) -> Result<(), FormatError> {
        let Callable { tool, parameters } = callable;
        let refused = |(place, reason): (&str, &str)| FormatError::Tool {
            tool: index,
            place: place.into(),
            reason: reason.into(),
        };
        if !is_name(&tool.name) {
            return Err(refused(("", "its name is too long for a call that is forced")));
        }
        let mut rules = String::new();
        let body = match &parameters.rules {
            Rules::Free(rule) => self.free(index, rule, &mut rules),
            Rules::Named(named) => self.named(index, named, &mut rules),
        };
        let body = body.map_err(refused)?;
        let head = literal(&format!("<function={}>\n", tool.name));
        let _ = writeln!(self.text, "f{index}: {head}{body} \"</function>\"");
        self.text.push_str(&rules);
        Ok(())
    }

    /// Parameters that the model thinks of.
    fn free(&mut self, index: usize, rule: &ValueRule, rules: &mut String) -> Body<'static> {
        if let ValueRule::Never(reason) = rule {
            return Err((FREE, reason));
        }
        self.value(rules, &format!("v{index}"), rule);
        let key = format!("<parameter=\" /[^<>\\s]{{1,{LONGEST_KEY}}}/ \">\\n");
        Ok(format!(" (\"{key}\" v{index}){{0,{MOST_FREE}}}"))
    }

    /// Parameters of the schema, in its order. One that cannot be written is left out if it may be.
    fn named<'p>(&mut self, index: usize, named: &'p [Parameter], rules: &mut String) -> Body<'p> {
        let mut body = String::new();
        for (number, parameter) in named.iter().enumerate() {
            let Parameter { key, place, required, rule } = parameter;
            let fault = match rule {
                _ if !is_name(key) => Some("its name cannot be written in a call"),
                ValueRule::Never(reason) => Some(*reason),
                _ => None,
            };
            match fault {
                Some(fault) if *required => return Err((place, fault)),
                Some(_) => continue,
                None => {}
            }
            let name = format!("p{index}x{number}");
            let option = if *required { "" } else { "?" };
            let _ = write!(body, " {name}{option}");
            let head = literal(&format!("<parameter={key}>\n"));
            let _ = writeln!(rules, "{name}: {head} v{index}x{number}");
            self.value(rules, &format!("v{index}x{number}"), rule);
        }
        Ok(body)
    }

    /// A rule for a value, up to the line feed behind its closing tag.
    fn value(&mut self, rules: &mut String, name: &str, rule: &ValueRule) {
        const CLOSE: &str = "\"\\n</parameter>\\n\"";
        let _ = match rule {
            ValueRule::Text { patterns, others } => {
                if patterns.is_empty() {
                    if !std::mem::replace(&mut self.has_text, true) {
                        let _ = writeln!(rules, "TEXT: {}", up_to_close());
                    }
                    writeln!(rules, "{name}: TEXT \"\\n\"")
                } else {
                    // What must match together comes first, and then the end: to find out whether a text
                    // of both can be is more work by far.
                    let text = tags::without(&tags::CLOSED_TO_VALUES);
                    let all: Vec<String> =
                        patterns.iter().chain([&text]).map(|one| format!("/{one}/")).collect();
                    let (all, terminal) =
                        (all.join(" & "), format!("T{}", name.to_ascii_uppercase()));
                    let _ = writeln!(rules, "{terminal}: ({all}) /\\n<\\/parameter>/");
                    let others = others.as_ref().map_or(String::new(), |schema| {
                        let _ = writeln!(rules, "{name}j: %json {}", as_printed(schema, false));
                        format!(" | {name}j {CLOSE}")
                    });
                    writeln!(rules, "{name}: {terminal} \"\\n\"{others}")
                }
            }
            ValueRule::Listed(values) => {
                let values: Vec<String> = values.iter().map(|value| literal(value)).collect();
                writeln!(rules, "{name}: ({}) {CLOSE}", values.join(" | "))
            }
            ValueRule::Json { schema, lenient } => {
                writeln!(
                    rules,
                    "{name}j: %json {}\n{name}: {name}j {CLOSE}",
                    as_printed(schema, *lenient)
                )
            }
            // Such a parameter is not written.
            ValueRule::Never(_) => Ok(()),
        };
    }
}

/// Text with its closing tag. The line feed in front of the tag counts as text here: otherwise each new line would be a
/// state of its own, with a mask of its own.
fn up_to_close() -> String {
    format!("/{}<\\/parameter>/", tags::without(&tags::CLOSED_TO_VALUES))
}

/// A schema whose values have the white space of a template's JSON.
pub(crate) fn as_printed(schema: &Value, lenient: bool) -> Value {
    let options = serde_json::json!({
        "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
        // The schemas of most tools are meant for the model's eyes.
        "lenient": lenient,
    });
    with_options(schema, options)
}

/// Whether a name can stand in a tag.
fn is_name(name: &str) -> bool {
    let breaks = |c: char| c.is_control() || c == '<' || c == '>';
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(breaks)
}

/// A text as a grammar writes it.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
