//! What fuzz targets reach.

use lily_model::GenerationDefaults;
use lily_text::TextError;
use lily_text::{ChatInput, ChatTemplate};
use serde_json::Value;

use crate::chat::ChatRequest;
use crate::completions::TextRequest;
use crate::schema::Served;

/// Ids of the vocabulary that requests are checked against.
const VOCAB: usize = 512;

/// Checks the body of a chat and renders its conversation, as the server does before work begins.
/// Returns the error's body if it is refused.
///
/// # Errors
/// The request is refused; the value is what a client is sent.
pub fn chat_request(body: &[u8], template: &ChatTemplate) -> Result<(), Value> {
    let defaults = GenerationDefaults::default();
    let request = ChatRequest::parse(body, &served(&defaults), template.variables());
    let request = request.map_err(|error| error.body())?;
    let input = ChatInput { messages: &request.messages, tools: None, options: &request.options };
    // What a template says to a conversation is a matter of the template.
    match template.render(&input) {
        Ok(_) | Err(TextError::Raised { .. } | TextError::Render { .. }) => Ok(()),
        Err(error) => Err(crate::error::ApiError::text("messages", &error).body()),
    }
}

/// Checks the body of a text completion. Returns the error's body if it is refused.
///
/// # Errors
/// The request is refused; the value is what a client is sent.
pub fn text_request(body: &[u8]) -> Result<(), Value> {
    let defaults = GenerationDefaults::default();
    let request = TextRequest::parse(body, &served(&defaults));
    request.map(|_| ()).map_err(|error| error.body())
}

fn served(defaults: &GenerationDefaults) -> Served<'_> {
    Served { model_id: "fuzz", vocab: VOCAB, defaults }
}
