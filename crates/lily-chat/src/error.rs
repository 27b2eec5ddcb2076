//! Errors of a completion.

use lily_model::engine::EngineError;
use lily_text::TextError;

/// Why a completion failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The engine failed, or refused the request.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Tokenizer or template failed, or refused the request.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A conversation leaves no room for an answer.
    #[error(
        "the conversation has {tokens} tokens, but the context holds {context}; start a new one \
         (/reset), or use a larger --ctx"
    )]
    ContextFull {
        /// Tokens of the conversation.
        tokens: usize,
        /// Positions of the context.
        context: usize,
    },
}
