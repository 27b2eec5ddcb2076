//! A checkpoint folder: opened, completely checked, and handed on in place.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lily_files::Files;
use lily_plan::{GROUP, MappedFile};
use serde::Serialize;

use super::files::{Stored, WeightFiles};
use super::layout::{Dtype, Module, modules};
use super::names::{Place, place};
use super::resolve::{Resolved, Resolver};
use crate::config::Config;
use crate::error::CheckpointError;

/// Bounds of the median mean of the input norms, as the model uses them. Real and random
/// checkpoints lie near 1 (0.97 is reported for a converted Qwen3.5). A missing shift puts them
/// near 0, a second one near 2; the bounds leave training a wide margin around 1.
const NORM_MEAN: std::ops::RangeInclusive<f32> = 0.35..=1.75;

/// Who wrote the tensors: names, axes and norm weights differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Converted by MLX tools: norm weights ready to use.
    Mlx,
    /// As published in the Hugging Face format: norm weights stored as `w - 1`.
    Original,
}

/// Tensors that are no part of the text model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Aside {
    /// Number of tensors.
    pub tensors: usize,
    /// Weights that they hold.
    pub parameters: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// An opened checkpoint: every tensor of the model is there, with the right shape and type.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: Config,
    layout: Layout,
    pub(super) files: WeightFiles,
    /// Tensors of the text model by name without prefix.
    pub(super) text: BTreeMap<String, Stored>,
    aside: BTreeMap<&'static str, Aside>,
    /// By module path, or by tensor name for small tensors.
    pub(super) resolved: BTreeMap<String, Resolved>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens a model: reads `config.json`, maps the weight files and checks every tensor.
    ///
    /// The files are mapped, not read: only headers and small tensors are touched. Those of a model in the
    /// program are used where they are.
    ///
    /// # Errors
    /// As [`CheckpointError`] lists; each names the file, and the tensor where one is at fault.
    pub fn open<'a>(model: impl Into<Files<'a>>) -> Result<Self, CheckpointError> {
        let model = model.into();
        Self::open_as(model, Config::read(model)?)
    }

    /// As [`open`](Self::open), for a `config.json` that was read already.
    ///
    /// # Errors
    /// As [`open`](Self::open), but those of `config.json`.
    pub fn open_as<'a>(
        model: impl Into<Files<'a>>,
        config: Config,
    ) -> Result<Self, CheckpointError> {
        let model = model.into();
        let folder = model.root();
        let mut files = WeightFiles::open(model)?;
        let (text, aside) = sort_tensors(&mut files, &config)?;
        let modules = modules(&config);
        refuse_quantised_small(&modules, &text, &files)?;
        let layout = find_layout(&modules, &text);
        let mut resolver = Resolver::new(&config, &files, &text, layout);
        let mut resolved = BTreeMap::new();
        for module in &modules {
            let found = resolver.resolve(module)?;
            let (Module::Matrix { path: name, .. } | Module::Small { name, .. }) = module;
            resolved.insert(name.clone(), found);
        }
        if let Some(stored) = resolver.unused() {
            return Err(CheckpointError::Unknown {
                file: files.path(stored),
                tensor: stored.name.clone(),
                architecture: config.architecture,
            });
        }
        let warnings = collect_warnings(&resolved, &files);
        let checkpoint =
            Self { folder: folder.into(), config, layout, files, text, aside, resolved, warnings };
        checkpoint.check_norm_shift()?;
        Ok(checkpoint)
    }

    /// The folder that was opened, or what messages call a model in the program.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Who wrote the tensors.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Weight files with their mapped contents, for devices that read them again past the page cache. None if
    /// they are a part of the program.
    pub fn mapped_files(&self) -> Vec<MappedFile> {
        if self.files.packed {
            return Vec::new();
        }
        let files = self.files.files.iter().zip(&self.files.maps);
        files
            .map(|((path, _), map)| MappedFile { path: path.clone(), bytes: map.clone() })
            .collect()
    }

    /// Weight files with their sizes in bytes.
    pub fn files(&self) -> &[(PathBuf, u64)] {
        &self.files.files
    }

    /// Tensors left aside, by what they belong to.
    pub fn aside(&self) -> &BTreeMap<&'static str, Aside> {
        &self.aside
    }

    /// Whatever will work but deserves to be said, as sentences.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Refuses norm weights that were shifted twice, or not at all.
    ///
    /// Only the input norms are looked at: others are far from 1 in trained models. Their median
    /// over the layers decides, so that a single odd layer does not.
    fn check_norm_shift(&self) -> Result<(), CheckpointError> {
        let mut means: Vec<(f32, &str)> = self
            .resolved
            .iter()
            .filter(|(name, _)| name.ends_with(".input_layernorm.weight"))
            .filter_map(|(name, found)| match found {
                Resolved::Small(w) => Some((w.iter().sum::<f32>() / w.len() as f32, name.as_str())),
                Resolved::Matrix { .. } => None,
            })
            .collect();
        means.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(&(mean, name)) = means.get(means.len() / 2) else { return Ok(()) };
        let cause = match self.layout {
            _ if NORM_MEAN.contains(&mean) => return Ok(()),
            Layout::Mlx if mean < 1.0 => {
                "the convolution is in MLX's layout, but the norms still lack their shift by 1"
            }
            Layout::Mlx => "the conversion added 1 to the norms twice",
            Layout::Original if mean < 1.0 => "the stored norms are not those of this model",
            Layout::Original => {
                "the convolution is in the original layout, but 1 was already added to the norms"
            }
        };
        let stored = &self.text[name];
        Err(CheckpointError::NormShift {
            file: self.files.path(stored),
            tensor: stored.name.clone(),
            mean,
            cause,
        })
    }
}

