//! Reading the model's output: thought, answer, tool calls and stop strings in one machine.
//!
//! [`MessageParser`] takes the text in whatever pieces it comes and hands out events. The joined
//! events depend on the joined text only, never on how it was cut.
//!
//! | situation | rule |
//! |---|---|
//! | the prompt opened a thought | reasoning until the first `</think>`; line feeds at the seam are dropped |
//! | it did not | all is content; a `</think>` is text |
//! | a second `</think>` | text |
//! | end of text while thinking | all is reasoning |
//! | `<tool_call>`, `<function=NAME>` of a given tool, and its body, at the start of a line of the answer | a call; white space between calls is dropped, and so are line feeds in front of one if no text follows |
//! | the same in the thought, well-formed, with nothing but such calls and white space behind it to the end | the thought ends there, and they are calls |
//! | anything else in the thought, and what stands in a code fence, or behind a line that opens backticks or quotes at its end | text |
//! | no tools, or a name that is not among them | text |
//! | `<function=NAME>` … `</function>` of a given tool as whole lines, without the outer tag | a call, once it is whole; at the limit only with its last line feed |
//! | a value | what stands between `<parameter=KEY>` and its closing tag, without one line feed at each end |
//! | which `</parameter>` closes | the first one in front of `<parameter=KEY>` or of `</function>`; that one counts in front of `</tool_call>`, `<tool_call>` or another `<function=NAME>`, and `</tool_call>` in front of `<tool_call>` or the end; all the others are data |
//! | a whole call with other text behind it | if the end of a call comes later, without a beginning in between: data of the value; else the call ended, and the text is content |
//! | a whole call of a given tool inside a value | data, with all its tags |
//! | an argument that is given twice | the first counts |
//! | `</parameter`, `</parameter/>`, or `</function>` alone on its line for `</parameter>` | the same as `</parameter>` |
//! | the type of a value | by the tool's schema, see below |
//! | the limit inside a call | no call; its text is in [`MessageEvent::Finish`] |
//! | a stop token inside a call | the call, if its last value is closed; else no call, as above |
//! | a stop string | ends the content, and is not part of it; calls and the thought are not searched |
//!
//! The schema allows a set of types (`type`, `$ref` inside the schema, `anyOf`, `oneOf`, `allOf`,
//! `nullable`; of these the ones that the values of `enum` or `const` have; a string if it says nothing).
//! The first of these that is allowed and fits is taken: `null`; a boolean in any case; a number, whole for an integer; a JSON object or array;
//! the text as a string. White space around a value that is not a string is dropped.

mod buffer;
mod call;
mod event;
mod lexer;
mod lines;
mod machine;
mod out;
pub(crate) mod schema;
mod stop;
mod text;
pub(crate) mod value;

#[cfg(test)]
mod tests;

use lily_text::{TextError, Thinking};

pub use event::{Ended, MessageEvent, Parsed, ToolCall, ToolSpec};
use machine::Machine;
pub use out::Events;

/// Turns the model's text into a message while it is generated.
///
/// ```
/// use lily_chat::{Ended, MessageParser, Parsed, ToolSpec};
/// use lily_text::Thinking;
///
/// let tools = vec![ToolSpec::new("ls", serde_json::Value::Null)];
/// let mut parser = MessageParser::new(Thinking::Open, tools, &["END"])?;
/// let mut message = Parsed::default();
/// let pieces = ["See.\n</think>\n\n<tool_call>\n<func", "tion=ls>\n<parameter=path>\n", ".\n",
///     "</parameter>\n</function>\n</tool_call>"];
/// for piece in pieces {
///     parser.push(piece).for_each(|event| message.add(&event));
/// }
/// parser.finish(Ended::StopToken).for_each(|event| message.add(&event));
/// assert_eq!(message.reasoning, "See.");
/// assert_eq!(message.tool_calls[0].arguments, r#"{"path":"."}"#);
/// # Ok::<(), lily_text::TextError>(())
/// ```
#[derive(Debug)]
pub struct MessageParser {
    machine: Machine,
}

impl MessageParser {
    /// A parser for the text behind a prompt.
    ///
    /// # Errors
    /// [`TextError::Request`] if a stop string is empty: it would end every text at once.
    pub fn new<S: AsRef<str>>(
        thinking: Thinking,
        tools: Vec<ToolSpec>,
        stops: &[S],
    ) -> Result<MessageParser, TextError> {
        let stops = stop::Stops::new(stops)?;
        Ok(MessageParser { machine: Machine::new(thinking, tools, stops) })
    }

    /// Lets at most so many line feeds behind the thought be no part of the answer, where a format
    /// may begin with line feeds of its own. Otherwise all of them are dropped.
    #[must_use]
    pub fn with_seam(mut self, line_feeds: usize) -> MessageParser {
        self.machine.set_seam(line_feeds);
        self
    }

    /// Adds a piece of text; what it led to. After a stop string nothing more comes out.
    pub fn push(&mut self, piece: &str) -> Events<'_> {
        self.machine.push(piece)
    }

    /// Ends the text: the rest, and [`MessageEvent::Finish`] as the last event. If a stop string
    /// ended the text before, `ended` does not matter.
    pub fn finish(&mut self, ended: Ended) -> Events<'_> {
        self.machine.finish(ended)
    }

    /// Whether a stop string has ended the text, so that generation can stop.
    pub fn is_stopped(&self) -> bool {
        self.machine.is_stopped()
    }

    /// Whether the text is inside the thought, as far as is known.
    pub fn is_reasoning(&self) -> bool {
        self.machine.is_reasoning()
    }

    /// Bytes looked at so far: a measure of work that does not depend on time.
    pub fn work(&self) -> u64 {
        self.machine.work()
    }
}
