//! Arguments of `lily serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lily_server::{Secret, Settings, SettingsError, check_model_id};

use super::{ModelArgs, conflict, context};

/// `lily serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Say what this file holds instead of running a model, for tests of clients: one JSON object a
    /// line, {"pieces": ["…", "…"]}. The n-th request takes the n-th line, again from the first after
    /// the last; each piece is one step of the model.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["device", "exact", "threads", "load", "chunk"]
    )]
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
    /// Key that clients must send as a bearer token. Other users of this machine can see it in the
    /// list of processes; --api-key-file and the variable LILY_API_KEY keep it from them.
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// File with the key on its first line.
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    pub api_key_file: Option<PathBuf>,
    /// Let other machines in without a key.
    #[arg(long, conflicts_with_all = ["api_key", "api_key_file"])]
    pub without_key: bool,
    /// Origin of web pages that may use the server, or * for all; may be given several times.
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Name that clients may reach the server by; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Requests that run at once, each with a context of its own; the others wait. Without it 4, or
    /// as many as fit into memory.
    #[arg(long, value_name = "N", value_parser = sessions, conflicts_with = "scripted")]
    pub sessions: Option<usize>,
    /// Requests that may wait while others run.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub queue: usize,
    /// Most seconds of a request, waiting counted; without it, as long as it takes.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub request_timeout: Option<Duration>,
    /// Leave out fields of requests that are unknown or not supported, and list them in the header
    /// x-lily-ignored, instead of refusing them.
    #[arg(long)]
    pub lenient: bool,
}

/// From 1 to 1024.
fn sessions(text: &str) -> Result<usize, String> {
    let sessions = text.parse::<usize>().ok().filter(|sessions| (1..=1024).contains(sessions));
    sessions.ok_or_else(|| "expected a number from 1 to 1024, such as 4".into())
}

/// Above 0, and no more than a year.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds =
        text.parse::<f64>().ok().filter(|seconds| (0.001..=31_536_000.0).contains(seconds));
    let seconds = seconds.ok_or("expected seconds from 0.001 to 31536000, such as 600")?;
    Ok(Duration::from_secs_f64(seconds))
}

impl ServeArgs {
    /// Checks what has a meaning or none whatever the model is.
    ///
    /// # Errors
    /// An option has a value without a meaning; the error names the option.
    pub fn check(&self) -> Result<(), clap::Error> {
        let hosts = |hosts: &[String]| Settings { hosts: hosts.into(), ..Settings::default() };
        let api_key = self.api_key.as_deref().map(Secret::new);
        let origins = self.allow_origin.clone();
        // Alone each tells which option it is.
        let checks: [(&str, Result<(), SettingsError>); 5] = [
            ("--host", hosts(std::slice::from_ref(&self.host)).check()),
            ("--allow-host", hosts(&self.allow_host).check()),
            ("--api-key", Settings { api_key, ..Settings::default() }.check()),
            ("--allow-origin", Settings { origins, ..Settings::default() }.check()),
            ("--model-name", self.model_name.as_deref().map_or(Ok(()), check_model_id)),
        ];
        for (option, result) in checks {
            result.map_err(|error| conflict("serve", &format!("{option}: {error}")))?;
        }
        Ok(())
    }
}
