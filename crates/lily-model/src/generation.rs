//! Stop tokens and sampling defaults, from the files beside `config.json`.

use std::collections::BTreeSet;

use lily_files::Files;
use serde_json::{Map, Value};

use crate::config::{Config, Fields, wrong_type};
use crate::error::{ConfigError, ConfigProblem};
use crate::sampling::Sampling;
use crate::text_file::{read_text_of, without_mark};

/// The end of a chat turn in the family's tokenizer.
const TURN_END: &str = "<|im_end|>";

/// Sampling settings that apply where a request is silent; `None` where the checkpoint is silent too.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GenerationDefaults {
    /// Whether to sample at all; [`Self::sampling`] decides where it is absent.
    pub do_sample: Option<bool>,
    /// Divides the logits; 0 means greedy.
    pub temperature: Option<f32>,
    /// Most likely tokens that are kept; 0 means all.
    pub top_k: Option<u32>,
    /// Probability mass that is kept, in (0, 1].
    pub top_p: Option<f32>,
    /// Least probability relative to the most likely token, in [0, 1].
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen before; 1 means off.
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Reads the `generation_config.json` of a model; all fields are `None` without the file.
    ///
    /// # Errors
    /// The file cannot be read, is not JSON, or has a value out of range.
    pub fn read<'a>(files: impl Into<Files<'a>>) -> Result<Self, ConfigError> {
        let files = files.into();
        let Some(root) = read_object(files, "generation_config.json")? else {
            return Ok(Self::default());
        };
        Self::parse(&root).map_err(|problem| in_file(files, "generation_config.json", problem))
    }

    /// How tokens are chosen where nobody says otherwise: the one rule of all commands and routes.
    ///
    /// `do_sample` decides between greedy and sampling. Files often leave it out: then one that
    /// names `temperature`, `top_k`, `top_p` or `min_p` means sampling, and one that names none of
    /// them greedy, the reference library's default. Sampling has a temperature of 1 unless the file
    /// gives another, and no limit that the file does not name. Greedy is a temperature of 0; the
    /// file's limits stay, for whoever asks for another temperature. The seed is 0.
    pub fn sampling(&self) -> Sampling {
        let greedy = Sampling::greedy();
        let names_one = self.temperature.is_some()
            || self.top_k.is_some()
            || self.top_p.is_some()
            || self.min_p.is_some();
        let temperature = match self.do_sample.unwrap_or(names_one) {
            true => self.temperature.unwrap_or(1.0),
            false => 0.0,
        };
        Sampling {
            temperature,
            top_k: self.top_k.map_or(greedy.top_k, |k| k as usize),
            top_p: self.top_p.unwrap_or(greedy.top_p),
            min_p: self.min_p.unwrap_or(greedy.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(greedy.repetition_penalty),
            ..greedy
        }
    }

    fn parse(root: &Map<String, Value>) -> Result<Self, ConfigProblem> {
        let fields = Fields::new(Some(root), None);
        let number = |field: &str, expected: &'static str, fits: fn(f64) -> bool| match fields
            .number(field)?
        {
            Some(x) if !fits(x) => {
                Err(wrong_type(field, expected, fields.value(field).unwrap_or(&Value::Null)))
            }
            x => Ok(x.map(|x| x as f32)),
        };
        let top_k = match fields.value("top_k") {
            None => None,
            Some(value) => Some(
                value
                    .as_u64()
                    .and_then(|k| u32::try_from(k).ok())
                    .ok_or_else(|| wrong_type("top_k", "a whole number", value))?,
            ),
        };
        Ok(Self {
            do_sample: match fields.value("do_sample") {
                None => None,
                Some(_) => Some(fields.flag("do_sample", true)?),
            },
            temperature: number("temperature", "a number from 0 to 1000", |x| {
                (0.0..=1000.0).contains(&x)
            })?,
            top_k,
            top_p: number("top_p", "a number above 0, at most 1", |x| x > 0.0 && x <= 1.0)?,
            min_p: number("min_p", "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))?,
            repetition_penalty: number("repetition_penalty", "a number from 0.01 to 100", |x| {
                (0.01..=100.0).contains(&x)
            })?,
        })
    }
}

/// Tokens that end a generation, ascending.
///
/// `eos_token_id` of `generation_config.json` decides. Without it they are the `eos_token_id` of
/// `config.json`, the tokenizer's own end token, and the end of a chat turn if the tokenizer has
/// it: `config.json` alone often lacks the last, and a chat would never stop.
///
/// # Errors
/// A file cannot be read, is not JSON, or names an id outside the vocabulary.
pub fn stop_tokens<'a>(
    files: impl Into<Files<'a>>,
    config: &Config,
) -> Result<Vec<u32>, ConfigError> {
    let files = files.into();
    let named = match read_object(files, "generation_config.json")? {
        None => Vec::new(),
        Some(root) => Fields::new(Some(&root), None)
            .token_ids("eos_token_id")
            .map_err(|problem| in_file(files, "generation_config.json", problem))?,
    };
    if let Some(&id) = named.iter().find(|&&id| id as usize >= config.vocab_size) {
        let problem = ConfigProblem::Dimension {
            field: "eos_token_id".into(),
            found: id.into(),
            expected: format!("a token id below `vocab_size` = {}", config.vocab_size),
        };
        return Err(in_file(files, "generation_config.json", problem));
    }
    let mut stop: BTreeSet<u32> = named.into_iter().collect();
    if stop.is_empty() {
        stop.extend(&config.eos_token_ids);
        stop.extend(tokenizer_end_tokens(files)?);
        stop.retain(|&id| (id as usize) < config.vocab_size);
    }
    Ok(stop.into_iter().collect())
}

