//! Fields that both completion routes share.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use lily_model::GenerationDefaults;
use lily_model::asked;
use lily_model::sampling::Sampling;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, brief, whole, wrong_type};
use crate::format::Asked;

/// Most stop strings of a request.
const MAX_STOPS: usize = 16;
/// Longest stop string. Text that may be its beginning is held back, and each of them is compared
/// with each character.
const MAX_STOP_BYTES: usize = 1024;
/// Most choices of a reply. Each holds its prompt while it waits.
pub(crate) const MAX_CHOICES: usize = 32;
/// Names that mean the served model, whatever it is called.
const ALIASES: [&str; 2] = ["lily", "default"];

/// What is served, as far as a request is checked against it.
pub(crate) struct Served<'a> {
    pub model_id: &'a str,
    /// Ids that a token can have.
    pub vocab: usize,
    pub defaults: &'a GenerationDefaults,
}

/// The shared part of a request.
#[derive(Debug)]
pub(crate) struct Common {
    pub stream: bool,
    pub include_usage: bool,
    /// Choices for each prompt.
    pub n: usize,
    /// `None` takes what is left of the context.
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub sampling: Sampling,
    /// Log probabilities of each token, and of so many of the most likely ones.
    pub logprobs: Option<usize>,
    /// What the answer looks like.
    pub format: Option<Asked>,
}

/// Most tokens whose probabilities are told at one place.
pub(crate) const MAX_TOP_LOGPROBS: i64 = 20;

impl Common {
    pub fn take(fields: &mut Fields, served: &Served<'_>) -> Result<Self, ApiError> {
        check_model(fields, served.model_id)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let n = fields.integer("n", 1..=MAX_CHOICES as i64)?.unwrap_or(1);
        fields.ignore(&["user", "metadata", "store", "service_tier", "safety_identifier"]);
        fields.ignore(&["prompt_cache_key", "prompt_cache_retention"]);
        Ok(Self {
            stream,
            n: usize::try_from(n).unwrap_or(1),
            include_usage: include_usage(fields, stream)?,
            max_tokens: max_tokens(fields)?,
            stop: stops(fields)?,
            sampling: sampling(fields, served)?,
            logprobs: None,
            format: Asked::take(fields)?,
        })
    }
}

/// A request without a name means the one model that is served.
pub(crate) fn check_model(fields: &mut Fields, served: &str) -> Result<(), ApiError> {
    match fields.text("model")? {
        Some(asked) if asked != served && !ALIASES.contains(&asked.as_str()) => {
            Err(ApiError::model_not_found(&asked, served))
        }
        _ => Ok(()),
    }
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        let message = "`stream_options` needs `stream` = true; leave it out otherwise";
        return Err(ApiError::field("stream_options", message));
    }
    let mut options = Fields::nested(options, "stream_options", fields.mode())?;
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    options.refuse("include_obfuscation", |value| *value == Value::Bool(false))?;
    fields.list(options.finish()?);
    Ok(include_usage)
}

fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let range = asked::FEWEST_TOKENS as i64..=i64::MAX;
    let old = fields.integer("max_tokens", range.clone())?;
    let new = fields.integer("max_completion_tokens", range)?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let message = format!(
            "`max_tokens` = {old} and `max_completion_tokens` = {new} contradict each other; give one"
        );
        return Err(ApiError::field("max_completion_tokens", message));
    }
    Ok(new.or(old).map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let expected = "a string, or an array of strings";
    let stops = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(stops)) => {
            let text = |(index, value)| match value {
                Value::String(stop) => Ok(stop),
                other => Err(wrong_type(&format!("stop[{index}]"), "a string", &other)),
            };
            stops.into_iter().enumerate().map(text).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong_type("stop", expected, &other)),
    };
    if stops.len() > MAX_STOPS {
        let found = stops.len();
        let message = format!("`stop` has {found} strings, but at most {MAX_STOPS} are supported");
        return Err(ApiError::field("stop", message));
    }
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::field("stop", "`stop` has an empty string; leave it out"));
    }
    if let Some(long) = stops.iter().find(|stop| stop.len() > MAX_STOP_BYTES) {
        let message = format!(
            "`stop` has a string of {} bytes, but at most {MAX_STOP_BYTES} are supported; give a \
             shorter one",
            long.len()
        );
        return Err(ApiError::field("stop", message));
    }
    Ok(stops)
}

