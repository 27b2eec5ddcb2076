//! The chat template: a conversation as the one text that the model was trained to continue.
//!
//! Rendering equals Python's jinja2 in the way the reference library sets it up, on the text level:
//! `tests/jinja_peer.rs` runs both.

mod client;
mod environment;
mod methods;
mod python;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use lily_files::Files;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::TextError;
use crate::tokenizer::{named_token, read, read_config};
pub(crate) use client::is_word_like;
use client::{Dress, Marks, Scan, unused_characters};

/// Steps for a short conversation; what they may allocate is bounded by 64 bytes each.
const FUEL: u64 = 2_000_000;
/// Steps for each byte of the request. The published template takes up to one and a half, for messages
/// without text.
const FUEL_PER_BYTE: u64 = 8;

/// What decides the rendering of a conversation apart from its messages.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateOptions {
    /// Whether the text ends with the beginning of an assistant turn.
    pub add_generation_prompt: bool,
    /// Whether that turn begins with an open thought; `None` leaves it to the template (on).
    pub enable_thinking: Option<bool>,
    /// Whether earlier thoughts stay; `None` leaves it to the template (off).
    pub preserve_thinking: Option<bool>,
    /// Further variables of the template, a client's `chat_template_kwargs`.
    pub extra: Map<String, Json>,
}

impl Default for TemplateOptions {
    fn default() -> TemplateOptions {
        TemplateOptions {
            add_generation_prompt: true,
            enable_thinking: None,
            preserve_thinking: None,
            extra: Map::new(),
        }
    }
}

/// A conversation to render.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    /// The messages as JSON objects: `role`, `content`, and what else the template knows. Tool
    /// calls hold their `arguments` as an object.
    pub messages: &'a [Json],
    /// The tools as JSON objects, shown to the model as they are; key order is kept. `None` if the
    /// request has no such field.
    pub tools: Option<&'a [Json]>,
    /// Everything else.
    pub options: &'a TemplateOptions,
}

impl<'a> ChatInput<'a> {
    fn values(&self) -> impl Iterator<Item = &'a Json> + use<'a> {
        self.messages.iter().chain(self.tools.unwrap_or(&[])).chain(self.options.extra.values())
    }
}

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    file: PathBuf,
    environment: Environment<'static>,
    /// Names of special tokens that templates may print, such as `bos_token`.
    tokens: Vec<(&'static str, String)>,
    /// What a request may set; see [`ChatTemplate::variables`].
    variables: Vec<String>,
}

/// Variables that this library sets from fields of a request or from the checkpoint.
const OWN: [&str; 7] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
];

/// A rendering, and which bytes of it a client wrote.
#[derive(Debug, Default)]
pub(crate) struct Rendering {
    pub text: String,
    /// Ascending, not overlapping, on character boundaries.
    pub client: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Opens the `chat_template.jinja` of a checkpoint, or the template that stands in
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// There is no template, or it does not parse.
    pub fn open<'a>(files: impl Into<Files<'a>>) -> Result<ChatTemplate, TextError> {
        let files = files.into();
        let config = read_config(files)?;
        let file = files.path("chat_template.jinja");
        if let Some(text) = read(files, "chat_template.jinja")? {
            let source = String::from_utf8(text.into_owned())
                .map_err(|e| TextError::Malformed { file: file.clone(), detail: e.to_string() })?;
            return ChatTemplate::parse(source, file, &config);
        }
        match in_config(&config) {
            Some(source) => {
                ChatTemplate::parse(source.to_owned(), files.path("tokenizer_config.json"), &config)
            }
            None => Err(TextError::Missing {
                file,
                wanted: "copy it from the model's original repository, or use plain completions",
            }),
        }
    }

    /// A template from its text.
    ///
    /// # Errors
    /// It does not parse.
    pub fn from_source(source: &str) -> Result<ChatTemplate, TextError> {
        ChatTemplate::parse(source.to_owned(), PathBuf::from("chat_template"), &Json::Null)
    }

    fn parse(source: String, file: PathBuf, config: &Json) -> Result<ChatTemplate, TextError> {
        let invalid = |error: &minijinja::Error| TextError::TemplateSyntax {
            file: file.clone(),
            detail: error.to_string(),
        };
        let environment = environment::build(&source, Marks::default())
            .map_err(|refusal| refusal.told(invalid))?;
        let names = ["bos_token", "eos_token", "unk_token", "pad_token"];
        let token = |name| Some((name, named_token(config, name)?.to_owned()));
        let tokens = names.into_iter().filter_map(token).collect();
        let mut variables =
            environment::variables(&source).map_err(|refusal| refusal.told(invalid))?;
        variables.retain(|name| !OWN.contains(&name.as_str()));
        Ok(ChatTemplate { source, file, environment, tokens, variables })
    }

    /// The template's own text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The variables that a request may set, sorted: names that the template reads and that neither
    /// it, its engine nor this library sets. `enable_thinking` and `preserve_thinking` are among
    /// them if the template knows them.
    pub fn variables(&self) -> &[String] {
        &self.variables
    }

    /// The file that the template was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// The template refuses the conversation ([`TextError::Raised`]), cannot handle a value in it,
    /// or does not end.
    pub fn render(&self, input: &ChatInput) -> Result<String, TextError> {
        self.prepare(input, &[])?.plain(input)
    }

    /// The text of a conversation with the client's part of it, as far as it holds one of the
    /// characters `starts`; a client without them is not told apart.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub(crate) fn render_marked(
        &self,
        input: &ChatInput,
        starts: &[char],
    ) -> Result<Rendering, TextError> {
        let prepared = self.prepare(input, starts)?;
        let text = prepared.plain(input)?;
        if !prepared.found {
            return Ok(Rendering { text, client: Vec::new() });
        }
        let marked = prepared.run(input, &Dress::Marked(prepared.marks));
        if let Some(marked) = marked.ok().and_then(|out| prepared.marks.read_strict(&out))
            && marked.raw == text
        {
            return Ok(Rendering { text, client: marked.client });
        }
        // The template treats strings in a way that the marks disturb. Without the characters that
        // control tokens begin with it may see less in them than Python would, but never more.
        let free = unused_characters(input.values(), &self.source, starts.len())?;
        let dress = Dress::Exchanged(starts.iter().copied().zip(free).collect());
        let undone = dress.undo_exchange(&prepared.run(input, &dress)?);
        Ok(Rendering { text: undone.raw, client: undone.client })
    }

    /// A character that neither a client nor the template uses, and that no mark is made of.
    pub(crate) fn unused_character(&self, input: &ChatInput) -> Result<char, TextError> {
        // The marks are the first that are free.
        let free = unused_characters(input.values(), &self.source, 3)?;
        Ok(free.last().copied().unwrap_or_default())
    }

    fn prepare<'a>(
        &'a self,
        input: &ChatInput,
        starts: &[char],
    ) -> Result<Prepared<'a>, TextError> {
        let own = ["messages", "tools", "add_generation_prompt"];
        if let Some(name) = own.iter().find(|&&name| input.options.extra.contains_key(name)) {
            return Err(TextError::Request {
                field: format!("template variable `{name}`"),
                expected: "given as a field of the request itself",
                found: "it is among the extra variables".into(),
            });
        }
        let scan = Scan::look(input.values(), starts)?;
        let (mut environment, marks) = if scan.has_marks {
            let free = unused_characters(input.values(), &self.source, 2)?;
            let marks = match free.as_slice() {
                [open, close] => Marks { open: *open, close: *close },
                _ => Marks::default(),
            };
            let built = environment::build(&self.source, marks);
            (built.map_err(|refusal| refusal.told(|e| failed(e, 0)))?, marks)
        } else {
            (self.environment.clone(), Marks::default())
        };
        let bytes = u64::try_from(scan.bytes).unwrap_or(u64::MAX);
        let fuel = bytes.saturating_mul(FUEL_PER_BYTE).saturating_add(FUEL);
        environment.set_fuel(Some(fuel));
        Ok(Prepared { template: self, environment, marks, fuel, found: scan.found })
    }
}

