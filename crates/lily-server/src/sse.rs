//! A reply as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::Stream;
use futures_util::stream::unfold;
use lily_model::engine::Chosen;
use serde_json::Value;

use crate::logprobs::Place;
use crate::reply::Reply;
use crate::running::{Next, Running};
use crate::update::{Finished, Update};

/// Where a stream is. Dropped with it, which ends the work.
pub(crate) struct Events {
    reply: Reply,
    running: Running,
    include_usage: bool,
    heartbeat: Duration,
    /// Data that goes out next.
    ready: VecDeque<String>,
    /// How each choice ended.
    finished: Vec<Option<Finished>>,
    /// Tokens of each choice whose probabilities go out with its next chunk.
    tokens: Vec<Vec<Chosen>>,
    /// Behind the tokens of each choice that have gone out.
    places: Vec<Place>,
    has_ended: bool,
}

impl Events {
    pub fn new(reply: Reply, running: Running, include_usage: bool, heartbeat: Duration) -> Self {
        let mut events = Self {
            reply,
            include_usage,
            heartbeat,
            ready: VecDeque::new(),
            finished: vec![None; running.choices()],
            tokens: vec![Vec::new(); running.choices()],
            places: vec![Place::default(); running.choices()],
            has_ended: false,
            running,
        };
        for choice in 0..events.finished.len() {
            let opening = events.reply.opening(choice);
            let echo = events
                .running
                .echo(choice)
                .map(|text| events.reply.update(choice, &Update::Content(text.to_owned())));
            for chunk in [opening, echo.flatten()].into_iter().flatten() {
                events.say(chunk);
            }
        }
        events
    }

    /// The events up to the last.
    pub fn stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        unfold(self, |mut events| async move {
            let event = events.next().await?;
            Some((Ok(event), events))
        })
    }

    /// The next event; `None` behind the last.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                self.running.sent();
                return Some(Event::default().data(data));
            }
            if self.has_ended {
                return None;
            }
            match self.running.next(self.heartbeat).await {
                Next::Beat => {
                    self.running.sent();
                    return Some(Event::default().comment(self.running.progress()));
                }
                Next::Update(choice, update) => self.take(choice, update),
            }
        }
    }

    fn take(&mut self, choice: usize, update: Update) {
        if let Some(mut chunk) = self.reply.update(choice, &update) {
            if let Some(tokens) = self.tokens.get_mut(choice).filter(|tokens| !tokens.is_empty()) {
                let logprobs = self.reply.logprobs(tokens, &mut self.places[choice]);
                chunk["choices"][0]["logprobs"] = logprobs;
                tokens.clear();
            }
            self.say(chunk);
        }
        match update {
            Update::Token(token) => {
                if let Some(tokens) = self.tokens.get_mut(choice) {
                    tokens.push(token);
                }
            }
            Update::Finished(finished) => {
                if let Some(slot) = self.finished.get_mut(choice) {
                    *slot = Some(finished);
                }
                if self.finished.iter().all(Option::is_some) {
                    self.end();
                }
            }
            // The status line is long gone: the error is the last event.
            Update::Failed(error) => {
                self.ready.push_back(error.body().to_string());
                self.has_ended = true;
            }
            _ => {}
        }
    }

    fn end(&mut self) {
        if self.include_usage {
            let finished: Vec<&Finished> = self.finished.iter().flatten().collect();
            let usage = self.reply.usage(&finished, self.running.per_prompt());
            self.ready.push_back(usage.to_string());
        }
        self.ready.push_back("[DONE]".into());
        self.has_ended = true;
    }

    /// With a usage chunk to come, the API has `"usage": null` in all others.
    fn say(&mut self, mut chunk: Value) {
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        self.ready.push_back(chunk.to_string());
    }
}
