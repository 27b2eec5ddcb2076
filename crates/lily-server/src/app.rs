//! What all routes share.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use lily_chat::CompletionRequest;
use lily_model::GenerationDefaults;
use lily_text::{PromptEncoder, Thinking};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Semaphore, watch};

use crate::body::BodyLimits;
use crate::error::ApiError;
use crate::queue::{Job, Update};
use crate::reply::Kind;
use crate::schema::{Common, Served};
use crate::sse::respond;
use crate::worker::Worker;

/// The served model and its worker.
pub(crate) struct App {
    pub worker: Arc<Worker>,
    pub encoder: PromptEncoder,
    /// One request is turned into ids at a time: a long one takes memory many times its size.
    pub encoding: Arc<Semaphore>,
    pub model_id: String,
    /// Seconds since 1970, when the model was ready.
    pub created: u64,
    /// Positions of a sequence.
    pub context: usize,
    /// Ids that a token can have.
    pub vocab: usize,
    pub defaults: GenerationDefaults,
    pub stop_ids: Vec<u32>,
    pub heartbeat: Duration,
    pub body: BodyLimits,
    /// Becomes true when replies must end.
    pub abort: watch::Receiver<bool>,
}

/// A request that is checked and encoded.
pub(crate) struct Prepared {
    pub prompt: Vec<u32>,
    pub thinking: Thinking,
    pub common: Common,
    /// Fields that change nothing.
    pub ignored: Vec<String>,
}

/// A job that waits or runs; dropping it ends the work.
pub(crate) struct Running {
    updates: UnboundedReceiver<Update>,
    abort: watch::Receiver<bool>,
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

    /// Checks a request, runs it and answers it.
    pub async fn answer(
        self: &Arc<Self>,
        kind: Kind,
        body: Bytes,
        prepare: fn(&Self, &[u8]) -> Result<Prepared, ApiError>,
    ) -> Result<Response, ApiError> {
        let app = Arc::clone(self);
        // The semaphore is never closed.
        let turn = Arc::clone(&self.encoding).acquire_owned().await.ok();
        // A long conversation takes a while to encode; the other connections go on.
        let prepared = tokio::task::spawn_blocking(move || {
            // Also while nobody waits for the result any more.
            let _turn = turn;
            prepare(&app, &body)
        });
        let prepared = prepared
            .await
            .map_err(|_| ApiError::internal("the request could not be encoded"))??;
        respond(self, kind, prepared)
    }

    /// Puts a request into the queue.
    pub fn start(&self, prepared: Prepared) -> Result<Running, ApiError> {
        let left = self.context.saturating_sub(prepared.prompt.len());
        let request = CompletionRequest {
            max_tokens: prepared.common.max_tokens.unwrap_or(left).min(left),
            prompt: prepared.prompt,
            thinking: prepared.thinking,
            stop_ids: self.stop_ids.clone(),
            stop: prepared.common.stop,
            tools: Vec::new(),
            sampling: prepared.common.sampling,
        };
        let (sender, updates) = unbounded_channel();
        self.worker.queue.push(Job { request, updates: sender })?;
        Ok(Running { updates, abort: self.abort.clone() })
    }
}

impl Running {
    /// The next update; a failure if the server is going.
    pub async fn next(&mut self) -> Update {
        tokio::select! {
            biased;
            update = self.updates.recv() => {
                update.unwrap_or_else(|| Update::Failed(ApiError::shutting_down()))
            }
            _ = self.abort.wait_for(|abort| *abort) => Update::Failed(ApiError::shutting_down()),
        }
    }
}
