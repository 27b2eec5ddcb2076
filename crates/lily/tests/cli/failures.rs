//! Failures of the program: exit codes, one sentence each, no panic, whoever reads the output.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::support::{Outcome, golden, lily, program};
use lily_model::parse_header;
use tempfile::TempDir;

#[test]
fn wrong_usage_exits_with_2() {
    let model = golden("mixed");
    let run = |more: &[&str]| lily(&[&["run", "-m", &model], more].concat());
    lily(&[]).assert_usage("Usage: lily");
    lily(&["walk"]).assert_usage("unrecognized subcommand");
    run(&[]).assert_usage("--tokens");
    for ids in ["", "1,,2", "x", "1.5", "4294967296", "1 2"] {
        run(&["--tokens", ids]).assert_usage("--tokens");
    }
    run(&["--tokens=-1"]).assert_usage("--tokens");
    let run = |more: &[&str]| run(&[&["--tokens", "1"], more].concat());
    run(&["--max-tokens", "-1"]).assert_usage("-1");
    run(&["--max-tokens", "many"]).assert_usage("--max-tokens");
    run(&["--temperature", "warm"]).assert_usage("--temperature");
    run(&["--logit-bias", "3"]).assert_usage("expected ID=VALUE");
    run(&["--logit-bias", "x=3"]).assert_usage("is no token id");
    run(&["--threads", "1000000"]).assert_usage("--threads");
    run(&["--load", "half"]).assert_usage("--load <LOAD>");
    run(&["--unknown"]).assert_usage("--unknown");
    lily(&["plan", "-m", &model, "--step", "sideways"]).assert_usage("--step");
    lily(&["eval", "-m", &model]).assert_usage("--reference");
    for option in ["--exact", "--threads=2", "--load=read"] {
        let name = option.split('=').next().unwrap();
        for command in [&["run", "hi"][..], &["chat"], &["serve"], &["bench"]] {
            for device in ["cuda", "metal"] {
                let outcome = lily(&[command, &["--device", device, option]].concat());
                outcome.assert_usage(&format!("{name} has no effect with --device {device}"));
            }
        }
    }
    for device in ["auto", "cpu", "cuda"] {
        for option in ["--encode-once", "--commit-early=20"] {
            let name = option.split('=').next().unwrap();
            let outcome = lily(&["run", "hi", "--device", device, option]);
            outcome.assert_usage(&format!("{name} has no effect without --device metal"));
        }
    }
    lily(&["bench", "--decode", "18446744073709551615"]).assert_usage("--decode");
    for wrong in ["8,0", "a", "8,"] {
        lily(&["bench", "--lengths", wrong]).assert_usage("expected lengths from 1 to 8388608");
    }
    lily(&["run", "--tokens", "1,x"]).assert_usage("expected token ids, whole numbers");
    lily(&["serve", "--ctx", "0"]).assert_usage("--ctx");
    lily(&["bench", "--preset", "huge"]).assert_usage("expected a preset");
    let one_file = ["bench", "--preset", "tiny", "--json", "a", "--plot", "a"];
    lily(&one_file).assert_usage("--json and --plot name one file");
}

#[cfg(not(target_os = "macos"))]
#[test]
fn metal_needs_a_mac() {
    let model = golden("mixed");
    let run = ["run", "-m", &model, "--tokens", "1"];
    for command in [&run[..], &["doctor"], &["bench", "--preset", "tiny"]] {
        let outcome = lily(&[command, &["--device", "metal"]].concat());
        outcome.assert_fails("--device metal needs a Mac with macOS 15 or later; use --device cpu");
    }
}

