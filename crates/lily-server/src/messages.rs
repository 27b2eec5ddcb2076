//! The messages of a chat, in the form that templates read.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, Mode, brief, wrong_type};

/// Most messages of a request, and most calls of a message.
const MAX_MESSAGES: usize = 16_384;

/// Checks messages; gives them with each content as one text, and the names of fields that change
/// nothing. Results of calls come in the order of the calls.
pub(crate) fn messages(
    value: Option<Value>,
    mode: Mode,
) -> Result<(Vec<Value>, Vec<String>), ApiError> {
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
    check_number("messages", messages.len())?;
    let mut ignored = Vec::new();
    let mut checked = Vec::with_capacity(messages.len());
    for (index, value) in messages.into_iter().enumerate() {
        let mut fields = Fields::nested(value, &format!("messages[{index}]"), mode)?;
        checked.push(message(&mut fields)?);
        ignored.extend(fields.finish()?);
    }
    order_results(&mut checked);
    Ok((checked, ignored))
}

fn check_number(name: &str, found: usize) -> Result<(), ApiError> {
    if found > MAX_MESSAGES {
        let message = format!("`{name}` has {found} entries, at most {MAX_MESSAGES} are supported");
        return Err(ApiError::field(name, message));
    }
    Ok(())
}

fn message(fields: &mut Fields) -> Result<Value, ApiError> {
    let role = match fields.text("role")?.as_deref() {
        // The newer name of the same thing.
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool") => "tool",
        found => {
            let name = fields.name("role");
            let found = found.map_or("missing".into(), |role| format!("`{}`", brief(role)));
            let message = format!(
                "`{name}` is {found}, but only system, developer, user, assistant and tool are \
                 supported"
            );
            return Err(ApiError::field(name, message));
        }
    };
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.refuse("annotations", is_empty)?;
    for field in ["function_call", "audio", "refusal"] {
        fields.refuse(field, |_| false)?;
    }
    // Templates of this family have no place for a speaker's name.
    fields.ignore(&["name"]);
    let mut message = Map::new();
    message.insert("role".into(), json!(role));
    message.insert("content".into(), json!(content(fields, role)?));
    match role {
        "assistant" => {
            if let Some(thought) = thought(fields)? {
                message.insert("reasoning_content".into(), json!(thought));
            }
            let calls = calls(fields)?;
            if !calls.is_empty() {
                message.insert("tool_calls".into(), Value::Array(calls));
            }
        }
        "tool" => {
            if let Some(id) = fields.text("tool_call_id")? {
                message.insert("tool_call_id".into(), json!(id));
            }
        }
        _ => fields.refuse("tool_calls", is_empty)?,
    }
    Ok(Value::Object(message))
}

/// A thought goes by two names; clients send back the one that they know, or both.
fn thought(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let first = fields.text("reasoning_content")?;
    let second = fields.text("reasoning")?;
    if first.is_some() && second.is_some() && first != second {
        fields.list([fields.name("reasoning")]);
    }
    fields.ignore(&["reasoning_details"]);
    Ok(first.or(second))
}

/// Calls that the assistant made. Their arguments may be anything: a call that was cut off must not
/// spoil the conversation.
fn calls(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let name = fields.name("tool_calls");
    let calls = match fields.take("tool_calls") {
        None => return Ok(Vec::new()),
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(wrong_type(&name, "an array of tool calls", &other)),
    };
    check_number(&name, calls.len())?;
    let mut checked = Vec::with_capacity(calls.len());
    for (index, value) in calls.into_iter().enumerate() {
        let mut call = Fields::nested(value, &format!("{name}[{index}]"), fields.mode())?;
        checked.push(call_of(&mut call)?);
        fields.list(call.finish()?);
    }
    Ok(checked)
}

fn call_of(call: &mut Fields) -> Result<Value, ApiError> {
    if let Some(kind) = call.text("type")?.filter(|kind| kind != "function") {
        let name = call.name("type");
        let message = format!("`{name}` is `{}`, but only function is supported", brief(&kind));
        return Err(ApiError::field(name, message));
    }
    // Its place in a stream, which is its place here.
    call.ignore(&["index"]);
    let id = call.text("id")?;
    let missing = call.name("function");
    let function = call.object("function", |function| {
        let arguments = function.take("arguments").unwrap_or_else(|| json!(""));
        let name = function.text("name")?.filter(|name| !name.is_empty());
        let Some(name) = name else {
            let name = function.name("name");
            return Err(ApiError::field(name.as_str(), format!("`{name}` is missing")));
        };
        Ok(json!({ "name": name, "arguments": arguments }))
    })?;
    let Some(function) = function else {
        return Err(ApiError::field(missing.as_str(), format!("`{missing}` is missing")));
    };
    let mut checked = json!({ "type": "function", "function": function });
    if let Some(id) = id {
        checked["id"] = json!(id);
    }
    Ok(checked)
}

