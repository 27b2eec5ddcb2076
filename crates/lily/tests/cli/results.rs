//! Results, fields of the JSON objects, what goes where.

use serde_json::{Value, json};

use crate::support::{fields, golden, ids, lily, prompts};

#[test]
fn run_gives_the_golden_ids() {
    for name in ["heads", "raw"] {
        let (model, prompts) = (golden(name), prompts(name));
        let prompt = ids(&prompts["prompts"][1]);
        let run = ["run", "-m", &model, "--tokens", &prompt, "--max-tokens", "32", "--exact"];
        let plain = lily(&[&run[..], &["--ignore-stop"]].concat());
        assert_eq!(plain.stdout, ids(&prompts["greedy"][1]) + "\n", "{plain:?}");
        let end = "ended by --max-tokens; 7 prompt tokens at ";
        assert!(plain.messages()[0].starts_with(end), "{plain:?}");
        let read = lily(&[&run[..], &["--ignore-stop", "--load", "read"]].concat());
        assert_eq!(read.stdout, plain.stdout, "weights in memory are the same: {read:?}");

        let object = lily(&[&run[..], &["--ignore-stop", "--json"]].concat()).json();
        assert_eq!(object["tokens"], prompts["greedy"][1]);
        let all =
            ["finish_reason", "reasoning", "text", "timings", "tokens", "tool_calls", "usage"];
        assert_eq!(fields(&object), all);
        let usage = json!({
            "prompt_tokens": 7,
            "completion_tokens": 32,
            "total_tokens": 39,
            "prompt_tokens_details": {"cached_tokens": 0},
        });
        assert_eq!(object["usage"], usage);
        assert_eq!(object["finish_reason"], "length");
        assert_eq!((&object["text"], &object["tool_calls"]), (&Value::Null, &json!([])));
        let timings = ["decode_tok_s", "first_token_s", "load_s", "prefill_tok_s"];
        assert_eq!(fields(&object["timings"]), timings);
        for timing in timings {
            assert!(object["timings"][timing].as_f64().unwrap() > 0.0, "{timing}");
        }
    }
}

#[test]
fn run_samples_by_seed_and_honours_limits_and_biases() {
    let (model, prompts) = (golden("generic"), prompts("generic"));
    let prompt = ids(&prompts["prompts"][1]);
    let run = |more: &[&str]| {
        let base = ["run", "-m", &model, "--tokens", &prompt, "--json"];
        lily(&[&base[..], more].concat()).json()
    };
    let sampled =
        |seed| run(&["--max-tokens", "12", "--temperature", "1", "--top-k", "20", "--seed", seed]);
    assert_eq!(sampled("1")["tokens"], sampled("1")["tokens"]);
    assert_ne!(sampled("1")["tokens"], sampled("2")["tokens"]);
    let biased = run(&["--max-tokens", "12", "--logit-bias", "42=100"]);
    assert_eq!(biased["tokens"], json!(vec![42; 12]));
    // The model's own stop token ends the text, unless it is told to go on.
    let stop = run(&["--logit-bias", "383=100"]);
    assert_eq!((&stop["tokens"], &stop["finish_reason"]), (&json!([383]), &json!("stop")));
    let on = run(&["--max-tokens", "12", "--logit-bias", "383=100", "--ignore-stop"]);
    assert_eq!(on["tokens"], json!(vec![383; 12]));
    // A context smaller than the limit ends the text when it is full: its last token is not fed.
    let full = run(&["--ctx", "9"]);
    assert_eq!(full["usage"]["completion_tokens"], 3);
}

