//! The messages of a chat, in the form that templates read.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Checks messages; gives them with each content as one text, and the names of fields that change
/// nothing.
pub(crate) fn messages(value: Option<Value>) -> Result<(Vec<Value>, Vec<String>), ApiError> {
    let messages = match value {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        None => {
            return Err(ApiError::field("messages", "`messages` is missing; give at least one"));
        }
        Some(Value::Array(_)) => {
            return Err(ApiError::field("messages", "`messages` is empty; give at least one"));
        }
        Some(other) => return Err(wrong_type("messages", "an array of messages", &other)),
    };
    let mut ignored = Vec::new();
    let mut checked = Vec::with_capacity(messages.len());
    for (index, value) in messages.into_iter().enumerate() {
        let mut fields = Fields::nested(value, &format!("messages[{index}]"))?;
        checked.push(message(&mut fields)?);
        ignored.extend(fields.finish()?);
    }
    Ok((checked, ignored))
}

fn message(fields: &mut Fields) -> Result<Value, ApiError> {
    let role = match fields.text("role")?.as_deref() {
        // The newer name of the same thing.
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        found => {
            let name = fields.name("role");
            let found = found.map_or("missing".into(), |role| format!("`{role}`"));
            let message = format!(
                "`{name}` is {found}, but only system, developer, user and assistant are supported"
            );
            return Err(ApiError::field(name, message));
        }
    };
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    for field in ["tool_calls", "annotations"] {
        fields.refuse(field, is_empty)?;
    }
    for field in ["tool_call_id", "function_call", "audio", "refusal"] {
        fields.refuse(field, |_| false)?;
    }
    // Templates of this family have no place for a speaker's name.
    fields.ignore(&["name"]);
    let mut message = Map::new();
    message.insert("role".into(), json!(role));
    message.insert("content".into(), json!(content(fields, role)?));
    if role == "assistant"
        && let Some(thought) = fields.text("reasoning_content")?
    {
        message.insert("reasoning_content".into(), json!(thought));
    }
    Ok(Value::Object(message))
}

fn content(fields: &mut Fields, role: &str) -> Result<String, ApiError> {
    let name = fields.name("content");
    match fields.take("content") {
        Some(Value::String(text)) => Ok(text),
        // An answer that was cut while thinking has none.
        None if role == "assistant" => Ok(String::new()),
        None => Err(ApiError::field(name.as_str(), format!("`{name}` is missing"))),
        Some(Value::Array(parts)) => {
            let part = |(index, part)| text_part(part, &format!("{name}[{index}]"));
            parts.into_iter().enumerate().map(part).collect()
        }
        Some(other) => Err(wrong_type(&name, "a string or an array of parts", &other)),
    }
}

fn text_part(part: Value, path: &str) -> Result<String, ApiError> {
    let mut fields = Fields::nested(part, path)?;
    match fields.text("type")?.as_deref() {
        Some("text") => {}
        found => {
            let name = fields.name("type");
            let found = found.unwrap_or("missing");
            let message = format!("`{name}` is {found}, but this model is text only; send text");
            return Err(ApiError::field(name, message));
        }
    }
    let text = fields.text("text")?;
    let name = fields.name("text");
    let text =
        text.ok_or_else(|| ApiError::field(name.as_str(), format!("`{name}` is missing")))?;
    fields.finish()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_text_become_one_text() {
        let value = json!([
            { "role": "developer", "content": "be brief" },
            { "role": "user", "name": "me", "content": [
                { "type": "text", "text": "a" }, { "type": "text", "text": "b" }
            ] },
            { "role": "assistant", "content": null, "reasoning_content": "hm", "refusal": null,
              "tool_calls": null, "annotations": [] },
        ]);
        let (messages, ignored) = messages(Some(value)).unwrap();
        assert_eq!(messages[0], json!({ "role": "system", "content": "be brief" }));
        assert_eq!(messages[1], json!({ "role": "user", "content": "ab" }));
        let answer = json!({ "role": "assistant", "content": "", "reasoning_content": "hm" });
        assert_eq!(messages[2], answer);
        assert_eq!(ignored, ["messages[1].name"]);
    }

    #[test]
    fn bad_messages_are_refused_by_name() {
        let image =
            json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64," } });
        for (value, param) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{ "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "tool", "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (json!([{ "role": "user", "content": 1 }]), "messages[0].content"),
            (json!([{ "role": "user", "content": [image] }]), "messages[0].content[0].type"),
            (
                json!([{ "role": "user", "content": [{ "type": "text" }] }]),
                "messages[0].content[0].text",
            ),
            (json!([{ "role": "user", "content": "a", "x": 1 }]), "messages[0].x"),
            (
                json!([{ "role": "assistant", "content": "a", "tool_calls": [{}] }]),
                "messages[0].tool_calls",
            ),
            (
                json!([{ "role": "user", "content": "a", "reasoning_content": "b" }]),
                "messages[0].reasoning_content",
            ),
        ] {
            let error = messages(Some(value.clone())).expect_err(&value.to_string()).body();
            assert_eq!(error["error"]["param"], param, "{value}");
        }
        assert!(messages(None).is_err());
    }
}