#[test]
fn parameters_outside_of_their_ranges_are_refused() {
    let model = golden("mixed");
    for (option, need) in [
        // The ranges of requests.
        ("--temperature=-1", "it is -1, need a number from 0 to 2"),
        ("--temperature=9", "it is 9, need a number from 0 to 2"),
        ("--temperature=NaN", "it is NaN"),
        ("--temperature=inf", "it is inf"),
        ("--top-p=1.5", "it is 1.5, need a number from 0 to 1"),
        ("--top-p=NaN", "it is NaN"),
        ("--min-p=-0.1", "it is -0.1"),
        ("--min-p=NaN", "it is NaN"),
        ("--repetition-penalty=0", "it is 0, need a number from 0.01 to 100"),
        ("--repetition-penalty=-2", "it is -2"),
        ("--presence-penalty=NaN", "it is NaN"),
        ("--frequency-penalty=3", "it is 3, need a number from -2 to 2"),
        ("--logit-bias=3=NaN", "it is NaN"),
        ("--logit-bias=3=101", "it is 101, need a number from -100 to 100"),
        ("--max-tokens=0", "0 is not in 1..=16777216"),
        ("--chunk=0", "0 is not in 1..=16384"),
        ("--chunk=99999", "99999 is not in 1..=16384"),
        ("--ctx=0", "0 is not in 2..=16777216"),
        ("--ctx=18446744073709551615", "is not in 2..=16777216"),
        ("--max-tokens=18446744073709551615", "is not in 1..=16777216"),
        ("--system=", "--system"),
        ("--stop=", "--stop"),
    ] {
        let outcome = lily(&["run", "-m", &model, "--tokens", "1,2,3", option]);
        outcome.assert_usage(need);
        // The message names the option as it was typed.
        let (name, _) = option.split_once('=').unwrap();
        outcome.assert_usage(name);
    }
    for (more, need) in [
        (&["--logit-bias=320=1"][..], "--logit-bias names token 320, need an id below 320"),
        (&["--logit-bias=3=1", "--logit-bias=3=2"], "--logit-bias names token 3 twice"),
        (&["--ctx=2"], "3 tokens do not fit into the context of 2"),
    ] {
        let run = ["run", "-m", &model, "--tokens", "1,2,3"];
        lily(&[&run[..], more].concat()).assert_fails(need);
    }
    lily(&["run", "-m", &model, "--tokens", "1,2,320"])
        .assert_fails("token 320 at index 2 is outside of the vocabulary of 320 tokens");
    let plan = |more: &[&str]| lily(&[&["plan", "-m", &model], more].concat());
    plan(&["--step", "prefill", "--tokens", "0"]).assert_usage("0 is not in 1..=16384");
    plan(&["--batch", "18446744073709551615"]).assert_usage("is not in 1..=16384");
    plan(&["--position", "18446744073709551615"]).assert_usage("is not in 0..=16777215");
    for bandwidth in ["--bandwidth=0", "--bandwidth=-5", "--bandwidth=NaN"] {
        plan(&[bandwidth]).assert_usage("need a number of GB/s above 0");
    }
}

#[test]
fn options_that_contradict_or_have_no_effect_are_refused() {
    let model = golden("mixed");
    let run = |more: &[&str]| lily(&[&["run", "-m", &model, "hello"], more].concat());
    run(&["--think", "--no-think"]).assert_usage("cannot be used with");
    run(&["--hide-thinking", "--json"]).assert_usage("cannot be used with");
    for option in ["--seed=1", "--top-k=4", "--top-p=0.5", "--min-p=0.5"] {
        run(&[option]).assert_usage("--temperature <T>");
    }
    let tokens = ["run", "-m", &model, "--tokens", "1"];
    for option in ["--think", "--no-think", "--hide-thinking", "--system=a"] {
        lily(&[&tokens[..], &[option]].concat()).assert_usage("cannot be used with");
    }
    lily(&["chat", "--think", "--no-think"]).assert_usage("cannot be used with");
    let plan = |more: &[&str]| lily(&[&["plan", "-m", &model], more].concat());
    let prefill = |more: &[&str]| plan(&[&["--step", "prefill"], more].concat());
    prefill(&["--batch", "1"]).assert_usage("--batch has no effect with --step prefill");
    prefill(&["--fuse", "topk"]).assert_usage("--fuse has no effect with --step prefill");
    plan(&["--tokens", "9"]).assert_usage("--tokens has no effect with --step decode");
    let short = |position: &str| plan(&["--fuse", "topk,short", "--position", position]);
    short("256").assert_usage("--fuse short has no effect beyond --position 255");
    assert_eq!(short("255").code, Some(0));
    plan(&["--json", "--bandwidth", "9"]).assert_usage("cannot be used with");
    plan(&["--chip", "m5"]).assert_usage("--chip has no effect without --for metal");
    let chip = |name: &str| plan(&["--for", "metal", "--chip", name]);
    chip("m7").assert_usage("there is no chip `m7`; the chips are m1 (7 or 8 cores), m1-pro (14");
    chip("m5-max-41").assert_usage("m5-max (32 or 40 cores)");
}

