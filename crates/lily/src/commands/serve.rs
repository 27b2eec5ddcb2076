//! `lily serve`: the HTTP server.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use lily_model::GenerationDefaults;
use lily_server::{Model, Server, Settings};
use lily_text::PromptEncoder;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::ServeArgs;
use crate::model::Source;
use crate::output::note;

/// Exit code of a server that was told twice to stop; shells use it for Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Runs the command until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<ExitCode> {
    ensure!(
        args.api_key.as_deref() != Some(""),
        "--api-key is empty, need at least one character; leave it out to serve without a key"
    );
    let source = Source::find(&args.model)?;
    // Cheap checks first: the weights take longest.
    let encoder = PromptEncoder::open(&source.folder)
        .context("a server needs a tokenizer and a chat template")?;
    let defaults = GenerationDefaults::read(&source.folder)?;
    let id = args.model_name.clone().unwrap_or_else(|| source.name.clone());
    let loaded = source.load(&args.model, args.ctx, false)?;
    let device = loaded.engine.device_name().to_string();
    note(format_args!(
        "lily: {id} on {device}, context {}, loaded in {:.1} s",
        args.ctx,
        loaded.load_time.as_secs_f64()
    ));
    let model = Model { id, engine: loaded.engine, encoder, defaults, stop_ids: loaded.stop_ids };
    let mut hosts = args.allow_host.clone();
    hosts.push(args.host.clone());
    let settings = Settings {
        api_key: args.api_key.clone(),
        hosts,
        origins: args.allow_origin.clone(),
        queue: args.queue,
        ..Settings::default()
    };
    let server = Server::new(model, settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // Connections only pass text on; the other threads belong to the model.
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(listen(server, args))?;
    // A step that is running on the device is not waited for.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

async fn listen(server: Server, args: &ServeArgs) -> Result<()> {
    let (host, port) = (args.host.as_str(), args.port);
    let listener = TcpListener::bind((host, port)).await.with_context(|| {
        format!("cannot listen on {host} port {port}; take another --port, or 0 for a free one")
    })?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        note("lily: finishing the running request; a second signal ends at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            std::process::exit(INTERRUPTED);
        });
    };
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() && args.api_key.is_none() {
        note("lily: warning: other machines can reach this server; --api-key KEY guards it");
    }
    note(format_args!("listening on http://{address}"));
    server.serve(listener, shutdown).await.context("the server failed")
}
