//! The template engine, set up as the reference library sets up Python's jinja2.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::client::Marks;
use super::methods;
use super::python::{JsonStyle, to_json, to_str};
use crate::error::TextError;

/// The template's name inside its environment; messages of the engine show it.
pub(super) const NAME: &str = "chat_template";

/// A template's own refusal of a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

/// Bytes of a template's text; the published one has under 8,000.
const MAX_SOURCE_BYTES: usize = 64 << 10;
/// Stack for compiling a template: the engine's parser recurses along chains of operators, and a
/// text of [`MAX_SOURCE_BYTES`] can hold one link in each byte. Only what is used is touched.
const COMPILE_STACK_BYTES: usize = 256 << 20;

/// Names that the engine itself gives a meaning inside loops, blocks and macros.
const FRAME: [&str; 6] = ["loop", "self", "super", "caller", "varargs", "kwargs"];

/// An environment with one template.
pub(super) fn build(source: &str, marks: Marks) -> Result<Environment<'static>, Refusal> {
    with_stack(source, || compile(source, marks))
}

/// The names that a template reads and neither sets itself nor gets from the engine, sorted.
pub(super) fn variables(source: &str) -> Result<Vec<String>, Refusal> {
    // The engine parses the text again to find them.
    with_stack(source, || {
        let env = compile(source, Marks::default())?;
        let mut names: Vec<String> =
            env.get_template(NAME)?.undeclared_variables(false).into_iter().collect();
        names.retain(|name| {
            !FRAME.contains(&name.as_str()) && env.globals().all(|(global, _)| global != name)
        });
        names.sort();
        Ok(names)
    })
}

/// Why a template was not compiled.
pub(super) enum Refusal {
    /// It is not valid, or the engine failed on it.
    Template(Error),
    /// The system starts no thread.
    NoThread(io::Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Template(error)
    }
}

impl Refusal {
    /// What the caller is told; `template` words an error of the engine.
    pub(super) fn told(self, template: impl FnOnce(&Error) -> TextError) -> TextError {
        match self {
            Self::Template(error) => template(&error),
            Self::NoThread(source) => {
                TextError::NoThread { stack_mib: COMPILE_STACK_BYTES >> 20, source }
            }
        }
    }
}

/// Runs on a thread whose stack holds the longest chain.
fn with_stack<T: Send>(
    source: &str,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Refusal> {
    let refuse = |reason: String| Refusal::Template(Error::new(ErrorKind::SyntaxError, reason));
    if source.len() > MAX_SOURCE_BYTES {
        let reason = format!("it has {} bytes, need at most {MAX_SOURCE_BYTES}", source.len());
        return Err(refuse(reason));
    }
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(Refusal::NoThread)?
            .join()
            .map_or_else(
                |_| Err(refuse("the template engine failed on it".into())),
                |done| done.map_err(Refusal::Template),
            )
    })
}

fn compile(source: &str, marks: Marks) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&to_str(value)?).map_err(Error::from),
    });
    env.set_unknown_method_callback(move |state, value, method, args| {
        methods::call(marks, state, value, method, args)
    });
    env.add_filter("trim", move |value: &Value, chars: Option<&str>| {
        methods::trim(marks, value, chars)
    });
    env.add_filter("length", move |value: &Value| methods::length(marks, value));
    env.add_filter("count", move |value: &Value| methods::length(marks, value));
    env.add_filter("string", |value: &Value| to_str(value));
    env.add_filter("tojson", move |value: &Value, named: Kwargs| {
        to_json(value, &json_style(&named)?, |c| marks.is_mark(c))
    });
    env.add_function("raise_exception", move |message: &Value| -> Result<Value, Error> {
        let message = marks.read(&to_str(message)?).raw;
        let error = Error::new(ErrorKind::InvalidOperation, message.clone());
        Err(error.with_source(Raised(message)))
    });
    env.add_function("strftime_now", strftime_now);
    env.add_template_owned(NAME, source.to_owned())?;
    Ok(env)
}

/// The reference library's `tojson` is `json.dumps` with its arguments, and `ensure_ascii` off.
fn json_style(named: &Kwargs) -> Result<JsonStyle, Error> {
    let flag = |name| Ok::<bool, Error>(named.get::<Option<bool>>(name)?.unwrap_or(false));
    let ensure_ascii = flag("ensure_ascii")?;
    let sort_keys = flag("sort_keys")?;
    let indent = match named.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => match (value.as_str(), value.as_usize()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(n)) if n <= 64 => Some(" ".repeat(n)),
            _ => {
                let detail = "`indent` of `tojson` is a string or at most 64";
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        },
    };
    let between_items = if indent.is_some() { "," } else { ", " };
    let mut separators = (between_items.to_owned(), ": ".to_owned());
    if let Some(pair) = named.get::<Option<Value>>("separators")?
        && pair.kind() == ValueKind::Seq
    {
        let text = |i| to_str(&pair.get_item_by_index(i)?);
        separators = (text(0)?, text(1)?);
    }
    named.assert_all_used()?;
    Ok(JsonStyle { ensure_ascii, indent, separators, sort_keys })
}

/// The local date and time by a format of `strftime`.
fn strftime_now(format: &str) -> Result<String, Error> {
    use std::fmt::Write;
    let mut out = String::new();
    // An unknown directive fails while writing.
    write!(out, "{}", chrono::Local::now().format(format)).map_err(|_| {
        let detail = format!("`{format}` is not a date format");
        Error::new(ErrorKind::InvalidOperation, detail)
    })?;
    Ok(out)
}
