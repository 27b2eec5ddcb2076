//! What a checkpoint folder holds, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::config::{Config, LayerKind};
use crate::generation::{GenerationDefaults, stop_tokens};
use crate::printable::Printable;
use crate::weights::class::ClassSummary;
use crate::weights::{Aside, Checkpoint, Layout};

/// A weight file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSummary {
    /// Name inside the folder.
    pub name: String,
    /// Size.
    pub bytes: u64,
}

/// The contents of a checkpoint folder, and whether lily runs it.
///
/// Fields are empty or `None` as far as an error kept them from being known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// The folder.
    pub folder: String,
    /// Whether the checkpoint is complete and supported.
    pub supported: bool,
    /// The first thing that is wrong.
    pub error: Option<String>,
    /// Architecture by `config.json`.
    pub architecture: Option<String>,
    /// Who wrote the tensors.
    pub layout: Option<Layout>,
    /// Layers: all, and those with attention.
    pub layers: Option<[usize; 2]>,
    /// Longest context that the model was made for.
    pub context_tokens: Option<usize>,
    /// Tokens that end a generation.
    pub stop_tokens: Vec<u32>,
    /// Weights of the text model.
    pub parameters: Option<u64>,
    /// Stored tensors of the text model.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The same by class.
    pub classes: Vec<ClassSummary>,
    /// Weight files.
    pub files: Vec<FileSummary>,
    /// Tensors that are not read, by what they belong to.
    pub aside: BTreeMap<&'static str, Aside>,
    /// What works but deserves to be said.
    pub warnings: Vec<String>,
}

impl Inspection {
    /// Looks at a folder. Whatever is wrong with it becomes [`Self::error`].
    pub fn of(folder: &Path) -> Self {
        let mut found = Self { folder: folder.display().to_string(), ..Self::default() };
        match found.read(folder) {
            Ok(()) => found.supported = true,
            Err(e) => found.error = Some(e.to_string()),
        }
        found
    }

    fn read(&mut self, folder: &Path) -> Result<(), crate::CheckpointError> {
        let config = Config::read(folder)?;
        let attention =
            config.layer_types.iter().filter(|kind| **kind == LayerKind::FullAttention).count();
        self.architecture = Some(config.architecture.clone());
        self.layers = Some([config.num_hidden_layers, attention]);
        self.context_tokens = Some(config.max_position_embeddings);
        self.stop_tokens = stop_tokens(folder, &config)?;
        GenerationDefaults::read(folder)?;
        let checkpoint = Checkpoint::open(folder)?;
        checkpoint.weights()?;
        self.layout = Some(checkpoint.layout());
        self.parameters = Some(checkpoint.parameters());
        self.classes = checkpoint.classes();
        self.tensors = self.classes.iter().map(|class| class.tensors).sum();
        self.bytes = self.classes.iter().map(|class| class.bytes).sum();
        self.files = checkpoint.files().iter().map(|(path, bytes)| summary(path, *bytes)).collect();
        self.aside = checkpoint.aside().clone();
        self.warnings = checkpoint.warnings().to_vec();
        if self.stop_tokens.is_empty() {
            self.warnings
                .push("no file names a stop token: answers end only at their length limit".into());
        }
        Ok(())
    }
}

fn summary(path: &Path, bytes: u64) -> FileSummary {
    let name = path.file_name().unwrap_or(path.as_os_str());
    FileSummary { name: name.to_string_lossy().into_owned(), bytes }
}

/// A number with its thousands apart.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

impl fmt::Display for Inspection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", Printable(&self.folder))?;
        if let Some(architecture) = &self.architecture {
            writeln!(out, "  architecture  {}", Printable(architecture))?;
        }
        match self.layout {
            Some(Layout::Mlx) => writeln!(out, "  layout        MLX")?,
            Some(Layout::Original) => writeln!(out, "  layout        original (Hugging Face)")?,
            None => {}
        }
        if let Some([all, attention]) = self.layers {
            writeln!(out, "  layers        {all} ({attention} with full attention)")?;
        }
        if let Some(parameters) = self.parameters {
            writeln!(out, "  parameters    {}", grouped(parameters))?;
        }
        if let Some(tokens) = self.context_tokens {
            writeln!(out, "  context       {} tokens", grouped(tokens as u64))?;
        }
        writeln!(out, "  stop tokens   {:?}", self.stop_tokens)?;
        for file in &self.files {
            let name = Printable(&file.name);
            writeln!(out, "  file          {name}, {} bytes", grouped(file.bytes))?;
        }
        if !self.classes.is_empty() {
            writeln!(out, "\n  {:<38} {:>7} {:>16}  formats", "class", "tensors", "bytes")?;
        }
        for class in &self.classes {
            let (bytes, formats) = (grouped(class.bytes), class.formats.join(", "));
            writeln!(out, "  {:<38} {:>7} {bytes:>16}  {formats}", class.class, class.tensors)?;
        }
        if !self.classes.is_empty() {
            let bytes = grouped(self.bytes);
            writeln!(out, "  {:<38} {:>7} {bytes:>16}\n", "text model", self.tensors)?;
        }
        for (what, aside) in &self.aside {
            let (tensors, bytes) = (aside.tensors, grouped(aside.bytes));
            writeln!(out, "  left aside    {what}: {tensors} tensors, {bytes} bytes")?;
        }
        for warning in &self.warnings {
            writeln!(out, "  warning       {}", Printable(warning))?;
        }
        match &self.error {
            None => writeln!(out, "  supported     yes"),
            Some(error) => writeln!(out, "  supported     no: {}", Printable(error)),
        }
    }
}
