//! Finds a model and opens it on a device.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lily_files::{Files, Packed};
use lily_hub::{Cache, HubError, ModelId};
use lily_kernels::ModelShape;
use lily_model::engine::{Engine, EngineOptions};
use lily_model::plan::model_shape;
use lily_model::synth::PRESETS;
use lily_model::{Checkpoint, Config, GenerationDefaults, stop_tokens};
use lily_plan::{WeightWatch, Weights};
use lily_text::{ChatTemplate, PromptEncoder, TextError, Tokenizer};

use crate::args::ModelArgs;
use crate::device::{self, Opened, Task};
use crate::output::note;

/// What `-m` calls the built-in model.
const NANO: [&str; 2] = ["nano", "lily-nano"];

/// Where a model is, and its name.
pub struct Source {
    /// Name for people.
    pub name: String,
    place: Place,
    /// Whether nobody asked for this one.
    is_unnamed: bool,
    /// Once it was read.
    config: OnceLock<Config>,
}

enum Place {
    Folder(PathBuf),
    /// The built-in model.
    #[cfg_attr(not(feature = "nano"), allow(dead_code))]
    Program(&'static Packed),
}

impl Source {
    fn new(name: String, place: Place) -> Self {
        Self { name, place, is_unnamed: false, config: OnceLock::new() }
    }

    /// Finds a model by its folder, or by its name on the hub if it was downloaded; `nano` is the built-in
    /// one, and `./nano` a folder. A folder comes before the hub. Never uses the network.
    ///
    /// # Errors
    /// None is there; the message names the command that downloads it.
    pub fn locate(model: &Path) -> Result<Self> {
        if model.to_str().is_some_and(|text| NANO.contains(&text)) {
            return Self::builtin().context("this program has no built-in model");
        }
        if model.is_dir() {
            let whole = model.canonicalize().ok();
            let name = whole.as_deref().and_then(Path::file_name).unwrap_or(model.as_os_str());
            let name = name.to_string_lossy().into();
            return Ok(Self::new(name, Place::Folder(model.into())));
        }
        let text = model.to_str().filter(|_| !model.exists());
        if let Some(preset) = text.filter(|text| PRESETS.contains(text)) {
            bail!(
                "{preset} is a preset of shapes and has no weights; `lily synth --preset {preset} --out FOLDER` \
                 writes a model with random ones, and `lily bench --preset {preset}` measures it"
            );
        }
        let Some(id) = text.and_then(|text| ModelId::from_str(text).ok()) else {
            bail!(
                "expected a model folder, a model on the hub (ORG/NAME) or nano, found {} at {}; give a \
                 folder that holds a config.json",
                if model.exists() { "a file" } else { "nothing" },
                model.display()
            );
        };
        let folder = match Cache::from_env()?.find(&id) {
            Ok(folder) => folder,
            // What is there says what was meant.
            Err(error @ HubError::Incomplete { .. }) if cfg!(feature = "pull") => {
                return Err(error.into());
            }
            Err(error) => {
                // Whoever built it so knows another way.
                let without = if cfg!(feature = "pull") {
                    ""
                } else {
                    " (and this program has no `lily pull`)"
                };
                return Err(error).context(format!("found no folder {id}{without}"));
            }
        };
        Ok(Self::new(id.name().into(), Place::Folder(folder)))
    }

    /// The model that was named, if lily runs its kind, or the built-in one, which is then announced when it is loaded.
    ///
    /// # Errors
    /// As [`locate`](Self::locate), or the kind is not supported.
    pub fn find(args: &ModelArgs) -> Result<Self> {
        let source = Self::locate_or_builtin(args.model.as_deref())?;
        // First of all.
        source.config()?;
        Ok(source)
    }

    /// As [`locate`](Self::locate); without a name the built-in model.
    ///
    /// # Errors
    /// As [`locate`](Self::locate).
    pub fn locate_or_builtin(model: Option<&Path>) -> Result<Self> {
        if let Some(model) = model {
            return Self::locate(model);
        }
        let source = Self::builtin()
            .context("no model is given, and this program has none built in; name a model")?;
        Ok(Self { is_unnamed: true, ..source })
    }

    /// The built-in model, if this program has it.
    pub fn builtin() -> Option<Self> {
        #[cfg(feature = "nano")]
        {
            let packed = &lily_nano::NANO;
            Some(Self::new(packed.name.into(), Place::Program(packed)))
        }
        #[cfg(not(feature = "nano"))]
        None
    }

    /// Whether this is the built-in model.
    pub fn is_builtin(&self) -> bool {
        matches!(self.place, Place::Program(_))
    }

    /// The model's files.
    pub fn files(&self) -> Files<'_> {
        match &self.place {
            Place::Folder(folder) => folder.into(),
            Place::Program(packed) => (*packed).into(),
        }
    }

    /// The model's tokenizer and chat template. `wanted` says what needs a template, for a model that has none.
    ///
    /// # Errors
    /// A file is missing or malformed, or the system has no thread to read the template on.
    pub fn encoder(&self, wanted: &'static str) -> Result<PromptEncoder> {
        let tokenizer = Tokenizer::open(self.files())
            .context("a text needs a tokenizer; `lily run --tokens` does without")?;
        match ChatTemplate::open(self.files()) {
            Ok(template) => Ok(PromptEncoder::new(tokenizer, template)),
            Err(error @ TextError::NoThread { .. }) => Err(error.into()),
            Err(error) => Err(error).context(wanted),
        }
    }

