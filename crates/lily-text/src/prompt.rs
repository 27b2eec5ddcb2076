//! A conversation as ids.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::{ChatInput, ChatTemplate, Markers, TextError, Tokenizer};

/// Turns conversations into prompts.
#[derive(Debug)]
pub struct PromptEncoder {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    /// Characters that control tokens begin with.
    starts: Vec<char>,
    turn: Turn,
}

/// What the model is asked to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The same as text, control tokens written out.
    pub text: String,
    /// Whether the model begins inside a thought.
    pub thinking: Thinking,
}

/// The state of the thought at the end of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// `<think>` is open: the model continues the thought.
    Open,
    /// The last turn has a closed thought: the model begins with the answer.
    Closed,
    /// The last turn has none, or has ended.
    Absent,
}

/// Ids of the tokens that tell where a turn and its thought begin and end.
#[derive(Debug)]
struct Turn {
    bounds: Vec<u32>,
    open: Option<u32>,
    close: Option<u32>,
}

impl PromptEncoder {
    /// Opens tokenizer and template of a checkpoint folder.
    ///
    /// # Errors
    /// As [`Tokenizer::open`] and [`ChatTemplate::open`].
    pub fn open(folder: &Path) -> Result<PromptEncoder, TextError> {
        Ok(PromptEncoder::new(Tokenizer::open(folder)?, ChatTemplate::open(folder)?))
    }

    /// Combines a tokenizer with a template.
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate) -> PromptEncoder {
        let mut bounds = tokenizer.end_tokens().to_vec();
        bounds.extend(tokenizer.id_of("<|im_start|>"));
        let turn =
            Turn { bounds, open: tokenizer.id_of("<think>"), close: tokenizer.id_of("</think>") };
        PromptEncoder { starts: tokenizer.marker_starts(), tokenizer, template, turn }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// The prompt for a conversation.
    ///
    /// With [`Markers::Plain`] control tokens in the client's text are spelled out in ordinary
    /// pieces, in every message, tool and variable, while those of the template's own frame are
    /// control tokens; a conversation without any has the same ids either way. With
    /// [`Markers::Control`] the whole text is encoded as the reference tokenizer does it, and a
    /// client can forge turns.
    ///
    /// Tool calls may hold their `arguments` as JSON text, as the OpenAI API does: it is parsed.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; and arguments that are not a JSON object.
    pub fn encode(&self, input: &ChatInput, client: Markers) -> Result<Prompt, TextError> {
        let messages = parse_arguments(input.messages)?;
        let input = ChatInput { messages: &messages, ..*input };
        let (text, ids) = match client {
            Markers::Control => {
                let text = self.template.render(&input)?;
                let ids = self.tokenizer.encode(&text, Markers::Control)?;
                (text, ids)
            }
            Markers::Plain => {
                let rendering = self.template.render_marked(&input, &self.starts)?;
                let ids = self.tokenizer.encode_around(&rendering.text, &rendering.client)?;
                (rendering.text, ids)
            }
        };
        let thinking = self.turn.thinking(&ids);
        Ok(Prompt { ids, text, thinking })
    }
}

impl Turn {
    fn thinking(&self, ids: &[u32]) -> Thinking {
        for id in ids.iter().rev() {
            match Some(*id) {
                id if id == self.open => return Thinking::Open,
                id if id == self.close => return Thinking::Closed,
                _ if self.bounds.contains(id) => break,
                _ => {}
            }
        }
        Thinking::Absent
    }
}

/// Tool calls with their arguments as objects. Borrows unless there is something to parse.
fn parse_arguments(messages: &[Json]) -> Result<Cow<'_, [Json]>, TextError> {
    let has_text = |message: &Json| {
        calls(message).is_some_and(|calls| calls.iter().any(|call| text_arguments(call).is_some()))
    };
    if !messages.iter().any(has_text) {
        return Ok(Cow::Borrowed(messages));
    }
    let mut messages = messages.to_vec();
    for (i, message) in messages.iter_mut().enumerate() {
        let Some(Json::Array(calls)) = message.get_mut("tool_calls") else { continue };
        for (j, call) in calls.iter_mut().enumerate() {
            let Some(text) = text_arguments(call) else { continue };
            let parsed = object(text).map_err(|found| TextError::Request {
                field: format!("messages[{i}].tool_calls[{j}].function.arguments"),
                expected: "the text of a JSON object",
                found,
            })?;
            let holder = if call.get("function").is_some() { &mut call["function"] } else { call };
            holder["arguments"] = Json::Object(parsed);
        }
    }
    Ok(Cow::Owned(messages))
}

fn calls(message: &Json) -> Option<&Vec<Json>> {
    message.get("tool_calls")?.as_array()
}

fn text_arguments(call: &Json) -> Option<&str> {
    call.get("function").unwrap_or(call).get("arguments")?.as_str()
}

/// The arguments of a call without any are often an empty text.
fn object(text: &str) -> Result<Map<String, Json>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Json::Object(fields)) => Ok(fields),
        Ok(_) => Err("it is another JSON value".into()),
        Err(e) => Err(format!("it does not parse: {e}")),
    }
}
