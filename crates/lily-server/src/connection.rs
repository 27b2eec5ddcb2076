//! Connections: how many there are, how long each may be silent, and how they end.
//!
//! A client that says nothing, or a byte now and then, holds no more than one of a bounded number
//! of connections, and that for a bounded time. At shutdown only connections that are being
//! answered are waited for.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::watched::Watched;

/// Bounds of connections.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// At one time; the next one waits to be accepted.
    pub connections: usize,
    /// From the first byte of a request to the end of its head, and from the start of a connection
    /// to the end of its first head.
    pub head: Duration,
    /// From the end of a reply to the first byte of the next request.
    pub idle: Duration,
    /// Longest time in which a client takes nothing of what waits to be sent.
    pub write: Duration,
}

/// Memory for what was read and not understood yet. It bounds the head of a request, though not to the byte.
const BUFFER_BYTES: usize = 64 << 10;
/// The end of a body and the end of what its client sends may come in one packet: time for the
/// handler of a request to take the one before the other is told.
const BODY_GRACE: Duration = Duration::from_millis(500);
/// Pause after a failure to accept that is not the client's, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `closing` becomes true, and then those that are being answered.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) {
    let free = Arc::new(Semaphore::new(limits.connections));
    let mut tasks = JoinSet::new();
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&free).acquire_owned().await.ok();
            (accept(&listener).await, permit)
        };
        let (stream, permit) = tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => break,
            accepted = accepted => accepted,
        };
        while tasks.try_join_next().is_some() {}
        let connection = connection(stream, routes.clone(), limits.clone(), closing.clone());
        tasks.spawn(async move {
            connection.await;
            drop(permit);
        });
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Chunks are small and must not wait for each other; without the option they are
                // late, which is no reason to refuse.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(error) if is_of_client(&error) => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// The client went away before it was accepted.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection to its end, whatever ends it.
async fn connection(
    stream: TcpStream,
    routes: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) {
    let activity = Activity::new();
    let service =
        Answering { routes: TowerToHyperService::new(routes), activity: activity.clone() };
    let io = TokioIo::new(Watched::new(stream, activity.clone()));
    let mut http = http1::Builder::new();
    // The limits below count differently while idle.
    http.header_read_timeout(None).max_buf_size(BUFFER_BYTES);
    let mut connection = pin!(http.serve_connection(io, service));
    let mut timer = pin!(sleep_until(Instant::now() + limits.head));
    let mut asked = pin!(closing.wait_for(|closing| *closing));
    let mut is_closing = false;
    poll_fn(|cx| {
        if !is_closing && asked.as_mut().poll(cx).is_ready() {
            is_closing = true;
            connection.as_mut().graceful_shutdown();
        }
        // How it ended is nobody's concern: whoever was answered knows it already.
        if connection.as_mut().poll(cx).is_ready() || (is_closing && activity.is_quiet()) {
            return Poll::Ready(());
        }
        while let Some(deadline) = activity.deadline(&limits) {
            timer.as_mut().reset(deadline);
            if timer.as_mut().poll(cx).is_pending() {
                break;
            }
            if activity.deadline(&limits).is_some_and(|deadline| deadline <= Instant::now()) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    })
    .await;
}

/// What a connection is doing. Shared by its ends, which run in one task.
#[derive(Clone)]
pub(crate) struct Activity {
    state: Arc<Mutex<State>>,
    half_closed: Arc<watch::Sender<bool>>,
}

struct State {
    phase: Phase,
    /// Since when the client takes nothing.
    stalled: Option<Instant>,
    /// The request that is being answered is here as a whole.
    is_complete: bool,
    /// Since when the client sends no more although its request is not known to be whole.
    ended: Option<Instant>,
    /// To be woken when nothing is being answered any more: the end is to be told then.
    reader: Option<Waker>,
}

/// What it means that a client sends no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is gone, or broke off.
    Closed,
    /// It waits for its answer.
    Waits,
    /// To be asked again after so long.
    Unknown(Duration),
}

