//! Text in and out of the model: tokenizer, chat template and streaming decoder.
//!
//! On the way in, [`PromptEncoder`] renders a conversation with the checkpoint's own template
//! ([`ChatTemplate`]) and turns it into ids ([`Tokenizer`]); what a client wrote can never become a
//! control token unless the caller asks for it. On the way out, [`Detokenizer`] turns ids into whole
//! characters; what they mean is read in `lily-chat`.

#![forbid(unsafe_code)]

mod detokenizer;
mod error;
mod prompt;
mod synth;
mod template;
mod tokenizer;

pub use detokenizer::{Detokenizer, SpecialTokens};
pub use error::TextError;
pub use prompt::{Prompt, PromptEncoder, Thinking};
pub use synth::{SYNTH_MIN_VOCAB, SynthTokenizer, synth_tokenizer_files};
pub use template::{ChatInput, ChatTemplate, TemplateOptions};
pub use tokenizer::{Markers, Tokenizer};
