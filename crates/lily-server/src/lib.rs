//! The OpenAI-compatible HTTP server.
//!
//! One thread owns the engine and runs one request after another, in the order of their arrival;
//! connections are tasks that check and encode requests, wait for their turn, and pass text on.
//! `docs/server-api.md` describes routes, fields and errors.

#![forbid(unsafe_code)]

mod app;
mod chat;
mod completions;
mod error;
mod fields;
mod guard;
mod messages;
mod queue;
mod reply;
mod routes;
mod schema;
mod sse;
mod worker;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use lily_model::GenerationDefaults;
use lily_model::engine::Engine;
use lily_text::PromptEncoder;
use tokio::net::TcpListener;
use tokio::sync::watch;

use app::App;
use guard::Guard;
use worker::Worker;

/// The model behind a server.
pub struct Model {
    /// Name in the API.
    pub id: String,
    /// Runs it.
    pub engine: Engine,
    /// Its tokenizer and chat template.
    pub encoder: PromptEncoder,
    /// Sampling where a request is silent.
    pub defaults: GenerationDefaults,
    /// Tokens that end a text.
    pub stop_ids: Vec<u32>,
}

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Key that clients must send as a bearer token; `/health` needs none.
    pub api_key: Option<String>,
    /// Names that clients may reach the server by, besides `localhost` and plain addresses.
    pub hosts: Vec<String>,
    /// Origins of web pages that may use the server; `*` allows all.
    pub origins: Vec<String>,
    /// Requests that may wait.
    pub queue: usize,
    /// Largest request body, in bytes.
    pub body_limit: usize,
    /// Longest silence of a stream; then a comment is sent.
    pub heartbeat: Duration,
    /// Time that the running request has to finish at shutdown.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            api_key: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            queue: 64,
            // A context of 262,144 tokens is about 1 MB of text; escapes may take six bytes each.
            body_limit: 32 << 20,
            // Clients are promised 5 s; timers are late at times.
            heartbeat: Duration::from_secs(4),
            grace: Duration::from_secs(5),
        }
    }
}

/// Most bytes of a request that could fit into the context: a token is a few bytes of text, and JSON
/// may spell a byte with six. More is refused before it is read.
fn body_limit(context: usize) -> usize {
    (1 << 20) + context.saturating_mul(64)
}

/// Time for replies to be written after they were ended at shutdown.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A model that can be served.
pub struct Server {
    app: Arc<App>,
    settings: Settings,
    abort: watch::Sender<bool>,
}

impl Server {
    /// Starts the thread that runs the model.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(model: Model, settings: Settings) -> io::Result<Self> {
        let context = model.engine.session().capacity;
        let vocab = model.engine.shape().vocab_used;
        let tokenizer = model.encoder.tokenizer().clone();
        let (abort, aborted) = watch::channel(false);
        let app = App {
            worker: Worker::start(model.engine, tokenizer, settings.queue)?,
            encoder: model.encoder,
            encoding: tokio::sync::Semaphore::new(1),
            model_id: model.id,
            created: reply::unix_seconds(),
            context,
            vocab,
            defaults: model.defaults,
            stop_ids: model.stop_ids,
            heartbeat: settings.heartbeat,
            abort: aborted,
        };
        Ok(Self { app: Arc::new(app), settings, abort })
    }

    /// Answers requests until `shutdown` is ready. Then no connection is accepted any more, waiting
    /// requests are refused, and the running one has [`Settings::grace`] to finish; what is left
    /// then ends with an error.
    ///
    /// # Errors
    /// The listener fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let Self { app, settings, abort } = self;
        let guard =
            Guard { api_key: settings.api_key, hosts: settings.hosts, origins: settings.origins };
        let body_limit = settings.body_limit.min(body_limit(app.context));
        let routes = routes::routes(Arc::clone(&app), guard, body_limit);
        let worker = Arc::clone(&app.worker);
        let (begin, mut begun) = watch::channel(false);
        let closing = Arc::clone(&worker);
        let signal = async move {
            shutdown.await;
            closing.queue.close();
            begin.send_replace(true);
        };
        let last_moment = async {
            // The sender lives as long as the listener, which ends the wait below as well.
            if begun.wait_for(|begun| *begun).await.is_err() {
                return std::future::pending().await;
            }
            tokio::time::sleep(settings.grace).await;
            worker.abort();
            abort.send_replace(true);
            tokio::time::sleep(LAST_WORDS).await;
        };
        // Chunks are small and must not wait for each other; without the option they are late.
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let serving = axum::serve(listener, routes).with_graceful_shutdown(signal);
        let result = tokio::select! {
            result = serving.into_future() => result,
            () = last_moment => Ok(()),
        };
        // Also after a failure of the listener.
        worker.queue.close();
        worker.abort();
        result
    }
}
