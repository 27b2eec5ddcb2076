//! What a request says about the form of its answer.

use lily_chat::{Format, FormatError, parse_json};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, brief, wrong_type};

/// Longest name of a schema, in bytes.
const MAX_NAME: usize = 64;
/// Most texts to choose from.
const MAX_CHOICE: usize = 1024;
/// Kinds of formats that the server keeps, by the names of `/v1/models`.
pub(crate) const KINDS: [&str; 5] = ["json_object", "json_schema", "regex", "grammar", "choice"];

/// A format and the field that it stands in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub format: Format,
    pub param: String,
}

impl Asked {
    /// Takes `response_format` and `structured_outputs`; at most one of them may ask for something.
    pub fn take(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let published = fields.object("response_format", response_format)?.flatten();
        let extension = fields.object("structured_outputs", structured_outputs)?.flatten();
        match (published, extension) {
            (Some(_), Some(second)) => {
                let message = "`response_format` and `structured_outputs` both ask for a format; \
                               give one of them";
                Err(ApiError::field(second.param, message))
            }
            (first, second) => Ok(first.or(second)),
        }
    }

    /// What a client is told about a format that cannot be kept.
    pub fn refusal(&self, error: &FormatError) -> ApiError {
        match error {
            FormatError::Refused { place, reason } => {
                let param = format!("{}{}", self.param, brief(place));
                let message = format!("`{param}` cannot be kept: {}", shortened(reason));
                ApiError::field(param, message)
            }
            error => ApiError::field(self.param.clone(), error.to_string()),
        }
    }
}

/// Enough of a reason: libraries repeat what they were given.
pub(crate) fn shortened(reason: &str) -> String {
    const LONGEST: usize = 300;
    match reason.char_indices().nth(LONGEST) {
        None => reason.to_owned(),
        Some((end, _)) => format!("{}…", &reason[..end]),
    }
}

/// The field of the published API.
fn response_format(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let kind = fields.text("type")?;
    let name = fields.name("type");
    match kind.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => {
            Ok(Some(Asked { format: Format::JsonObject, param: "response_format".into() }))
        }
        Some("json_schema") => match fields.object("json_schema", json_schema)? {
            Some(asked) => Ok(Some(asked)),
            None => {
                let param = fields.name("json_schema");
                let message = format!("`{param}` is missing; give a name and a schema");
                Err(ApiError::field(param, message))
            }
        },
        Some(other) => {
            let found = brief(other);
            let message =
                format!("`{name}` is `{found}`, but should be text, json_object or json_schema");
            Err(ApiError::field(name, message))
        }
        None => {
            let message = format!("`{name}` is missing; give text, json_object or json_schema");
            Err(ApiError::field(name, message))
        }
    }
}

fn json_schema(fields: &mut Fields) -> Result<Asked, ApiError> {
    let param = fields.name("name");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match fields.text("name")? {
        Some(name) if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_name) => {}
        Some(name) => {
            let message = format!(
                "`{param}` is `{}`, but should be 1 to {MAX_NAME} letters, digits, _ and -",
                brief(&name)
            );
            return Err(ApiError::field(param, message));
        }
        None => {
            let message = format!("`{param}` is missing; give a name of your choice");
            return Err(ApiError::field(param, message));
        }
    }
    fields.text("description")?;
    // A schema is kept in all its parts or refused, whatever is said here.
    fields.flag("strict")?;
    let param = fields.name("schema");
    match fields.take("schema") {
        None => Ok(Asked { format: Format::JsonSchema(json!({ "type": "object" })), param }),
        Some(schema) => schema_of(schema, param),
    }
}

fn schema_of(schema: Value, param: String) -> Result<Asked, ApiError> {
    match schema {
        schema @ (Value::Object(_) | Value::Bool(true)) => {
            Ok(Asked { format: Format::JsonSchema(schema), param })
        }
        other => Err(wrong_type(&param, "a JSON schema", &other)),
    }
}

/// The extension, by the names that vLLM gave its fields.
fn structured_outputs(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let mut all = Vec::new();
    let param = fields.name("json");
    match fields.take("json") {
        None => {}
        Some(Value::String(text)) => match parse_json(text.as_bytes()) {
            Ok(schema) => all.push(schema_of(schema, param)?),
            Err(_) => {
                let message = format!("`{param}` is a text, but no JSON; give the schema itself");
                return Err(ApiError::field(param, message));
            }
        },
        Some(schema) => all.push(schema_of(schema, param)?),
    }
    if fields.flag("json_object")? == Some(true) {
        all.push(Asked { format: Format::JsonObject, param: fields.name("json_object") });
    }
    let asked = |format, name: &str, fields: &Fields| Asked { format, param: fields.name(name) };
    if let Some(text) = fields.text("regex")? {
        all.push(asked(Format::Regex(text), "regex", fields));
    }
    if let Some(text) = fields.text("grammar")? {
        all.push(asked(Format::Grammar(text), "grammar", fields));
    }
    if let Some(texts) = choice(fields)? {
        all.push(asked(Format::Choice(texts), "choice", fields));
    }
    if all.len() > 1 {
        let (first, second) = (&all[0].param, &all[1].param);
        let message = format!("`{first}` and `{second}` both ask for a format; give one of them");
        return Err(ApiError::field(second.clone(), message));
    }
    Ok(all.pop())
}

