//! Supported forms of a checkpoint give the same weights.

#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, unreachable_pub)]
mod fixture;

use std::path::{Path, PathBuf};

use fixture::{Model, Tensor, numbers, single};
use lily_model::{Checkpoint, Inspection, Layout, TensorSpec, mlx_tensors};
use lily_plan::{RowFormat, Weight};
use serde_json::json;

#[test]
fn the_layout_is_decided_by_the_convolution_and_never_by_a_prediction_head() {
    let reference = numbers(Model::plain().write().path());
    for (model, layout) in [
        (Model::plain().with_mtp(), Layout::Mlx),
        (Model::original(), Layout::Original),
        (Model::original().with_mtp(), Layout::Original),
        (Model::original_per_expert(), Layout::Original),
    ] {
        let mtp = model.tensors.iter().any(|t| t.name.starts_with("mtp."));
        let folder = model.write();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.layout(), layout);
        assert_eq!(checkpoint.aside().contains_key("multi-token prediction head"), mtp);
        assert_eq!(numbers(folder.path()), reference);
    }
}

#[test]
fn every_weight_of_the_plan_is_there_with_its_shape() {
    let shapes: Vec<(String, Vec<usize>)> = numbers(Model::quantised().write().path())
        .into_iter()
        .map(|(name, shape, values)| {
            (name, if shape.is_empty() { vec![values.len()] } else { shape })
        })
        .collect();
    let mut expected: Vec<(String, Vec<usize>)> = vec![
        ("embed_tokens".into(), vec![1, 128, 64]),
        ("lm_head".into(), vec![1, 128, 64]),
        ("final_norm".into(), vec![64]),
    ];
    for i in 0..4 {
        let mut layer = |name: &str, shape: &[usize]| {
            expected.push((format!("layers.{i}.{name}"), shape.to_vec()));
        };
        layer("input_norm", &[64]);
        layer("post_norm", &[64]);
        layer("router", &[1, 5, 64]);
        layer("gate_up", &[5, 128, 64]);
        layer("down", &[5, 64, 64]);
        if i == 3 {
            layer("attn_in", &[1, 256 + 64 + 64, 64]);
            layer("attn_out", &[1, 64, 128]);
            layer("q_norm", &[64]);
            layer("k_norm", &[64]);
        } else {
            layer("gdn_in", &[1, 128 + 64 + 2 + 2, 64]);
            layer("gdn_out", &[1, 64, 64]);
            layer("conv1d", &[128 * 4]);
            layer("A_log", &[2]);
            layer("dt_bias", &[2]);
            layer("gdn_norm", &[32]);
        }
    }
    expected.sort();
    assert_eq!(shapes, expected);
}

/// Row `row` of a stored bfloat16 tensor whose rows are 64 long.
fn stored_row(model: &mut Model, name: &str, row: usize) -> Vec<f32> {
    let name = format!("language_model.model.layers.{name}");
    let data = &model.tensor(&name).data[row * 128..(row + 1) * 128];
    let value = |pair: &[u8]| half::bf16::from_le_bytes([pair[0], pair[1]]).to_f32();
    data.chunks(2).map(value).collect()
}

#[test]
fn fused_matrices_take_their_rows_in_the_documented_order() {
    let mut model = Model::plain();
    let folder = model.write();
    let weights = Checkpoint::open(folder.path()).unwrap().weights().unwrap();
    let row = |weight: &str, expert: usize, row: usize| {
        let Weight::Matrix(matrix) = &weights[weight] else { panic!("{weight} is no matrix") };
        let mut out = vec![0.0; matrix.k()];
        matrix.row(expert, row).dequantise(&mut out);
        out
    };
    for (weight, expert, at, stored, stored_at) in [
        // Gate and up rows alternate; the shared expert comes last.
        ("layers.0.gate_up", 2, 0, "0.mlp.switch_mlp.gate_proj.weight", 2 * 64),
        ("layers.0.gate_up", 2, 1, "0.mlp.switch_mlp.up_proj.weight", 2 * 64),
        ("layers.0.gate_up", 3, 127, "0.mlp.switch_mlp.up_proj.weight", 3 * 64 + 63),
        ("layers.0.gate_up", 4, 10, "0.mlp.shared_expert.gate_proj.weight", 5),
        ("layers.0.gate_up", 4, 11, "0.mlp.shared_expert.up_proj.weight", 5),
        ("layers.1.down", 1, 7, "1.mlp.switch_mlp.down_proj.weight", 64 + 7),
        ("layers.1.down", 4, 7, "1.mlp.shared_expert.down_proj.weight", 7),
        ("layers.1.router", 0, 3, "1.mlp.gate.weight", 3),
        ("layers.1.router", 0, 4, "1.mlp.shared_expert_gate.weight", 0),
        ("layers.2.gdn_in", 0, 127, "2.linear_attn.in_proj_qkv.weight", 127),
        ("layers.2.gdn_in", 0, 128, "2.linear_attn.in_proj_z.weight", 0),
        ("layers.2.gdn_in", 0, 192, "2.linear_attn.in_proj_b.weight", 0),
        ("layers.2.gdn_in", 0, 195, "2.linear_attn.in_proj_a.weight", 1),
        ("layers.3.attn_in", 0, 255, "3.self_attn.q_proj.weight", 255),
        ("layers.3.attn_in", 0, 256, "3.self_attn.k_proj.weight", 0),
        ("layers.3.attn_in", 0, 383, "3.self_attn.v_proj.weight", 63),
    ] {
        let expected = stored_row(&mut model, stored, stored_at);
        assert_eq!(row(weight, expert, at), expected, "{weight} expert {expert} row {at}");
    }
}