/// An environment for one conversation.
struct Prepared<'a> {
    template: &'a ChatTemplate,
    environment: Environment<'static>,
    marks: Marks,
    fuel: u64,
    /// A client's string holds one of the characters that were looked for.
    found: bool,
}

impl Prepared<'_> {
    fn plain(&self, input: &ChatInput) -> Result<String, TextError> {
        self.run(input, &Dress::Bare)
    }

    fn run(&self, input: &ChatInput, dress: &Dress) -> Result<String, TextError> {
        let options = input.options;
        let mut variables: Vec<(Value, Value)> = Vec::new();
        let mut set = |name: &str, value: Value| variables.push((Value::from(name), value));
        for (name, token) in &self.template.tokens {
            set(name, Value::from(token.as_str()));
        }
        for (name, value) in &options.extra {
            set(name, dress.value(value));
        }
        set("messages", dress.list(input.messages));
        set("tools", input.tools.map_or(Value::from(()), |tools| dress.list(tools)));
        set("add_generation_prompt", Value::from(options.add_generation_prompt));
        if let Some(on) = options.enable_thinking {
            set("enable_thinking", Value::from(on));
        }
        if let Some(on) = options.preserve_thinking {
            set("preserve_thinking", Value::from(on));
        }
        // A fault of the engine that a strange template brings out must not end the program.
        let rendered = catch_unwind(AssertUnwindSafe(|| {
            let template = self.environment.get_template(environment::NAME)?;
            template.render(Value::from_pairs(variables))
        }));
        match rendered {
            Ok(result) => result.map_err(|e| failed(&e, self.fuel)),
            Err(_) => Err(TextError::Render {
                detail: "the template engine failed on it; use the model's original template"
                    .into(),
            }),
        }
    }
}

/// What an error of the template engine means to the caller.
fn failed(error: &minijinja::Error, fuel: u64) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(raised) = e.downcast_ref::<environment::Raised>() {
            return TextError::Raised { message: raised.0.clone() };
        }
        if e.downcast_ref().is_some_and(|e: &minijinja::Error| e.kind() == ErrorKind::OutOfFuel) {
            return TextError::Endless { fuel };
        }
        cause = e.source();
    }
    TextError::Render { detail: error.to_string() }
}

/// A template in `tokenizer_config.json`: one text, or several with names.
fn in_config(config: &Json) -> Option<&str> {
    match config.get("chat_template")? {
        Json::String(source) => Some(source),
        Json::Array(named) => {
            let default =
                |entry: &&Json| entry.get("name").and_then(Json::as_str) == Some("default");
            named.iter().find(default)?.get("template")?.as_str()
        }
        _ => None,
    }
}
