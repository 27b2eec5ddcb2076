use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use lily_plan::{GROUP, RowFormat, RowSegment, Weight, WeightMatrix};
use serde_json::{Value, json};

use super::folder::{Claim, MARKER};
use super::plan::plan_with_shards;
use super::values::Values;
use super::writer::write_plan;
use super::*;
use crate::config::Config;
use crate::generation::{GenerationDefaults, stop_tokens};
use crate::weights::{Checkpoint, Layout, TensorSpec, mlx_tensors};

fn tiny(out: &Path, seed: u64) -> SynthOptions {
    SynthOptions { seed, ..SynthOptions::new(preset("tiny").unwrap(), out) }
}

fn write_quietly(options: &SynthOptions) -> Result<SynthReport, SynthError> {
    write(options, &mut |_| ())
}

fn parsed(config: &Value) -> Config {
    Config::from_json(&presets::complete(config).to_string(), "config.json").unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Header and data of a safetensors file.
fn read(path: &Path) -> (Value, Bytes) {
    let bytes = Bytes::from(fs::read(path).unwrap());
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes.slice(8 + length..))
}

fn data(header: &Value, data: &Bytes, name: &str) -> Bytes {
    let at = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize;
    data.slice(at(0)..at(1))
}

/// The bytes of one tensor, made without a file.
fn make(config: &Config, name: &str) -> Bytes {
    let spec = mlx_tensors(config).into_iter().find(|spec| spec.name == name).unwrap();
    let mut bytes = vec![0; spec.bytes() as usize];
    Values::new(config, &spec, 0).unwrap().fill(0, &mut bytes);
    bytes.into()
}

fn mean_sd(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let squares = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    (mean, squares.sqrt())
}

/// Weights of a quantised matrix as the engine reads them.
fn weights(config: &Config, path: &str, rows: usize, k: usize) -> Vec<f32> {
    let part = |part: &str| make(config, &format!("language_model.{path}.{part}"));
    let format = config.row_format(path);
    assert!(format.is_quantised());
    let segment =
        RowSegment::whole(path, format, rows, part("weight"), part("scales"), part("biases"));
    let matrix = WeightMatrix::new(1, rows, k, vec![segment]).unwrap();
    let mut all = vec![0.0; rows * k];
    all.chunks_mut(k).enumerate().for_each(|(row, out)| matrix.row(0, row).dequantise(out));
    all
}

#[test]
fn a_written_checkpoint_holds_every_tensor_of_the_model_and_says_how_it_is_quantised() {
    let folder = tempfile::tempdir().unwrap();
    let options = tiny(folder.path(), 3);
    let mut last = (0, 0);
    let report = write(&options, &mut |p| {
        assert!(p.bytes_done > last.0 && p.file == "model.safetensors");
        last = (p.bytes_done, p.bytes_total);
    })
    .unwrap();
    let tensors = mlx_tensors(&parsed(&options.config));
    assert_eq!(last, (report.bytes, report.bytes));
    assert_eq!((report.files, report.tensors, report.reused), (1, tensors.len(), false));
    assert_eq!(
        names(folder.path()),
        ["config.json", "generation_config.json", "model.safetensors", MARKER]
    );
    let (header, data) = read(&folder.path().join("model.safetensors"));
    assert_eq!(header["__metadata__"], json!({ "format": "mlx" }));
    assert_eq!(header.as_object().unwrap().len(), tensors.len() + 1);
    let mut end = 0;
    for TensorSpec { name, shape, dtype } in &tensors {
        let entry = &header[name];
        assert_eq!((&entry["dtype"], &entry["shape"]), (&json!(dtype.name()), &json!(shape)));
        assert_eq!(entry["data_offsets"][0], end);
        end = entry["data_offsets"][1].as_u64().unwrap();
    }
    assert_eq!(data.len() as u64, end);
    let config = Config::read(folder.path()).unwrap();
    assert_eq!(config.row_format("model.layers.1.mlp.gate"), RowFormat::Q8);
    assert_eq!(config.row_format("model.layers.1.mlp.switch_mlp.up_proj"), RowFormat::Q4);
}