#[test]
fn shards_and_a_single_file_give_the_same_weights() {
    let model = Model::quantised();
    let (one, three) = (model.write(), model.write_sharded());
    assert_eq!(numbers(one.path()), numbers(three.path()));
    assert_eq!(Checkpoint::open(three.path()).unwrap().files().len(), 3);
}

#[test]
fn every_text_prefix_is_understood() {
    let reference = numbers(Model::quantised().write().path());
    for prefix in ["", "model."] {
        let mut model = Model::quantised();
        for tensor in &mut model.tensors {
            let bare = tensor.name.strip_prefix("language_model.").unwrap();
            tensor.name = match bare.strip_prefix("model.") {
                Some(rest) if prefix == "model." => format!("model.language_model.{rest}"),
                _ => bare.into(),
            };
        }
        assert_eq!(numbers(model.write().path()), reference, "{prefix}");
    }
}

#[test]
fn widths_are_read_from_shapes_tensor_by_tensor() {
    // As some repositories do: 8 bits by default, single modules in 4.
    let mut config = Model::plain().config;
    let coarse = "language_model.model.layers.0.mlp.switch_mlp.up_proj";
    config["quantization"] = json!({"group_size": 64, "bits": 8, coarse: {"bits": 4}});
    let model = Model::filled(config);
    let formats = |model: &Model| -> Vec<RowFormat> {
        let folder = model.write();
        let weights = Checkpoint::open(folder.path()).unwrap().weights().unwrap();
        let Weight::Matrix(m) = &weights["layers.0.gate_up"] else { panic!("no matrix") };
        m.segments().iter().map(|s| s.format).collect()
    };
    let mixed = [RowFormat::Q8, RowFormat::Q4, RowFormat::Q8, RowFormat::Q8];
    assert_eq!(formats(&model), mixed);
    // A default that does not say so gives way to the shapes; so does an unquantised matrix.
    let mut silent = model.clone();
    silent.config["quantization"] = json!({"group_size": 64, "bits": 4});
    assert_eq!(formats(&silent), mixed);
    let shared = "language_model.model.layers.0.mlp.shared_expert.up_proj";
    silent.tensors.retain(|t| !t.name.starts_with(shared));
    silent.tensors.push(Tensor::zeros(&format!("{shared}.weight"), "F16", &[64, 64]));
    assert_eq!(formats(&silent)[3], RowFormat::F16);
}

#[test]
fn coarse_gates_and_foreign_files_are_warned_about() {
    let folder = Model::quantised().write();
    assert!(Checkpoint::open(folder.path()).unwrap().warnings().is_empty());
    let mut config = Model::plain().config;
    config["quantization"] = json!({"group_size": 64, "bits": 4});
    let folder = Model::filled(config).write();
    std::fs::write(folder.path().join("adapter.safetensors"), b"").unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let warnings = checkpoint.warnings().join("\n");
    assert!(warnings.contains("8 router and shared-expert gate matrices"), "{warnings}");
    assert!(warnings.contains("are not read: adapter.safetensors"), "{warnings}");
}

