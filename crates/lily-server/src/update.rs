//! What a client hears of its work.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use lily_chat::{ChatError, CompletionRequest, Event, FinishReason, MessageEvent, Outcome};
use lily_model::engine::Chosen;
use lily_text::{Thinking, Tokenizer};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;

/// News of one choice of a reply. One of the last two ends it.
#[derive(Debug)]
pub(crate) enum Update {
    /// So many tokens of the prompt are read.
    Prefilled(usize),
    /// A token that belongs to the text, with its log probabilities. Comes in front of its text, and
    /// only if it was asked for.
    Token(Chosen),
    /// Text of the thought.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    CallStarted {
        index: usize,
        name: String,
    },
    CallArguments {
        index: usize,
        json: String,
    },
    CallFinished {
        index: usize,
    },
    Finished(Finished),
    Failed(ApiError),
}

/// How a completion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub reason: FinishReason,
    pub prompt_tokens: usize,
    /// Of the prompt: those that were kept from an earlier request.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    /// Of the completion.
    pub reasoning_tokens: usize,
    /// Text of a call that did not become whole.
    pub unfinished_call: Option<String>,
}

/// Takes the updates of one choice to whoever waits for the reply.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    /// Not bounded, so that a slow reader cannot hold up the engine; what can gather in it is
    /// bounded by the context.
    sender: UnboundedSender<(usize, Update)>,
    choice: usize,
}

impl Listener {
    /// The listener of the `choice`-th choice.
    pub fn new(sender: UnboundedSender<(usize, Update)>, choice: usize) -> Self {
        Self { sender, choice }
    }

    /// Whether the client is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// A client that has left needs no news.
    pub fn send(&self, update: Update) {
        let _ = self.sender.send((self.choice, update));
    }
}

/// Between a completion and its listener.
pub(crate) struct Relay<'a> {
    pub updates: &'a Listener,
    pub request: &'a CompletionRequest,
    /// Whether the reply ends with its first call.
    pub single_call: bool,
    /// Set when all work must end.
    pub abort: &'a AtomicBool,
    /// The one call that was asked for is there.
    pub called: bool,
}

impl Relay<'_> {
    /// Passes an event on; breaks if the work has nobody to go to.
    pub fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        // What was held back behind the one call is not wanted.
        if self.called {
            return ControlFlow::Break(());
        }
        match event {
            Event::Prefilled(tokens) => self.updates.send(Update::Prefilled(tokens)),
            Event::Generated(_) => {}
            Event::Token(chosen) => {
                if chosen.logprobs.is_some() {
                    self.updates.send(Update::Token(chosen.clone()));
                }
            }
            Event::Part(part) => self.part(part)?,
        }
        // Asked for every kind of event, so that work stops also while no text flows.
        if self.updates.is_closed() || self.abort.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn part(&mut self, part: MessageEvent<'_>) -> ControlFlow<()> {
        let update = match part {
            MessageEvent::CallStarted { index, .. } if self.single_call && index > 0 => {
                self.called = true;
                return ControlFlow::Break(());
            }
            MessageEvent::Reasoning(text) => Update::Reasoning(text.to_owned()),
            MessageEvent::Content(text) => Update::Content(text.to_owned()),
            MessageEvent::CallStarted { index, name } => {
                Update::CallStarted { index, name: name.to_owned() }
            }
            MessageEvent::CallArguments { index, json } => {
                Update::CallArguments { index, json: json.to_owned() }
            }
            MessageEvent::CallFinished { index, .. } => {
                self.called |= self.single_call;
                Update::CallFinished { index }
            }
            MessageEvent::Finish { .. } => return ControlFlow::Continue(()),
        };
        self.updates.send(update);
        if self.called { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The last update.
    pub fn ended(&self, tokenizer: &Tokenizer, result: Result<Outcome, ChatError>) -> Update {
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => return Update::Failed(ApiError::chat(&error)),
        };
        let reason = match outcome.finish {
            FinishReason::Cancelled if self.called => FinishReason::ToolCalls,
            // The client is gone, or the server is going.
            FinishReason::Cancelled => return Update::Failed(ApiError::shutting_down()),
            reason => reason,
        };
        Update::Finished(Finished {
            reason,
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: outcome.cached_tokens,
            completion_tokens: outcome.tokens.len(),
            reasoning_tokens: reasoning_tokens(tokenizer, self.request.thinking, &outcome),
            unfinished_call: outcome.unfinished_call.filter(|_| !self.called),
        })
    }
}

/// Tokens of the thought, its closing tag included.
fn reasoning_tokens(tokenizer: &Tokenizer, thinking: Thinking, outcome: &Outcome) -> usize {
    if thinking != Thinking::Open {
        return 0;
    }
    let close = tokenizer.id_of("</think>");
    let end = outcome.tokens.iter().position(|&id| Some(id) == close);
    end.map_or(outcome.tokens.len(), |index| index + 1)
}
