//! What reaches standard output and standard error, and what is said when nothing can.

use std::fs;

use crate::support::{Outcome, golden, lily, program};

/// Runs the program with its standard output closed.
fn closed(args: &[&str]) -> Outcome {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "exec \"$@\" >&-", "sh"]).arg(program().get_program()).args(args);
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[cfg(unix)]
#[test]
fn output_that_would_be_lost_is_refused_at_once() {
    let model = golden("mixed");
    for args in [
        &["run", "-m", &model, "--tokens", "1"][..],
        &["chat"],
        &["inspect", &model],
        &["plan", "-m", "tiny"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
        &["--version"],
        &["run", "--help"],
    ] {
        closed(args).assert_fails("standard output is closed");
    }
    // What writes elsewhere needs none, and a null device is no closed stream.
    let folder = tempfile::tempdir().unwrap();
    let pages = closed(&["man", "--out", folder.path().to_str().unwrap()]);
    assert_eq!((pages.code, pages.stderr.as_str()), (Some(0), ""), "{pages:?}");
    closed(&["walk"]).assert_usage("unrecognized subcommand");
    for write_only in [true, false] {
        let null = fs::OpenOptions::new().read(!write_only).write(true).open("/dev/null").unwrap();
        let status = program().args(["plan", "-m", "tiny"]).stdout(null).status().unwrap();
        assert!(status.success());
    }
}

/// What would clear a screen, set a title, or begin a line of its own.
const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}1m\nlily: größe 模型";

#[test]
fn names_and_texts_of_files_cannot_steer_the_terminal() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join(HOSTILE);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("config.json"), "{").unwrap();
    let path = folder.to_str().unwrap();
    let run = lily(&["run", "-m", path, "--tokens", "1"]);
    run.assert_fails("\\u{1b}[2J");
    run.assert_fails("größe 模型");
    let inspect = lily(&["inspect", path]);
    assert!(inspect.stdout.contains("größe 模型"), "{inspect:?}");
    for text in [&run.stderr, &inspect.stdout] {
        let steers = |c: char| c.is_control() && c != '\n';
        assert!(!text.contains(steers), "{text:?}");
    }
}

#[test]
fn names_of_tensors_cannot_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(format!("{}/config.json", golden("mixed")), folder.path().join("config.json"))
        .unwrap();
    let header =
        serde_json::json!({ HOSTILE: { "dtype": "F32", "shape": [1], "data_offsets": [0, 4] } });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&[0; 4]);
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    let inspect = lily(&["inspect", folder.path().to_str().unwrap()]);
    assert_eq!(inspect.code, Some(1), "{inspect:?}");
    assert!(!inspect.stdout.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{inspect:?}");
}

#[test]
fn a_pipe_gets_a_models_control_characters_as_they_are() {
    let parent = tempfile::tempdir().unwrap();
    let model = parent.path().join("tiny");
    let model = model.to_str().unwrap();
    // Its token 27 is the byte 27.
    assert_eq!(lily(&["synth", "--preset", "tiny", "--out", model]).code, Some(0));
    let args = ["run", "-m", model, "--raw", "a", "--logit-bias", "27=100", "--max-tokens", "3"];
    assert_eq!(lily(&args).stdout, "\u{1b}\u{1b}\u{1b}\n");
}
