//! A tiny random model for checks of the machinery, and tokenizer files for random models.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lily_model::synth::{SynthError, SynthOptions, config_for, write};
use lily_text::{SYNTH_MIN_VOCAB, TextError, synth_tokenizer_files};
use serde_json::Value;
use tempfile::TempDir;

/// Why a random model cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RandomModelError {
    /// There is no place for it.
    #[error("cannot make a temporary folder ({0}); set TMPDIR to a folder that can be written")]
    Folder(io::Error),
    /// A tokenizer file cannot be written.
    #[error("cannot write {} ({source}); check the path and its permissions", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The weights cannot be written.
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// The tokenizer cannot be made.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Makes a tiny model with random weights, in a temporary folder that goes away when dropped. Its text means
/// nothing; what it computes is checked.
///
/// # Errors
/// The folder cannot be made or written.
pub fn random_model() -> Result<TempDir, RandomModelError> {
    let folder = tempfile::Builder::new().prefix("lily-random-").tempdir();
    let folder = folder.map_err(RandomModelError::Folder)?;
    let config = config_for("tiny")?;
    let vocab = vocab_size(&config);
    write(&SynthOptions::new(config, folder.path()), &mut |_| {})?;
    write_tokenizer(folder.path(), vocab, TokenizerFiles::Replace)?;
    Ok(folder)
}

/// What to do with tokenizer files that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerFiles {
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
    existing: TokenizerFiles,
) -> Result<Vec<&'static str>, RandomModelError> {
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
        if existing == TokenizerFiles::Replace || !path.exists() {
            fs::write(&path, text).map_err(|source| RandomModelError::Write { path, source })?;
        }
    }
    Ok(files.map(|(name, _)| name).to_vec())
}

/// Rows of the embedding by a `config.json`; 0 if it has none.
pub fn vocab_size(config: &Value) -> usize {
    let size = config.get("text_config").unwrap_or(config).get("vocab_size");
    size.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}
