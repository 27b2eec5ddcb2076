//! Histories as agents send them, in a form that templates accept.
//!
//! The published template parses no arguments, wants a user's question, and knows a system message
//! only at the beginning. Agents cut their calls short, compact their histories until no question
//! is left, and give further instructions in the middle. A conversation must survive all of it.

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};

use crate::template::Rendering;

/// Templates take a user turn of this shape for the result of a call: it is no question, so that
/// the thoughts in front of it stay.
const RESULT: (&str, &str) = ("<tool_response>", "</tool_response>");
/// The parameter of a call whose arguments are no object.
const WHOLE: &str = "arguments";

/// Messages with the system messages at the beginning as one, and with the arguments of calls as
/// objects. Borrows unless there is something to change.
///
/// Arguments may be JSON text: an object's is parsed; none at all and `null` are an object without
/// entries; whatever else there is, broken text too, becomes the one parameter `arguments` as it
/// was written.
pub(super) fn tidy(messages: &[Json]) -> Cow<'_, [Json]> {
    let leading = leading_systems(messages);
    let has_text = |message: &Json| calls(message).is_some_and(|calls| calls.iter().any(is_untidy));
    if leading < 2 && !messages.iter().any(has_text) {
        return Cow::Borrowed(messages);
    }
    let mut tidied = Vec::with_capacity(messages.len());
    let (systems, rest) = messages.split_at(leading);
    match systems {
        [] => {}
        [only] => tidied.push(only.clone()),
        several => {
            let texts: Vec<String> = several.iter().map(text_of).collect();
            let texts: Vec<&str> =
                texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
            tidied.push(json!({ "role": "system", "content": texts.join("\n\n") }));
        }
    }
    for message in rest {
        let mut message = message.clone();
        if let Some(Json::Array(calls)) = message.get_mut("tool_calls") {
            for call in calls.iter_mut().filter(|call| is_untidy(call)) {
                let holder =
                    if call.get("function").is_some() { &mut call["function"] } else { call };
                let parsed = object(&holder["arguments"]);
                holder["arguments"] = Json::Object(parsed);
            }
        }
        tidied.push(message);
    }
    Cow::Owned(tidied)
}

/// The same conversation for a template that refuses it: without a question there is an empty one
/// in front of all that is no system message, and later system messages are dressed as results
/// between two `mark`s, for [`undress`]. `None` if there is neither to do.
pub(super) fn dress(messages: &[Json], mark: char) -> Option<Vec<Json>> {
    let leading = leading_systems(messages);
    let has_question = messages.iter().any(is_question);
    let late = messages.iter().skip(leading).any(is_system);
    if has_question && !late {
        return None;
    }
    let mut dressed: Vec<Json> = messages[..leading].to_vec();
    if !has_question {
        dressed.push(json!({ "role": "user", "content": "" }));
    }
    let (open, close) = RESULT;
    dressed.extend(messages[leading..].iter().map(|message| {
        if !is_system(message) {
            return message.clone();
        }
        let content = format!("{open}{mark}{}{mark}{close}", text_of(message).trim());
        json!({ "role": "user", "content": content })
    }));
    Some(dressed)
}

/// Makes system turns of what was dressed. `None` if the template did something else with it than
/// print it.
pub(super) fn undress(rendering: &Rendering, mark: char) -> Option<Rendering> {
    let front = format!("user\n{}{mark}", RESULT.0);
    let back = format!("{mark}{}", RESULT.1);
    let mut undressed = Undressed { source: rendering, done: 0, out: Rendering::default() };
    let text = &rendering.text;
    while let Some(found) = text[undressed.done..].find(mark) {
        let open = undressed.done + found + mark.len_utf8();
        let start = open.checked_sub(front.len())?;
        if start < undressed.done || !text.is_char_boundary(start) || text[start..open] != front {
            return None;
        }
        let close = open + text[open..].find(mark)?;
        if !text[close..].starts_with(&back) {
            return None;
        }
        undressed.keep(start);
        undressed.out.text.push_str("system\n");
        undressed.done = open;
        undressed.keep(close);
        undressed.done = close + back.len();
    }
    undressed.keep(text.len());
    Some(undressed.out)
}

/// A copy of a rendering, as far as it is made.
struct Undressed<'a> {
    source: &'a Rendering,
    /// Bytes of the source that are copied or left out.
    done: usize,
    out: Rendering,
}

impl Undressed<'_> {
    /// Copies the source up to `end`, with what is the client's in it.
    fn keep(&mut self, end: usize) {
        let (start, at) = (self.done, self.out.text.len());
        self.out.text.push_str(&self.source.text[start..end]);
        for range in &self.source.client {
            let (first, last) = (range.start.max(start), range.end.min(end));
            if first < last {
                self.out.client.push(at + first - start..at + last - start);
            }
        }
        self.done = end;
    }
}

fn leading_systems(messages: &[Json]) -> usize {
    messages.iter().take_while(|message| is_system(message)).count()
}

fn is_system(message: &Json) -> bool {
    message.get("role").is_some_and(|role| role == "system")
}

fn is_question(message: &Json) -> bool {
    if message.get("role").is_none_or(|role| role != "user") {
        return false;
    }
    let text = text_of(message);
    let text = text.trim();
    !(text.starts_with(RESULT.0) && text.ends_with(RESULT.1))
}

/// The text of a message's content, its parts joined.
fn text_of(message: &Json) -> String {
    match message.get("content") {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text")?.as_str()).collect()
        }
        _ => String::new(),
    }
}

fn calls(message: &Json) -> Option<&Vec<Json>> {
    message.get("tool_calls")?.as_array()
}

/// Whether a call has arguments that are no object.
fn is_untidy(call: &Json) -> bool {
    let arguments = call.get("function").unwrap_or(call).get("arguments");
    arguments.is_some_and(|arguments| !arguments.is_object())
}

fn object(arguments: &Json) -> Map<String, Json> {
    let text = match arguments {
        Json::Null => return Map::new(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.trim().is_empty() {
        return Map::new();
    }
    match serde_json::from_str(&text) {
        Ok(Json::Object(entries)) => entries,
        Ok(Json::Null) => Map::new(),
        _ => Map::from_iter([(WHOLE.to_owned(), Json::String(text))]),
    }
}
