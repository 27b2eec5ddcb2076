//! Arguments of `lily serve`.

use clap::Args;
use lily_server::{Settings, SettingsError, check_model_id};

use super::{ModelArgs, conflict, context};

/// Connections besides those of requests that wait.
const SPARE_CONNECTIONS: usize = 64;

/// `lily serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Model and device.
    #[command(flatten)]
    pub model: ModelArgs,
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

impl ServeArgs {
    /// How the server behaves.
    ///
    /// # Errors
    /// An option has a value without a meaning; the error names the option.
    pub fn settings(&self) -> Result<Settings, clap::Error> {
        let usual = Settings::default();
        let (mut hosts, host) = (self.allow_host.clone(), vec![self.host.clone()]);
        let (api_key, origins) = (self.api_key.clone(), self.allow_origin.clone());
        let name = self.model_name.as_deref().map_or(Ok(()), check_model_id);
        // Alone each tells which option it is.
        let checks: [(&str, Result<(), SettingsError>); 5] = [
            ("--host", Settings { hosts: host.clone(), ..usual.clone() }.check()),
            ("--allow-host", Settings { hosts: hosts.clone(), ..usual.clone() }.check()),
            ("--api-key", Settings { api_key: api_key.clone(), ..usual.clone() }.check()),
            ("--allow-origin", Settings { origins: origins.clone(), ..usual.clone() }.check()),
            ("--model-name", name),
        ];
        for (option, result) in checks {
            result.map_err(|error| conflict("serve", &format!("{option}: {error}")))?;
        }
        hosts.extend(host);
        Ok(Settings {
            api_key,
            hosts,
            origins,
            queue: self.queue,
            // Whoever waits has a connection; some are left for other questions.
            connections: usual.connections.max(self.queue.saturating_add(SPARE_CONNECTIONS)),
            ..usual
        })
    }
}
