//! What is accepted, and what each refusal says.

use serde_json::{Value, json};

use super::testing::qwen36_mlx;
use super::*;

fn parse_value(json: &Value) -> Result<Config, ConfigError> {
    Config::from_json(&json.to_string(), "folder/config.json")
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_file() {
    let text = format!("\u{feff}{}", qwen36_mlx());
    let config = Config::from_json(&text, "folder/config.json").unwrap();
    assert_eq!(config, parse_value(&qwen36_mlx()).unwrap());
}

#[test]
fn what_is_no_model_folder_is_named_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weights");
    std::fs::write(&file, "").unwrap();
    let message = |path: &Path| Config::read(path).unwrap_err().to_string();
    assert!(message(&file).ends_with("weights`: is no folder, need a folder in the Hugging Face or MLX layout; give the one with `config.json`"), "{}", message(&file));
    let absent = folder.path().join("absent");
    assert!(message(&absent).contains("absent`: does not exist"), "{}", message(&absent));
    assert!(message(folder.path()).contains("config.json`: cannot be read"));
}

#[test]
fn the_reference_configuration_is_read_completely() {
    let config = parse_value(&qwen36_mlx()).unwrap();
    assert_eq!(config.hidden_size, 2048);
    assert_eq!((config.rotary_dim, config.rope_theta), (64, 1e7));
    assert_eq!((config.vocab_size, config.vocab_used), (248_320, 248_077));
    assert_eq!(config.eos_token_ids, [248_044]);
    let attention: Vec<usize> =
        (0..40).filter(|&i| config.layer_types[i] == LayerKind::FullAttention).collect();
    assert_eq!(attention, [3, 7, 11, 15, 19, 23, 27, 31, 35, 39]);
    assert_eq!(config.conv_channels(), 8192);
    assert_eq!(config.row_format("language_model.model.layers.5.mlp.gate"), RowFormat::Q8);
    assert_eq!(config.row_format("model.layers.5.mlp.gate"), RowFormat::Q8);
    assert_eq!(config.row_format("lm_head"), RowFormat::Q4);
}

#[test]
fn fields_at_the_root_and_rope_beside_its_section_mean_the_same() {
    let nested = qwen36_mlx();
    let mut flat = nested["text_config"].clone();
    let fields = flat.as_object_mut().unwrap();
    fields.remove("rope_parameters");
    fields.remove("layer_types");
    fields.remove("full_attention_interval");
    fields.insert("rope_theta".into(), json!(1e7));
    fields.insert("partial_rotary_factor".into(), json!(0.25));
    fields.insert("rope_parameters".into(), json!({"type": "default"}));
    fields.insert("architectures".into(), nested["architectures"].clone());
    fields.insert("quantization".into(), nested["quantization"].clone());
    assert_eq!(parse_value(&flat).unwrap(), parse_value(&nested).unwrap());
}

#[test]
fn overrides_for_image_modules_and_unquantised_modules_are_understood() {
    let mut json = qwen36_mlx();
    let section = json!({
        "group_size": 64, "bits": 8,
        "vision_tower.blocks.0.attn.qkv": {"group_size": 32, "bits": 6},
        "model.layers.0.mlp.switch_mlp.up_proj": {"bits": 4},
        "lm_head": false,
    });
    json["quantization"] = section.clone();
    json["quantization_config"] = section;
    let config = parse_value(&json).unwrap();
    assert_eq!(config.row_format("model.layers.0.mlp.switch_mlp.up_proj"), RowFormat::Q4);
    assert_eq!(config.row_format("model.layers.1.mlp.switch_mlp.up_proj"), RowFormat::Q8);
    assert_eq!(config.row_format("lm_head"), RowFormat::Bf16);
}

