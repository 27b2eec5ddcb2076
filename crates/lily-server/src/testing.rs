//! What fuzz targets reach.

use std::sync::LazyLock;

use lily_model::GenerationDefaults;
use lily_text::{
    ChatInput, ChatTemplate, Markers, PromptEncoder, SYNTH_MIN_VOCAB, TextError, Tokenizer,
    synth_tokenizer_files,
};
use serde_json::Value;

use crate::chat::ChatRequest;
use crate::completions::TextRequest;
use crate::error::ApiError;
use crate::fields::Mode;
use crate::schema::Served;

/// Template and tokenizer of lily's own models.
static ENCODER: LazyLock<PromptEncoder> = LazyLock::new(|| {
    let files = synth_tokenizer_files(SYNTH_MIN_VOCAB).expect("the smallest vocabulary is allowed");
    let template = ChatTemplate::from_source(&files.chat_template_jinja);
    let tokenizer = Tokenizer::from_json(files.tokenizer_json.as_bytes());
    PromptEncoder::new(
        tokenizer.expect("lily's own tokenizer opens"),
        template.expect("lily's own template parses"),
    )
});

fn mode(lenient: bool) -> Mode {
    if lenient { Mode::Lenient } else { Mode::Strict }
}

/// Checks the body of a chat and renders its conversation, as the server does before work begins.
///
/// # Errors
/// The request is refused; the value is what a client is sent.
pub fn chat_request(body: &[u8], lenient: bool) -> Result<(), Value> {
    let mode = mode(lenient);
    let defaults = GenerationDefaults::default();
    let request =
        ChatRequest::parse(body, mode, &served(&defaults), ENCODER.template().variables());
    let request = request.map_err(|error| error.body())?;
    let input = ChatInput {
        messages: &request.messages,
        tools: request.tools.shown.as_deref(),
        options: &request.thinking.template,
    };
    match ENCODER.encode(&input, Markers::Plain) {
        // What a template says to a conversation is a matter of the template.
        Ok(_) | Err(TextError::Raised { .. } | TextError::Render { .. }) => Ok(()),
        Err(error) => Err(ApiError::text("messages", &error).body()),
    }
}

/// Checks the body of a text completion.
///
/// # Errors
/// The request is refused; the value is what a client is sent.
pub fn text_request(body: &[u8], lenient: bool) -> Result<(), Value> {
    let mode = mode(lenient);
    let defaults = GenerationDefaults::default();
    let request = TextRequest::parse(body, mode, &served(&defaults));
    request.map(|_| ()).map_err(|error| error.body())
}

/// Ids of the vocabulary that requests are checked against.
const VOCAB: usize = 512;

fn served(defaults: &GenerationDefaults) -> Served<'_> {
    Served { model_id: "fuzz", vocab: VOCAB, defaults }
}
