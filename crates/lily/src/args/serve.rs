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
    /// Memory for beginnings of prompts that need not be read again, such as 4G, 512M or a number of
    /// bytes; 0 keeps nothing. Without it half of what the model leaves, at most 4G.
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "scripted")]
    pub cache_memory: Option<u64>,
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

/// Bytes, or a number with K, M, G or T behind it: powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let power = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => Some(0),
        "K" | "KB" | "KIB" => Some(10),
        "M" | "MB" | "MIB" => Some(20),
        "G" | "GB" | "GIB" => Some(30),
        "T" | "TB" | "TIB" => Some(40),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(power);
    let bytes = bytes.and_then(|(number, power)| number.checked_mul(1 << power));
    bytes.ok_or_else(|| "expected a size such as 4G, 512M or 0".into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("1234", 1234),
            ("512M", 512 << 20),
            ("4G", 4 << 30),
            ("4gib", 4 << 30),
            ("2T", 2 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "1 ", "G", "-1", "1.5G", "4X", "99999999999G", "4 G", "G4"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