    /// The model's `config.json`, which is read once.
    ///
    /// # Errors
    /// It is missing or not supported.
    pub fn config(&self) -> Result<&Config> {
        match self.config.get() {
            Some(config) => Ok(config),
            None => {
                let read = Config::read(self.files())?;
                Ok(self.config.get_or_init(|| read))
            }
        }
    }

    /// What `generation_config.json` says about sampling; nothing without the file.
    ///
    /// # Errors
    /// The file is malformed.
    pub fn defaults(&self) -> Result<GenerationDefaults> {
        Ok(GenerationDefaults::read(self.files())?)
    }

    /// What a scripted model needs of the checkpoint: ids that a token can have, and the tokens that
    /// end a text.
    ///
    /// # Errors
    /// A file of the model is missing or malformed.
    pub fn ids(&self) -> Result<(usize, Vec<u32>)> {
        let config = self.config()?;
        let vocab = model_shape(config).vocab_used;
        Ok((vocab, stop_tokens(self.files(), config)?))
    }

    /// Checks the files and sets up an engine on the device that the command line asks for, with options of which the
    /// device's part is set here. Warnings go to standard error.
    ///
    /// # Errors
    /// The checkpoint is not complete or not supported, or the context does not fit into memory.
    pub fn load(&self, args: &ModelArgs, options: EngineOptions) -> Result<Loaded> {
        let start = Instant::now();
        let checked = self.check(options.context)?;
        let engine = device::start(args, &checked.task(options), |opened| {
            let options = opened.options(args, options);
            checked.engine(opened, options)
        })?;
        Ok(Loaded { engine, stop_ids: checked.stop_ids, load_time: start.elapsed() })
    }

    /// Checks the files before a context of so many positions is set up. Warnings go to standard error.
    ///
    /// # Errors
    /// The checkpoint is not complete or not supported.
    pub fn check(&self, context: usize) -> Result<Checked<'_>> {
        let config = self.config()?;
        let checkpoint = Checkpoint::open_as(self.files(), config.clone())?;
        for warning in checkpoint.warnings() {
            note(format_args!("lily: warning: {warning}"));
        }
        note_long_context(config, context);
        // Also where nothing of it is used: a damaged file is a damaged checkpoint.
        self.defaults()?;
        Ok(Checked {
            source: self,
            shape: model_shape(config),
            weights: checkpoint.weights()?,
            stop_ids: stop_tokens(self.files(), config)?,
            checkpoint,
        })
    }
}

/// Warns of a context that is longer than the model's.
pub fn note_long_context(config: &Config, context: usize) {
    let most = config.max_position_embeddings;
    if context > most {
        note(format_args!(
            "lily: warning: a context of {context} tokens is longer than the {most} the model was made for"
        ));
    }
}

/// A model whose files are complete and supported.
pub struct Checked<'a> {
    source: &'a Source,
    checkpoint: Checkpoint,
    shape: ModelShape,
    weights: Weights,
    stop_ids: Vec<u32>,
}

impl Checked<'_> {
    /// What a device is chosen by.
    pub fn task(&self, options: EngineOptions) -> Task<'_> {
        Task { shape: &self.shape, weights: &self.weights, options }
    }

    /// Sets up an engine.
    ///
    /// # Errors
    /// The session does not fit into memory, or the device fails.
    pub fn engine(&self, mut opened: Opened, options: EngineOptions) -> Result<Engine> {
        if self.source.is_unnamed {
            // Not before: what does not come to answer has no need of it.
            note("lily: no model given: lily-nano answers, a toy; -m names a real one");
        }
        opened.device.weight_files(self.checkpoint.mapped_files());
        let root = self.checkpoint.folder().display();
        set_up(opened, &self.task(options)).with_context(|| format!("cannot run {root}"))
    }
}

/// Sets up an engine on an open device, with a bar for its weights.
///
/// # Errors
/// The session does not fit into memory, or the device fails.
pub fn set_up(mut opened: Opened, task: &Task<'_>) -> Result<Engine> {
    let bar = loading_bar()?;
    opened.device.watch_weights(watch(&bar));
    let (shape, weights) = (task.shape.clone(), task.weights.clone());
    let engine = Engine::new(opened.device, shape, weights, task.options);
    bar.finish_and_clear();
    Ok(engine?)
}

/// A bar for weights on their way into device memory, on standard error where that is a terminal.
///
/// # Errors
/// None that can happen: its template is fixed.
fn loading_bar() -> Result<ProgressBar> {
    let style = "loading [{bar:30}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
    Ok(ProgressBar::new(0).with_style(ProgressStyle::with_template(style)?))
}

/// Moves a bar on.
fn watch(bar: &ProgressBar) -> WeightWatch {
    let bar = bar.clone();
    Box::new(move |bytes, total| {
        bar.set_length(total);
        bar.set_position(bytes);
    })
}

/// An engine ready to run.
pub struct Loaded {
    /// The engine.
    pub engine: Engine,
    /// Tokens that end a text.
    pub stop_ids: Vec<u32>,
    /// Time from opening the folder to the end of the first forward pass.
    pub load_time: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_json_is_read_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/odd");
        for entry in golden.read_dir().expect("a golden model").flatten() {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy");
        }
        let source = Source::locate(folder.path()).expect("it is there");
        source.config().expect("it is supported");
        // Whoever read it again would miss it.
        std::fs::remove_file(folder.path().join("config.json")).expect("it was there");
        let checked = source.check(16).expect("it is complete");
        assert_eq!(checked.shape, model_shape(source.config().expect("it is known")));
    }
}
