//! Finds a model and opens it on a device.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lily_chat::builtin_model;
use lily_hub::{Cache, HubError, ModelId};
use lily_model::engine::{Engine, EngineOptions};
use lily_model::plan::model_shape;
use lily_model::{Checkpoint, Config, GenerationDefaults, stop_tokens};
use lily_plan::WeightWatch;
use lily_stdio::{HeldSignals, hold_signals};
use tempfile::TempDir;

use crate::args::ModelArgs;
use crate::device::{self, Opened};
use crate::output::note;

/// A model's folder and its name for people.
pub struct Located {
    /// Where the files are.
    pub folder: PathBuf,
    /// The folder's name, or that on the hub.
    pub name: String,
}

/// Finds a model by its folder, or by its name on the hub if it was downloaded. A folder of that
/// name comes first. Never uses the network.
///
/// # Errors
/// Neither is there; the message names the command that downloads it.
pub fn locate(model: &Path) -> Result<Located> {
    if model.is_dir() {
        let whole = model.canonicalize().ok();
        let name = whole.as_deref().and_then(Path::file_name).unwrap_or(model.as_os_str());
        return Ok(Located { folder: model.into(), name: name.to_string_lossy().into() });
    }
    let id =
        model.to_str().filter(|_| !model.exists()).and_then(|text| ModelId::from_str(text).ok());
    let Some(id) = id else {
        bail!(
            "expected a model folder or a model on the hub (ORG/NAME), found {} at {}; give a \
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
            let without =
                if cfg!(feature = "pull") { "" } else { " (and this program has no `lily pull`)" };
            return Err(error).context(format!("found no folder {id}{without}"));
        }
    };
    Ok(Located { folder, name: id.name().into() })
}

/// The folder of a model.
pub struct Source {
    /// Where the files are.
    pub folder: PathBuf,
    /// Name for people.
    pub name: String,
    /// The folder of the built-in model, removed when this is dropped.
    builtin: Option<TempDir>,
}

/// A model's source, with what ends the program held back while there is a folder to remove. The
/// fields are dropped in this order.
pub struct Held {
    /// The source.
    pub source: Source,
    /// Nothing if there is no such folder.
    pub signals: Option<HeldSignals>,
}

impl Source {
    /// The model that was named, or the built-in one.
    ///
    /// # Errors
    /// As [`locate`].
    pub fn find(args: &ModelArgs) -> Result<Held> {
        let Some(model) = &args.model else {
            // A signal would end the program at once, and the folder would stay.
            let signals = Some(hold_signals());
            let made = builtin_model()?;
            let folder = made.path().to_path_buf();
            let source = Self { folder, name: "built-in".into(), builtin: Some(made) };
            return Ok(Held { source, signals });
        };
        let Located { folder, name } = locate(model)?;
        Ok(Held { source: Self { folder, name, builtin: None }, signals: None })
    }

    /// Whether this is the built-in model.
    pub fn is_builtin(&self) -> bool {
        self.builtin.is_some()
    }

    /// The model's `config.json`.
    ///
    /// # Errors
    /// It is missing or not supported.
    pub fn config(&self) -> Result<Config> {
        Ok(Config::read(&self.folder)?)
    }

    /// What `generation_config.json` says about sampling; nothing without the file.
    ///
    /// # Errors
    /// The file is malformed.
    pub fn defaults(&self) -> Result<GenerationDefaults> {
        Ok(GenerationDefaults::read(&self.folder)?)
    }

    /// What a scripted model needs of the checkpoint: ids that a token can have, and the tokens that
    /// end a text.
    ///
    /// # Errors
    /// A file of the model is missing or malformed.
    pub fn ids(&self) -> Result<(usize, Vec<u32>)> {
        let config = self.config()?;
        let vocab = model_shape(&config).vocab_used;
        Ok((vocab, stop_tokens(&self.folder, &config)?))
    }

    /// As [`Held::load_with`], where nothing is held.
    ///
    /// # Errors
    /// As [`Held::load_with`].
    pub fn load_with(self, args: &ModelArgs, options: EngineOptions) -> Result<Loaded> {
        Held { source: self, signals: None }.load_with(args, options)
    }
}

impl Held {
    /// Checks the weights and sets up an engine. Warnings go to standard error.
    ///
    /// # Errors
    /// The checkpoint is not complete or not supported, or the context does not fit into memory.
    pub fn load(self, args: &ModelArgs, context: usize, all_logits: bool) -> Result<Loaded> {
        self.load_with(args, EngineOptions { context, all_logits, ..EngineOptions::default() })
    }

    /// As [`load`](Self::load), with options of which chunk and steps ahead are set here.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(self, args: &ModelArgs, options: EngineOptions) -> Result<Loaded> {
        let opened = device::open(args)?;
        let options = EngineOptions {
            chunk: args.chunk.unwrap_or(opened.chunk),
            run_ahead: opened.steps_ahead.max(1),
            steps_ahead: opened.steps_ahead,
            ..options
        };
        self.load_on(opened, options)
    }

    /// As [`load`](Self::load), on a device that is open.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_on(mut self, mut opened: Opened, options: EngineOptions) -> Result<Loaded> {
        if self.source.is_builtin() {
            // Not before: what does not come to answer has no need of it.
            note(
                "lily: no model given: answering with a tiny random built-in model; its text means \
                 nothing, use -m for a real one",
            );
        }
        let start = Instant::now();
        let checkpoint = Checkpoint::open(&self.source.folder)?;
        for warning in checkpoint.warnings() {
            note(format_args!("lily: warning: {warning}"));
        }
        let config = checkpoint.config();
        if options.context > config.max_position_embeddings {
            note(format_args!(
                "lily: warning: a context of {} tokens is longer than the {} the model was made for",
                options.context, config.max_position_embeddings
            ));
        }
        // Also where nothing of it is used: a damaged file is a damaged checkpoint.
        self.source.defaults()?;
        let stop_ids = stop_tokens(&self.source.folder, config)?;
        let weights = checkpoint.weights()?;
        opened.device.weight_files(checkpoint.mapped_files());
        let bar = loading_bar()?;
        opened.device.watch_weights(watch(&bar));
        let engine = Engine::new(opened.device, model_shape(config), weights, options);
        bar.finish_and_clear();
        let engine =
            engine.with_context(|| format!("cannot run {}", self.source.folder.display()))?;
        // Mapped files stay readable without a name. Removed now, they are gone even if the program
        // is killed; a system that refuses gets a second try when the folder is dropped.
        if let Some(folder) = &self.source.builtin {
            let _ = std::fs::remove_dir_all(folder.path());
        }
        self.signals = None;
        Ok(Loaded { engine, stop_ids, load_time: start.elapsed(), _folder: self.source.builtin })
    }
}

/// A bar for weights on their way into device memory, on standard error where that is a terminal.
///
/// # Errors
/// None that can happen: its template is fixed.
pub fn loading_bar() -> Result<ProgressBar> {
    let style = "loading [{bar:30}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
    Ok(ProgressBar::new(0).with_style(ProgressStyle::with_template(style)?))
}

/// Moves a bar on.
pub fn watch(bar: &ProgressBar) -> WeightWatch {
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
    /// Declared last: the engine lets go of the files first.
    _folder: Option<TempDir>,
}

/// Finds the model and loads it.
///
/// # Errors
/// As [`Source::find`] and [`Held::load`].
pub fn load(args: &ModelArgs, context: usize, all_logits: bool) -> Result<Loaded> {
    Source::find(args)?.load(args, context, all_logits)
}