#[test]
fn every_refusal_names_file_field_and_value() {
    let text = "/text_config";
    let cases: Vec<(&str, &str, Value, &str)> = vec![
        ("", "model_type", json!("qwen3_next"), "`model_type` = \"qwen3_next\""),
        (text, "model_type", json!("llama"), "`text_config.model_type` = \"llama\""),
        ("", "architectures", json!(["LlamaForCausalLM"]), "LlamaForCausalLM"),
        ("", "architectures", json!([]), "`architectures` = []"),
        (text, "norm_topk_prob", json!(false), "`norm_topk_prob` = false"),
        (text, "attn_output_gate", json!(false), "`attn_output_gate` = false"),
        (text, "attention_bias", json!(true), "`attention_bias` = true"),
        (text, "hidden_act", json!("gelu"), "`hidden_act` = \"gelu\""),
        (text, "mlp_only_layers", json!([1]), "`mlp_only_layers` = [1]"),
        (text, "shared_expert_intermediate_size", json!(1024), "same launch"),
        (text, "hidden_size", json!(0), "`hidden_size` = 0, need 1 to"),
        (text, "hidden_size", json!(2000), "`hidden_size` = 2000, need a multiple of 64"),
        (text, "hidden_size", json!(u64::MAX), "`hidden_size` = 18446744073709551615"),
        (text, "hidden_size", json!(-1), "`hidden_size` = -1, need a whole number"),
        (text, "hidden_size", Value::Null, "no field `hidden_size`"),
        (text, "num_key_value_heads", json!(3), "a divisor of `num_attention_heads` = 16"),
        (text, "linear_num_key_heads", json!(3), "a divisor of `linear_num_value_heads` = 32"),
        (text, "num_experts_per_tok", json!(300), "at most `num_experts` = 256"),
        (text, "layer_types", json!(["full_attention"]), "one for each of the 40 layers"),
        (text, "rope_parameters", json!({"rope_type": "yarn", "rope_theta": 1e7}), "\"yarn\""),
        (text, "rope_parameters", json!({}), "no field `rope_theta`"),
        (text, "rms_norm_eps", json!(0), "`rms_norm_eps` = 0"),
        (text, "eos_token_id", json!(248_320), "below `vocab_size`"),
        (text, "eos_token_id", json!("</s>"), "a token id or a list"),
        ("", "quantization", json!({"bits": 8, "group_size": 64}), "`quantization_config`"),
        ("", "quantization", json!({"group_size": 64}), "no field `quantization.bits`"),
        ("", "quantization", json!({"bits": 6}), "`quantization.bits` = 6"),
        ("", "quantization", json!({"bits": 4, "group_size": 32}), "group_size` = 32"),
        ("", "quantization", json!({"bits": 4, "mode": "mxfp4"}), "mode` = \"mxfp4\""),
        ("", "quantization_config", json!({"quant_method": "fp8"}), "quant_method` = \"fp8\""),
        (
            "",
            "quantization",
            json!({"bits": 4, "model.layers.2.mlp.gate": {"bits": 3}}),
            "`quantization.model.layers.2.mlp.gate.bits` = 3",
        ),
    ];
    for (place, field, value, expected) in cases {
        let mut json = qwen36_mlx();
        json.pointer_mut(place).unwrap()[field] = value;
        let message = parse_value(&json).unwrap_err().to_string();
        assert!(message.starts_with("`folder/config.json`: "), "{message}");
        assert!(message.contains(expected), "{field}: {message}");
    }
}

#[test]
fn absent_settings_take_the_family_values() {
    let mut json = qwen36_mlx();
    let text = json["text_config"].as_object_mut().unwrap();
    for field in ["attn_output_gate", "attention_bias", "hidden_act", "mtp_num_hidden_layers"] {
        text.remove(field);
    }
    text.insert("norm_topk_prob".into(), json!(true));
    let config = parse_value(&json).unwrap();
    assert_eq!(config.mtp_num_hidden_layers, 0);
    assert!(!config.tie_word_embeddings);
}

#[test]
fn text_that_is_not_json_is_an_error() {
    for text in ["", "{", "[]", "null", "{\"text_config\": 3}", "\u{feff}{}"] {
        assert!(Config::from_json(text, "c").is_err(), "{text}");
    }
}
