//! Shapes by name, and how a bare `config.json` becomes one in MLX's quantised style.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::SynthError;

/// Names that [`preset`] knows.
pub const PRESETS: [&str; 2] = ["qwen3.6-35b-a3b", "tiny"];

/// The configuration behind a preset's name, or the `.json` file of that name.
///
/// # Errors
/// Neither a preset nor a readable JSON file.
pub fn config_for(name: &str) -> Result<Value, SynthError> {
    if let Some(config) = preset(name) {
        return Ok(config);
    }
    if !name.ends_with(".json") {
        return Err(SynthError::UnknownPreset { found: name.into() });
    }
    let text = std::fs::read_to_string(name).map_err(|source| SynthError::Io {
        action: "read",
        path: name.into(),
        source,
    })?;
    serde_json::from_str(&text)
        .map_err(|source| SynthError::Json { path: Path::new(name).into(), source })
}

/// The `config.json` of a preset; `None` for an unknown name.
pub fn preset(name: &str) -> Option<Value> {
    match name {
        "qwen3.6-35b-a3b" => Some(config(&QWEN36_35B_A3B)),
        "tiny" => Some(config(&TINY)),
        _ => None,
    }
}

/// Keeps the first `layers` layers of a configuration: real widths at a fraction of the size.
///
/// # Errors
/// `layers` is 0 or more than the configuration has.
pub fn truncate_layers(config: &mut Value, layers: usize) -> Result<(), SynthError> {
    let found = text(config).and_then(|text| text.get("num_hidden_layers"));
    let found = found.and_then(Value::as_u64).unwrap_or(0) as usize;
    let Some(text) = text_mut(config).filter(|_| (1..=found).contains(&layers)) else {
        return Err(SynthError::Layers { asked: layers, found });
    };
    text.insert("num_hidden_layers".into(), json!(layers));
    if let Some(kinds) = text.get_mut("layer_types").and_then(Value::as_array_mut) {
        kinds.truncate(layers);
    }
    for section in ["quantization", "quantization_config"] {
        if let Some(section) = config.get_mut(section).and_then(Value::as_object_mut) {
            section.retain(|path, _| layer_of(path).is_none_or(|layer| layer < layers));
        }
    }
    Ok(())
}

/// The configuration as the checkpoint states it: with MLX's 4-bit quantisation where it names
/// none, the section under both of its names, and without the vision tower that is not written.
pub(super) fn complete(config: &Value) -> Value {
    let mut config = config.clone();
    let layers = text(&config).and_then(|text| text.get("num_hidden_layers"));
    let layers = layers.and_then(Value::as_u64).unwrap_or(0);
    let Some(root) = config.as_object_mut() else { return config };
    root.remove("vision_config");
    let section = match (root.get("quantization"), root.get("quantization_config")) {
        (Some(section), _) | (None, Some(section)) => section.clone(),
        (None, None) => default_quantization(layers),
    };
    root.insert("quantization".into(), section.clone());
    root.insert("quantization_config".into(), section);
    config
}

/// The `generation_config.json` for a completed configuration.
pub(super) fn generation_config(config: &Value) -> Value {
    let field = |name: &str| {
        let value = text(config).and_then(|text| text.get(name)).or_else(|| config.get(name));
        value.filter(|value| !value.is_null()).cloned()
    };
    let mut out = json!({ "do_sample": true, "temperature": 1.0, "top_k": 20, "top_p": 0.95 });
    // The family's configuration names the end of a text; chats end with their own token.
    let eos = match field("eos_token_id") {
        Some(eos) if eos == json!(END_OF_TEXT) => Some(json!([END_OF_TURN, END_OF_TEXT])),
        other => other,
    };
    let ids = [("eos_token_id", eos), ("bos_token_id", field("bos_token_id"))];
    for (name, id) in ids {
        if let Some(id) = id {
            out[name] = id;
        }
    }
    out
}

/// `<|endoftext|>` of the published vocabulary.
const END_OF_TEXT: u32 = 248_044;
/// `<|im_end|>` of the published vocabulary.
const END_OF_TURN: u32 = 248_046;

/// 4 bits in groups of 64, and 8 bits for the two gates of each layer, as MLX's converter chooses.
fn default_quantization(layers: u64) -> Value {
    let mut section = Map::new();
    section.insert("group_size".into(), json!(64));
    section.insert("bits".into(), json!(4));
    section.insert("mode".into(), json!("affine"));
    for layer in 0..layers {
        for gate in ["gate", "shared_expert_gate"] {
            let path = format!("language_model.model.layers.{layer}.mlp.{gate}");
            section.insert(path, json!({ "group_size": 64, "bits": 8 }));
        }
    }
    Value::Object(section)
}

/// The layer index in a path such as `language_model.model.layers.3.mlp.gate`.
fn layer_of(path: &str) -> Option<usize> {
    path.split_once("layers.")?.1.split('.').next()?.parse().ok()
}

/// The fields of the language model: `text_config`, or the root of an old export.
fn text(config: &Value) -> Option<&Map<String, Value>> {
    config.get("text_config").unwrap_or(config).as_object()
}

fn text_mut(config: &mut Value) -> Option<&mut Map<String, Value>> {
    let nested = config.get("text_config").is_some();
    let object = if nested { config.get_mut("text_config") } else { Some(config) };
    object.and_then(Value::as_object_mut)
}