#[test]
fn eval_reports_the_documented_fields() {
    let model = golden("mixed");
    let eval = ["eval", "-m", &model, "--reference", &model];
    let object = lily(&[&eval[..], &["--exact", "--json"]].concat()).json();
    let all = [
        "clear_positions",
        "clear_top1",
        "greedy_agreeing",
        "greedy_equal",
        "greedy_ids",
        "kl",
        "max_abs",
        "perplexity",
        "positions",
        "reference_perplexity",
        "rms",
        "top1",
    ];
    assert_eq!(fields(&object), all);
    assert_eq!((&object["positions"], &object["greedy_equal"]), (&json!(202), &json!(true)));
    assert_eq!(object["top1"], 1.0);
    assert!(object["max_abs"].as_f64().unwrap() <= 1e-3, "{object}");
    let text = lily(&[&eval[..], &["--exact"]].concat());
    assert!(text.stdout.starts_with("positions             202\n"), "{text:?}");
    assert!(text.stdout.contains("\n  where it is clear   100.00 % of "), "{text:?}");
    assert!(text.stdout.ends_with("greedy ids            128 of 128 agree\n"), "{text:?}");
}

#[test]
fn plan_reports_the_documented_fields() {
    let plan = ["plan", "-m", "qwen3.6-35b-a3b"];
    let object = lily(&[&plan[..], &["--json"]].concat()).json();
    let all = [
        "bytes_per_token",
        "bytes_read",
        "bytes_written",
        "flops_per_token",
        "launches",
        "launches_under_2mb",
        "list",
        "stages",
    ];
    assert_eq!(fields(&object), all);
    assert_eq!((&object["launches"], &object["stages"]), (&json!(303), &json!(303)));
    let list = object["list"].as_array().unwrap();
    assert_eq!(list.len(), 303);
    let row = [
        "bytes_read",
        "bytes_written",
        "flops",
        "grid",
        "index",
        "kernel",
        "layer",
        "reads",
        "stage",
        "threads",
        "writes",
    ];
    assert!(list.iter().all(|launch| fields(launch) == row));
    for device in ["metal", "cuda"] {
        let list = lily(&[&plan[..], &["--json", "--for", device]].concat()).json()["list"].clone();
        let mut row = [&row[..], &["constants", "function", "grid_used", "threads_used"]].concat();
        row.sort_unstable();
        for launch in list.as_array().unwrap() {
            assert_eq!(fields(launch), row, "{device}");
            assert!(launch["threads_used"].as_u64().unwrap() >= 32, "{launch}");
        }
    }
    let launches = |more: &[&str]| {
        let all = [&plan[..], &["--json", "--for", "metal"], more].concat();
        lily(&all).json()["launches"].clone()
    };
    assert_eq!(launches(&["--fuse", "topk,prepare,short", "--position", "200"]), 243);
    assert_eq!(launches(&["--step", "prefill", "--tokens", "2048"]), 463);
    assert_eq!(launches(&["--batch", "8"]), 303);
    let text = lily(&[&plan[..], &["--for", "cuda"]].concat()).stdout;
    assert!(text.starts_with("293 launches in 293 stages; "), "the fusions of the device: {text}");
    let (summary, rows) = text.split_once("\n\n").unwrap();
    assert!(summary.ends_with("\nthe functions are those of compute capability 9.0"), "{text}");
    assert!(summary.lines().all(|line| line.len() <= 100), "{summary}");
    assert!(rows.lines().next().unwrap().ends_with(" | function grid threads constants"), "{text}");
    let launch = text.lines().find(|line| line.contains(" router.0 ")).unwrap();
    let chosen = launch.rsplit_once(" | ").unwrap().1;
    assert!(chosen.starts_with("router ") && chosen.contains(" BITS=8 "), "{launch}");
    let text = lily(&["plan", "-m", &golden("heads"), "--bandwidth", "100"]);
    let (summary, rows) = text.stdout.split_once("\n\n").unwrap();
    assert!(rows.starts_with("index stage kernel"), "{text:?}");
    assert!(summary.contains("\nat 100 GB/s the bytes take at least "), "{text:?}");
}

