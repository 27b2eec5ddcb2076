//! Broken and unsupported checkpoints are refused with the file and the tensor at fault.

#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, unreachable_pub)]
mod fixture;

use fixture::{Model, Tensor, refusal, shard_name, single, write_file, write_index};
use lily_model::Checkpoint;
use serde_json::{Map, Value, json};

const GDN: &str = "language_model.model.layers.0.linear_attn.";

/// Adds scales next to a tensor.
fn with_scales(model: &mut Model, module: &str) -> String {
    let name = format!("{module}.scales");
    model.tensors.push(Tensor::zeros(&name, "BF16", &[2, 1]));
    name
}

#[test]
fn tensors_that_do_not_fit_are_named_with_their_file() {
    type Spoil = fn(&mut Model) -> String;
    let cases: Vec<(&str, Spoil, &str)> = vec![
        (
            "wrong rows",
            |m| {
                let name = format!("{GDN}out_proj.weight");
                *m.tensor(&name) = Tensor::zeros(&name, "U32", &[32, 8]);
                name
            },
            "shape [32, 8], need [64, 8]",
        ),
        (
            "wrong norm shape",
            |m| {
                let name = "language_model.model.norm.weight";
                *m.tensor(name) = Tensor::zeros(name, "BF16", &[63]);
                name.into()
            },
            "shape [63], need [64]",
        ),
        (
            "wrong convolution shape",
            |m| {
                let name = format!("{GDN}conv1d.weight");
                *m.tensor(&name) = Tensor::zeros(&name, "BF16", &[128, 2, 2]);
                name
            },
            "shape [128, 2, 2], need [128, 4, 1]",
        ),
        (
            "wrong matrix type",
            |m| {
                let name = format!("{GDN}out_proj.weight");
                *m.tensor(&name) = Tensor::zeros(&name, "F8_E4M3", &[64, 64]);
                name
            },
            "type F8_E4M3, need U32",
        ),
        (
            "wrong norm type",
            |m| {
                let name = format!("{GDN}norm.weight");
                *m.tensor(&name) = Tensor::zeros(&name, "U32", &[32]);
                name
            },
            "type U32, need BF16, F16 or F32",
        ),
        ("quantised A_log", |m| with_scales(m, &format!("{GDN}A_log")), "must stay in floating"),
        ("quantised dt_bias", |m| with_scales(m, &format!("{GDN}dt_bias")), "must stay"),
        ("quantised convolution", |m| with_scales(m, &format!("{GDN}conv1d")), "must stay"),
        ("quantised inner norm", |m| with_scales(m, &format!("{GDN}norm")), "must stay"),
        (
            "quantised final norm",
            |m| with_scales(m, "language_model.model.norm"),
            "must stay in floating",
        ),
        (
            "quantised key norm",
            |m| with_scales(m, "language_model.model.layers.3.self_attn.k_norm"),
            "must stay in floating",
        ),
        (
            "6 bits",
            |m| {
                let name = format!("{GDN}out_proj.weight");
                *m.tensor(&name) = Tensor::zeros(&name, "U32", &[64, 12]);
                name
            },
            "quantised with 6 bits, need 4 or 8 bits",
        ),
        (
            "no rows and absurdly many columns",
            |m| {
                let name = format!("{GDN}out_proj.weight");
                *m.tensor(&name) = Tensor::zeros(&name, "U32", &[0, 1 << 62]);
                name
            },
            "need [64, 8]",
        ),
        (
            "group 32",
            |m| {
                let name = format!("{GDN}out_proj.scales");
                *m.tensor(&name) = Tensor::zeros(&name, "BF16", &[64, 2]);
                name
            },
            "groups of 32, need groups of 64",
        ),
        (
            "scales of an fp4 mode",
            |m| {
                let name = format!("{GDN}out_proj.scales");
                *m.tensor(&name) = Tensor::zeros(&name, "U8", &[64, 2]);
                name
            },
            "fp4 or fp8 mode",
        ),
        (
            "half scales",
            |m| {
                let name = format!("{GDN}out_proj.biases");
                *m.tensor(&name) = Tensor::zeros(&name, "F16", &[64, 1]);
                name
            },
            "type F16, need BF16",
        ),
        (
            "an 8-bit gate stored with 4 bits",
            |m| {
                let name = "language_model.model.layers.1.mlp.gate.weight";
                *m.tensor(name) = Tensor::zeros(name, "U32", &[4, 8]);
                name.into()
            },
            "stored as q4, but `config.json` has q8 for `model.layers.1.mlp.gate`",
        ),
        (
            "scales of a plain matrix",
            |m| {
                let name = format!("{GDN}in_proj_z.weight");
                *m.tensor(&name) = Tensor::zeros(&name, "BF16", &[64, 64]);
                format!("{GDN}in_proj_z.scales")
            },
            "but `language_model.model.layers.0.linear_attn.in_proj_z.weight` is of type BF16",
        ),
        (
            "unknown tensor",
            |m| {
                let name = "language_model.model.layers.4.input_layernorm.weight";
                m.tensors.push(Tensor::zeros(name, "BF16", &[64]));
                name.into()
            },
            "not part of Qwen3_5MoeForConditionalGeneration",
        ),
        (
            "additive bias",
            |m| {
                let name = "language_model.model.layers.3.self_attn.q_proj.bias";
                m.tensors.push(Tensor::zeros(name, "BF16", &[256]));
                name.into()
            },
            "not part of",
        ),
        (
            "missing experts",
            |m| {
                let name = "language_model.model.layers.2.mlp.switch_mlp.up_proj.weight";
                m.tensors.retain(|tensor| tensor.name != name);
                name.into()
            },
            "accepted are MLX names",
        ),
        (
            "missing scales",
            |m| {
                let name = "language_model.lm_head.scales";
                m.tensors.retain(|tensor| tensor.name != name);
                name.into()
            },
            "lacks tensor",
        ),
        (
            "the same tensor under two prefixes",
            |m| {
                m.tensors.push(Tensor::zeros("model.norm.weight", "BF16", &[64]));
                "model.norm.weight".into()
            },
            "again after `language_model.model.norm.weight`",
        ),
        (
            "NaN",
            |m| {
                let name = format!("{GDN}dt_bias");
                m.tensor(&name).data[2..4].copy_from_slice(&[0xc0, 0x7f]);
                name
            },
            "has NaN at element 1",
        ),
    ];
    for (what, spoil, expected) in cases {
        let mut model = Model::quantised();
        let tensor = spoil(&mut model);
        let folder = model.write();
        let message = refusal(folder.path());
        let file = single(&folder).display().to_string();
        assert!(message.contains(&file), "{what}: no file in: {message}");
        assert!(message.contains(&format!("`{tensor}`")), "{what}: no tensor in: {message}");
        assert!(message.contains(expected), "{what}: {message}");
    }
}

