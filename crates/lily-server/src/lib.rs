//! The OpenAI-compatible HTTP server.
//!
//! One thread owns the engine and runs as many requests side by side as the engine has sequences; the
//! others wait in the order of their arrival. Connections are tasks that check and encode requests,
//! wait for their turn, and pass text on.
//! The server answers before its model is loaded, with the news that it is not.
//! `docs/server-api.md` describes routes, fields and errors.

#![forbid(unsafe_code)]

mod app;
mod binding;
mod body;
mod chat;
mod completions;
mod connection;
mod error;
mod fields;
mod format;
mod guard;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod openapi;
mod page;
mod queue;
mod reply;
mod respond;
mod routes;
mod running;
mod schema;
mod settings;
mod shared;
mod sse;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
mod thinking;
mod tokens;
mod tools;
mod turns;
mod update;
mod watched;
mod worker;
mod workshop;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lily_chat::Script;
use lily_model::GenerationDefaults;
use lily_model::engine::Engine;
use lily_text::PromptEncoder;
use tokio::net::TcpListener;

pub use settings::{Secret, Settings, SettingsError, check_model_id};
use shared::Shared;

/// What answers.
pub enum Generator {
    /// A model.
    Engine(Box<Engine>),
    /// Texts from a file, for tests of clients. A request's choices all take the same line.
    Script {
        /// What is said.
        script: Arc<Script>,
        /// Positions of the context.
        context: usize,
        /// Ids that a token can have.
        vocab: usize,
    },
}

impl Generator {
    /// Positions of the context.
    fn context(&self) -> usize {
        match self {
            Self::Engine(engine) => engine.session().capacity,
            Self::Script { context, .. } => *context,
        }
    }

    /// What is said instead of running a model.
    fn script(&self) -> Option<Arc<Script>> {
        match self {
            Self::Engine(_) => None,
            Self::Script { script, .. } => Some(Arc::clone(script)),
        }
    }

    /// Requests that run at once.
    fn sessions(&self) -> usize {
        match self {
            Self::Engine(engine) => engine.session().batch,
            // Whoever takes the next line is known beforehand.
            Self::Script { .. } => 1,
        }
    }

    /// Ids that a token can have.
    fn vocab(&self) -> usize {
        match self {
            Self::Engine(engine) => engine.shape().vocab_used,
            Self::Script { vocab, .. } => *vocab,
        }
    }
}

/// The model behind a server.
pub struct Model {
    /// Runs it.
    pub generator: Generator,
    /// Its tokenizer and chat template.
    pub encoder: PromptEncoder,
    /// Sampling where a request is silent.
    pub defaults: GenerationDefaults,
    /// Tokens that end a text.
    pub stop_ids: Vec<u32>,
    /// What whoever reads its answers should know of it, in a sentence.
    pub note: Option<String>,
}

/// Time for replies to be written after they were ended at shutdown.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A server, with or without its model yet.
pub struct Server {
    shared: Arc<Shared>,
    settings: Settings,
}

/// Reaches a server that is running.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Server {
    /// A server of a model that goes by `model_id` in the API.
    ///
    /// # Errors
    /// The name or a setting has no meaning.
    pub fn new(model_id: &str, settings: Settings) -> Result<Self, SettingsError> {
        check_model_id(model_id)?;
        settings.check()?;
        Ok(Self { shared: Arc::new(Shared::new(model_id, &settings)), settings })
    }

    /// Reaches the server once [`Server::serve`] has taken it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Answers requests until `shutdown` is ready, or the device is lost for good ([`Handle::lost`]). Then no connection is accepted any more;
    /// connections that are idle or whose request is not complete are closed, waiting requests are
    /// refused, and the running ones have [`Settings::grace`] to finish; what is left then ends with
    /// an error.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()> + Send) {
        let Self { shared, settings } = self;
        let routes = routes::routes(Arc::clone(&shared), settings.guard());
        let closing = shared.closing();
        let serving = connection::serve(listener, routes, settings.limits(), closing);
        let stopping = async {
            tokio::select! {
                () = shutdown => {}
                () = shared.until_lost() => {}
            }
            shared.close();
            tokio::time::sleep(settings.grace).await;
            shared.abort();
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = serving => {}
            () = stopping => {}
        }
        // Also if the caller has let go of the future that ends all this.
        shared.close();
        shared.abort();
    }
}

impl Handle {
    /// Puts the model behind the server, which answers requests from now on.
    ///
    /// # Errors
    /// The system gives no thread to run the model on, or there is a model already.
    pub fn ready(&self, model: Model) -> io::Result<()> {
        self.0.ready(model)
    }

    /// How a fault has taken the device away from this program; the server has stopped or is about to.
    pub fn lost(&self) -> Option<String> {
        self.0.lost()
    }

    /// Whether a request is running or waiting.
    pub fn is_busy(&self) -> bool {
        self.0.is_busy()
    }
}