/// The numbers of one model of the family.
struct Shape {
    hidden_size: u64,
    num_hidden_layers: u64,
    full_attention_interval: u64,
    num_attention_heads: u64,
    num_key_value_heads: u64,
    head_dim: u64,
    linear_num_key_heads: u64,
    linear_num_value_heads: u64,
    /// Of keys and of values.
    linear_head_dim: u64,
    num_experts: u64,
    num_experts_per_tok: u64,
    moe_intermediate_size: u64,
    shared_expert_intermediate_size: u64,
    vocab_size: u64,
    max_position_embeddings: u64,
    mrope_section: [u64; 3],
    eos_token_id: u64,
}

const QWEN36_35B_A3B: Shape = Shape {
    hidden_size: 2048,
    num_hidden_layers: 40,
    full_attention_interval: 4,
    num_attention_heads: 16,
    num_key_value_heads: 2,
    head_dim: 256,
    linear_num_key_heads: 16,
    linear_num_value_heads: 32,
    linear_head_dim: 128,
    num_experts: 256,
    num_experts_per_tok: 8,
    moe_intermediate_size: 512,
    shared_expert_intermediate_size: 512,
    vocab_size: 248_320,
    max_position_embeddings: 262_144,
    mrope_section: [11, 11, 10],
    eos_token_id: END_OF_TEXT as u64,
};

/// The smallest shape with every kind of tensor: two full-size groups in the hidden row.
const TINY: Shape = Shape {
    hidden_size: 128,
    num_hidden_layers: 4,
    full_attention_interval: 4,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 64,
    linear_num_key_heads: 2,
    linear_num_value_heads: 4,
    linear_head_dim: 64,
    num_experts: 8,
    num_experts_per_tok: 2,
    moe_intermediate_size: 64,
    shared_expert_intermediate_size: 64,
    vocab_size: 512,
    max_position_embeddings: 4096,
    mrope_section: [3, 3, 2],
    eos_token_id: 511,
};

fn config(shape: &Shape) -> Value {
    let kind = |layer: u64| {
        let full = (layer + 1).is_multiple_of(shape.full_attention_interval);
        if full { "full_attention" } else { "linear_attention" }
    };
    let kinds: Vec<&str> = (0..shape.num_hidden_layers).map(kind).collect();
    json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": false,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "dtype": "bfloat16",
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.num_hidden_layers,
            "layer_types": kinds,
            "full_attention_interval": shape.full_attention_interval,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": shape.num_key_value_heads,
            "head_dim": shape.head_dim,
            "attn_output_gate": true,
            "attention_bias": false,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "linear_num_key_heads": shape.linear_num_key_heads,
            "linear_num_value_heads": shape.linear_num_value_heads,
            "linear_key_head_dim": shape.linear_head_dim,
            "linear_value_head_dim": shape.linear_head_dim,
            "linear_conv_kernel_dim": 4,
            "mamba_ssm_dtype": "float32",
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.num_experts_per_tok,
            "moe_intermediate_size": shape.moe_intermediate_size,
            "shared_expert_intermediate_size": shape.shared_expert_intermediate_size,
            "vocab_size": shape.vocab_size,
            "tie_word_embeddings": false,
            "max_position_embeddings": shape.max_position_embeddings,
            "partial_rotary_factor": 0.25,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": true,
                "mrope_section": shape.mrope_section,
            },
            "eos_token_id": shape.eos_token_id,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_name_has_a_configuration_and_others_are_refused() {
        for name in PRESETS {
            assert_eq!(config_for(name).unwrap()["model_type"], "qwen3_5_moe");
        }
        let error = config_for("huge").unwrap_err().to_string();
        assert!(error.contains("`huge`") && error.contains("qwen3.6-35b-a3b"), "{error}");
    }

    #[test]
    fn a_configuration_without_quantisation_gets_four_bits_with_gates_of_eight() {
        let full = complete(&preset("tiny").unwrap());
        let section = &full["quantization"];
        assert_eq!((&section["bits"], &section["group_size"]), (&json!(4), &json!(64)));
        assert_eq!(section["language_model.model.layers.3.mlp.gate"]["bits"], 8);
        assert_eq!(section.as_object().unwrap().len(), 3 + 2 * 4);
        assert_eq!(full["quantization_config"], *section);
    }

    #[test]
    fn a_stated_quantisation_is_kept() {
        let mut config = preset("tiny").unwrap();
        config["quantization"] = json!({ "group_size": 64, "bits": 8 });
        assert_eq!(complete(&config)["quantization"], config["quantization"]);
    }

    #[test]
    fn truncation_cuts_layer_kinds_and_their_overrides() {
        let mut config = complete(&preset("tiny").unwrap());
        truncate_layers(&mut config, 2).unwrap();
        assert_eq!(config["text_config"]["layer_types"].as_array().unwrap().len(), 2);
        assert_eq!(config["quantization"].as_object().unwrap().len(), 3 + 2 * 2);
        for asked in [0, 3] {
            let error = truncate_layers(&mut config, asked).unwrap_err();
            assert!(matches!(error, SynthError::Layers { found: 2, .. }));
        }
    }

    #[test]
    fn a_chat_model_stops_at_the_end_of_a_turn_too() {
        let real = generation_config(&preset("qwen3.6-35b-a3b").unwrap());
        assert_eq!(real["eos_token_id"], json!([248_046, 248_044]));
        let tiny = generation_config(&preset("tiny").unwrap());
        assert_eq!((&tiny["eos_token_id"], &tiny["top_k"]), (&json!(511), &json!(20)));
    }
}
