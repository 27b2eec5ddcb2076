//! What a checkpoint folder holds, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use lily_files::Files;
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

/// One of the files that turn text into tokens and back, or choose them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextFile {
    /// What it is for: `tokenizer`, `template`, `sampling`.
    pub part: &'static str,
    /// Its name inside the folder; `None` if there is none.
    pub file: Option<String>,
    /// Why it does not load.
    pub error: Option<String>,
    /// What a folder without it cannot do, or does instead.
    pub without: &'static str,
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
    /// Weights of the text model; what is left aside has more.
    pub parameters: Option<u64>,
    /// Stored tensors of the text model.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The same by class.
    pub classes: Vec<ClassSummary>,
    /// Weight files.
    pub files: Vec<FileSummary>,
    /// Files for text. This crate knows the generation config alone; whoever can read the others
    /// adds them with [`Inspection::add`].
    pub text_files: Vec<TextFile>,
    /// Tensors that are not read, by what they belong to.
    pub aside: BTreeMap<&'static str, Aside>,
    /// What works but deserves to be said.
    pub warnings: Vec<String>,
}

impl Inspection {
    /// Looks at a model. Whatever is wrong with it becomes [`Self::error`].
    pub fn of<'a>(files: impl Into<Files<'a>>) -> Self {
        let files = files.into();
        let folder = files.root();
        let mut found = Self { folder: folder.display().to_string(), ..Self::default() };
        match found.read(files) {
            Ok(()) => found.supported = true,
            Err(e) => found.error = Some(e.to_string()),
        }
        if matches!(files, Files::Packed(_)) || folder.is_dir() {
            let name = "generation_config.json";
            let error = GenerationDefaults::read(files).err().map(|e| e.to_string());
            found.add(TextFile {
                part: "sampling",
                file: files.has(name).then(|| name.into()),
                error,
                without: "answers are greedy unless a temperature is given",
            });
        }
        found
    }

    /// Adds a file for text. One that is there and does not load makes the folder unsupported.
    pub fn add(&mut self, file: TextFile) {
        if self.error.is_none() && file.error.is_some() {
            self.supported = false;
            self.error.clone_from(&file.error);
        }
        self.text_files.push(file);
    }

    fn read(&mut self, files: Files<'_>) -> Result<(), crate::CheckpointError> {
        let config = Config::read(files)?;
        let attention =
            config.layer_types.iter().filter(|kind| **kind == LayerKind::FullAttention).count();
        self.architecture = Some(config.architecture.clone());
        self.layers = Some([config.num_hidden_layers, attention]);
        self.context_tokens = Some(config.max_position_embeddings);
        self.stop_tokens = stop_tokens(files, &config)?;
        let checkpoint = Checkpoint::open(files)?;
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
            write!(out, "  parameters    {}", grouped(parameters))?;
            match self.aside.values().map(|aside| aside.parameters).sum() {
                0 => writeln!(out)?,
                more => writeln!(out, ", and {} more that are left aside", grouped(more))?,
            }
        }
        if let Some(tokens) = self.context_tokens {
            writeln!(out, "  context       {} tokens", grouped(tokens as u64))?;
        }
        writeln!(out, "  stop tokens   {:?}", self.stop_tokens)?;
        for file in &self.files {
            let name = Printable(&file.name);
            writeln!(out, "  file          {name}, {} bytes", grouped(file.bytes))?;
        }
        for text in &self.text_files {
            write!(out, "  {:<13} ", text.part)?;
            match (&text.file, &text.error) {
                (None, None) => writeln!(out, "none: {}", text.without)?,
                (Some(file), None) => writeln!(out, "{}", Printable(file))?,
                (_, Some(error)) => writeln!(out, "does not load: {}", Printable(error))?,
            }
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
            let (parameters, bytes) = (grouped(aside.parameters), grouped(aside.bytes));
            let tensors = aside.tensors;
            writeln!(
                out,
                "  left aside    {what}: {parameters} parameters, {tensors} tensors, {bytes} bytes"
            )?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_files_cannot_steer_a_terminal_or_forge_a_line() {
        let hostile = "\u{1b}[2Jx\n  supported     yes";
        let inspection = Inspection {
            folder: hostile.into(),
            architecture: Some(hostile.into()),
            files: vec![FileSummary { name: hostile.into(), bytes: 1 }],
            warnings: vec![hostile.into()],
            error: Some(format!("tensor `{hostile}`")),
            ..Inspection::default()
        };
        let text = inspection.to_string();
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("  supported ")).count(), 1);
        assert!(text.ends_with("no: tensor `\\u{1b}[2Jx\\n  supported     yes`\n"), "{text}");
    }

    #[test]
    fn a_text_file_that_does_not_load_makes_a_folder_unsupported() {
        let file = |error: Option<&str>| TextFile {
            part: "tokenizer",
            file: Some("tokenizer.json".into()),
            error: error.map(Into::into),
            without: "",
        };
        let mut inspection = Inspection { supported: true, ..Inspection::default() };
        inspection.add(file(None));
        assert!(inspection.supported);
        inspection.add(file(Some("it is cut")));
        assert!(!inspection.supported);
        assert_eq!(inspection.error.as_deref(), Some("it is cut"));
        assert!(inspection.to_string().contains("  tokenizer     does not load: it is cut\n"));
    }

    #[test]
    fn a_bad_generation_config_is_the_error_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("generation_config.json"), "{").unwrap();
        let config = crate::config::testing::qwen36_mlx().to_string();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let sampling = &Inspection::of(folder.path()).text_files[0];
        assert!(sampling.error.as_ref().unwrap().contains("not valid JSON"), "{sampling:?}");
    }
}
