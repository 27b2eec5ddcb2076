//! Arguments of `lily serve`.

use std::path::PathBuf;

use clap::Args;

use super::{ModelArgs, context};

/// `lily serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Say what this file holds instead of running a model, for tests of clients: one JSON object a
    /// line, {"pieces": ["…", "…"]}. The n-th request takes the n-th line, again from the first after
    /// the last; each piece is one step of the model.
    #[arg(long, value_name = "FILE")]
    pub scripted: Option<PathBuf>,
    /// Address to listen on; 0.0.0.0 lets other machines in.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Positions of the context: prompt and answer together.
    #[arg(long, default_value_t = 4096, value_name = "TOKENS", value_parser = context())]
    pub ctx: usize,
    /// Name of the model in the API; without it, the folder's name or that on the hub.
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Key that clients must send as a bearer token.
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Origin of web pages that may use the server, or * for all; may be given several times.
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Name that clients may reach the server by; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Requests that may wait while one runs.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub queue: usize,
}
