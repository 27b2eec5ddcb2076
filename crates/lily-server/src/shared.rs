//! What all connections share, before and after the model is there.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use tokio::sync::{Semaphore, watch};

use crate::Model;
use crate::app::App;
use crate::binding::Binder;
use crate::body::BodyLimits;
use crate::error::ApiError;
use crate::fields::Mode;
use crate::metrics::Metrics;
use crate::reply::unix_seconds;
use crate::settings::Settings;
use crate::worker::Worker;

/// How a client asks for lenient or strict handling of its request.
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// A server's state.
pub(crate) struct Shared {
    pub model_id: String,
    app: OnceLock<Arc<App>>,
    queue: usize,
    pause: Duration,
    body_limit: usize,
    body_timeout: Duration,
    heartbeat: Duration,
    request_timeout: Option<Duration>,
    lenient: bool,
    pub metrics: Arc<Metrics>,
    /// Becomes true when the server stops taking work.
    closing: watch::Sender<bool>,
    /// Becomes true when replies must end.
    aborting: watch::Sender<bool>,
    /// Why the model can never be run again in this program.
    lost: watch::Sender<Option<String>>,
}

impl Shared {
    pub fn new(model_id: &str, settings: &Settings) -> Self {
        Self {
            model_id: model_id.into(),
            app: OnceLock::new(),
            queue: settings.queue,
            pause: settings.pause,
            body_limit: settings.body_limit,
            body_timeout: settings.body_timeout,
            heartbeat: settings.heartbeat,
            request_timeout: settings.request_timeout,
            lenient: settings.lenient,
            metrics: Arc::new(Metrics::new()),
            closing: watch::Sender::new(false),
            aborting: watch::Sender::new(false),
            lost: watch::Sender::default(),
        }
    }

    /// Why the model can never be run again in this program.
    pub fn lost(&self) -> Option<String> {
        self.lost.borrow().clone()
    }

    /// Ready when the model can never be run again in this program.
    pub async fn until_lost(&self) {
        // The sender is this value's own.
        let _ = self.lost.subscribe().wait_for(Option::is_some).await;
    }

    /// The model, or the news that it is not there yet.
    pub fn app(&self) -> Result<&Arc<App>, ApiError> {
        self.app.get().ok_or_else(ApiError::loading)
    }

    /// What becomes of fields that are not supported: the request decides, then the server.
    pub fn mode(&self, headers: &HeaderMap) -> Mode {
        let mut asked = headers
            .get_all(PREFER)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split([',', ';']))
            .map(|preference| preference.trim().to_ascii_lowercase())
            .filter_map(|preference| match preference.as_str() {
                "handling=lenient" => Some(Mode::Lenient),
                "handling=strict" => Some(Mode::Strict),
                _ => None,
            });
        let usual = if self.lenient { Mode::Lenient } else { Mode::Strict };
        asked.next().unwrap_or(usual)
    }

    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    pub fn ready(&self, model: Model) -> io::Result<()> {
        let (context, vocab) = (model.generator.context(), model.generator.vocab());
        let tokenizer = model.encoder.tokenizer().clone();
        let (script, sessions) = (model.generator.script(), model.generator.sessions());
        let binder = Binder::new(tokenizer.clone(), model.stop_ids.clone());
        let app = App {
            binder,
            worker: Worker::start(
                model.generator,
                tokenizer,
                self.queue,
                self.pause,
                self.lost.clone(),
            )?,
            encoder: model.encoder,
            encoding: Arc::new(Semaphore::new(1)),
            model_id: self.model_id.clone(),
            created: unix_seconds(),
            sessions,
            context,
            vocab,
            defaults: model.defaults,
            stop_ids: model.stop_ids,
            note: model.note,
            heartbeat: self.heartbeat,
            request_timeout: self.request_timeout,
            script,
            metrics: Arc::clone(&self.metrics),
            body: BodyLimits {
                bytes: self.body_limit.min(body_limit(context)),
                time: self.body_timeout,
            },
            abort: self.aborting.subscribe(),
        };
        if let Err(second) = self.app.set(Arc::new(app)) {
            second.worker.queue.close();
            return Err(io::Error::other("the server has a model already; start another server"));
        }
        // Asked to stop in between.
        if *self.closing.borrow() {
            self.close();
        }
        Ok(())
    }

    /// Takes no more work; refuses what waits.
    pub fn close(&self) {
        self.closing.send_replace(true);
        if let Some(app) = self.app.get() {
            app.worker.queue.close();
        }
    }

    /// Ends what runs.
    pub fn abort(&self) {
        if let Some(app) = self.app.get() {
            app.worker.abort();
        }
        self.aborting.send_replace(true);
    }

    pub fn is_busy(&self) -> bool {
        let is_busy = |app: &Arc<App>| app.worker.running() > 0 || app.worker.queue.waiting() > 0;
        self.app.get().is_some_and(is_busy)
    }
}

/// Most bytes of a request that could fit into the context: a token is a few bytes of text, and JSON
/// may spell a byte with six. More is refused before it is read.
fn body_limit(context: usize) -> usize {
    (1 << 20) + context.saturating_mul(64)
}
