//! A reply, whole or streamed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::Sse;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;

use crate::app::{App, Prepared};
use crate::connection::Presence;
use crate::error::{ApiError, JSON};
use crate::reply::{Choice, Kind, Reply};
use crate::running::{Next, Running};
use crate::sse::Events;
use crate::update::Update;

/// Lists the fields of a request that were accepted and change nothing.
pub(crate) const IGNORED: HeaderName = HeaderName::from_static("x-lily-ignored");
/// Asks proxies not to collect the events.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Most names in the list of ignored fields.
const LISTED: usize = 32;

/// Runs a request and answers it. Whatever fails from here on can no longer change the status.
pub(crate) fn respond(
    app: &Arc<App>,
    kind: Kind,
    prepared: Prepared,
    presence: Presence,
) -> Result<Response, ApiError> {
    let tokenizer = prepared.common.logprobs.map(|_| app.encoder.tokenizer().clone());
    let reply = Reply::new(kind, &app.model_id, tokenizer);
    let ignored = ignored_header(&prepared.ignored);
    let (stream, include_usage) = (prepared.common.stream, prepared.common.include_usage);
    let running = app.start(prepared, presence)?;
    let mut response = if stream {
        let events = Events::new(reply, running, include_usage, app.heartbeat);
        let mut response = Sse::new(events.stream()).into_response();
        response.headers_mut().insert(NO_BUFFERING, HeaderValue::from_static("no"));
        response
    } else {
        whole(reply, running, app.heartbeat)
    };
    if let Some(ignored) = ignored {
        response.headers_mut().insert(IGNORED, ignored);
    }
    Ok(response)
}

/// The list of fields that change nothing, in the characters that a header may have.
pub(crate) fn ignored_header(names: &[String]) -> Option<HeaderValue> {
    if names.is_empty() {
        return None;
    }
    let shown = |name: &String| match name.as_str() {
        // A name all the same: without a sign of it the list would be empty.
        "" => "\"\"".to_owned(),
        name => name.escape_default().to_string().replace(',', "\\u{2c}"),
    };
    let mut list: Vec<String> = names.iter().take(LISTED).map(shown).collect();
    if names.len() > LISTED {
        list.push(format!("and {} more", names.len() - LISTED));
    }
    HeaderValue::from_str(&list.join(", ")).ok()
}

/// One JSON object. Its headers go out at once, and a line end now and then while there is nothing
/// else to say, which JSON allows in front of a value.
fn whole(reply: Reply, running: Running, heartbeat: Duration) -> Response {
    let choices: Vec<Choice> = (0..running.choices())
        .map(|choice| Choice::with_text(running.echo(choice).unwrap_or_default().to_owned()))
        .collect();
    let pieces = unfold(Some((reply, running, choices)), move |state| async move {
        let (reply, mut running, mut choices) = state?;
        let error = loop {
            match running.next(heartbeat).await {
                Next::Beat => {
                    running.sent();
                    return Some((Ok("\n".into()), Some((reply, running, choices))));
                }
                Next::Update(_, Update::Failed(error)) => break error,
                Next::Update(choice, update) => {
                    if let Some(choice) = choices.get_mut(choice) {
                        choice.add(update);
                    }
                    if choices.iter().all(|choice| choice.finished().is_some()) {
                        let whole = reply.whole(&choices, running.per_prompt());
                        return Some((Ok(whole.to_string()), None));
                    }
                }
            }
        };
        Some((Ok::<String, Infallible>(error.body().to_string()), None))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_ignored_fields_is_a_header_whatever_their_names() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let header = |given: &[&str]| ignored_header(&names(given));
        assert_eq!(header(&[]), None);
        assert_eq!(header(&["user", "n"]).unwrap(), "user, n");
        assert_eq!(header(&[""]).unwrap(), "\"\"");
        let odd = header(&["é\n", "a,b"]).unwrap();
        assert_eq!(odd, r"\u{e9}\n, a\u{2c}b");
        let many = header(&["x"; 40]).unwrap();
        assert!(many.to_str().unwrap().ends_with("x, and 8 more"), "{many:?}");
    }
}
