//! The table of the parser's documentation as tests, each over all cuts.

mod arguments;
mod calls;
mod ends;
mod random;
mod text;
mod work;

use lily_text::Thinking;
use serde_json::{Value, json};

use super::*;
use crate::completion::FinishReason;

/// A text with everything that its reading depends on.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    thinking: Thinking,
    tools: &'a [ToolSpec],
    stops: &'a [&'a str],
    ended: Ended,
    text: &'a str,
}

impl<'a> Case<'a> {
    /// A text behind a closed thought, ended by the model.
    fn answer(tools: &'a [ToolSpec], text: &'a str) -> Case<'a> {
        Case { thinking: Thinking::Closed, tools, stops: &[], ended: Ended::StopToken, text }
    }

    /// A text that begins in a thought, ended by the model.
    fn thought(tools: &'a [ToolSpec], text: &'a str) -> Case<'a> {
        Case { thinking: Thinking::Open, ..Case::answer(tools, text) }
    }

    fn cut_by_limit(self) -> Case<'a> {
        Case { ended: Ended::Limit, ..self }
    }

    fn stops(self, stops: &'a [&'a str]) -> Case<'a> {
        Case { stops, ..self }
    }

    /// Reads the text in pieces. Checks what must hold for any text.
    fn read<'p>(&self, pieces: impl IntoIterator<Item = &'p str>) -> Parsed {
        let mut parser =
            MessageParser::new(self.thinking, self.tools.to_vec(), self.stops).unwrap();
        let mut seen = Seen { text: self.text, ..Seen::default() };
        for piece in pieces {
            if parser.is_stopped() {
                // Generation has stopped by now.
                assert_eq!(parser.push(piece).count(), 0);
                continue;
            }
            parser.push(piece).for_each(|event| seen.add(&event));
        }
        parser.finish(self.ended).for_each(|event| seen.add(&event));
        assert_eq!(parser.finish(self.ended).count(), 0, "there is one end");
        let stopped = parser.is_stopped();
        seen.check(self.thinking, stopped);
        seen.parsed
    }

    fn at_once(&self) -> Parsed {
        self.read([self.text])
    }

    /// Reads the text at once, by characters, and cut at every place and every pair of places, up
    /// to a bound on work; all must be equal.
    fn parse(&self) -> Parsed {
        let wanted = self.at_once();
        let ends: Vec<usize> =
            (0..=self.text.len()).filter(|&at| self.text.is_char_boundary(at)).collect();
        let single = ends.windows(2).map(|pair| &self.text[pair[0]..pair[1]]);
        assert_eq!(self.read(single), wanted, "{self:?} by characters");
        // All pairs of a text of 64 characters; of longer ones evenly many.
        let step = (ends.len() / 64).max(1);
        for (i, &a) in ends.iter().enumerate() {
            let seconds = ends.iter().skip(i).step_by(step * if i % step == 0 { 1 } else { 16 });
            for &b in seconds {
                let pieces = [&self.text[..a], &self.text[a..b], &self.text[b..]];
                assert_eq!(self.read(pieces), wanted, "{self:?} cut at {a} and {b}");
            }
        }
        wanted
    }
}

/// Events so far, and what they must keep to.
#[derive(Default)]
struct Seen<'a> {
    text: &'a str,
    parsed: Parsed,
    begun: usize,
    spans: Vec<std::ops::Range<usize>>,
    ends: usize,
}