/// Ids of the tokenizer's end token and of the end of a chat turn, as far as they are named.
fn tokenizer_end_tokens(files: Files<'_>) -> Result<Vec<u32>, ConfigError> {
    let settings = read_object(files, "tokenizer_config.json")?.unwrap_or_default();
    let end = match settings.get("eos_token") {
        Some(Value::String(text)) => Some(text.as_str()),
        // Old files spell a token with its flags.
        Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
        _ => None,
    };
    let wanted = |text: Option<&str>| text.is_some() && (text == end || text == Some(TURN_END));
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());

    let mut ids = Vec::new();
    if let Some(Value::Object(added)) = settings.get("added_tokens_decoder") {
        for (key, token) in added {
            if wanted(token.get("content").and_then(Value::as_str)) {
                ids.extend(key.parse::<u32>().ok());
            }
        }
    }
    if ids.is_empty() {
        let tokenizer = read_object(files, "tokenizer.json")?.unwrap_or_default();
        for token in tokenizer.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
            if wanted(token.get("content").and_then(Value::as_str)) {
                ids.extend(token.get("id").and_then(id));
            }
        }
    }
    Ok(ids)
}

/// A JSON object of the model, or `None` if the file does not exist.
fn read_object(files: Files<'_>, name: &str) -> Result<Option<Map<String, Value>>, ConfigError> {
    let text = match read_text_of(files, name) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(in_file(files, name, ConfigProblem::Unreadable(e))),
    };
    match serde_json::from_str(without_mark(&text)) {
        Ok(Value::Object(root)) => Ok(Some(root)),
        Ok(other) => Err(in_file(files, name, wrong_type("(whole file)", "an object", &other))),
        Err(e) => Err(in_file(files, name, ConfigProblem::NotJson(e))),
    }
}

