//! Text in and out of the model: tokenizer, chat template, streaming decoder, stop strings and the
//! split between reasoning and answer.
//!
//! On the way in, [`PromptEncoder`] renders a conversation with the checkpoint's own template
//! ([`ChatTemplate`]) and turns it into ids ([`Tokenizer`]); what a client wrote can never become a
//! control token unless the caller asks for it. On the way out, [`Detokenizer`] turns ids into whole
//! characters, [`ReasoningSplitter`] separates the thought from the answer and [`StopStrings`] ends
//! the text. The machines of the way out are incremental, and their joined result does not depend
//! on how the text was cut.

#![forbid(unsafe_code)]

mod detokenizer;
mod error;
mod prompt;
mod reasoning;
mod stop;
mod synth;
mod template;
mod tokenizer;

pub use detokenizer::{Detokenizer, SpecialTokens};
pub use error::TextError;
pub use prompt::{Prompt, PromptEncoder, Thinking};
pub use reasoning::{ReasoningSplitter, SplitText};
pub use stop::{StopMatch, StopStep, StopStrings};
pub use synth::{SYNTH_MIN_VOCAB, SynthTokenizer, synth_tokenizer_files};
pub use template::{ChatInput, ChatTemplate, TemplateOptions};
pub use tokenizer::{Markers, Tokenizer};
