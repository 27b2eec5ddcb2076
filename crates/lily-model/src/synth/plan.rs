//! Files, headers and places of all tensors, decided before a byte is written.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::values::Values;
use super::{SynthError, presets};
use crate::config::Config;
use crate::weights::{TensorSpec, mlx_tensors};

/// Files are cut where they would exceed 5 GiB, as MLX's converter does.
const SHARD_BYTES: u64 = 5 << 30;

/// Version of the values; raised whenever the same seed gives other bytes than before.
const RECIPE: u32 = 1;

/// Data starts at a multiple of this, so that mapped tensors are aligned for vector loads.
const DATA_ALIGNMENT: usize = 64;

/// All files of a random checkpoint, ready to be written.
#[derive(Clone, Debug)]
pub struct SynthPlan {
    /// The weight files.
    pub(super) shards: Vec<Shard>,
    /// `config.json`, complete.
    pub(super) config: Value,
    /// Small files, name and content; `config.json` last, because without it nothing loads.
    pub(super) texts: Vec<(&'static str, String)>,
    /// Content of the file that marks the folder as ours and says what is in it.
    pub(super) marker: Value,
}

/// One weight file.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    pub name: String,
    /// Length field, JSON and padding.
    pub head: Vec<u8>,
    pub tensors: Vec<Placed>,
    /// The whole file.
    pub bytes: u64,
}

/// One tensor in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub values: Values,
    /// First byte, from the start of the file.
    pub offset: u64,
    pub bytes: u64,
}

impl SynthPlan {
    /// Names and sizes in bytes of the weight files.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.shards.iter().map(|shard| (shard.name.as_str(), shard.bytes))
    }

    /// `config.json`, complete with its quantisation.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Number of tensors.
    pub fn tensors(&self) -> usize {
        self.shards.iter().map(|shard| shard.tensors.len()).sum()
    }

    /// Bytes of all tensors, without headers.
    pub fn tensor_bytes(&self) -> u64 {
        self.shards.iter().flat_map(|shard| &shard.tensors).map(|tensor| tensor.bytes).sum()
    }

    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        let texts: u64 = self.texts.iter().map(|(_, text)| text.len() as u64).sum();
        self.files().map(|(_, bytes)| bytes).sum::<u64>() + texts
    }
}

/// Lays out the checkpoint for a configuration and seed without writing anything.
///
/// # Errors
/// The configuration is not one that lily runs.
pub fn plan(config: &Value, seed: u64) -> Result<SynthPlan, SynthError> {
    plan_with_shards(config, seed, SHARD_BYTES)
}

pub(super) fn plan_with_shards(
    config: &Value,
    seed: u64,
    shard_bytes: u64,
) -> Result<SynthPlan, SynthError> {
    let completed = presets::complete(config);
    let parsed = Config::from_json(&completed.to_string(), "config.json")?;
    let groups = cut(mlx_tensors(&parsed), shard_bytes);
    let count = groups.len();
    let mut shards = Vec::with_capacity(count);
    let mut weight_map = BTreeMap::new();
    for (i, specs) in groups.into_iter().enumerate() {
        let name = match count {
            1 => "model.safetensors".into(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        let shard = shard(name, &specs, &parsed, seed)?;
        weight_map.extend(specs.into_iter().map(|spec| (spec.name, shard.name.clone())));
        shards.push(shard);
    }
    let files: BTreeMap<&str, u64> =
        shards.iter().map(|shard| (shard.name.as_str(), shard.bytes)).collect();
    let marker = json!({ "recipe": RECIPE, "seed": seed, "files": files });
    let generation = presets::generation_config(&completed);
    let mut texts = vec![("generation_config.json", pretty(&generation))];
    let mut out = SynthPlan { shards, config: completed, texts: Vec::new(), marker };
    if count > 1 {
        let index =
            json!({ "metadata": { "total_size": out.tensor_bytes() }, "weight_map": weight_map });
        texts.push(("model.safetensors.index.json", pretty(&index)));
    }
    texts.push(("config.json", pretty(&out.config)));
    out.texts = texts;
    Ok(out)
}

/// Consecutive tensors that share a file.
fn cut(tensors: Vec<TensorSpec>, shard_bytes: u64) -> Vec<Vec<TensorSpec>> {
    let mut groups = vec![Vec::new()];
    let mut size = 0;
    for tensor in tensors {
        let bytes = tensor.bytes();
        if size > 0 && size + bytes > shard_bytes {
            groups.push(Vec::new());
            size = 0;
        }
        size += bytes;
        groups.last_mut().expect("starts with one group and only grows").push(tensor);
    }
    groups
}

fn shard(
    name: String,
    specs: &[TensorSpec],
    config: &Config,
    seed: u64,
) -> Result<Shard, SynthError> {
    let mut entries = BTreeMap::from([("__metadata__", json!({ "format": "mlx" }))]);
    let mut end = 0;
    for spec in specs {
        let first = end;
        end += spec.bytes();
        let entry = json!({
            "dtype": spec.dtype.name(), "shape": spec.shape, "data_offsets": [first, end],
        });
        entries.insert(spec.name.as_str(), entry);
    }
    let head = head(&json!(entries).to_string());
    let mut offset = head.len() as u64;
    let place = |spec| {
        let placed =
            Placed { values: Values::new(config, spec, seed)?, offset, bytes: spec.bytes() };
        offset += placed.bytes;
        Ok(placed)
    };
    let tensors = specs.iter().map(place).collect::<Result<_, SynthError>>()?;
    Ok(Shard { name, bytes: head.len() as u64 + end, head, tensors })
}

/// The header's length, its JSON, and spaces up to the alignment of the data.
fn head(json: &str) -> Vec<u8> {
    let length = (8 + json.len()).next_multiple_of(DATA_ALIGNMENT) - 8;
    let mut head = (length as u64).to_le_bytes().to_vec();
    head.extend_from_slice(json.as_bytes());
    head.resize(8 + length, b' ');
    head
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