#[test]
fn shards_hold_the_same_bytes_as_one_file_and_the_index_finds_them() {
    let (one, many) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_quietly(&tiny(one.path(), 5)).unwrap();
    let options = tiny(many.path(), 5);
    let plan = plan_with_shards(&options.config, 5, 200_000).unwrap();
    write_plan(&options, &plan, &mut |_| ()).unwrap();
    assert!(plan.shards.len() > 2);
    let index = fs::read(many.path().join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], plan.tensor_bytes());
    let (header, all) = read(&one.path().join("model.safetensors"));
    for TensorSpec { name, .. } in mlx_tensors(&parsed(&options.config)) {
        let file = index["weight_map"][&name].as_str().unwrap();
        let (part_header, part) = read(&many.path().join(file));
        assert_eq!(data(&part_header, &part, &name), data(&header, &all, &name), "{name}");
    }
}

#[test]
fn written_checkpoints_open_complete_and_without_warnings() {
    for shard_bytes in [u64::MAX, 200_000] {
        let folder = tempfile::tempdir().unwrap();
        let options = tiny(folder.path(), 0);
        let plan = plan_with_shards(&options.config, 0, shard_bytes).unwrap();
        write_plan(&options, &plan, &mut |_| ()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.layout(), Layout::Mlx);
        assert_eq!(checkpoint.warnings(), [""; 0]);
        assert_eq!(checkpoint.files().len(), plan.shards.len());
        let weights = checkpoint.weights().unwrap();
        assert!(weights.values().any(|weight| matches!(weight, Weight::Matrix(_))));
        assert_eq!(stop_tokens(folder.path(), checkpoint.config()).unwrap(), [511]);
        let defaults = GenerationDefaults::read(folder.path()).unwrap();
        assert_eq!((defaults.top_k, defaults.top_p), (Some(20), Some(0.95)));
    }
}

#[test]
fn a_seed_gives_the_same_bytes_for_ever_and_another_seed_gives_others() {
    let bytes = |seed: u64| {
        let folder = tempfile::tempdir().unwrap();
        write_quietly(&tiny(folder.path(), seed)).unwrap();
        fs::read(folder.path().join("model.safetensors")).unwrap()
    };
    let first = bytes(1);
    assert_eq!(first, bytes(1));
    let other = bytes(2);
    let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(same < first.len() / 8, "{same} of {} bytes agree", first.len());
    // Whoever changes the values must raise the recipe number, so that old folders are not reused.
    let header = u64::from_le_bytes(first[..8].try_into().unwrap()) as usize;
    let checksum = first[8 + header..].iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    assert_eq!(checksum, 0x19CB_4A2E_BE42_06C3, "{checksum:#x}");
}

#[test]
fn any_part_of_a_tensor_can_be_made_alone() {
    let config = parsed(&preset("tiny").unwrap());
    for spec in mlx_tensors(&config) {
        let values = Values::new(&config, &spec, 9).unwrap();
        let mut whole = vec![0; spec.bytes() as usize];
        values.fill(0, &mut whole);
        let middle = whole.len() / 2 / 8 * 8;
        let mut rest = vec![0; whole.len() - middle];
        values.fill(middle as u64, &mut rest);
        assert_eq!(rest, whole[middle..], "{}", spec.name);
    }
}

#[test]
fn quantised_weights_have_mean_zero_and_the_standard_deviation_of_their_gain() {
    let config = parsed(&preset("qwen3.6-35b-a3b").unwrap());
    let depth = (8.0_f64 / 40.0).sqrt();
    for (path, rows, k, gain) in [
        ("model.layers.0.linear_attn.in_proj_z", 4096, 2048, 1.0),
        ("model.layers.0.linear_attn.out_proj", 2048, 4096, 0.5 * depth),
        ("model.layers.3.self_attn.o_proj", 2048, 4096, depth),
        ("model.layers.5.mlp.gate", 256, 2048, 4.0),
        ("model.layers.5.mlp.shared_expert.down_proj", 2048, 512, 0.75 * depth),
    ] {
        let weights = weights(&config, path, rows, k);
        let (mean, sd) = mean_sd(&weights);
        let wanted = gain / (k as f64).sqrt();
        assert!(mean.abs() < 0.005 * wanted, "{path}: mean {mean}, need 0");
        assert!((sd / wanted - 1.0).abs() < 0.005, "{path}: deviation {sd}, need {wanted}");
    }
}

