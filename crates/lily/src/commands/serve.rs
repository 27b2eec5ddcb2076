//! `lily serve`: the HTTP server.

use std::env::VarError;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result, bail};
use lily_chat::Script;
use lily_model::GenerationDefaults;
use lily_model::engine::{CacheMemory, Engine, EngineOptions};
use lily_server::{Generator, Handle, Model, Secret, Server, Settings};
use lily_text::PromptEncoder;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::args::ServeArgs;
use crate::functions::SESSIONS;
use crate::interrupt::INTERRUPTED;
use crate::model::{Loaded, Source};
use crate::output::note;

/// Connections besides those of requests that wait.
const SPARE_CONNECTIONS: usize = 64;

/// What the chat page says of the built-in model.
const NANO_NOTE: &str = "lily-nano is a toy: it adds small numbers and knows a few hundred facts. \
                         Serve a real model with lily serve -m.";

/// Runs the command until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<ExitCode> {
    // Before anything is looked for: a slip of the pen is said at once.
    args.check()?;
    let source = Source::find(&args.model)?;
    let id = args.model_name.clone().unwrap_or_else(|| source.name.clone());
    let mut hosts = args.allow_host.clone();
    hosts.push(args.host.clone());
    let usual = Settings::default();
    let api_key = api_key(args)?;
    let has_key = api_key.is_some();
    let settings = Settings {
        api_key,
        hosts,
        origins: args.allow_origin.clone(),
        lenient: args.lenient,
        request_timeout: args.request_timeout,
        queue: args.queue,
        // Whoever waits has a connection; some are left for other questions.
        connections: usual.connections.max(args.queue.saturating_add(SPARE_CONNECTIONS)),
        ..usual
    };
    // Cheap checks first: the weights take longest.
    let server = Server::new(&id, settings)?;
    let encoder = source.encoder("a server needs a chat template")?;
    let defaults = GenerationDefaults::read(source.files())?;
    let runtime = runtime()?;
    let script = args.scripted.as_deref().map(read_script).transpose()?;
    let note = (source.is_builtin() && script.is_none()).then(|| NANO_NOTE.to_owned());
    let text = Text { id, encoder, defaults, script, note, has_key };
    let ended = runtime.block_on(serve(server, source, text, args));
    // A step that is running on the device is not waited for.
    runtime.shutdown_background();
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// Threads that pass text on; the others belong to the model.
const CONNECTION_THREADS: usize = 2;

/// What connections run on.
fn runtime() -> Result<Runtime> {
    // The runtime panics where it has no threads.
    check_threads(CONNECTION_THREADS + 1).context(
        "cannot start the server's threads; raise the limits of processes (ulimit -u) and of memory (ulimit -v)",
    )?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    Ok(runtime.worker_threads(CONNECTION_THREADS).enable_all().build()?)
}

/// Starts so many threads, which end at once.
fn check_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        // All of them are there before the first one ends.
        let _closed = gate.lock();
        for _ in 0..count {
            thread::Builder::new().spawn_scoped(scope, || drop(gate.lock()))?;
        }
        Ok(())
    })
}

/// The part of a model that is read before its weights.
struct Text {
    id: String,
    encoder: PromptEncoder,
    defaults: GenerationDefaults,
    /// What is said instead of running the model.
    script: Option<Script>,
    /// What readers should know of the model.
    note: Option<String>,
    /// Whether clients need a key.
    has_key: bool,
}

/// The variable with the key.
const KEY_VARIABLE: &str = "LILY_API_KEY";
/// Most bytes of a file with a key.
const KEY_BYTES: u64 = 64 << 10;

/// The key from the command line, a file or the environment, in this order.
fn api_key(args: &ServeArgs) -> Result<Option<Secret>> {
    if let Some(key) = &args.api_key {
        return Ok(Some(Secret::new(key.as_str())));
    }
    if let Some(file) = &args.api_key_file {
        let mut text = String::new();
        let read = File::open(file).and_then(|file| file.take(KEY_BYTES).read_to_string(&mut text));
        read.with_context(|| format!("cannot read the key in {}", file.display()))?;
        return Ok(Some(Secret::new(text.lines().next().unwrap_or_default().trim())));
    }
    if args.without_key {
        return Ok(None);
    }
    match std::env::var(KEY_VARIABLE) {
        // Such as from a secret that was not found: without a word the server would be open.
        Ok(key) if key.is_empty() => {
            bail!("{KEY_VARIABLE} is empty, need a key; unset it to serve without one")
        }
        Ok(key) => Ok(Some(Secret::new(key))),
        Err(VarError::NotPresent) => Ok(None),
        // The value must not be shown.
        Err(VarError::NotUnicode(_)) => bail!("{KEY_VARIABLE} is not a text; give visible ASCII"),
    }
}

/// Most bytes of a script.
const SCRIPT_BYTES: u64 = 64 << 20;

fn read_script(file: &Path) -> Result<Script> {
    let bytes = std::fs::metadata(file).map(|data| data.len());
    let bytes = bytes.with_context(|| format!("cannot read the script {}", file.display()))?;
    if bytes > SCRIPT_BYTES {
        bail!("the script {} has {bytes} bytes, at most {SCRIPT_BYTES} are read", file.display());
    }
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the script {} as UTF-8", file.display()))?;
    Script::parse(&text).with_context(|| format!("cannot use the script {}", file.display()))
}