/// Whether the client of a request still sends. One that has closed its side may wait for its
/// answer, or be gone.
#[derive(Clone)]
pub(crate) struct Presence {
    activity: Activity,
    half_closed: watch::Receiver<bool>,
}

impl Presence {
    /// The request is here as a whole: from now on its client may close its side.
    pub fn complete(&self) {
        self.activity.lock().is_complete = true;
    }

    /// Whether the client has closed its side.
    pub fn is_half_closed(&self) -> bool {
        *self.half_closed.borrow()
    }

    /// Waits until the client has closed its side; for ever if it does not.
    pub async fn half_closed(&mut self) {
        if self.half_closed.wait_for(|closed| *closed).await.is_err() {
            std::future::pending().await
        }
    }
}

#[derive(Clone, Copy)]
enum Phase {
    /// Nothing is read of the next request.
    Idle(Instant),
    /// A head is on its way.
    Head(Instant),
    /// From the end of a head to the end of its reply. The body has a limit of its own.
    Answering,
}

impl Activity {
    fn new() -> Self {
        let phase = Phase::Head(Instant::now());
        let state = State { phase, stalled: None, is_complete: false, ended: None, reader: None };
        Self {
            state: Arc::new(Mutex::new(state)),
            half_closed: Arc::new(watch::Sender::new(false)),
        }
    }

    /// An answer begins.
    fn answer(&self, is_complete: bool) -> Presence {
        let mut state = self.lock();
        state.phase = Phase::Answering;
        state.is_complete = is_complete;
        drop(state);
        Presence { activity: self.clone(), half_closed: self.half_closed.subscribe() }
    }

    /// The client sends no more. Says what to make of it.
    pub fn ended(&self, reader: &Waker) -> End {
        self.half_closed.send_replace(true);
        let mut state = self.lock();
        state.reader = Some(reader.clone());
        if !matches!(state.phase, Phase::Answering) {
            return End::Closed;
        }
        if state.is_complete {
            return End::Waits;
        }
        match state.ended {
            None => {
                state.ended = Some(Instant::now());
                End::Unknown(BODY_GRACE)
            }
            Some(since) if since.elapsed() < BODY_GRACE => End::Waits,
            Some(_) => End::Closed,
        }
    }

    /// Bytes came.
    pub fn heard(&self) {
        let mut state = self.lock();
        if let Phase::Idle(_) = state.phase {
            state.phase = Phase::Head(Instant::now());
        }
    }

    /// The client took something, or must take something first.
    pub fn written(&self, is_stalled: bool) {
        let mut state = self.lock();
        state.stalled = is_stalled.then(|| state.stalled.unwrap_or_else(Instant::now));
    }

    /// Nothing is being answered, and nothing waits to be sent.
    fn is_quiet(&self) -> bool {
        let state = self.lock();
        !matches!(state.phase, Phase::Answering) && state.stalled.is_none()
    }

    fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let state = self.lock();
        let read = match state.phase {
            Phase::Idle(since) => Some(since + limits.idle),
            Phase::Head(since) => Some(since + limits.head),
            Phase::Answering => None,
        };
        let write = state.stalled.map(|since| since + limits.write);
        read.into_iter().chain(write).min()
    }

    fn set(&self, phase: Phase) {
        let mut state = self.lock();
        state.phase = phase;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can be left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lasts as long as an answer.
struct Answer(Activity);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.set(Phase::Idle(Instant::now()));
    }
}

/// The routes, with a note of what is being answered.
struct Answering {
    routes: TowerToHyperService<Router>,
    activity: Activity,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response<Answered>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let is_complete = hyper::body::Body::is_end_stream(request.body());
        let presence = self.activity.answer(is_complete);
        request.extensions_mut().insert(presence);
        let answer = Answer(self.activity.clone());
        let response = self.routes.call(request);
        Box::pin(async move { Ok(response.await?.map(|body| Answered { body, _answer: answer })) })
    }
}

/// The body of an answer.
struct Answered {
    body: Body,
    _answer: Answer,
}

impl hyper::body::Body for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