#[test]
fn configurations_that_are_not_supported_are_refused_before_any_weight_file_is_read() {
    for (pointer, value, expected) in [
        ("/model_type", json!("deepseek_v4"), "`model_type` = \"deepseek_v4\""),
        ("/architectures", json!(["Qwen3NextForCausalLM"]), "Qwen3NextForCausalLM"),
        ("/quantization/mode", json!("mxfp4"), "`quantization.mode` = \"mxfp4\""),
        ("/quantization/bits", json!(3), "`quantization.bits` = 3"),
        ("/quantization/group_size", json!(32), "`quantization.group_size` = 32"),
    ] {
        let mut model = Model::quantised();
        *model.config.pointer_mut(pointer).unwrap() = value;
        let folder = model.write();
        std::fs::remove_file(single(&folder)).unwrap();
        let message = refusal(folder.path());
        assert!(message.contains("config.json"), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn an_interrupted_download_is_refused_and_names_the_shard() {
    let folder = Model::quantised().write_sharded();
    let shard = folder.path().join(shard_name(1));
    let whole = std::fs::read(&shard).unwrap();
    let name = shard.display().to_string();

    std::fs::write(&shard, &whole[..whole.len() * 6 / 10]).unwrap();
    let message = refusal(folder.path());
    assert!(message.contains(&name) && message.contains("cut short"), "{message}");
    assert!(message.contains("tensor `language_model.model."), "{message}");

    for byte in 0..8 {
        let mut changed = whole.clone();
        changed[byte] ^= 1;
        std::fs::write(&shard, &changed).unwrap();
        let message = refusal(folder.path());
        assert!(message.contains(&name), "byte {byte}: {message}");
    }

    std::fs::remove_file(&shard).unwrap();
    let message = refusal(folder.path());
    assert!(message.contains(&name) && message.contains("is missing"), "{message}");
    assert!(message.contains("tensor `language_model.model."), "{message}");
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let model = Model::quantised();
    let read_map = |folder: &std::path::Path| -> Map<String, Value> {
        let text = std::fs::read_to_string(folder.join("model.safetensors.index.json")).unwrap();
        let root: Value = serde_json::from_str(&text).unwrap();
        root["weight_map"].as_object().unwrap().clone()
    };
    let norm = "language_model.model.norm.weight";
    type Change = Box<dyn Fn(&mut Map<String, Value>)>;
    let cases: Vec<(&str, Change, String, &str)> = vec![
        (
            "in another shard",
            Box::new(move |map| drop(map.insert(norm.into(), json!(shard_name(0))))),
            // The shard that is said to hold it is read first.
            shard_name(0),
            "does not hold tensor `language_model.model.norm.weight`",
        ),
        (
            "not in the index",
            Box::new(move |map| drop(map.remove(norm))),
            shard_name(2),
            "holds tensor `language_model.model.norm.weight`, but the index has it nowhere",
        ),
        (
            "in the index only",
            Box::new(|map| drop(map.insert("language_model.x".into(), json!(shard_name(1))))),
            shard_name(1),
            "does not hold tensor `language_model.x`",
        ),
        (
            "a path",
            Box::new(|map| drop(map.insert("language_model.x".into(), json!("../x.safetensors")))),
            "model.safetensors.index.json".into(),
            "tensor `language_model.x` is in \"../x.safetensors\"",
        ),
        (
            "a shard left out",
            Box::new(|map| map.retain(|_, shard| *shard != json!(shard_name(2)))),
            shard_name(2),
            "not named in the index",
        ),
        ("empty", Box::new(Map::clear), "model.safetensors.index.json".into(), "is empty"),
    ];
    for (what, change, file, expected) in cases {
        let folder = model.write_sharded();
        let mut map = read_map(folder.path());
        change(&mut map);
        write_index(folder.path(), &map);
        let message = refusal(folder.path());
        assert!(message.contains(&file), "{what}: {message}");
        assert!(message.contains(expected), "{what}: {message}");
    }

    // A tensor in two shards: the one that the index does not name is at fault.
    let folder = model.write_sharded();
    let second = model.tensors[0].clone();
    let extra = folder.path().join(shard_name(2));
    let third: Vec<&Tensor> =
        model.tensors.chunks(model.tensors.len().div_ceil(3)).nth(2).unwrap().iter().collect();
    write_file(&extra, &third.into_iter().chain([&second]).collect::<Vec<_>>());
    let message = refusal(folder.path());
    assert!(message.contains(&second.name) && message.contains(&shard_name(0)), "{message}");
}

#[test]
fn a_folder_without_weights_and_broken_indexes_are_refused() {
    let folder = Model::quantised().write();
    std::fs::remove_file(single(&folder)).unwrap();
    assert!(refusal(folder.path()).contains("holds neither"));
    for text in ["", "{}", r#"{"weight_map": []}"#, r#"{"weight_map": {"a": 1}}"#] {
        std::fs::write(folder.path().join("model.safetensors.index.json"), text).unwrap();
        let message = refusal(folder.path());
        assert!(message.contains("model.safetensors.index.json"), "{message}");
    }
    assert!(refusal(&folder.path().join("absent")).contains("config.json"));
}

#[test]
fn norms_that_were_shifted_twice_or_never_are_refused_in_words() {
    let shifted = |mut model: Model, by: f32| {
        for tensor in &mut model.tensors {
            if tensor.name.ends_with("norm.weight") && !tensor.name.contains("linear_attn") {
                tensor.map_bf16(|w| (w * 128.0).round() / 128.0 + by);
            }
        }
        refusal(model.write().path())
    };
    // Coarser numbers stay exact when 1 is added.
    let coarse = |mut model: Model| {
        for tensor in &mut model.tensors {
            if tensor.name.ends_with("norm.weight") {
                let half = |w: f32| (w * 8.0).floor() / 8.0;
                for pair in tensor.data.chunks_mut(2) {
                    let w = half::bf16::from_le_bytes([pair[0], pair[1]]).to_f32();
                    pair.copy_from_slice(&half::bf16::from_f32(half(w)).to_le_bytes());
                }
            }
        }
        model
    };
    let twice = shifted(coarse(Model::plain()), 1.0);
    assert!(twice.contains("added 1 to the norms twice"), "{twice}");
    assert!(twice.contains("input_layernorm.weight` and its like"), "{twice}");
    let never = shifted(coarse(Model::plain()), -1.0);
    assert!(never.contains("still lack their shift by 1"), "{never}");
    let already = shifted(coarse(Model::original()), 1.0);
    assert!(already.contains("1 was already added to the norms"), "{already}");
}

#[test]
fn a_changed_byte_anywhere_in_a_header_never_panics() {
    let folder = Model::quantised().write();
    let file = single(&folder);
    let mut whole = std::fs::read(&file).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let (mut refused, mut opened) = (0, 0);
    // A prime step visits every part of an entry: names, types, shapes and offsets.
    for at in (8..8 + length).step_by(31) {
        for value in [b'9', b'0', b'"', b','] {
            let old = std::mem::replace(&mut whole[at], value);
            // Written anew each time: the file of an earlier mapping must not change under it.
            std::fs::remove_file(&file).unwrap();
            std::fs::write(&file, &whole).unwrap();
            match Checkpoint::open(folder.path()) {
                Ok(checkpoint) => {
                    checkpoint.weights().unwrap();
                    opened += 1;
                }
                Err(e) => {
                    assert!(e.to_string().contains("model.safetensors"), "{e}");
                    refused += 1;
                }
            }
            whole[at] = old;
        }
    }
    assert!(refused > 1000, "{refused} refused, {opened} opened");
}