#[test]
fn a_third_of_the_scales_is_negative_and_biases_are_not_tied_to_scales() {
    let config = parsed(&preset("qwen3.6-35b-a3b").unwrap());
    let path = "language_model.model.layers.2.mlp.shared_expert.up_proj";
    let floats = |part: &str| -> Vec<f32> {
        let bytes = make(&config, &format!("{path}.{part}"));
        let pairs = bytes.as_chunks::<2>().0.iter();
        pairs.map(|&pair| half::bf16::from_le_bytes(pair).to_f32()).collect()
    };
    let (scales, biases) = (floats("scales"), floats("biases"));
    assert_eq!(scales.len(), 512 * 2048 / GROUP);
    let negative = scales.iter().filter(|&&s| s < 0.0).count() as f64 / scales.len() as f64;
    assert!((negative - 1.0 / 3.0).abs() < 0.02, "{negative}");
    let sizes: Vec<f32> = scales.iter().map(|s| s.abs()).collect();
    let (mean, sd) = mean_sd(&sizes);
    assert!((sd / mean - 0.115).abs() < 0.01, "scales vary by {}", sd / mean);
    let zeros: Vec<f32> = biases.iter().zip(&scales).map(|(b, s)| -b / s).collect();
    let (mean, sd) = mean_sd(&zeros);
    assert!((mean - 7.5).abs() < 0.02 && (sd - 0.289).abs() < 0.02, "{mean} {sd}");
}

#[test]
fn unquantised_tensors_follow_their_laws() {
    let config = parsed(&preset("qwen3.6-35b-a3b").unwrap());
    let layer = "language_model.model.layers.";
    let bf16 = |name: &str| -> Vec<f32> {
        let bytes = make(&config, &format!("{layer}{name}"));
        let pairs = bytes.as_chunks::<2>().0.iter();
        pairs.map(|&pair| half::bf16::from_le_bytes(pair).to_f32()).collect()
    };
    for (name, mean, sd) in [
        ("0.input_layernorm.weight", 1.0, 0.15),
        ("0.linear_attn.norm.weight", 1.0, 0.15),
        ("0.linear_attn.conv1d.weight", 0.0, 0.6),
        ("3.self_attn.k_norm.weight", 1.3, 0.15),
    ] {
        let values = bf16(name);
        let found = mean_sd(&values);
        // Four standard errors.
        let slack = 4.0 * sd / (values.len() as f64).sqrt();
        assert!((found.0 - mean).abs() < slack && (found.1 - sd).abs() < slack, "{name} {found:?}");
    }
    let decays: Vec<f32> =
        (make(&config, &format!("{layer}0.linear_attn.A_log")).as_chunks::<4>().0)
            .iter()
            .map(|&quad| f32::from_le_bytes(quad).exp())
            .collect();
    assert!(decays.len() == 32 && decays.iter().all(|d| (0.05..3.0).contains(d)), "{decays:?}");
    let mut steps = bf16("0.linear_attn.dt_bias");
    steps.sort_by(f32::total_cmp);
    assert!(-4.0 <= steps[0] && steps[0] < -3.0 && -0.5 < steps[31] && steps[31] <= 0.5);
}

#[test]
fn the_full_size_plan_is_the_published_size_in_files_of_at_most_five_gib() {
    let plan = plan(&preset("qwen3.6-35b-a3b").unwrap(), 0).unwrap();
    assert_eq!((plan.tensors(), plan.tensor_bytes()), (1757, 19_508_789_376));
    let files: Vec<(&str, u64)> = plan.files().collect();
    assert_eq!(files.len(), 4);
    assert_eq!(files[3].0, "model-00004-of-00004.safetensors");
    // Full to within one tensor of at most 140 MB, plus the header.
    for &(name, bytes) in &files[..3] {
        let fill = 5 * (1u64 << 30) - 140_000_000..5 * (1 << 30) + 300_000;
        assert!(fill.contains(&bytes), "{name} has {bytes} bytes");
    }
    for shard in &plan.shards {
        assert!(shard.tensors.iter().map(|t| t.bytes).sum::<u64>() <= 5 << 30);
        assert!(shard.tensors.iter().all(|t| t.offset.is_multiple_of(64)));
    }
}

#[test]
fn an_unquantised_matrix_gets_plain_weights_of_the_same_deviation() {
    let mut config = preset("tiny").unwrap();
    config["quantization"] = json!({
        "group_size": 64, "bits": 4, "language_model.model.layers.0.linear_attn.in_proj_z": false,
    });
    let bytes =
        make(&parsed(&config), "language_model.model.layers.0.linear_attn.in_proj_z.weight");
    assert_eq!(bytes.len(), 256 * 128 * 2);
    let pairs = bytes.as_chunks::<2>().0.iter();
    let (mean, sd) =
        mean_sd(&pairs.map(|&p| half::bf16::from_le_bytes(p).to_f32()).collect::<Vec<_>>());
    let wanted = 128f64.sqrt().recip();
    assert!(mean.abs() < 0.02 * wanted && (sd / wanted - 1.0).abs() < 0.02, "{mean} {sd}");
}