#[test]
fn plan_predicts_times_for_a_chip_and_says_that_it_predicts() {
    let plan = ["plan", "-m", "qwen3.6-35b-a3b", "--for", "metal", "--chip"];
    let object = |more: &[&str]| lily(&[&plan[..], more, &["--json"]].concat()).json();
    let max = object(&["m5-max"]);
    let prediction = &max["prediction"];
    assert_eq!(prediction["kind"], "prediction");
    assert_eq!(
        (&prediction["chip"], &prediction["gpu_cores"]),
        (&json!("Apple M5 Max"), &json!(40))
    );
    assert_eq!(prediction["tensor_operations"], true);
    assert_eq!(
        fields(&prediction["assumptions"]),
        ["bandwidth_curve", "launch_floor_us", "tensor_tflops", "tflops",]
    );
    let list = prediction["launches"].as_array().unwrap();
    assert_eq!(list.len(), max["launches"].as_u64().unwrap() as usize);
    let row =
        ["bound", "bytes", "index", "label", "small", "stage", "threadgroups", "threads", "us"];
    assert!(list.iter().all(|launch| fields(launch) == row));
    let sum: f64 = list.iter().map(|launch| launch["us"].as_f64().unwrap()).sum();
    let step = prediction["step_us"].as_f64().unwrap();
    assert!((sum - step).abs() < 1e-6 * step, "{sum} {step}");
    let tok_s = |object: &Value| object["prediction"]["tok_s"].as_f64().unwrap();
    let smaller = object(&["m5-max-32"]);
    assert!(tok_s(&smaller) < tok_s(&max));
    assert_eq!(object(&["m4-max"])["prediction"]["tensor_operations"], false);
    assert!(tok_s(&object(&["m5-max", "--step", "prefill"])) > tok_s(&max));
    let chunk = |chip: &str| {
        let launches = object(&[chip, "--step", "prefill"])["prediction"]["launches"].clone();
        launches[0]["threadgroups"].as_u64().unwrap()
    };
    assert!(chunk("m5-max") > chunk("m3-ultra") && chunk("m3-ultra") > chunk("m1"));
    // A chunk is one command buffer, and a smaller one deep in a context; the smallest is cut there.
    let sent = |more: &[&str]| {
        let prediction = &object(&[more, &["--step", "prefill"]].concat())["prediction"];
        let longest = prediction["longest_command_buffer_us"].as_f64().unwrap();
        (prediction["command_buffers"].as_u64().unwrap(), longest, prediction["too_long"].clone())
    };
    for (more, command_buffers) in [
        (&["m4-max", "--position", "0"][..], 1..2),
        (&["m4-max", "--position", "32768"], 1..2),
        (&["m4-max", "--position", "200000"], 2..3),
        (&["m5-max", "--position", "200000"], 1..2),
        // More than lily would choose.
        (&["m5-max", "--position", "100000", "--tokens", "4096"], 5..20),
    ] {
        let (found, longest, too_long) = sent(more);
        assert!(command_buffers.contains(&found), "{more:?}: {found}");
        assert!(longest < 6e5 && too_long == Value::Null, "{more:?}: {longest}, {too_long}");
    }
    // No cut helps against one launch.
    let far = ["m5-max", "--position", "250000", "--tokens", "16384"];
    let (found, longest, too_long) = sent(&far);
    assert!(found > 20 && longest > 1e6, "{found}, {longest}");
    assert!(too_long.as_str().unwrap().starts_with("attn_flash."), "{too_long}");
    let text = lily(&[&plan[..], &far, &["--step", "prefill"]].concat()).stdout;
    assert!(
        text.contains(" may hold the GPU for longer than the 1 s of a command buffer"),
        "{text}"
    );
    assert!(text.contains(&format!(" ms in {found} command buffers of up to ")), "{text}");
    assert_eq!(prediction["command_buffers"], 1);
    let text = lily(&[&plan[..], &["M3-Ultra"]].concat()).stdout;
    assert!(text.starts_with("prediction for Apple M3 Ultra, Apple9, 80 GPU cores, "), "{text}");
    // What is asked for most often comes first.
    let second = text.lines().nth(1).unwrap();
    assert!(
        second.starts_with("predicted, not measured: ") && second.ends_with(" tok/s"),
        "{text}"
    );
    let rows = text.split_once("\n\n").unwrap().1;
    assert_eq!(rows.lines().count(), 1 + list.len());
}