/// Templates print results in their order, without ids: each run of results is put into the order
/// of the calls in front of it. Results of unknown calls come last.
fn order_results(messages: &mut [Value]) {
    let is_result = |message: &Value| message["role"] == "tool";
    let mut start = 0;
    while start < messages.len() {
        if !is_result(&messages[start]) {
            start += 1;
            continue;
        }
        let end = start + messages[start..].iter().take_while(|message| is_result(message)).count();
        let (before, results) = messages[..end].split_at_mut(start);
        let calls = before.last().and_then(|message| message["tool_calls"].as_array());
        if let Some(calls) = calls {
            let mut places = HashMap::new();
            for (place, call) in calls.iter().enumerate() {
                if let Some(id) = call["id"].as_str() {
                    places.entry(id).or_insert(place);
                }
            }
            let place = |result: &Value| {
                let found = result["tool_call_id"].as_str().and_then(|id| places.get(id));
                found.copied().unwrap_or(calls.len())
            };
            results.sort_by_cached_key(place);
        }
        start = end;
    }
}

fn content(fields: &mut Fields, role: &str) -> Result<String, ApiError> {
    let name = fields.name("content");
    match fields.take("content") {
        Some(Value::String(text)) => Ok(text),
        // An answer that was cut while thinking has none, nor has one that only calls; a call may
        // have nothing to say.
        None if role == "assistant" || role == "tool" => Ok(String::new()),
        None => {
            let message = format!("`{name}` is missing; give a text, which may be empty");
            Err(ApiError::field(name, message))
        }
        Some(Value::Array(parts)) => {
            check_number(&name, parts.len())?;
            let mut text = String::new();
            for (index, part) in parts.into_iter().enumerate() {
                let mut part = Fields::nested(part, &format!("{name}[{index}]"), fields.mode())?;
                text.push_str(&text_part(&mut part)?);
                fields.list(part.finish()?);
            }
            Ok(text)
        }
        Some(other) => Err(wrong_type(&name, "a string or an array of parts", &other)),
    }
}

