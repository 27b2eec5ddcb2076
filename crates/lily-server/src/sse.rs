//! A reply, whole or as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::time::timeout;

use crate::app::{App, Prepared, Running};
use crate::error::{ApiError, JSON};
use crate::queue::{Finished, Update};
use crate::reply::{Kind, Reply};

/// Lists the fields of a request that were accepted and change nothing.
pub(crate) const IGNORED: HeaderName = HeaderName::from_static("x-lily-ignored");
/// Asks proxies not to collect the events.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Runs a request and answers it. Whatever fails from here on can no longer change the status.
pub(crate) fn respond(
    app: &Arc<App>,
    kind: Kind,
    prepared: Prepared,
) -> Result<Response, ApiError> {
    let reply = Reply::new(kind, &app.model_id);
    let ignored = HeaderValue::from_str(&prepared.ignored.join(", ")).ok();
    let (stream, include_usage) = (prepared.common.stream, prepared.common.include_usage);
    let running = app.start(prepared)?;
    let mut response = if stream {
        let keep_alive = KeepAlive::new().interval(app.heartbeat).text("working");
        let events = events(reply, running, include_usage);
        let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
        response.headers_mut().insert(NO_BUFFERING, HeaderValue::from_static("no"));
        response
    } else {
        whole(reply, running, app.heartbeat)
    };
    if let Some(ignored) = ignored.filter(|value| !value.is_empty()) {
        response.headers_mut().insert(IGNORED, ignored);
    }
    Ok(response)
}

/// One JSON object. Its headers go out at once, and a line end now and then while there is nothing
/// else to say, which JSON allows in front of a value.
fn whole(reply: Reply, running: Running, heartbeat: Duration) -> Response {
    let pieces = unfold(Some((reply, running, Collected::default())), move |state| async move {
        let (reply, mut running, mut collected) = state?;
        let piece = match timeout(heartbeat, collected.collect(&mut running)).await {
            Err(_) => return Some((Ok("\n".into()), Some((reply, running, collected)))),
            Ok(Ok(finished)) => reply.whole(&collected.reasoning, &collected.content, &finished),
            Ok(Err(error)) => error.body(),
        };
        Some((Ok::<String, Infallible>(piece.to_string()), None))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

#[derive(Default)]
struct Collected {
    reasoning: String,
    content: String,
}

impl Collected {
    /// Gathers text until the end. May be dropped and called again.
    async fn collect(&mut self, running: &mut Running) -> Result<Finished, ApiError> {
        loop {
            match running.next().await {
                Update::Text { reasoning, content } => {
                    self.reasoning.push_str(&reasoning);
                    self.content.push_str(&content);
                }
                Update::Finished(finished) => return Ok(finished),
                Update::Failed(error) => return Err(error),
            }
        }
    }
}

/// Where a stream is. Dropped with it, which ends the work.
enum Stage {
    Opening,
    Text,
    Usage(Finished),
    Done,
    Ended,
}

struct Events {
    reply: Reply,
    running: Running,
    include_usage: bool,
    stage: Stage,
}

fn events(
    reply: Reply,
    running: Running,
    include_usage: bool,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let events = Events { reply, running, include_usage, stage: Stage::Opening };
    unfold(events, |mut events| async move {
        let data = events.next().await?;
        Some((Ok(Event::default().data(data)), events))
    })
}

impl Events {
    /// The data of the next event; `None` behind the last.
    async fn next(&mut self) -> Option<String> {
        loop {
            match self.stage {
                Stage::Opening => {
                    self.stage = Stage::Text;
                    if let Some(chunk) = self.reply.opening() {
                        return Some(self.data(chunk));
                    }
                }
                Stage::Text => return Some(self.update().await),
                Stage::Usage(finished) => {
                    self.stage = Stage::Done;
                    return Some(self.reply.usage(&finished).to_string());
                }
                Stage::Done => {
                    self.stage = Stage::Ended;
                    return Some("[DONE]".into());
                }
                Stage::Ended => return None,
            }
        }
    }

    async fn update(&mut self) -> String {
        match self.running.next().await {
            Update::Text { reasoning, content } => self.data(self.reply.text(&reasoning, &content)),
            Update::Finished(finished) => {
                self.stage = if self.include_usage { Stage::Usage(finished) } else { Stage::Done };
                self.data(self.reply.closing(&finished))
            }
            // The status line is long gone: the error is the last event.
            Update::Failed(error) => {
                self.stage = Stage::Ended;
                error.body().to_string()
            }
        }
    }

    /// With a usage chunk to come, the API has `"usage": null` in all others.
    fn data(&self, mut chunk: Value) -> String {
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk.to_string()
    }
}
