//! A reply that waits or runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::connection::Presence;
use crate::error::ApiError;
use crate::metrics::{Meter, Metrics};
use crate::update::Update;

/// Silence after a client has closed its side, before it is sent something: whoever is gone answers
/// that with a reset. Doubled each time.
const PROBE: Duration = Duration::from_millis(10);

/// A reply that waits or runs; dropping it ends the work.
pub(crate) struct Running {
    pub updates: UnboundedReceiver<(usize, Update)>,
    pub abort: watch::Receiver<bool>,
    pub presence: Presence,
    /// When the reply must have ended, and the time that it had.
    pub deadline: Option<(Instant, Duration)>,
    pub metrics: Arc<Metrics>,
    pub choices: Vec<Part>,
    /// Choices in a row that have the same prompt.
    pub per_prompt: usize,
    /// Since when nothing was sent.
    pub silent_since: Instant,
    /// Beats since the client has closed its side.
    pub probes: u32,
}

/// One choice.
pub(crate) struct Part {
    /// What the text begins with.
    pub echo: Option<Arc<str>>,
    pub prompt_tokens: usize,
    pub prefilled: Option<usize>,
    pub has_text: bool,
    pub meter: Meter,
}

/// What happens next.
#[derive(Debug)]
pub(crate) enum Next {
    /// There is news of a choice.
    Update(usize, Update),
    /// It is time for a sign of life.
    Beat,
}

impl Next {
    fn failed(error: ApiError) -> Self {
        Self::Update(0, Update::Failed(error))
    }
}

impl Running {
    /// Waits for news, or for the end of a silence of `heartbeat`. May be dropped and called again.
    pub async fn next(&mut self, heartbeat: Duration) -> Next {
        loop {
            let beat = match self.presence.is_half_closed() {
                false => heartbeat,
                true if self.probes == 0 => return self.probe(),
                true => heartbeat.min(PROBE * 2u32.saturating_pow(self.probes.min(20))),
            };
            let beat_at = self.silent_since + beat;
            let deadline = self.deadline;
            let happened = tokio::select! {
                biased;
                update = self.updates.recv() => match update {
                    Some((choice, update)) => Next::Update(choice, update),
                    None => Next::failed(ApiError::shutting_down()),
                },
                _ = self.abort.wait_for(|abort| *abort) => Next::failed(ApiError::shutting_down()),
                limit = reached(deadline) => Next::failed(ApiError::request_timeout(limit)),
                () = self.presence.half_closed(), if self.probes == 0 => Next::Beat,
                () = sleep_until(beat_at) => Next::Beat,
            };
            let Next::Update(choice, update) = happened else { return self.probe() };
            let Some(part) = self.choices.get_mut(choice) else { continue };
            part.meter.note(&update, &self.metrics);
            match update {
                Update::Prefilled(tokens) => part.prefilled = Some(tokens),
                update => {
                    part.has_text |= !matches!(update, Update::Failed(_));
                    return Next::Update(choice, update);
                }
            }
        }
    }

    fn probe(&mut self) -> Next {
        if self.presence.is_half_closed() {
            self.probes += 1;
        }
        Next::Beat
    }

    /// Notes that something is sent.
    pub fn sent(&mut self) {
        self.silent_since = Instant::now();
    }

    /// How far the work is, for people.
    pub fn progress(&self) -> String {
        let read: usize = self.choices.iter().filter_map(|part| part.prefilled).sum();
        let total: usize = self.choices.iter().map(|part| part.prompt_tokens).sum();
        if self.choices.iter().all(|part| part.prefilled.is_none() && !part.has_text) {
            "waiting".into()
        } else if self.choices.iter().any(|part| part.has_text) || read >= total {
            "working".into()
        } else {
            format!("prefill {read}/{total} tokens")
        }
    }

    pub fn choices(&self) -> usize {
        self.choices.len()
    }

    pub fn per_prompt(&self) -> usize {
        self.per_prompt
    }

    /// What the text of a choice begins with.
    pub fn echo(&self, choice: usize) -> Option<&str> {
        self.choices.get(choice)?.echo.as_deref()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for part in &mut self.choices {
            part.meter.left(&self.metrics);
        }
    }
}

/// Ready with the limit when it is reached; never without one.
async fn reached(deadline: Option<(Instant, Duration)>) -> Duration {
    match deadline {
        Some((at, limit)) => {
            sleep_until(at).await;
            limit
        }
        None => std::future::pending().await,
    }
}