fn text_part(part: &mut Fields) -> Result<String, ApiError> {
    match part.text("type")?.as_deref() {
        Some("text") => {}
        found => {
            let name = part.name("type");
            let found = found.map_or("missing".into(), brief);
            let message = format!("`{name}` is {found}, but this model is text only; send text");
            return Err(ApiError::field(name, message));
        }
    }
    // A mark for caches of other servers.
    part.ignore(&["cache_control"]);
    let name = part.name("text");
    part.text("text")?.ok_or_else(|| {
        let message = format!("`{name}` is missing; give a text, which may be empty");
        ApiError::field(name, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(value: Value) -> Result<(Vec<Value>, Vec<String>), ApiError> {
        messages(Some(value), Mode::Strict)
    }

    #[test]
    fn r70_parts_of_text_become_one_text_in_every_role() {
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        for (role, shown) in [
            ("system", "system"),
            ("developer", "system"),
            ("user", "user"),
            ("assistant", "assistant"),
            ("tool", "tool"),
        ] {
            for (content, text) in [(parts.clone(), "ab"), (json!([]), ""), (json!("ab"), "ab")] {
                let (messages, ignored) =
                    checked(json!([{ "role": role, "content": content }])).unwrap();
                assert_eq!(messages[0], json!({ "role": shown, "content": text }));
                assert!(ignored.is_empty());
            }
        }
    }

    #[test]
    fn thoughts_and_calls_come_back() {
        let call = json!({ "id": "1", "type": "function", "index": 0,
            "function": { "name": "f", "arguments": "{\"a\": 1" } });
        let (messages, ignored) = checked(json!([
            { "role": "user", "name": "me", "content": "q" },
            { "role": "assistant", "content": null, "reasoning": "hm", "refusal": null,
              "tool_calls": [call], "annotations": [] },
            { "role": "tool", "tool_call_id": "1", "content": "r" },
            { "role": "assistant", "content": null, "reasoning_content": "a", "tool_calls": null },
        ]))
        .unwrap();
        assert_eq!(messages[1]["reasoning_content"], "hm");
        let kept = json!([{ "type": "function", "id": "1",
            "function": { "name": "f", "arguments": "{\"a\": 1" } }]);
        assert_eq!(messages[1]["tool_calls"], kept);
        assert_eq!(messages[2]["tool_call_id"], "1");
        let last = json!({ "role": "assistant", "content": "", "reasoning_content": "a" });
        assert_eq!(messages[3], last);
        assert_eq!(ignored, ["messages[0].name", "messages[1].tool_calls[0].index"]);
    }

    #[test]
    fn results_come_in_the_order_of_the_calls() {
        let call = |id: &str| json!({ "id": id, "function": { "name": "f", "arguments": "{}" } });
        let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": id });
        let (messages, _) = checked(json!([
            { "role": "assistant", "tool_calls": [call("a"), call("b"), call("c")] },
            result("c"), result("x"), result("a"), result("b"),
            { "role": "user", "content": "q" },
            result("z"), result("y"),
        ]))
        .unwrap();
        let order: Vec<&Value> = messages.iter().map(|message| &message["content"]).collect();
        assert_eq!(order, ["", "a", "b", "c", "x", "q", "z", "y"]);
    }

    #[test]
    fn results_of_many_calls_are_ordered_in_a_time_that_grows_with_them() {
        // One by one this would be 100 million comparisons of long names.
        let name = |number: usize| format!("{}{number}", "c".repeat(64));
        let call =
            |number| json!({ "id": name(number), "function": { "name": "f", "arguments": "{}" } });
        let result = |number| json!({ "role": "tool", "tool_call_id": name(number), "content": name(number) });
        let calls: Vec<Value> = (0..10_000).map(call).collect();
        let mut messages = vec![json!({ "role": "assistant", "tool_calls": calls })];
        messages.extend((0..10_000).rev().map(result));
        order_results(&mut messages);
        let order = messages[1..].iter().map(|message| message["content"].as_str().unwrap());
        assert!(order.eq((0..10_000).map(name).collect::<Vec<_>>()));
    }

    #[test]
    fn bad_messages_are_refused_by_name() {
        let image =
            json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64," } });
        let with_call = |call: Value| json!([{ "role": "assistant", "tool_calls": [call] }]);
        for (value, param) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{ "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "function", "name": "f", "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (json!([{ "role": "user", "content": 1 }]), "messages[0].content"),
            (json!([{ "role": "user", "content": [image] }]), "messages[0].content[0].type"),
            (
                json!([{ "role": "user", "content": [{ "type": "text" }] }]),
                "messages[0].content[0].text",
            ),
            (json!([{ "role": "user", "content": "a", "x": 1 }]), "messages[0].x"),
            (with_call(json!({})), "messages[0].tool_calls[0].function"),
            (with_call(json!(1)), "messages[0].tool_calls[0]"),
            (
                with_call(json!({ "function": { "arguments": "" } })),
                "messages[0].tool_calls[0].function.name",
            ),
            (with_call(json!({ "type": "custom" })), "messages[0].tool_calls[0].type"),
            (
                json!([{ "role": "assistant", "content": "a", "tool_calls": 1 }]),
                "messages[0].tool_calls",
            ),
            (
                json!([{ "role": "user", "content": "a", "tool_calls": [{}] }]),
                "messages[0].tool_calls",
            ),
            (
                json!([{ "role": "assistant", "function_call": { "name": "f" } }]),
                "messages[0].function_call",
            ),
            (
                json!([{ "role": "user", "content": "a", "reasoning_content": "b" }]),
                "messages[0].reasoning_content",
            ),
            (
                json!([{ "role": "user", "content": "a", "tool_call_id": "b" }]),
                "messages[0].tool_call_id",
            ),
            (json!(vec![json!({ "role": "user", "content": "a" }); MAX_MESSAGES + 1]), "messages"),
        ] {
            let error = checked(value.clone()).expect_err(param).body();
            assert_eq!(error["error"]["param"], param);
        }
        assert!(messages(None, Mode::Strict).is_err());
    }
}
