//! Reading `tokenizer.json`: what lily follows is accepted, everything else is refused by name.
//!
//! A tokenizer that is followed almost exactly gives almost the right ids, and nobody notices why
//! the answers are poor. So no part of the file is ignored unless it cannot change ids.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{NFC, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use crate::TextError;
use crate::template::is_word_like;

/// How Qwen3.5 and 3.6 cut text: combining marks belong to words, every digit stands alone.
pub(super) const PATTERN_QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How Qwen2 and 3 cut text: marks count as punctuation. Small models are trained with it too.
const PATTERN_QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Above this an id is a damaged file: tables are sized by the largest id.
const MAX_ID: u32 = 1 << 22;

/// A token that is recognised in the text as a whole, in front of every other rule.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    pub special: bool,
}

/// The parts of the file that decide ids, checked.
pub(super) struct Parts {
    pub added: Vec<AddedToken>,
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: PreTokenizerWrapper,
    pub model: BPE,
}

/// As the file is written. Truncation and padding are for training and never apply here.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: BPE,
}

/// Parses and checks the text of a `tokenizer.json`; `file` is for messages.
pub(super) fn parse(file: &Path, text: &[u8]) -> Result<Parts, TextError> {
    let parsed: File = serde_json::from_slice(text).map_err(|e| why(file, text, &e))?;
    let check = Check { file };
    let normalizer = check.normalizer(parsed.normalizer)?;
    let pre_tokenizer = check.pre_tokenizer(parsed.pre_tokenizer)?;
    check.decoder(parsed.decoder)?;
    check.post_processor(parsed.post_processor)?;
    check.model(&parsed.model)?;
    check.added(&parsed.added_tokens)?;
    Ok(Parts { added: parsed.added_tokens, normalizer, pre_tokenizer, model: parsed.model })
}

/// The added tokens that only `tokenizer_config.json` lists (`added_tokens_decoder`: id → token).
pub(super) fn added_in_config(file: &Path, config: &Value) -> Result<Vec<AddedToken>, TextError> {
    let Some(Value::Object(listed)) = config.get("added_tokens_decoder") else {
        return Ok(Vec::new());
    };
    let check = Check { file };
    let mut added = Vec::with_capacity(listed.len());
    for (id, token) in listed {
        let mut token = token.clone();
        if let (Value::Object(fields), Ok(id)) = (&mut token, id.parse::<u32>()) {
            fields.insert("id".into(), id.into());
        }
        let token = serde_json::from_value(token)
            .map_err(|e| malformed(file, format!("`added_tokens_decoder`, token {id}: {e}")))?;
        added.push(token);
    }
    check.added(&added)?;
    Ok(added)
}

pub(super) fn malformed(file: &Path, detail: impl Into<String>) -> TextError {
    TextError::Malformed { file: file.to_path_buf(), detail: detail.into() }
}

/// Another kind of model fails inside the library, whose message does not name it: look for it.
fn why(file: &Path, text: &[u8], error: &serde_json::Error) -> TextError {
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
    }
    #[derive(Deserialize)]
    struct Outline {
        model: Kind,
    }
    match serde_json::from_slice::<Outline>(text) {
        Ok(Outline { model: Kind { r#type: Some(kind) } }) if kind != "BPE" => {
            Check { file }.unsupported("`model` of type", format!("`{kind}`"), "`BPE`")
        }
        _ => malformed(file, error.to_string()),
    }
}

struct Check<'a> {
    file: &'a Path,
}

