//! Tensors by their part in the model, for reports.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::checkpoint::Checkpoint;
use super::resolve::Resolved;

/// Tensors of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassSummary {
    /// What they are.
    pub class: &'static str,
    /// Stored tensors, scales and biases counted too.
    pub tensors: usize,
    /// Bytes on disk.
    pub bytes: u64,
    /// Formats found, such as `q4` or `bf16`.
    pub formats: Vec<&'static str>,
}

/// Parts of names, first match wins, with the class that they mark.
const CLASSES: [(&str, &str); 17] = [
    (".mlp.switch_mlp.", "routed experts"),
    (".mlp.experts.", "routed experts"),
    ("lm_head.", "output head"),
    ("model.embed_tokens.", "embeddings"),
    (".linear_attn.in_proj_qkv.", "DeltaNet in_proj_qkv"),
    (".linear_attn.in_proj_z.", "DeltaNet in_proj_z"),
    (".linear_attn.out_proj.", "DeltaNet out_proj"),
    (".linear_attn.in_proj_", "DeltaNet in_proj_a, in_proj_b"),
    (".linear_attn.", "DeltaNet conv1d, A_log, dt_bias, norm"),
    (".self_attn.q_proj.", "attention q_proj"),
    (".self_attn.o_proj.", "attention o_proj"),
    (".self_attn.q_norm.", "attention norms"),
    (".self_attn.k_norm.", "attention norms"),
    (".self_attn.", "attention k_proj, v_proj"),
    (".mlp.shared_expert.", "shared expert"),
    (".mlp.gate.", "router"),
    (".mlp.shared_expert_gate.", "shared expert gate"),
];
const NORMS: &str = "layer and final norms";

/// Class of a tensor of the text model, by its name without prefix.
fn class_of(name: &str) -> &'static str {
    CLASSES.iter().find(|(part, _)| name.contains(part)).map_or(NORMS, |&(_, class)| class)
}

impl Checkpoint {
    /// Tensors and bytes of the text model by class, in a fixed order.
    pub fn classes(&self) -> Vec<ClassSummary> {
        // Formats of matrices by stored name; small tensors go by their element type.
        let formats: BTreeMap<&str, &'static str> = self
            .resolved
            .values()
            .filter_map(|module| match module {
                Resolved::Matrix { sources, .. } => Some(sources),
                Resolved::Small(_) => None,
            })
            .flatten()
            .map(|source| (source.tensor.as_str(), source.format.name()))
            .collect();
        let mut sums: BTreeMap<&str, (usize, u64, BTreeSet<&'static str>)> = BTreeMap::new();
        for (name, stored) in &self.text {
            let (tensors, bytes, found) = sums.entry(class_of(name)).or_default();
            *tensors += 1;
            *bytes += stored.data.len() as u64;
            if let Some(format) = formats.get(stored.name.as_str()) {
                found.insert(format);
            } else if let Some(format) = stored.dtype.plain_format()
                && !name.ends_with(".scales")
                && !name.ends_with(".biases")
            {
                found.insert(format.name());
            }
        }
        let mut order: Vec<&'static str> = CLASSES.iter().map(|&(_, class)| class).collect();
        order.push(NORMS);
        order.dedup();
        order
            .into_iter()
            .filter_map(|class| {
                let (tensors, bytes, formats) = sums.remove(class)?;
                Some(ClassSummary { class, tensors, bytes, formats: formats.into_iter().collect() })
            })
            .collect()
    }

    /// Weights of the text model, as numbers rather than bytes.
    pub fn parameters(&self) -> u64 {
        super::layout::modules(self.config()).iter().map(|module| module.elements()).sum()
    }
}