/// A copy of a golden checkpoint.
fn copy(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(&golden(name)).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

/// Every command that opens the weights.
fn assert_refused(folder: &Path, part: &str) {
    let model = folder.to_str().unwrap();
    lily(&["run", "-m", model, "--tokens", "1,2"]).assert_fails(part);
    lily(&["run", "-m", model, "--tokens", "1,2", "--json"]).assert_fails(part);
    lily(&["eval", "-m", model, "--reference", &golden("mixed")]).assert_fails(part);
}

#[test]
fn folders_that_hold_no_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert_refused(&folder.path().join("nowhere"), "nowhere");
    assert_refused(folder.path(), "give a folder in the Hugging Face or MLX layout");
    let config = folder.path().join("config.json");
    assert_refused(&config, "config.json");
    fs::write(&config, "{").unwrap();
    assert_refused(folder.path(), "is not valid JSON");
    let llama = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}"#;
    fs::write(&config, llama).unwrap();
    assert_refused(folder.path(), "but lily runs only");
    fs::copy(Path::new(&golden("mixed")).join("config.json"), &config).unwrap();
    assert_refused(folder.path(), "holds neither `model.safetensors.index.json` nor");
    let path = folder.path().to_str().unwrap();
    lily(&["plan", "-m", path]).assert_calm();
    let nothing = lily(&["plan", "-m", "no-such-preset"]);
    nothing
        .assert_fails("a config.json by itself and a preset (qwen3.6-35b-a3b, tiny) will do too");
    assert_eq!(nothing.stderr.matches("model folder").count(), 1, "{nothing:?}");
    for preset in ["tiny", "qwen3.6-35b-a3b"] {
        let outcome = lily(&["run", "-m", preset, "hello"]);
        outcome.assert_fails(&format!("{preset} is a preset of shapes and has no weights"));
    }
    lily(&["eval", "-m", &golden("mixed"), "--reference", path]).assert_fails("prompts.json");
    let other = lily(&["eval", "-m", &golden("mixed"), "--reference", &golden("heads")]);
    other.assert_fails("belongs to another model");
}

/// R38: an interrupted download.
#[test]
fn weights_that_are_cut_short_are_refused() {
    let folder = copy("mixed");
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for length in [0, 4, 100, whole.len() * 6 / 10, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        assert_refused(folder.path(), "model.safetensors");
    }
}

/// R30: the exit code of a model whose numbers are damaged.
#[test]
fn weights_that_are_not_finite_are_refused() {
    let folder = copy("generic");
    let path = folder.path().join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    let header = parse_header(&file).unwrap();
    let scales = header["language_model.model.layers.0.linear_attn.out_proj.scales"].bytes.clone();
    file[scales.start..scales.start + 2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    fs::write(&path, file).unwrap();
    assert_refused(folder.path(), "the first forward pass of this checkpoint gives ");
}

/// Runs the program, reads a few bytes of its output, and goes away.
fn read_little(args: &[&str], stderr_too: bool) -> Outcome {
    let mut command = program();
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 5];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let mut stderr = String::new();
    let mut reader = child.stderr.take().unwrap();
    if !stderr_too {
        reader.read_to_string(&mut stderr).unwrap();
    }
    drop(reader);
    let code = child.wait().unwrap().code();
    Outcome { code, stdout: String::from_utf8(first.into()).unwrap(), stderr }
}

#[test]
fn a_reader_that_goes_away_ends_the_work_quietly() {
    let model = golden("mixed");
    let run = ["run", "-m", &model, "--tokens", "1", "--max-tokens", "2000", "--ignore-stop"];
    // More than a pipe holds, or spread over time: the second write finds no reader.
    for args in [&run[..], &["plan", "-m", "qwen3.6-35b-a3b", "--json"]] {
        let outcome = read_little(args, false);
        assert_eq!((outcome.code, outcome.messages().len()), (Some(141), 0), "{outcome:?}");
        let outcome = read_little(args, true);
        assert_eq!(outcome.code, Some(141), "{outcome:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_fails_with_a_reason() {
    for args in [&["plan", "-m", "qwen3.6-35b-a3b"][..], &["inspect", &golden("mixed"), "--json"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = program().args(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("lily: cannot write to standard output"), "{stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn messages_that_cannot_be_written_do_not_change_the_exit_code() {
    let model = golden("mixed");
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = |tokens: &str| {
        let args = ["run", "-m", &model, "--tokens", tokens, "--max-tokens", "2"];
        program().args(args).stderr(full()).output().unwrap().status.code()
    };
    assert_eq!((run("1,2"), run("1,99999")), (Some(0), Some(1)));
}

#[test]
fn a_bench_does_not_measure_for_a_file_that_cannot_be_written() {
    let outcome = lily(&["bench", "--preset", "tiny", "--json", "/nonexistent/bench.json"]);
    outcome.assert_fails("cannot write /nonexistent/bench.json");
    for option in ["--json", "--plot"] {
        let outcome = lily(&["bench", "--preset", "tiny", option, "-"]);
        outcome.assert_fails("need the name of a file, found -");
    }
    if cfg!(unix) {
        // Opened, it would wait for its reader.
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let pipe = pipe.to_str().unwrap();
        for option in ["--json", "--plot"] {
            let outcome = lily(&["bench", "--preset", "tiny", option, pipe]);
            outcome.assert_fails(&format!("cannot write {pipe}: it is there and no regular file"));
        }
    }
}
