//! What all routes share.

use std::sync::Arc;
use std::time::Duration;

use lily_chat::{Bound, CompletionRequest, Script, ToolSpec};
use lily_model::GenerationDefaults;
use lily_model::sampling::Sampling;
use lily_text::{PromptEncoder, Thinking};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::binding::Binder;
use crate::body::BodyLimits;
use crate::connection::Presence;
use crate::error::ApiError;
use crate::metrics::{Meter, Metrics};
use crate::queue::Job;
use crate::running::{Part, Running};
use crate::schema::{Common, Served};
use crate::update::Listener;
use crate::worker::Worker;

/// The served model and its worker.
pub(crate) struct App {
    pub worker: Arc<Worker>,
    pub encoder: PromptEncoder,
    pub binder: Arc<Binder>,
    /// One request is turned into ids at a time: a long one takes memory many times its size.
    pub encoding: Arc<Semaphore>,
    pub model_id: String,
    /// Seconds since 1970, when the model was ready.
    pub created: u64,
    /// Requests that run at once.
    pub sessions: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// Ids that a token can have.
    pub vocab: usize,
    pub defaults: GenerationDefaults,
    pub stop_ids: Vec<u32>,
    /// What readers of its answers should know of the model.
    pub note: Option<String>,
    pub heartbeat: Duration,
    /// Most time of a reply, waiting counted.
    pub request_timeout: Option<Duration>,
    /// What is said instead of running the model.
    pub script: Option<Arc<Script>>,
    pub metrics: Arc<Metrics>,
    pub body: BodyLimits,
    /// Becomes true when replies must end.
    pub abort: watch::Receiver<bool>,
}

/// A request that is checked and encoded.
pub(crate) struct Prepared {
    pub prompts: Vec<PreparedPrompt>,
    pub thinking: Thinking,
    /// Most tokens of the thought.
    pub thinking_budget: Option<usize>,
    /// What the reply may call.
    pub tools: Vec<ToolSpec>,
    /// Whether the reply ends with its first call.
    pub single_call: bool,
    /// What the reply must look like.
    pub format: Option<Bound>,
    pub common: Common,
    /// Fields that change nothing.
    pub ignored: Vec<String>,
}

/// One prompt of a request.
pub(crate) struct PreparedPrompt {
    pub ids: Vec<u32>,
    /// What the text of the reply begins with.
    pub echo: Option<Arc<str>>,
}

impl App {
    pub fn served(&self) -> Served<'_> {
        Served { model_id: &self.model_id, vocab: self.vocab, defaults: &self.defaults }
    }

    /// Refuses a prompt that is empty or leaves no room; `param` is the field that it came from.
    pub fn check_prompt(&self, prompt: &[u32], param: &str) -> Result<(), ApiError> {
        if prompt.is_empty() {
            return Err(ApiError::field(param, format!("`{param}` is empty; give some text")));
        }
        if prompt.len() >= self.context {
            return Err(ApiError::context_length(param, prompt.len(), self.context));
        }
        Ok(())
    }

    /// Runs what takes long on a thread of its own, one request at a time: the other connections go
    /// on, and a long conversation takes memory many times its size.
    pub async fn encode<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = Arc::clone(self);
        // The semaphore is never closed.
        let turn = Arc::clone(&self.encoding).acquire_owned().await.ok();
        let worked = tokio::task::spawn_blocking(move || {
            // Also while nobody waits for the result any more.
            let _turn = turn;
            work(&app)
        });
        worked.await.map_err(|_| ApiError::internal("the request could not be encoded"))?
    }

    /// Puts a request into the queue.
    pub fn start(&self, prepared: Prepared, presence: Presence) -> Result<Running, ApiError> {
        let now = Instant::now();
        let Prepared { prompts, thinking, thinking_budget, tools, single_call, .. } = prepared;
        let (common, format) = (prepared.common, prepared.format);
        let script = self.script.as_ref().map(|script| script.next());
        let (sender, updates) = unbounded_channel();
        let (mut jobs, mut choices) = (Vec::new(), Vec::new());
        for prompt in prompts {
            let left = self.context.saturating_sub(prompt.ids.len());
            for _ in 0..common.n {
                let choice = jobs.len();
                let sampling = Sampling {
                    // The first choice is that of a request for one.
                    seed: common.sampling.seed.wrapping_add(choice as u64),
                    ..common.sampling.clone()
                };
                choices.push(Part {
                    echo: prompt.echo.clone(),
                    prompt_tokens: prompt.ids.len(),
                    prefilled: None,
                    has_text: false,
                    meter: Meter::new(now.into_std()),
                });
                let request = CompletionRequest {
                    max_tokens: common.max_tokens.unwrap_or(left).min(left),
                    prompt: prompt.ids.clone(),
                    thinking,
                    thinking_budget,
                    stop_ids: self.stop_ids.clone(),
                    stop: common.stop.clone(),
                    tools: tools.clone(),
                    sampling,
                    logprobs: common.logprobs,
                    format: format.clone(),
                };
                let updates = Listener::new(sender.clone(), choice);
                jobs.push(Job { request, single_call, script: script.clone(), updates });
            }
        }
        self.worker.queue.push(jobs)?;
        let limit = self.request_timeout;
        Ok(Running {
            updates,
            abort: self.abort.clone(),
            presence,
            deadline: limit.and_then(|limit| Some((now.checked_add(limit)?, limit))),
            metrics: Arc::clone(&self.metrics),
            choices,
            per_prompt: common.n,
            silent_since: now,
            probes: 0,
        })
    }
}