#[test]
fn a_foreign_folder_is_refused_unless_it_may_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model-00001-of-00009.safetensors", "tokenizer.json"] {
        fs::write(folder.path().join(name), "theirs").unwrap();
    }
    let mut options = tiny(folder.path(), 0);
    let error = write_quietly(&options).unwrap_err();
    assert!(matches!(&error, SynthError::NotEmpty { found, .. } if found == "config.json"));
    assert_eq!(fs::read(folder.path().join("config.json")).unwrap(), b"theirs");
    options.existing = Existing::Replace;
    write_quietly(&options).unwrap();
    let left = names(folder.path());
    assert!(!left.contains(&"model-00001-of-00009.safetensors".into()), "{left:?}");
    assert_eq!(fs::read(folder.path().join("tokenizer.json")).unwrap(), b"theirs");
    Checkpoint::open(folder.path()).unwrap();
}

#[test]
fn the_identical_checkpoint_is_reused_and_a_damaged_or_different_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let options = tiny(folder.path(), 0);
    assert!(!write_quietly(&options).unwrap().reused);
    let again = write(&options, &mut |_| panic!("nothing is written")).unwrap();
    assert!(again.reused);
    assert!(matches!(write_quietly(&tiny(folder.path(), 1)), Err(SynthError::NotEmpty { .. })));
    let file = fs::File::options().write(true).open(folder.path().join("model.safetensors"));
    file.unwrap().set_len(1000).unwrap();
    assert!(matches!(write_quietly(&options), Err(SynthError::NotEmpty { .. })));
}

#[test]
fn a_stopped_write_leaves_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let (fresh, there) = (parent.path().join("fresh"), parent.path().join("there"));
    fs::create_dir(&there).unwrap();
    for out in [&fresh, &there] {
        let cancel = Arc::new(AtomicBool::new(false));
        let options = SynthOptions { cancel: Some(cancel.clone()), ..tiny(out, 0) };
        let mut seen = 0;
        let result = write(&options, &mut |_| {
            seen += 1;
            assert!(out.join("model.safetensors.partial").exists() && !out.join(MARKER).exists());
            cancel.store(true, Ordering::Relaxed);
        });
        assert!(seen > 0 && matches!(result, Err(SynthError::Cancelled)));
    }
    assert!(!fresh.exists());
    assert_eq!(names(&there), [""; 0]);
}

#[test]
fn a_panic_in_the_progress_report_leaves_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let options = tiny(&out, 0);
    let write = || write(&options, &mut |_| panic!("the report fails"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err());
    assert!(!out.exists());
}

#[test]
fn a_killed_write_leaves_nothing_that_loads_and_is_taken_up_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let options = tiny(folder.path(), 0);
    let plan = plan_with_shards(&options.config, 0, 200_000).unwrap();
    let claim = Claim::new(folder.path(), &plan).unwrap();
    // As far as a kill during the renames can get.
    for (name, _) in plan.files() {
        fs::write(claim.partial(name), "half").unwrap();
    }
    let first = plan.files().next().unwrap().0;
    fs::rename(claim.partial(first), folder.path().join(first)).unwrap();
    std::mem::forget(claim);
    assert!(Checkpoint::open(folder.path()).is_err());
    write_quietly(&options).unwrap();
    assert_eq!(
        names(folder.path()),
        ["config.json", "generation_config.json", "model.safetensors", MARKER]
    );
}

#[test]
fn a_disk_that_is_too_small_is_refused_with_the_numbers() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let mut config = preset("tiny").unwrap();
    for (field, size) in
        [("hidden_size", 65_536), ("moe_intermediate_size", 65_536), ("num_experts", 4096)]
    {
        config["text_config"][field] = json!(size);
    }
    config["text_config"]["shared_expert_intermediate_size"] = json!(65_536);
    let error = write_quietly(&SynthOptions::new(config, &out)).unwrap_err();
    let SynthError::NoSpace { needed, available, .. } = error else { panic!("{error}") };
    assert!(needed > 100_000_000_000_000 && available < needed);
    assert!(error.to_string().contains(&format!("free {} bytes", needed - available)));
    assert!(!out.exists());
}

#[test]
fn a_configuration_of_another_family_is_refused_before_anything_is_made() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let mut config = preset("tiny").unwrap();
    config["model_type"] = json!("llama");
    let error = write_quietly(&SynthOptions::new(config, &out)).unwrap_err();
    assert!(matches!(error, SynthError::Config(_)) && !out.exists());
}