#[test]
fn inspect_says_what_a_folder_holds() {
    let object = lily(&["inspect", &golden("raw"), "--json"]).json();
    let all = [
        "architecture",
        "aside",
        "bytes",
        "classes",
        "context_tokens",
        "error",
        "files",
        "folder",
        "layers",
        "layout",
        "parameters",
        "stop_tokens",
        "supported",
        "tensors",
        "text_files",
        "warnings",
    ];
    assert_eq!(fields(&object), all);
    assert_eq!((&object["supported"], &object["error"]), (&json!(true), &Value::Null));
    assert_eq!((&object["layout"], &object["layers"]), (&json!("original"), &json!([4, 2])));
    let text = lily(&["inspect", &golden("heads")]);
    assert!(text.code == Some(0) && text.stdout.ends_with("supported     yes\n"), "{text:?}");
}

#[test]
fn inspect_of_a_bad_folder_fails_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let text = lily(&["inspect", path]);
    assert_eq!(text.code, Some(1), "{text:?}");
    assert!(text.stdout.contains("supported     no: "), "{text:?}");
    let outcome = lily(&["inspect", path, "--json"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let object = outcome.object();
    assert_eq!(object["supported"], false);
    assert!(object["error"].as_str().unwrap().contains("config.json"), "{object}");
    outcome.assert_calm();
}

#[test]
fn synth_writes_a_model_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("tiny");
    let out = out.to_str().unwrap();
    let synth = ["synth", "--preset", "tiny", "--out", out];
    let object = lily(&[&synth[..], &["--json"]].concat()).json();
    assert_eq!(fields(&object), ["bytes", "files", "out", "reused", "tensors", "tokenizer_files"]);
    assert_eq!((&object["reused"], &object["out"]), (&json!(false), &json!(out)));
    let run = ["run", "-m", out, "--tokens", "1,2,3", "--max-tokens", "4", "--ignore-stop"];
    let run = lily(&[&run[..], &["--json"]].concat()).json();
    assert_eq!(run["tokens"].as_array().unwrap().len(), 4, "{run}");
    assert!(lily(&["inspect", out]).code == Some(0));
    let again = lily(&synth);
    assert!(again.stdout.contains("already holds"), "{again:?}");
    let other = lily(&[&synth[..], &["--seed", "1"]].concat());
    other.assert_fails("should be empty or hold this very checkpoint");
    other.assert_fails("(`--force`)");
    let forced = lily(&[&synth[..], &["--seed", "1", "--force"]].concat());
    assert!(forced.stdout.contains("now holds"), "{forced:?}");
    // A file of the right length says nothing about what is in it.
    let weights = format!("{out}/model.safetensors");
    let (whole, mut damaged) = (std::fs::read(&weights).unwrap(), std::fs::read(&weights).unwrap());
    damaged[whole.len() - 64..].fill(0xff);
    std::fs::write(&weights, damaged).unwrap();
    let forced = lily(&[&synth[..], &["--seed", "1", "--force"]].concat());
    assert!(forced.stdout.contains("now holds"), "{forced:?}");
    assert!(std::fs::read(&weights).unwrap() == whole, "the damage is mended");
    lily(&["synth", "--preset", "huge", "--out", out]).assert_usage("expected a preset");
    let layers = lily(&[&synth[..], &["--layers", "99"]].concat());
    layers.assert_fails("99 layers were asked for");
}

#[test]
fn help_and_version_succeed() {
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["help", "plan"]] {
        let outcome = lily(args);
        assert!(outcome.code == Some(0) && !outcome.stdout.is_empty(), "{outcome:?}");
    }
}

#[test]
fn a_profile_has_the_time_of_every_kernel() {
    let command = ["bench", "--preset", "tiny", "--lengths", "20", "--decode", "3", "--reps", "1"];
    let outcome = lily(&[&command[..], &["--profile"]].concat());
    let tables: Vec<&str> = outcome.stdout.split("\n\n").skip(1).collect();
    let [decode, prefill] = tables[..] else { panic!("{outcome:?}") };
    for (table, title, kernel) in [
        (decode, "decode step after 20 tokens", "experts_gate_up"),
        (prefill, "prefill chunk after 20 tokens", "gdn_scan"),
    ] {
        let mut lines = table.lines();
        assert_eq!(lines.next(), Some(title), "{table}");
        let row = lines.find(|line| line.starts_with(kernel)).expect("the kernel has a row");
        let figures: Vec<f64> =
            row.split_whitespace().skip(1).map(|figure| figure.parse().unwrap()).collect();
        assert_eq!(figures.len(), 5, "{row}");
        assert!(figures[1] > 0.0, "{row}");
    }
}

