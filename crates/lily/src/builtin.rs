//! The model that answers without `-m`, and tokenizer files for lily's own models.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use lily_model::synth::{SynthOptions, config_for, write};
use lily_text::{SYNTH_MIN_VOCAB, synth_tokenizer_files};
use tempfile::TempDir;

/// Makes the built-in model in a temporary folder.
///
/// # Errors
/// The folder cannot be made or written.
pub fn create() -> Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("lily-builtin-")
        .tempdir()
        .context("cannot make a temporary folder for the built-in model; set TMPDIR to one")?;
    let config = config_for("tiny")?;
    let vocab = vocab_size(&config);
    write(&SynthOptions::new(config, folder.path()), &mut |_| {})?;
    write_tokenizer(folder.path(), vocab, Existing::Replace)?;
    Ok(folder)
}

/// What to do with tokenizer files that are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Leave them.
    Keep,
    /// Write them anew.
    Replace,
}

/// Writes a byte tokenizer and a chat template beside the weights. Returns the names of the files
/// that are there now; none if the vocabulary is too small for all bytes and control tokens.
///
/// # Errors
/// A file cannot be written.
pub fn write_tokenizer(
    folder: &Path,
    vocab: usize,
    existing: Existing,
) -> Result<Vec<&'static str>> {
    if vocab < SYNTH_MIN_VOCAB {
        return Ok(Vec::new());
    }
    let texts = synth_tokenizer_files(vocab)?;
    let files = [
        ("tokenizer.json", texts.tokenizer_json),
        ("tokenizer_config.json", texts.tokenizer_config_json),
        ("chat_template.jinja", texts.chat_template_jinja),
    ];
    for (name, text) in &files {
        let path = folder.join(name);
        if existing == Existing::Replace || !path.exists() {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(files.map(|(name, _)| name).to_vec())
}

/// Rows of the embedding by a `config.json`; 0 if it has none.
pub fn vocab_size(config: &serde_json::Value) -> usize {
    let size = config.get("text_config").unwrap_or(config).get("vocab_size");
    size.and_then(serde_json::Value::as_u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}
