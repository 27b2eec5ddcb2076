//! From a configuration to the dimensions and sizes that plans are built from.

use std::collections::HashMap;

use lily_kernels::gpu::MatrixFormat;
use lily_kernels::{Mixer, ModelShape};

use super::MatrixBytes;
use crate::config::{Config, LayerKind};
use crate::weights::layout::{Module, modules};

/// Dimensions of the model.
pub fn model_shape(config: &Config) -> ModelShape {
    let mixer = |kind: &LayerKind| match kind {
        LayerKind::LinearAttention => Mixer::Gdn,
        LayerKind::FullAttention => Mixer::Attention,
    };
    ModelShape {
        hidden: config.hidden_size,
        layers: config.layer_types.iter().map(mixer).collect(),
        vocab: config.vocab_size,
        vocab_used: config.vocab_used,
        q_heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        rotary_dim: config.rotary_dim,
        rope_theta: config.rope_theta,
        k_heads: config.linear_num_key_heads,
        v_heads: config.linear_num_value_heads,
        k_dim: config.linear_key_head_dim,
        v_dim: config.linear_value_head_dim,
        conv_width: config.linear_conv_kernel_dim,
        experts: config.num_experts,
        top_k: config.num_experts_per_tok,
        inner: config.moe_intermediate_size,
        rms_eps: config.rms_norm_eps,
    }
}

/// Bytes of every weight matrix, from the configuration alone.
pub fn config_matrix_bytes(config: &Config) -> MatrixBytes {
    let stored: HashMap<String, u64> = modules(config)
        .into_iter()
        .filter_map(|module| match module {
            Module::Small { .. } => None,
            Module::Matrix { path, experts, rows, k } => {
                let rows = (experts.unwrap_or(1) * rows) as u64;
                let bytes = rows * config.row_format(&path).row_bytes(k) as u64;
                Some((path, bytes))
            }
        })
        .collect();
    let bytes = |paths: Vec<String>| paths.iter().filter_map(|p| stored.get(p)).sum();
    matrix_modules(config).map(|(name, paths)| (name, bytes(paths))).collect()
}

/// Device format of every weight matrix, from the configuration alone.
pub fn config_matrix_formats(config: &Config) -> HashMap<String, MatrixFormat> {
    let format =
        |paths: Vec<String>| MatrixFormat::of_rows(paths.iter().map(|p| config.row_format(p)));
    matrix_modules(config).map(|(name, paths)| (name, format(paths))).collect()
}

/// The weight matrices of a plan by buffer name, each with the stored tensors that it is made of.
fn matrix_modules(config: &Config) -> impl Iterator<Item = (String, Vec<String>)> {
    let head = if config.tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
    let ends = [("embed_tokens", "model.embed_tokens"), ("lm_head", head)];
    let ends = ends.into_iter().map(|(name, path)| (name.into(), vec![path.into()]));
    let layers = config.layer_types.iter().enumerate().flat_map(|(layer, kind)| {
        let of_layer = layer_modules(kind).into_iter().chain(MOE_MODULES);
        of_layer.map(move |(name, paths)| {
            let path = |p: &&str| format!("model.layers.{layer}.{p}");
            (format!("layers.{layer}.{name}"), paths.iter().map(path).collect())
        })
    });
    ends.chain(layers)
}

/// Matrices of a mixer.
fn layer_modules(kind: &LayerKind) -> [(&'static str, &'static [&'static str]); 2] {
    match kind {
        LayerKind::FullAttention => [
            ("attn_in", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            ("attn_out", &["self_attn.o_proj"]),
        ],
        LayerKind::LinearAttention => [
            (
                "gdn_in",
                &[
                    "linear_attn.in_proj_qkv",
                    "linear_attn.in_proj_z",
                    "linear_attn.in_proj_b",
                    "linear_attn.in_proj_a",
                ],
            ),
            ("gdn_out", &["linear_attn.out_proj"]),
        ],
    }
}

/// Matrices of a mixture of experts.
const MOE_MODULES: [(&str, &[&str]); 3] = [
    ("router", &["mlp.gate", "mlp.shared_expert_gate"]),
    (
        "gate_up",
        &[
            "mlp.switch_mlp.gate_proj",
            "mlp.switch_mlp.up_proj",
            "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj",
        ],
    ),
    ("down", &["mlp.switch_mlp.down_proj", "mlp.shared_expert.down_proj"]),
];