fn in_file(files: Files<'_>, name: &str, problem: ConfigProblem) -> ConfigError {
    ConfigError { file: files.path(name), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::qwen36_mlx;

    fn config() -> Config {
        Config::from_json(&qwen36_mlx().to_string(), "config.json").unwrap()
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn generation_config_decides_the_stop_tokens_and_defaults() {
        let text = r#"{"eos_token_id": [248046, 248044], "temperature": 1.0, "top_k": 20,
            "top_p": 0.95, "do_sample": true}"#;
        let folder = folder(&[("generation_config.json", text)]);
        assert_eq!(stop_tokens(folder.path(), &config()).unwrap(), [248_044, 248_046]);
        let defaults = GenerationDefaults::read(folder.path()).unwrap();
        let expected = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(1.0),
            top_k: Some(20),
            top_p: Some(0.95),
            ..Default::default()
        };
        assert_eq!(defaults, expected);
    }

    #[test]
    fn without_generation_config_the_chat_turn_end_still_stops() {
        let decoder = r#"{"eos_token": {"content": "<|endoftext|>"}, "added_tokens_decoder":
            {"7": {"content": "<|endoftext|>"}, "9": {"content": "<|im_end|>"}, "10": {}}}"#;
        let one = folder(&[("tokenizer_config.json", decoder)]);
        assert_eq!(stop_tokens(one.path(), &config()).unwrap(), [7, 9, 248_044]);
        let two = folder(&[
            ("tokenizer_config.json", r#"{"eos_token": "<end>"}"#),
            (
                "tokenizer.json",
                r#"{"added_tokens": [{"id": 3, "content": "<end>"},
                    {"id": 5, "content": "<|im_end|>"}, {"id": 300000, "content": "<end>"}]}"#,
            ),
            ("generation_config.json", r#"{"temperature": 0.5}"#),
        ]);
        assert_eq!(stop_tokens(two.path(), &config()).unwrap(), [3, 5, 248_044]);
        assert_eq!(stop_tokens(folder(&[]).path(), &config()).unwrap(), [248_044]);
    }

    #[test]
    fn do_sample_decides_and_where_it_is_absent_a_named_parameter_asks_for_sampling() {
        let chosen = |text: &str| {
            let folder = folder(&[("generation_config.json", text)]);
            GenerationDefaults::read(folder.path()).unwrap().sampling()
        };
        assert_eq!(GenerationDefaults::default().sampling(), Sampling::greedy());
        for (text, temperature, top_k, top_p, min_p) in [
            ("{}", 0.0, 0, 1.0, 0.0),
            (r#"{"repetition_penalty": 1.05}"#, 0.0, 0, 1.0, 0.0),
            (r#"{"do_sample": false, "temperature": 0.6, "top_k": 20}"#, 0.0, 20, 1.0, 0.0),
            (r#"{"do_sample": true}"#, 1.0, 0, 1.0, 0.0),
            (r#"{"temperature": 0.6}"#, 0.6, 0, 1.0, 0.0),
            (r#"{"top_k": 20}"#, 1.0, 20, 1.0, 0.0),
            (r#"{"top_p": 0.95}"#, 1.0, 0, 0.95, 0.0),
            (r#"{"min_p": 0.05}"#, 1.0, 0, 1.0, 0.05),
            (r#"{"temperature": 0, "top_k": 20}"#, 0.0, 20, 1.0, 0.0),
        ] {
            let found = chosen(text);
            let found = (found.temperature, found.top_k, found.top_p, found.min_p);
            assert_eq!(found, (temperature, top_k, top_p, min_p), "{text}");
        }
        assert_eq!(chosen(r#"{"repetition_penalty": 1.05}"#).repetition_penalty, 1.05);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_file() {
        let folder = folder(&[("generation_config.json", "\u{feff}{\"top_k\": 7}")]);
        assert_eq!(GenerationDefaults::read(folder.path()).unwrap().top_k, Some(7));
    }

    #[test]
    fn bad_values_are_refused_with_file_and_field() {
        for (text, expected) in [
            (r#"{"temperature": -1}"#, "`temperature` = -1"),
            (r#"{"top_p": 0}"#, "`top_p` = 0"),
            (r#"{"top_k": -1}"#, "`top_k` = -1"),
            (r#"{"min_p": 2}"#, "`min_p` = 2"),
            (r#"{"repetition_penalty": 0}"#, "`repetition_penalty` = 0"),
            (r#"{"do_sample": 1}"#, "`do_sample` = 1"),
            ("[]", "(whole file)"),
            ("{", "not valid JSON"),
        ] {
            let folder = folder(&[("generation_config.json", text)]);
            let message = GenerationDefaults::read(folder.path()).unwrap_err().to_string();
            assert!(message.contains("generation_config.json"), "{message}");
            assert!(message.contains(expected), "{message}");
        }
        let folder = folder(&[("generation_config.json", r#"{"eos_token_id": 248320}"#)]);
        let message = stop_tokens(folder.path(), &config()).unwrap_err().to_string();
        assert!(message.contains("below `vocab_size` = 248320"), "{message}");
    }
}
