//! What can go wrong between text and ids.

use std::io;
use std::path::PathBuf;

/// Why a tokenizer, a template or a request was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file of the checkpoint is not there, for example because the download was cut.
    #[error("{file} is missing; {wanted}", file = file.display())]
    Missing {
        /// The file that was looked for.
        file: PathBuf,
        /// What would do instead, or where to get it.
        wanted: &'static str,
    },
    /// A file exists but cannot be read.
    #[error("{file} cannot be read: {source}; check its permissions", file = file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its name promises.
    #[error("{file} is malformed: {detail}; download it again", file = file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong, and where.
        detail: String,
    },
    /// The tokenizer works in a way that lily does not follow, so its ids would be wrong.
    #[error(
        "{file} has {part} {found}, but only {accepted} is supported; use a checkpoint of the \
         Qwen3.5/3.6 family with its own tokenizer",
        file = file.display()
    )]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The field, as the file names it.
        part: &'static str,
        /// What the field holds.
        found: String,
        /// What it may hold.
        accepted: String,
    },
    /// The chat template does not parse.
    #[error("{file} is not a valid template: {detail}; use the checkpoint's own file", file = file.display())]
    TemplateSyntax {
        /// The file.
        file: PathBuf,
        /// What the template engine said.
        detail: String,
    },
    /// The system has no thread for the template.
    #[error(
        "no thread with a stack of {stack_mib} MiB can be started for the chat template ({source}); raise the limits of \
         memory (ulimit -v) and of processes (ulimit -u), or end other programs"
    )]
    NoThread {
        /// The stack's size.
        stack_mib: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The template itself refused the conversation, by `raise_exception`.
    #[error("the chat template refuses the conversation: {message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// The template failed on the conversation: usually a message has a field of the wrong type.
    #[error("the chat template fails on the conversation: {detail}; check the messages' fields")]
    Render {
        /// What the template engine said.
        detail: String,
    },
    /// The template wanted more work than its bound, which grows with the conversation.
    #[error(
        "the chat template does not end within {fuel} steps; use the checkpoint's own template"
    )]
    Endless {
        /// The bound, in steps of the template engine.
        fuel: u64,
    },
    /// A request holds something that no template can render.
    #[error("{field} should be {expected}, but {found}")]
    Request {
        /// Where in the request.
        field: String,
        /// What is accepted.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// A text is beyond what the tokenizer can cut exactly.
    #[error(
        "the text has {found} white space characters in a row, at most {limit} can be tokenized; \
         shorten the run"
    )]
    WhiteSpace {
        /// Length of the run, characters.
        found: usize,
        /// The longest run accepted, characters.
        limit: usize,
    },
    /// The tokenizer library failed on a text.
    #[error("the text cannot be tokenized: {detail}; report it with the text")]
    Encode {
        /// What the library said.
        detail: String,
    },
}

impl TextError {
    /// Whether the request is at fault (a client error), not the checkpoint.
    pub fn is_request_error(&self) -> bool {
        matches!(
            self,
            Self::Raised { .. }
                | Self::Render { .. }
                | Self::Request { .. }
                | Self::WhiteSpace { .. }
                | Self::Encode { .. }
        )
    }
}