/// The request decides, then the checkpoint.
fn sampling(fields: &mut Fields, served: &Served<'_>) -> Result<Sampling, ApiError> {
    let base = served.defaults.sampling();
    let top_k = match fields.integer("top_k", -1..=i64::MAX)? {
        // Some servers spell "all" so.
        Some(-1) => 0,
        Some(top_k) => usize::try_from(top_k).unwrap_or(usize::MAX),
        None => base.top_k,
    };
    let top_p = fields.number("top_p", asked::TOP_P)?.unwrap_or(base.top_p);
    let repetition = fields.number("repetition_penalty", asked::REPETITION_PENALTY)?;
    let sampling = Sampling {
        temperature: fields.number("temperature", asked::TEMPERATURE)?.unwrap_or(base.temperature),
        top_k,
        top_p: asked::top_p(top_p),
        min_p: fields.number("min_p", asked::MIN_P)?.unwrap_or(base.min_p),
        presence_penalty: fields.number("presence_penalty", asked::PENALTY)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", asked::PENALTY)?.unwrap_or(0.0),
        repetition_penalty: repetition.unwrap_or(base.repetition_penalty),
        seed: seed(fields)?,
        logit_bias: logit_bias(fields, served.vocab)?,
    };
    // The ranges above are those of the sampler, but it has the last word.
    let name = |error: &lily_model::sampling::SamplingError| match error {
        lily_model::sampling::SamplingError::Parameter { name, .. } => *name,
        _ => "temperature",
    };
    sampling.validate().map_err(|error| ApiError::field(name(&error), error.to_string()))?;
    Ok(sampling)
}

fn seed(fields: &mut Fields) -> Result<u64, ApiError> {
    let Some(value) = fields.take("seed") else { return Ok(random()) };
    let number = value.as_u64().or_else(|| whole(&value).map(i64::cast_unsigned));
    number.ok_or_else(|| wrong_type("seed", "a whole number", &value))
}

fn logit_bias(fields: &mut Fields, vocab: usize) -> Result<HashMap<u32, f32>, ApiError> {
    let Some(value) = fields.take("logit_bias") else { return Ok(HashMap::new()) };
    let Value::Object(entries) = value else {
        return Err(wrong_type("logit_bias", "an object of token ids and numbers", &value));
    };
    let mut biases = HashMap::new();
    for (key, value) in entries {
        let key_shown = brief(&key);
        let name = format!("logit_bias.{key_shown}");
        let id = key.parse().ok().filter(|&id: &u32| (id as usize) < vocab).ok_or_else(|| {
            let message = format!(
                "`{key_shown}` in `logit_bias` should be a token id from 0 to {}",
                vocab - 1
            );
            ApiError::field(name.as_str(), message)
        })?;
        let bias = value.as_f64().filter(|bias| asked::LOGIT_BIAS.contains(bias));
        let bias = bias.ok_or_else(|| wrong_type(&name, "a number from -100 to 100", &value))?;
        biases.insert(id, bias as f32);
    }
    Ok(biases)
}