#[test]
fn a_plan_without_a_model_is_that_of_the_full_size_one_and_says_so() {
    for more in [&[][..], &["--for", "metal", "--step", "prefill"]] {
        let named = lily(&[&["plan", "-m", "qwen3.6-35b-a3b"], more].concat());
        let unnamed = lily(&[&["plan"], more].concat());
        assert_eq!((unnamed.code, &unnamed.stdout), (Some(0), &named.stdout));
        assert!(unnamed.stderr.contains("this is the plan of qwen3.6-35b-a3b"), "{unnamed:?}");
        assert_eq!(named.stderr, "");
    }
    let cuda = |more: &[&str]| {
        let args = ["plan", "--for", "cuda", "--step", "prefill", "--json"];
        lily(&[&args, more].concat()).json()
    };
    assert_eq!(cuda(&[]), cuda(&["--tokens", "2048"]), "the chunk that the GPU is given");
}

#[test]
fn a_plan_beyond_the_context_of_the_model_says_so() {
    let plan = |position: &str| lily(&["plan", "-m", "qwen3.6-35b-a3b", "--position", position]);
    assert_eq!(plan("262143").stderr, "");
    let beyond = plan("262144");
    assert_eq!(beyond.code, Some(0), "{beyond:?}");
    let note = "a context of 262145 tokens is longer than the 262144 the model was made for";
    assert!(beyond.stderr.contains(note), "{beyond:?}");
}

#[test]
fn more_threads_than_cores_are_warned_of_once() {
    let run = |threads: &str| {
        let heads = golden("heads");
        let args = ["run", "-m", &heads, "--tokens", "1", "--max-tokens", "2", "--device", "cpu"];
        lily(&[&args[..], &["--threads", threads]].concat())
    };
    let (one, many) = (run("1"), run("700"));
    assert_eq!((one.code, many.code, &one.stdout), (Some(0), Some(0), &many.stdout));
    assert!(!one.stderr.contains("slow each other down"), "{one:?}");
    assert_eq!(many.stderr.matches("700 threads on ").count(), 1, "{many:?}");
}

#[test]
fn a_bench_gives_figures_and_a_chart() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, plot) = (path("bench.json"), path("bench.svg"));
    let outcome = lily(&[
        "bench",
        "--preset",
        "tiny",
        "--lengths",
        "8,20",
        "--decode",
        "3",
        "--reps",
        "2",
        "--json",
        &json,
        "--plot",
        &plot,
    ]);
    assert_eq!(outcome.stdout.lines().count(), 3, "{outcome:?}");
    let object: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(fields(&object), ["device", "model", "read_bandwidth", "rows", "sampled"]);
    let lengths: Vec<&Value> =
        object["rows"].as_array().unwrap().iter().map(|row| &row["length"]).collect();
    assert_eq!(lengths, [8, 20]);
    for row in object["rows"].as_array().unwrap() {
        for kind in ["prefill", "decode"] {
            let (median, spread) = (&row[format!("{kind}_tok_s")], &row[format!("{kind}_spread")]);
            let (median, spread) = (median.as_f64().unwrap(), spread.as_array().unwrap());
            let (slowest, fastest) = (spread[0].as_f64().unwrap(), spread[1].as_f64().unwrap());
            assert!(0.0 < slowest && slowest <= median && median <= fastest, "{row}");
        }
        assert!(row["decode_bytes_per_token"].as_u64().unwrap() > 0);
        assert!(row["decode_stages"].as_u64() <= row["decode_launches"].as_u64());
    }
    let chart = std::fs::read_to_string(plot).unwrap();
    assert!(chart.starts_with("<svg"), "{chart}");
    // A point for each length in each of two panels.
    assert_eq!(chart.matches("<circle").count(), 4, "{chart}");
}