impl Check<'_> {
    fn unsupported(
        &self,
        part: &'static str,
        found: impl Into<String>,
        accepted: impl Into<String>,
    ) -> TextError {
        TextError::Unsupported {
            file: self.file.to_path_buf(),
            part,
            found: found.into(),
            accepted: accepted.into(),
        }
    }

    fn normalizer(&self, found: Option<Value>) -> Result<Option<NormalizerWrapper>, TextError> {
        let steps = flatten(found, "normalizers");
        match steps.as_slice() {
            [] => Ok(None),
            [nfc] if kind(nfc) == "NFC" => Ok(Some(NormalizerWrapper::NFC(NFC))),
            steps => Err(self.unsupported("`normalizer`", describe(steps), "`NFC` or none")),
        }
    }

    fn pre_tokenizer(&self, found: Option<Value>) -> Result<PreTokenizerWrapper, TextError> {
        let steps = flatten(found, "pretokenizers");
        let accepted = "`ByteLevel`, alone or after one `Split`";
        let (split, level) = match steps.as_slice() {
            [level] if kind(level) == "ByteLevel" => (None, level),
            [split, level] if kind(split) == "Split" && kind(level) == "ByteLevel" => {
                (Some(self.split(split)?), level)
            }
            steps => return Err(self.unsupported("`pre_tokenizer`", describe(steps), accepted)),
        };
        // What the file leaves out has the reference library's defaults.
        let flag = |name| level.get(name).and_then(Value::as_bool).unwrap_or(true);
        if flag("add_prefix_space") {
            let found = "`ByteLevel` that puts a space in front of the text";
            return Err(self.unsupported("`pre_tokenizer`", found, "`add_prefix_space: false`"));
        }
        let use_regex = flag("use_regex");
        if split.is_some() && use_regex {
            let found = "`ByteLevel` that cuts by a pattern of its own after `Split`";
            return Err(self.unsupported("`pre_tokenizer`", found, "`use_regex: false`"));
        }
        let level = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, use_regex));
        let steps = split.map(PreTokenizerWrapper::Split).into_iter().chain([level]).collect();
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }

    fn split(&self, split: &Value) -> Result<Split, TextError> {
        let found = split.get("pattern").unwrap_or(&Value::Null);
        let pattern = found.get("Regex").and_then(Value::as_str);
        let known = [PATTERN_QWEN35, PATTERN_QWEN2];
        let Some(pattern) = pattern.filter(|pattern| known.contains(pattern)) else {
            let found = pattern.map_or_else(|| found.to_string(), str::to_owned);
            let accepted = format!("`{}`", known.join("` or `"));
            let part = "`pre_tokenizer` that splits by";
            return Err(self.unsupported(part, format!("`{found}`"), accepted));
        };
        let isolated = split.get("behavior").and_then(Value::as_str) == Some("Isolated");
        if !isolated || split.get("invert") == Some(&Value::Bool(true)) {
            let found = format!("`Split` with {split}");
            let accepted = "`behavior: Isolated`, `invert: false`";
            return Err(self.unsupported("`pre_tokenizer`", found, accepted));
        }
        let pattern = SplitPattern::Regex(pattern.to_owned());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|e| malformed(self.file, e.to_string()))
    }

    fn decoder(&self, found: Option<Value>) -> Result<(), TextError> {
        let steps = flatten(found, "decoders");
        match steps.as_slice() {
            [level] if kind(level) == "ByteLevel" => Ok(()),
            steps => Err(self.unsupported("`decoder`", describe(steps), "`ByteLevel`")),
        }
    }

    /// The encoder adds nothing: what frames a conversation stands in the chat template.
    fn post_processor(&self, found: Option<Value>) -> Result<(), TextError> {
        let steps = flatten(found, "processors");
        if steps.iter().all(|step| kind(step) == "ByteLevel") {
            return Ok(());
        }
        Err(self.unsupported("`post_processor`", describe(&steps), "`ByteLevel` or none"))
    }

    fn model(&self, model: &BPE) -> Result<(), TextError> {
        let affix = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let odd = [
            (model.dropout.is_some_and(|p| p != 0.0), "dropout"),
            (model.unk_token.is_some(), "unk_token"),
            (affix(&model.continuing_subword_prefix), "continuing_subword_prefix"),
            (affix(&model.end_of_word_suffix), "end_of_word_suffix"),
            (model.byte_fallback, "byte_fallback"),
        ];
        match odd.iter().find(|(set, _)| *set) {
            Some((_, field)) => {
                let accepted = "byte-level `BPE` without it";
                Err(self.unsupported("`model` with", format!("`{field}`"), accepted))
            }
            None => Ok(()),
        }
    }

    fn added(&self, added: &[AddedToken]) -> Result<(), TextError> {
        for token in added {
            if token.content.is_empty() || token.id > MAX_ID {
                let detail = format!(
                    "added token {} is {:?}, but ids end at {MAX_ID} and a token has text",
                    token.id, token.content
                );
                return Err(malformed(self.file, detail));
            }
            if is_word_like(&token.content) {
                let found = format!("`{}`, which any word may hold", token.content);
                return Err(self.unsupported("added token", found, "one with punctuation"));
            }
            let flags = [
                (token.single_word, "single_word"),
                (token.lstrip, "lstrip"),
                (token.rstrip, "rstrip"),
                (token.normalized && !token.content.is_ascii(), "normalized"),
            ];
            if let Some((_, flag)) = flags.iter().find(|(set, _)| *set) {
                let found = format!("`{}` with `{flag}`", token.content);
                return Err(self.unsupported("added token", found, "literal matching"));
            }
        }
        Ok(())
    }
}

/// The largest id that a table may need.
pub(super) fn check_id(file: &Path, id: u32, content: &str) -> Result<(), TextError> {
    if id <= MAX_ID {
        return Ok(());
    }
    Err(malformed(file, format!("token {content:?} has id {id}, ids end at {MAX_ID}")))
}

/// The steps of a part: a `Sequence` is opened, a single step is a list of one, null is empty.
fn flatten(part: Option<Value>, list: &str) -> Vec<Value> {
    match part {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(mut fields)) if fields.get("type") == Some(&"Sequence".into()) => {
            match fields.remove(list) {
                Some(Value::Array(steps)) => steps,
                _ => Vec::new(),
            }
        }
        Some(step) => vec![step],
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or("")
}

fn describe(steps: &[Value]) -> String {
    match steps {
        [] => "none".into(),
        steps => {
            let kinds: Vec<String> = steps.iter().map(|step| format!("`{}`", kind(step))).collect();
            kinds.join(" then ")
        }
    }
}
