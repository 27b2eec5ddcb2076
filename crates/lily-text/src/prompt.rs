//! A conversation as ids.

mod history;

use lily_files::Files;

use crate::template::Rendering;
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
    /// Opens tokenizer and template of a checkpoint.
    ///
    /// # Errors
    /// As [`Tokenizer::open`] and [`ChatTemplate::open`].
    pub fn open<'a>(files: impl Into<Files<'a>>) -> Result<PromptEncoder, TextError> {
        let files = files.into();
        Ok(PromptEncoder::new(Tokenizer::open(files)?, ChatTemplate::open(files)?))
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
    /// Tool calls may hold their `arguments` as JSON text, as the OpenAI API does: the text of an
    /// object is parsed, and any other text becomes the one parameter `arguments`. System messages at
    /// the beginning are one, with an empty line between them. Where the template refuses later
    /// ones, each keeps its place as a system turn; where it refuses a conversation without a
    /// question, there is an empty one at its beginning.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn encode(&self, input: &ChatInput, client: Markers) -> Result<Prompt, TextError> {
        let messages = history::tidy(input.messages);
        let input = ChatInput { messages: &messages, ..*input };
        let rendering = match self.render(&input, client) {
            Err(TextError::Raised { message }) => {
                let dressed = self.render_dressed(&input, client)?;
                dressed.ok_or(TextError::Raised { message })?
            }
            other => other?,
        };
        let Rendering { text, client: ranges } = rendering;
        let ids = match client {
            Markers::Control => self.tokenizer.encode(&text, Markers::Control)?,
            Markers::Plain => self.tokenizer.encode_around(&text, &ranges)?,
        };
        let thinking = self.turn.thinking(&ids);
        Ok(Prompt { ids, text, thinking })
    }

    fn render(&self, input: &ChatInput, client: Markers) -> Result<Rendering, TextError> {
        match client {
            Markers::Control => {
                Ok(Rendering { text: self.template.render(input)?, client: Vec::new() })
            }
            Markers::Plain => self.template.render_marked(input, &self.starts),
        }
    }

    /// A conversation that the template refuses, in the form that it accepts; `None` if there is no
    /// such form.
    fn render_dressed(
        &self,
        input: &ChatInput,
        client: Markers,
    ) -> Result<Option<Rendering>, TextError> {
        let mark = self.template.unused_character(input)?;
        let Some(messages) = history::dress(input.messages, mark) else { return Ok(None) };
        let rendering = self.render(&ChatInput { messages: &messages, ..*input }, client)?;
        Ok(history::undress(&rendering, mark))
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