/// A number that differs from call to call: the keys of the standard library's hash maps do.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn common(body: Value, defaults: &GenerationDefaults) -> Result<Common, ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes(), crate::fields::Mode::Strict)?;
        let common = Common::take(&mut fields, &Served { model_id: "m", vocab: 10, defaults })?;
        fields.finish()?;
        Ok(common)
    }

    fn param(body: Value) -> Value {
        let error = common(body.clone(), &GenerationDefaults::default());
        let error = error.expect_err(&body.to_string()).body();
        error["error"]["param"].clone()
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        for (body, name) in [
            (json!({ "n": 0 }), "n"),
            (json!({ "n": 33 }), "n"),
            (json!({ "model": "" }), "model"),
            (json!({ "model": "../../etc" }), "model"),
            (json!({ "stream": "yes" }), "stream"),
            (json!({ "stream_options": {} }), "stream_options"),
            (json!({ "stream": true, "stream_options": { "x": 1 } }), "stream_options.x"),
            (json!({ "max_tokens": 0 }), "max_tokens"),
            (json!({ "max_tokens": 1, "max_completion_tokens": 2 }), "max_completion_tokens"),
            (json!({ "temperature": -1 }), "temperature"),
            (json!({ "temperature": 2.5 }), "temperature"),
            (json!({ "top_p": 2 }), "top_p"),
            (json!({ "top_k": -2 }), "top_k"),
            (json!({ "min_p": 1.5 }), "min_p"),
            (json!({ "presence_penalty": 3 }), "presence_penalty"),
            (json!({ "frequency_penalty": "1" }), "frequency_penalty"),
            (json!({ "repetition_penalty": 0 }), "repetition_penalty"),
            (json!({ "seed": 1.5 }), "seed"),
            (json!({ "stop": 3 }), "stop"),
            (json!({ "stop": "" }), "stop"),
            (json!({ "stop": ["a", 1] }), "stop[1]"),
            (json!({ "stop": vec!["a"; 17] }), "stop"),
            (json!({ "stop": ["a", "b".repeat(1025)] }), "stop"),
            (json!({ "logit_bias": [] }), "logit_bias"),
            (json!({ "logit_bias": { "10": 1 } }), "logit_bias.10"),
            (json!({ "logit_bias": { "1": 101 } }), "logit_bias.1"),
            (json!({ "temprature": 1 }), "temprature"),
        ] {
            assert_eq!(param(body.clone()), name, "{body}");
        }
    }

    #[test]
    fn what_is_wrong_with_stop_strings_is_said() {
        for (stop, words) in [
            (json!(vec!["a"; 17]), "17 strings, but at most 16"),
            (json!("b".repeat(1025)), "1025 bytes, but at most 1024"),
            (json!(["a", ""]), "empty string"),
            (json!({}), "a string, or an array of strings, but it is an object"),
            (json!(["a", ["b"]]), "`stop[1]` should be a string, but it is an array"),
        ] {
            let error = common(json!({ "stop": stop }), &GenerationDefaults::default());
            let body = error.expect_err(words).body();
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains(words), "{message}");
        }
        let longest = json!({ "stop": vec!["b".repeat(1024); 16] });
        let stops = common(longest, &GenerationDefaults::default()).unwrap().stop;
        assert_eq!(stops.len(), 16);
    }

    #[test]
    fn the_request_decides_before_the_checkpoint() {
        let mut defaults = GenerationDefaults::default();
        defaults.temperature = Some(0.5);
        defaults.top_k = Some(20);
        let silent = common(json!({}), &defaults).unwrap().sampling;
        assert_eq!((silent.temperature, silent.top_k, silent.top_p), (0.5, 20, 1.0));
        let body = json!({ "temperature": 0.25, "top_k": -1, "top_p": 0, "seed": -1 });
        let asked = common(body, &defaults).unwrap().sampling;
        assert_eq!((asked.temperature, asked.top_k, asked.seed), (0.25, 0, u64::MAX));
        assert_eq!(asked.top_p, f32::MIN_POSITIVE);
        defaults.do_sample = Some(false);
        assert_eq!(common(json!({}), &defaults).unwrap().sampling.temperature, 0.0);
        let asked = common(json!({ "temperature": 0.25 }), &defaults).unwrap().sampling;
        assert_eq!((asked.temperature, asked.top_k), (0.25, 20));
        let silent = GenerationDefaults::default();
        assert_eq!(common(json!({}), &silent).unwrap().sampling.temperature, 0.0);
    }

    #[test]
    fn the_model_may_go_by_its_name_an_alias_or_none() {
        for body in [json!({}), json!({ "model": "m" }), json!({ "model": "lily" })] {
            common(body, &GenerationDefaults::default()).unwrap();
        }
    }

    #[test]
    fn without_a_seed_two_requests_get_different_ones() {
        let seed = || common(json!({}), &GenerationDefaults::default()).unwrap().sampling.seed;
        assert_ne!(seed(), seed());
    }
}
