//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use lily_text::{ChatInput, Markers, TemplateOptions};
use serde_json::{Map, Value, json};

use crate::app::{App, Prepared};
use crate::body::read_body;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::messages::messages;
use crate::reply::Kind;
use crate::schema::{Common, Served};
use crate::shared::Shared;

/// Answers a conversation.
pub(crate) async fn chat(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let app = shared.app()?;
    let body = read_body(request, &app.body, shared.closing()).await?;
    app.answer(Kind::Chat, body, prepare).await
}

fn prepare(app: &App, body: &[u8]) -> Result<Prepared, ApiError> {
    let ChatRequest { common, options, messages, ignored } =
        ChatRequest::parse(body, &app.served(), app.encoder.template().variables())?;
    let input = ChatInput { messages: &messages, tools: None, options: &options };
    let prompt = app.encoder.encode(&input, Markers::Plain);
    let prompt = prompt.map_err(|error| ApiError::text("messages", &error))?;
    app.check_prompt(&prompt.ids, "messages")?;
    Ok(Prepared { prompt: prompt.ids, thinking: prompt.thinking, common, ignored })
}

/// A request that is checked, as far as it can be without a tokenizer.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub common: Common,
    pub options: TemplateOptions,
    pub messages: Vec<Value>,
    /// Fields that change nothing.
    pub ignored: Vec<String>,
}

impl ChatRequest {
    /// Checks a body; `variables` are those that the template reads.
    pub fn parse(body: &[u8], served: &Served, variables: &[String]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let common = Common::take(&mut fields, served)?;
        refuse_unsupported(&mut fields)?;
        fields.ignore(&["parallel_tool_calls", "service_tier", "safety_identifier"]);
        fields.ignore(&["prompt_cache_key", "prompt_cache_retention"]);
        let options = template_options(&mut fields, variables)?;
        let (messages, ignored_in_messages) = messages(fields.take("messages"))?;
        let mut ignored = fields.finish()?;
        ignored.extend(ignored_in_messages);
        Ok(Self { common, options, messages, ignored })
    }
}

/// Fields of the API that this server does not have yet.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    for field in ["tools", "functions"] {
        fields.refuse(field, is_empty)?;
    }
    for field in ["tool_choice", "function_call"] {
        fields.refuse(field, |value| value == "none")?;
    }
    fields.refuse("response_format", |value| *value == json!({ "type": "text" }))?;
    fields.refuse("logprobs", |value| *value == Value::Bool(false))?;
    fields.refuse("top_logprobs", |value| value.as_u64() == Some(0))?;
    fields.refuse("modalities", |value| *value == json!(["text"]))?;
    fields.refuse("verbosity", |value| value == "medium")?;
    for field in ["audio", "prediction", "web_search_options"] {
        fields.refuse(field, |_| false)?;
    }
    Ok(())
}

/// Thinking can be switched in three ways; they must agree.
fn template_options(
    fields: &mut Fields,
    variables: &[String],
) -> Result<TemplateOptions, ApiError> {
    let mut extra = match fields.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(extra)) => extra,
        Some(other) => return Err(wrong_type("chat_template_kwargs", "an object", &other)),
    };
    let switches = [
        ("enable_thinking", fields.flag("enable_thinking")?),
        ("reasoning_effort", effort(fields)?),
        ("chat_template_kwargs.enable_thinking", variable(&mut extra, "enable_thinking")?),
    ];
    let mut given = switches.iter().filter_map(|(name, on)| Some((*name, (*on)?)));
    let first = given.next();
    if let Some((name, on)) = first
        && let Some((other, _)) = given.find(|(_, other)| *other != on)
    {
        let message = format!("`{name}` and `{other}` contradict each other; give one of them");
        return Err(ApiError::field(other, message));
    }
    let preserve_thinking = variable(&mut extra, "preserve_thinking")?;
    if let Some(name) = extra.keys().find(|&name| !variables.contains(name)) {
        let full = format!("chat_template_kwargs.{name}");
        let message = format!(
            "`{full}` is no variable that the model's chat template lets a request set; leave it out"
        );
        return Err(ApiError::field(full, message));
    }
    Ok(TemplateOptions {
        enable_thinking: first.map(|(_, on)| on),
        preserve_thinking,
        extra,
        ..TemplateOptions::default()
    })
}

/// `none` turns thinking off; the model knows no degrees, every other value turns it on.
fn effort(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    match fields.text("reasoning_effort")?.as_deref() {
        None => Ok(None),
        Some("none") => Ok(Some(false)),
        Some("minimal" | "low" | "medium" | "high" | "xhigh" | "max") => Ok(Some(true)),
        Some(other) => {
            let message = format!(
                "`reasoning_effort` is `{other}`, but should be none, minimal, low, medium, high, \
                 xhigh or max"
            );
            Err(ApiError::field("reasoning_effort", message))
        }
    }
}

fn variable(extra: &mut Map<String, Value>, name: &str) -> Result<Option<bool>, ApiError> {
    match extra.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(on)),
        Some(other) => {
            Err(wrong_type(&format!("chat_template_kwargs.{name}"), "true or false", &other))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(body: Value) -> Result<TemplateOptions, ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes())?;
        let options = template_options(&mut fields, &["mood".to_string()])?;
        fields.finish()?;
        Ok(options)
    }

    #[test]
    fn thinking_is_switched_in_three_ways_that_agree() {
        for (body, on) in [
            (json!({}), None),
            (json!({ "reasoning_effort": "none" }), Some(false)),
            (json!({ "reasoning_effort": "high" }), Some(true)),
            (json!({ "enable_thinking": false }), Some(false)),
            (json!({ "chat_template_kwargs": { "enable_thinking": false } }), Some(false)),
            (json!({ "enable_thinking": true, "reasoning_effort": "low" }), Some(true)),
        ] {
            assert_eq!(options(body.clone()).unwrap().enable_thinking, on, "{body}");
        }
    }

    #[test]
    fn contradictions_and_unknown_variables_are_refused_by_name() {
        for (body, param) in [
            (json!({ "enable_thinking": true, "reasoning_effort": "none" }), "reasoning_effort"),
            (
                json!({ "reasoning_effort": "none",
                    "chat_template_kwargs": { "enable_thinking": true } }),
                "chat_template_kwargs.enable_thinking",
            ),
            (json!({ "reasoning_effort": "hard" }), "reasoning_effort"),
            (json!({ "chat_template_kwargs": 1 }), "chat_template_kwargs"),
            (json!({ "chat_template_kwargs": { "x1": 1 } }), "chat_template_kwargs.x1"),
            (json!({ "chat_template_kwargs": { "messages": 1 } }), "chat_template_kwargs.messages"),
            (
                json!({ "chat_template_kwargs": { "mood": 1, "moo": 1 } }),
                "chat_template_kwargs.moo",
            ),
        ] {
            let error = options(body.clone()).expect_err(&body.to_string()).body();
            assert_eq!(error["error"]["param"], param, "{body}");
        }
        let kept = options(json!({ "chat_template_kwargs": { "mood": "calm" } })).unwrap();
        assert_eq!(kept.extra["mood"], "calm");
    }
}
