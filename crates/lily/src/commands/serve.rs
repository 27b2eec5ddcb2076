//! `lily serve`: the HTTP server.

use std::process::ExitCode;

use anyhow::{Context, Result};
use lily_model::GenerationDefaults;
use lily_server::{Handle, Model, Server, Settings};
use lily_stdio::HeldSignals;
use lily_text::PromptEncoder;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::args::ServeArgs;
use crate::model::{Held, Loaded, Source};
use crate::output::note;

/// Exit code of a server that was told twice to stop; shells use it for Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Runs the command until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<ExitCode> {
    // Before anything is looked for: a slip of the pen is said at once.
    let settings = args.settings()?;
    // In this order: the source, and with it a folder, is dropped before the signals arrive.
    let Held { signals, source } = Source::find(&args.model)?;
    let id = args.model_name.clone().unwrap_or_else(|| source.name.clone());
    // Cheap checks first: the weights take longest.
    let server = Server::new(&id, settings)?;
    let encoder = PromptEncoder::open(&source.folder)
        .context("a server needs a tokenizer and a chat template")?;
    let defaults = GenerationDefaults::read(&source.folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // Connections only pass text on; the other threads belong to the model.
        .worker_threads(2)
        .enable_all()
        .build()?;
    let text = Text { id, encoder, defaults };
    let ended = runtime.block_on(serve(server, signals, source, text, args));
    // A step that is running on the device is not waited for.
    runtime.shutdown_background();
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// The part of a model that is read before its weights.
struct Text {
    id: String,
    encoder: PromptEncoder,
    defaults: GenerationDefaults,
}

async fn serve(
    server: Server,
    signals: Option<HeldSignals>,
    source: Source,
    text: Text,
    args: &ServeArgs,
) -> Result<()> {
    let (host, port) = (args.host.as_str(), args.port);
    let listener = TcpListener::bind((host, port)).await.with_context(|| {
        format!("cannot listen on {host} port {port}; take another --port, or 0 for a free one")
    })?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() && args.api_key.is_none() {
        note("lily: warning: other machines can reach this server; --api-key KEY guards it");
    }
    let handle = server.handle();
    let grace = Settings::default().grace.as_secs();
    let stopped = stop_signal(handle.clone(), grace)?;
    // From here on these stop the server, which removes the folder.
    if let Some(signals) = &signals {
        signals.admit_stops();
    }
    let mut serving = tokio::spawn(server.serve(listener, stopped));
    // Connections are answered meanwhile.
    let builtin = source.is_builtin().then(|| source.folder.clone());
    let mut loading = load(source, args)?;
    let loaded = tokio::select! {
        loaded = &mut loading => loaded.context("the thread that loads the model has failed")??,
        // Told to stop before the model is there: its loading is not waited for.
        ended = &mut serving => {
            if let Some(folder) = builtin {
                // The thread that owns it ends with the program.
                let _ = std::fs::remove_dir_all(folder);
            }
            return ended.context("the server failed");
        }
    };
    // The others may come now: the folder is gone.
    drop(signals);
    note(format_args!(
        "lily: {} on {}, context {}, loaded in {:.1} s",
        text.id,
        loaded.engine.device_name(),
        args.ctx,
        loaded.load_time.as_secs_f64()
    ));
    handle.ready(Model {
        engine: loaded.engine,
        encoder: text.encoder,
        defaults: text.defaults,
        stop_ids: loaded.stop_ids,
    })?;
    note(format_args!("listening on http://{address}"));
    serving.await.context("the server failed")
}

/// Loads the weights on a thread of their own.
fn load(source: Source, args: &ServeArgs) -> Result<oneshot::Receiver<Result<Loaded>>> {
    let (sender, receiver) = oneshot::channel();
    let (model, context) = (args.model.clone(), args.ctx);
    std::thread::Builder::new().name("lily-load".into()).spawn(move || {
        // Nobody waits any more once the server was told to stop.
        let _ = sender.send(source.load(&model, context, false));
    })?;
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
                "lily: finishing the running request, for at most {grace} s; a second signal ends \
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
