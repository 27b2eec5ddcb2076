//! Configurations for tests.

use serde_json::{Map, Value, json};

/// The reference model as an MLX conversion writes it: 4 bits, gates 8 bits.
pub(crate) fn qwen36_mlx() -> Value {
    let layers = 40;
    let kinds: Vec<&str> = (1..=layers)
        .map(|i| if i % 4 == 0 { "full_attention" } else { "linear_attention" })
        .collect();
    let mut root = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": false,
        "text_config": {
            "model_type": "qwen3_5_moe_text", "dtype": "bfloat16", "attention_bias": false,
            "attn_output_gate": true, "hidden_act": "silu", "hidden_size": 2048,
            "num_hidden_layers": layers, "layer_types": kinds, "full_attention_interval": 4,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "rope_parameters": {
                "mrope_interleaved": true, "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25, "rope_theta": 10_000_000, "rope_type": "default"
            },
            "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "vocab_size": 248_320, "rms_norm_eps": 1e-6, "max_position_embeddings": 262_144,
            "eos_token_id": 248_044, "mtp_num_hidden_layers": 1, "pad_token_id": null
        }
    });
    let section = mlx_quantization(layers);
    root["quantization"] = section.clone();
    root["quantization_config"] = section;
    root
}

/// The section that an MLX conversion adds: 4 bits, router and shared gate 8 bits.
pub(crate) fn mlx_quantization(layers: usize) -> Value {
    let mut section = Map::new();
    section.insert("group_size".into(), json!(64));
    section.insert("bits".into(), json!(4));
    section.insert("mode".into(), json!("affine"));
    for i in 0..layers {
        for name in ["gate", "shared_expert_gate"] {
            section.insert(
                format!("language_model.model.layers.{i}.mlp.{name}"),
                json!({"group_size": 64, "bits": 8}),
            );
        }
    }
    Value::Object(section)
}