impl Seen<'_> {
    fn add(&mut self, event: &MessageEvent<'_>) {
        assert_eq!(self.ends, 0, "nothing comes behind the end");
        let open = self.begun.checked_sub(1).filter(|_| self.begun > self.spans.len());
        match event {
            MessageEvent::Reasoning(text) | MessageEvent::Content(text) => {
                assert!(!text.is_empty() && open.is_none());
            }
            MessageEvent::CallStarted { index, .. } => {
                assert!(open.is_none());
                assert_eq!(*index, self.begun);
                self.begun += 1;
            }
            MessageEvent::CallArguments { index, json } => {
                assert!(!json.is_empty());
                assert_eq!(Some(*index), open);
            }
            MessageEvent::CallFinished { index, span } => {
                assert_eq!(Some(*index), open);
                self.spans.push(span.clone());
            }
            MessageEvent::Finish { .. } => self.ends += 1,
        }
        self.parsed.add(event);
    }

    fn check(&self, thinking: Thinking, stopped: bool) {
        assert_eq!(self.ends, 1);
        assert_eq!(self.spans.len(), self.parsed.tool_calls.len());
        for call in &self.parsed.tool_calls {
            // Without keys that are there twice.
            let arguments = crate::parse_json(call.arguments.as_bytes()).unwrap();
            assert!(arguments.is_object(), "{call:?}");
        }
        assert_accounted((self.text, thinking), &self.parsed, &self.spans, stopped);
    }
}

/// Every byte of the text is in the thought, in the answer, in a call or in the unfinished call, in
/// this order, apart from what seams drop.
fn assert_accounted(
    (text, thinking): (&str, Thinking),
    parsed: &Parsed,
    spans: &[std::ops::Range<usize>],
    stopped: bool,
) {
    // The parts of the text outside calls.
    let mut parts = Vec::new();
    let mut from = 0;
    for span in spans {
        parts.push(&text[from..span.start]);
        from = span.end;
    }
    let mut rest = &text[from..];
    if let Some(unfinished) = &parsed.unfinished {
        rest = rest.strip_suffix(unfinished.as_str()).expect("it stands at the end");
    }
    parts.push(rest);
    let outside = parts.concat();
    let outside = outside.strip_prefix(&parsed.reasoning).expect("the thought comes first");
    let seam = outside.trim_start_matches('\n').strip_prefix("</think>");
    let outside = seam.filter(|_| thinking == Thinking::Open).unwrap_or(outside);
    let mut kept = parsed.content.chars().peekable();
    let mut dropped = String::new();
    for c in outside.chars() {
        match kept.peek() {
            Some(&next) if next == c => drop(kept.next()),
            _ => dropped.push(c),
        }
    }
    assert_eq!(kept.next(), None, "{text:?}: nothing is made up");
    if !stopped {
        assert_eq!(dropped.trim(), "", "{text:?}: nothing is lost");
    }
}

/// The tools of most tests.
fn tools() -> Vec<ToolSpec> {
    let text = |keys: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            keys.iter().map(|key| ((*key).to_string(), json!({ "type": "string" }))).collect();
        json!({ "type": "object", "properties": properties })
    };
    vec![
        ToolSpec::new("ls", text(&["path"])),
        ToolSpec::new("write", text(&["path", "content"])),
        ToolSpec::new("web_search", text(&["query"])),
        ToolSpec::new("now", Value::Null),
        ToolSpec::new("add", json!({ "properties": { "n": { "type": "integer" } } })),
    ]
}

/// A call as the chat template writes it.
fn render(name: &str, arguments: &[(&str, &str)]) -> String {
    let mut text = format!("<tool_call>\n<function={name}>\n");
    for (key, value) in arguments {
        text.push_str(&format!("<parameter={key}>\n{value}\n</parameter>\n"));
    }
    text + "</function>\n</tool_call>"
}

/// `(name, arguments)` of all calls.
fn calls(parsed: &Parsed) -> Vec<(&str, Value)> {
    let call = |call: &'_ ToolCall| serde_json::from_str(&call.arguments).unwrap();
    parsed.tool_calls.iter().map(|c| (c.name.as_str(), call(c))).collect()
}

/// The text is content and nothing else.
fn assert_is_text(case: &Case<'_>) {
    let parsed = case.parse();
    assert_eq!(parsed.tool_calls, [], "{case:?}");
    assert_eq!((parsed.content.as_str(), parsed.reasoning.as_str()), (case.text, ""));
    assert_eq!(parsed.unfinished, None);
}
