//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use lily_text::{ChatInput, Markers, Thinking};
use serde_json::{Value, json};

use crate::app::{App, Prepared, PreparedPrompt};
use crate::binding::Wish;
use crate::body::read_body;
use crate::connection::Presence;
use crate::error::ApiError;
use crate::fields::{Fields, Mode};
use crate::messages::messages;
use crate::reply::Kind;
use crate::respond::respond;
use crate::schema::{Common, MAX_TOP_LOGPROBS, Served};
use crate::shared::Shared;
use crate::thinking::ThinkingOptions;
use crate::tools::Tools;

/// What begins a call.
const CALL: &str = "<tool_call>";
/// Makes a token impossible in practice; the largest bias of the API.
const NEVER: f32 = -100.0;

/// Answers a conversation.
pub(crate) async fn chat(
    State(shared): State<Arc<Shared>>,
    Extension(presence): Extension<Presence>,
    request: Request,
) -> Result<Response, ApiError> {
    let app = shared.app()?;
    let mode = shared.mode(request.headers());
    let body = read_body(request, &app.body, &presence, shared.closing()).await?;
    let (mut prepared, wish) = app.encode(move |app| prepare(app, &body, mode)).await?;
    app.binder.bind(&mut prepared, wish).await?;
    respond(app, Kind::Chat, prepared, presence)
}

fn prepare(app: &App, body: &[u8], mode: Mode) -> Result<(Prepared, Wish), ApiError> {
    let request =
        ChatRequest::parse(body, mode, &app.served(), app.encoder.template().variables())?;
    let ChatRequest { mut common, thinking, messages, tools, mut ignored } = request;
    let prompt = app.encoder.encode(
        &ChatInput {
            messages: &messages,
            tools: tools.shown.as_deref(),
            options: &thinking.template,
        },
        Markers::Plain,
    );
    let prompt = prompt.map_err(|error| ApiError::text("messages", &error))?;
    app.check_prompt(&prompt.ids, "messages")?;
    if tools.forbidden
        && let Some(call) = app.encoder.tokenizer().id_of(CALL)
    {
        common.sampling.logit_bias.insert(call, NEVER);
    }
    if prompt.thinking != Thinking::Open {
        // There is no thought that it could bind.
        ignored.extend(thinking.budget_field.map(str::to_owned));
    }
    let format = common.format.take();
    let prepared = Prepared {
        prompts: vec![PreparedPrompt { ids: prompt.ids, echo: None }],
        thinking: prompt.thinking,
        thinking_budget: thinking.budget,
        tools: tools.callable.clone(),
        single_call: !tools.parallel,
        format: None,
        common,
        ignored,
    };
    Ok((prepared, Wish { format, tools }))
}

/// A request that is checked, as far as it can be without a tokenizer.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub common: Common,
    pub thinking: ThinkingOptions,
    pub messages: Vec<Value>,
    pub tools: Tools,
    /// Fields that change nothing.
    pub ignored: Vec<String>,
}

impl ChatRequest {
    /// Checks a body; `variables` are those that the template reads.
    pub fn parse(
        body: &[u8],
        mode: Mode,
        served: &Served,
        variables: &[String],
    ) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body, mode)?;
        let mut common = Common::take(&mut fields, served)?;
        common.logprobs = logprobs(&mut fields)?;
        let tools = Tools::take(&mut fields)?;
        refuse_unsupported(&mut fields)?;
        let thinking = ThinkingOptions::take(&mut fields, variables)?;
        let (messages, ignored_in_messages) = messages(fields.take("messages"), mode)?;
        let mut ignored = fields.finish()?;
        ignored.extend(ignored_in_messages);
        Ok(Self { common, thinking, messages, tools, ignored })
    }
}

/// Fields of the API that this server does not have yet.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("modalities", |value| *value == json!(["text"]))?;
    fields.refuse("verbosity", |value| value == "medium")?;
    for field in ["audio", "prediction", "web_search_options"] {
        fields.refuse(field, |_| false)?;
    }
    Ok(())
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let asked = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match top {
        Some(top) if top > 0 && !asked => {
            let message = "`top_logprobs` needs `logprobs` = true; leave it out otherwise";
            Err(ApiError::field("top_logprobs", message))
        }
        top => Ok(asked.then(|| top.and_then(|top| usize::try_from(top).ok()).unwrap_or(0))),
    }
}