type Sorted = (BTreeMap<String, Stored>, BTreeMap<&'static str, Aside>);

/// Separates the text model from what is left aside.
fn sort_tensors(files: &mut WeightFiles, config: &Config) -> Result<Sorted, CheckpointError> {
    let mut text: BTreeMap<String, Stored> = BTreeMap::new();
    let mut aside: BTreeMap<&'static str, Aside> = BTreeMap::new();
    for stored in std::mem::take(&mut files.tensors) {
        let left = match place(&stored.name) {
            Place::Vision => "image encoder",
            Place::Mtp => "multi-token prediction head",
            // The embedding table serves as the output head.
            Place::Text(name) if config.tie_word_embeddings && name.starts_with("lm_head.") => {
                "tied output head"
            }
            Place::Text(name) => {
                if let Some(first) = text.get(&name) {
                    return Err(CheckpointError::Doubled {
                        file: files.path(&stored),
                        tensor: stored.name,
                        first: first.name.clone(),
                    });
                }
                text.insert(name, stored);
                continue;
            }
        };
        let entry = aside.entry(left).or_default();
        entry.tensors += 1;
        entry.parameters += parameters(&stored);
        entry.bytes += stored.data.len() as u64;
    }
    Ok((text, aside))
}

/// Weights of a tensor. Those of a quantised matrix are counted by its scales, one for each group.
fn parameters(stored: &Stored) -> u64 {
    let numbers: usize = stored.shape.iter().product();
    let counted = match stored.name.rsplit('.').next() {
        Some("scales") => numbers.saturating_mul(GROUP),
        Some("biases") => 0,
        _ if stored.dtype == Dtype::U32 => 0,
        _ => numbers,
    };
    counted as u64
}

/// Norms, convolutions and gates of the recurrence lose the model when they are quantised.
fn refuse_quantised_small(
    modules: &[Module],
    text: &BTreeMap<String, Stored>,
    files: &WeightFiles,
) -> Result<(), CheckpointError> {
    for module in modules {
        let Module::Small { name, .. } = module else { continue };
        let base = name.strip_suffix(".weight").unwrap_or(name);
        for part in ["scales", "biases"] {
            if let Some(side) = text.get(&format!("{base}.{part}")) {
                return Err(CheckpointError::MustNotBeQuantised {
                    file: files.path(side),
                    tensor: side.name.clone(),
                    module: base.into(),
                });
            }
        }
    }
    Ok(())
}

/// The layout, from the axes of the first convolution alone.
///
/// Every converter that moves the taps off the last axis also shifts the norms. What else a file
/// holds, such as a prediction head, says nothing about it. The other convolutions must agree:
/// their shapes are checked later.
fn find_layout(modules: &[Module], text: &BTreeMap<String, Stored>) -> Layout {
    let first = modules.iter().find_map(|module| match module {
        Module::Small { name, shape, .. } if shape.len() == 3 => Some((text.get(name)?, shape)),
        _ => None,
    });
    match first {
        // Compared as a whole, so that a wrong shape is reported against MLX's form.
        Some((stored, shape)) if stored.shape == [shape[0], 1, shape[1]] => Layout::Original,
        _ => Layout::Mlx,
    }
}

fn collect_warnings(resolved: &BTreeMap<String, Resolved>, files: &WeightFiles) -> Vec<String> {
    let mut warnings = Vec::new();
    let coarse: Vec<&str> = resolved
        .iter()
        .filter(|(path, _)| path.ends_with(".mlp.gate") || path.ends_with(".shared_expert_gate"))
        .filter_map(|(_, found)| match found {
            Resolved::Matrix { sources, .. } => sources.iter().find(|s| s.format.bits() < 8),
            Resolved::Small(_) => None,
        })
        .map(|source| source.tensor.as_str())
        .collect();
    if let Some(first) = coarse.first() {
        warnings.push(format!(
            "{} router and shared-expert gate matrices (first `{first}`) have fewer than 8 bits: \
             long tool-calling conversations may degrade; prefer a checkpoint that keeps them at 8",
            coarse.len()
        ));
    }
    if !files.ignored.is_empty() {
        warnings.push(format!(
            "other safetensors files beside the model are not read: {}",
            files.ignored.join(", ")
        ));
    }
    warnings
}