#[test]
fn a_tied_head_serves_the_embedding_table() {
    let mut config = Model::quantised().config;
    config["tie_word_embeddings"] = json!(true);
    let mut model = Model::filled(config);
    assert!(model.tensors.iter().all(|t| !t.name.contains("lm_head")));
    let values = numbers(model.write().path());
    let find = |name: &str| values.iter().find(|v| v.0 == name).unwrap().2.clone();
    assert_eq!(find("lm_head"), find("embed_tokens"));
    model.tensors.push(Tensor::zeros("language_model.lm_head.weight", "BF16", &[128, 64]));
    let folder = model.write();
    assert!(Checkpoint::open(folder.path()).unwrap().aside().contains_key("tied output head"));
}

#[test]
fn an_inspection_reports_classes_leftovers_and_errors() {
    let mut model = Model::quantised().with_mtp();
    model.tensors.push(Tensor::zeros("vision_tower.patch_embed.proj.weight", "BF16", &[4, 4]));
    for (part, dtype, shape) in
        [("weight", "U32", [2, 8]), ("scales", "BF16", [2, 1]), ("biases", "BF16", [2, 1])]
    {
        model.tensors.push(Tensor::zeros(&format!("vision_tower.fc.{part}"), dtype, &shape));
    }
    let folder = model.write();
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [126, 127]}"#)
        .unwrap();
    let found = Inspection::of(folder.path());
    assert_eq!(found.error, None);
    assert!(found.supported);
    let config = lily_model::Config::read(folder.path()).unwrap();
    let specs = mlx_tensors(&config);
    assert_eq!(found.tensors, specs.len());
    assert_eq!(found.bytes, specs.iter().map(TensorSpec::bytes).sum::<u64>());
    assert_eq!(found.stop_tokens, [126, 127]);
    let images = found.aside["image encoder"];
    assert_eq!((images.tensors, images.bytes), (4, 32 + 64 + 4 + 4));
    // Of a quantised matrix those that its groups hold.
    assert_eq!(images.parameters, 4 * 4 + 2 * 64);
    let more = images.parameters + found.aside["multi-token prediction head"].parameters;
    assert_eq!(more, 144 + 64 * 128);
    assert!(found.to_string().contains(", and 8,336 more that are left aside\n"), "{found}");
    let experts = found.classes.iter().find(|c| c.class == "routed experts").unwrap();
    assert_eq!((experts.tensors, experts.formats.as_slice()), (36, ["q4"].as_slice()));
    let router = found.classes.iter().find(|c| c.class == "router").unwrap();
    assert_eq!((router.tensors, router.formats.as_slice()), (12, ["q8"].as_slice()));
    let text = found.to_string();
    assert!(text.contains("supported     yes") && text.contains("image encoder"), "{text}");
    assert_eq!(serde_json::to_value(&found).unwrap()["layout"], "mlx");

    std::fs::remove_file(single(&folder)).unwrap();
    let broken = Inspection::of(folder.path());
    assert!(!broken.supported);
    assert_eq!(broken.context_tokens, Some(1024));
    assert!(broken.to_string().contains("supported     no: "), "{broken}");
}

#[test]
fn the_golden_checkpoint_opens() {
    // Written by MLX's own converter: named by LILY_GOLDEN, or among the repository's golden data.
    let inside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/heads");
    let folder = std::env::var_os("LILY_GOLDEN").map_or(inside, PathBuf::from);
    if std::env::var_os("LILY_GOLDEN").is_none() && !folder.join("model.safetensors").exists() {
        println!("skipped: no golden checkpoint, set LILY_GOLDEN to its folder");
        return;
    }
    let checkpoint = Checkpoint::open(&folder).unwrap();
    assert_eq!(checkpoint.layout(), Layout::Mlx);
    assert_eq!(checkpoint.warnings().iter().filter(|w| w.contains("router")).count(), 0);
    let weights = checkpoint.weights().unwrap();
    assert_eq!(weights.len(), 3 + 6 * 11 + 2 * 9);
    let expected: Vec<TensorSpec> = mlx_tensors(checkpoint.config());
    let found = checkpoint.classes();
    assert_eq!(found.iter().map(|c| c.tensors).sum::<usize>(), expected.len());
    let bytes: u64 = expected.iter().map(TensorSpec::bytes).sum();
    assert_eq!(found.iter().map(|c| c.bytes).sum::<u64>(), bytes);
    let matrices: u64 = weights
        .values()
        .map(|weight| match weight {
            Weight::Matrix(matrix) => matrix.total_bytes(),
            Weight::Vector(_) => 0,
        })
        .sum();
    assert!(matrices < bytes && matrices > bytes * 9 / 10, "{matrices} of {bytes}");
}