fn choice(fields: &mut Fields) -> Result<Option<Vec<String>>, ApiError> {
    let name = fields.name("choice");
    let items = match fields.take("choice") {
        None => return Ok(None),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type(&name, "an array of texts", &other)),
    };
    if items.is_empty() || items.len() > MAX_CHOICE {
        let found = items.len();
        let message =
            format!("`{name}` has {found} texts, but should have 1 to {MAX_CHOICE} to choose from");
        return Err(ApiError::field(name, message));
    }
    let text = |(index, item)| match item {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::String(_) => {
            let name = format!("{name}[{index}]");
            let message =
                format!("`{name}` is an empty text, which no answer can be; leave it out");
            Err(ApiError::field(name, message))
        }
        other => Err(wrong_type(&format!("{name}[{index}]"), "a string", &other)),
    };
    items.into_iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Mode;

    fn asked(body: &Value) -> Result<Option<Asked>, ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes(), Mode::Strict)?;
        let asked = Asked::take(&mut fields)?;
        fields.finish()?;
        Ok(asked)
    }

    #[test]
    fn formats_are_asked_for_by_the_published_field_and_by_the_extension() {
        let schema = json!({ "type": "array" });
        let with = |schema: Value| {
            json!({ "response_format": { "type": "json_schema", "json_schema": {
                "name": "a-1", "description": "d", "strict": true, "schema": schema } } })
        };
        let extension = |name: &str, value: Value| json!({ "structured_outputs": { name: value } });
        let schema_format = Format::JsonSchema(schema.clone());
        for (body, format) in [
            (json!({}), None),
            (json!({ "response_format": null }), None),
            (json!({ "response_format": { "type": "text" } }), None),
            (json!({ "structured_outputs": {} }), None),
            (json!({ "response_format": { "type": "json_object" } }), Some(Format::JsonObject)),
            (with(schema.clone()), Some(schema_format.clone())),
            (with(Value::Null), Some(Format::JsonSchema(json!({ "type": "object" })))),
            (extension("json", schema.clone()), Some(schema_format.clone())),
            (extension("json", schema.to_string().into()), Some(schema_format)),
            (extension("json_object", json!(true)), Some(Format::JsonObject)),
            (extension("json_object", json!(false)), None),
            (extension("regex", json!("a")), Some(Format::Regex("a".into()))),
            (
                extension("grammar", json!("start: \"a\"")),
                Some(Format::Grammar("start: \"a\"".into())),
            ),
            (
                extension("choice", json!(["a", "b"])),
                Some(Format::Choice(vec!["a".into(), "b".into()])),
            ),
        ] {
            assert_eq!(asked(&body).unwrap().map(|asked| asked.format), format, "{body}");
        }
        assert_eq!(
            asked(&with(json!({}))).unwrap().unwrap().param,
            "response_format.json_schema.schema"
        );
    }

    #[test]
    fn formats_without_a_meaning_are_refused_by_name() {
        let response = |value: Value| json!({ "response_format": value });
        let named = |value: Value| response(json!({ "type": "json_schema", "json_schema": value }));
        let extension = |value: Value| json!({ "structured_outputs": value });
        for (body, param) in [
            (response(json!("json")), "response_format"),
            (response(json!({})), "response_format.type"),
            (response(json!({ "type": "xml" })), "response_format.type"),
            (response(json!({ "type": "json_object", "x": 1 })), "response_format.x"),
            (response(json!({ "type": "json_schema" })), "response_format.json_schema"),
            (named(json!({ "schema": {} })), "response_format.json_schema.name"),
            (named(json!({ "name": "a b" })), "response_format.json_schema.name"),
            (named(json!({ "name": "a".repeat(65) })), "response_format.json_schema.name"),
            (named(json!({ "name": "a", "strict": 1 })), "response_format.json_schema.strict"),
            (named(json!({ "name": "a", "schema": [] })), "response_format.json_schema.schema"),
            (named(json!({ "name": "a", "schema": false })), "response_format.json_schema.schema"),
            (named(json!({ "name": "a", "shema": {} })), "response_format.json_schema.shema"),
            (extension(json!({ "json": "{" })), "structured_outputs.json"),
            (extension(json!({ "json": 1 })), "structured_outputs.json"),
            (extension(json!({ "regex": 1 })), "structured_outputs.regex"),
            (extension(json!({ "regex": "a", "grammar": "b" })), "structured_outputs.grammar"),
            (extension(json!({ "choice": [] })), "structured_outputs.choice"),
            (extension(json!({ "choice": vec!["a"; 1025] })), "structured_outputs.choice"),
            (extension(json!({ "choice": ["a", ""] })), "structured_outputs.choice[1]"),
            (extension(json!({ "choice": ["a", 1] })), "structured_outputs.choice[1]"),
            (extension(json!({ "guided_regex": "a" })), "structured_outputs.guided_regex"),
            (
                json!({ "response_format": { "type": "json_object" },
                    "structured_outputs": { "regex": "a" } }),
                "structured_outputs.regex",
            ),
        ] {
            let error = asked(&body).expect_err(&body.to_string()).body();
            assert_eq!(error["error"]["param"], param, "{body}");
        }
    }

    #[test]
    fn no_message_expects_what_it_has_found() {
        for (choice, words) in [
            (json!([]), "has 0 texts, but should have 1 to 1024"),
            (json!(["a", ""]), "is an empty text"),
            (json!([["a"]]), "should be a string, but it is an array"),
            (json!("a"), "should be an array of texts, but it is a string"),
        ] {
            let body = json!({ "structured_outputs": { "choice": choice } });
            let error = asked(&body).expect_err(words).body();
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains(words), "{message}");
        }
    }
}