async fn serve(server: Server, source: Source, text: Text, args: &ServeArgs) -> Result<()> {
    let listener = listen(args, text.has_key).await?;
    let address = listener.local_addr()?;
    let handle = server.handle();
    let grace = Settings::default().grace.as_secs();
    let stopped = stop_signal(handle.clone(), grace)?;
    let mut serving = tokio::spawn(server.serve(listener, stopped));
    if let Some(script) = text.script {
        let (vocab, stop_ids) = source.ids()?;
        note(format_args!("lily: {} is scripted, context {}", text.id, args.ctx));
        handle.ready(Model {
            generator: Generator::Script { script: Arc::new(script), context: args.ctx, vocab },
            encoder: text.encoder,
            defaults: text.defaults,
            stop_ids,
            note: text.note,
        })?;
        note(format_args!("listening on http://{address}"));
        return serving.await.context("the server failed");
    }
    // Connections are answered meanwhile.
    let mut loading = load(source, args)?;
    let loaded = tokio::select! {
        loaded = &mut loading => loaded.context("the thread that loads the model has failed")??,
        // Told to stop before the model is there: its loading is not waited for.
        ended = &mut serving => return ended.context("the server failed"),
    };
    note(format_args!(
        "lily: {} on {}, context {}, {} at once, {} MiB for kept prompts, loaded in {:.1} s",
        text.id,
        loaded.engine.device_name(),
        args.ctx,
        loaded.engine.session().batch,
        loaded.engine.cache_use().capacity >> 20,
        loaded.load_time.as_secs_f64()
    ));
    warn_of_small_cache(&loaded.engine, args.cache_memory);
    handle.ready(Model {
        generator: Generator::Engine(Box::new(loaded.engine)),
        encoder: text.encoder,
        defaults: text.defaults,
        stop_ids: loaded.stop_ids,
        note: text.note,
    })?;
    note(format_args!("listening on http://{address}"));
    serving.await.context("the server failed")?;
    // Whoever watches this program starts it again.
    handle.lost().map_or(Ok(()), |reason| bail!(reason))
}

/// Tokens of a prompt whose beginning is worth keeping.
const WORTH_KEEPING: usize = 256;

/// Says that a cache of the size that was asked for keeps nothing.
fn warn_of_small_cache(engine: &Engine, asked: Option<u64>) {
    let Some(asked) = asked.filter(|&bytes| bytes > 0) else { return };
    if engine.longest_kept() < WORTH_KEEPING {
        note(format_args!(
            "lily: warning: --cache-memory is {asked} bytes, but the beginning of one prompt takes {} MiB \
             with this model, so that nothing will be kept; give several times that, or 0 to keep \
             nothing on purpose",
            engine.bytes_to_keep(WORTH_KEEPING).div_ceil(1 << 20)
        ));
    }
}

/// Binds to the address. Other machines are let in only with a key, or on purpose.
async fn listen(args: &ServeArgs, has_key: bool) -> Result<TcpListener> {
    let (host, port) = (args.host.as_str(), args.port);
    let failed =
        || format!("cannot listen on {host} port {port}; take another --port, or 0 for a free one");
    let addresses: Vec<SocketAddr> =
        tokio::net::lookup_host((host, port)).await.with_context(failed)?.collect();
    if !has_key && addresses.iter().any(|address| !address.ip().is_loopback()) {
        if !args.without_key {
            bail!(
                "other machines could reach this server on {host} without a key; give one with \
                 --api-key-file FILE or {KEY_VARIABLE}, or say --without-key"
            );
        }
        note("lily: warning: other machines can reach this server, and it has no key");
    }
    TcpListener::bind(addresses.as_slice()).await.with_context(failed)
}

/// Loads the weights on a thread of their own.
fn load(source: Source, args: &ServeArgs) -> Result<oneshot::Receiver<Result<Loaded>>> {
    let (sender, receiver) = oneshot::channel();
    let model = args.model.clone();
    let options = EngineOptions {
        context: args.ctx,
        batch: args.sessions.unwrap_or(SESSIONS),
        shrink_batch: args.sessions.is_none(),
        cache: args.cache_memory.map_or(CacheMemory::Spare, CacheMemory::Bytes),
        ..EngineOptions::default()
    };
    thread::Builder::new()
        .name("lily-load".into())
        .spawn(move || {
            // Nobody waits any more once the server was told to stop.
            let _ = sender.send(source.load(&model, options));
        })
        .context("cannot start the thread that loads the model")?;
    Ok(receiver)
}

/// Ready at the first signal to stop. The second one ends the program.
fn stop_signal(handle: Handle, grace: u64) -> Result<impl Future<Output = ()> + Send> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        either(&mut interrupt, &mut terminate).await;
        if handle.is_busy() {
            note(format_args!(
                "lily: finishing the running requests, for at most {grace} s; a second signal ends \
                 at once"
            ));
        } else {
            note("lily: stopping");
        }
        tokio::spawn(async move {
            either(&mut interrupt, &mut terminate).await;
            std::process::exit(INTERRUPTED);
        });
    })
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
