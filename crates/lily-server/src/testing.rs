//! What fuzz targets reach.

use std::sync::LazyLock;

use lily_model::GenerationDefaults;
use lily_text::{ChatInput, ChatTemplate, SYNTH_MIN_VOCAB, TextError, synth_tokenizer_files};
use serde_json::Value;

use crate::chat::ChatRequest;
use crate::completions::TextRequest;
use crate::error::ApiError;
use crate::schema::Served;

/// The template of lily's own models.
static TEMPLATE: LazyLock<ChatTemplate> = LazyLock::new(|| {
    let files = synth_tokenizer_files(SYNTH_MIN_VOCAB).expect("the smallest vocabulary is allowed");
    ChatTemplate::from_source(&files.chat_template_jinja).expect("lily's own template parses")
});

/// Checks the body of a chat and renders its conversation, as the server does before work begins.
///
/// # Errors
/// The request is refused; the value is what a client is sent.
pub fn chat_request(body: &[u8]) -> Result<(), Value> {
    let defaults = GenerationDefaults::default();
    let request = ChatRequest::parse(body, &served(&defaults), TEMPLATE.variables());
    let request = request.map_err(|error| error.body())?;
    let input = ChatInput { messages: &request.messages, tools: None, options: &request.options };
    match TEMPLATE.render(&input) {
        // What a template says to a conversation is a matter of the template.
        Ok(_) | Err(TextError::Raised { .. } | TextError::Render { .. }) => Ok(()),
        Err(error) => Err(ApiError::text("messages", &error).body()),
    }
}

/// Checks the body of a text completion.
///
/// # Errors
/// The request is refused; the value is what a client is sent.
pub fn text_request(body: &[u8]) -> Result<(), Value> {
    let defaults = GenerationDefaults::default();
    let request = TextRequest::parse(body, &served(&defaults));
    request.map(|_| ()).map_err(|error| error.body())
}

/// Ids of the vocabulary that requests are checked against.
const VOCAB: usize = 512;

fn served(defaults: &GenerationDefaults) -> Served<'_> {
    Served { model_id: "fuzz", vocab: VOCAB, defaults }
}
