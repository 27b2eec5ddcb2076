//! The terminal commands as a person or a script meets them: the real program, its output, its exit
//! status.

#![allow(clippy::unwrap_used)]

mod input;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

const NOTICE: &str = "lily-nano answers";

fn lily(args: &[&str]) -> Output {
    with_input(args, "")
}

fn with_input(args: &[&str], input: &str) -> Output {
    input::with_input(Command::new(env!("CARGO_BIN_EXE_lily")).args(args), input)
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output of a command that succeeds.
fn ok(args: &[&str]) -> String {
    let output = lily(args);
    assert!(output.status.success(), "{args:?}: {}", err(&output));
    out(&output)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// A random model, made once.
fn model() -> &'static str {
    static MODEL: OnceLock<(tempfile::TempDir, String)> = OnceLock::new();
    let (_, path) = MODEL.get_or_init(|| {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("tiny").to_str().unwrap().to_owned();
        ok(&["synth", "--preset", "tiny", "--out", &path, "--seed", "3"]);
        (parent, path)
    });
    path
}

fn golden() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/heads");
    folder.to_str().unwrap().to_owned()
}

#[test]
fn synth_writes_a_tokenizer_and_leaves_a_complete_folder_alone() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("m");
    let args = ["synth", "--preset", "tiny", "--out", folder.to_str().unwrap(), "--json"];
    let made = json(&args);
    let names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
    assert_eq!(made["tokenizer_files"], serde_json::json!(names));
    assert_eq!(made["reused"], false);
    for name in names {
        assert!(folder.join(name).is_file(), "{name}");
    }
    std::fs::write(folder.join("chat_template.jinja"), "mine").unwrap();
    assert_eq!(json(&args)["reused"], true);
    let kept = std::fs::read_to_string(folder.join("chat_template.jinja")).unwrap();
    assert_eq!(kept, "mine");
}

#[test]
fn a_question_a_text_and_ids_are_answered_with_and_without_a_model() {
    for model_args in [vec![], vec!["-m", model()]] {
        let inputs: [&[&str]; 3] = [&["Hello"], &["--raw", "Hello"], &["--tokens", "72,101,108"]];
        for input in inputs {
            let args =
                [&["run", "--max-tokens", "12", "--ignore-stop"], &*model_args, input].concat();
            let output = lily(&args);
            assert!(output.status.success(), "{args:?}: {}", err(&output));
            assert!(!out(&output).trim().is_empty(), "{args:?}");
            assert_eq!(err(&output).contains(NOTICE), model_args.is_empty(), "{}", err(&output));
            assert!(err(&output).contains("tok/s"), "{}", err(&output));
        }
    }
}

#[test]
fn ids_of_a_text_continue_like_the_text() {
    let text = json(&["run", "-m", model(), "--raw", "Hel", "--max-tokens", "8", "--json"]);
    let ids =
        json(&["run", "-m", model(), "--tokens", "72,101,108", "--max-tokens", "8", "--json"]);
    assert_eq!(text["tokens"], ids["tokens"]);
    assert_eq!(text["text"], ids["text"]);
}

#[test]
fn without_a_tokenizer_ids_go_in_and_out() {
    let ids = "33,86,206,60,158,231,152";
    let args = ["run", "-m", &golden(), "--exact", "--tokens", ids, "--max-tokens", "4"];
    assert_eq!(ok(&args).trim(), "389,63,81,105");
    let object = json(&[&args[..], &["--json"]].concat());
    assert_eq!(object["text"], Value::Null);
    assert_eq!(object["tokens"], serde_json::json!([389, 63, 81, 105]));

    let stop = lily(&[&args[..], &["--stop", "x"]].concat());
    assert_eq!(stop.status.code(), Some(1));
    assert!(err(&stop).contains("needs a tokenizer"), "{}", err(&stop));
    let question = lily(&["run", "-m", &golden(), "Hello"]);
    assert_eq!(question.status.code(), Some(1));
    assert!(err(&question).contains("--tokens"), "{}", err(&question));
}

#[test]
fn streamed_text_equals_the_text_of_the_json_object() {
    let args = ["run", "-m", model(), "Hello", "--no-think", "--max-tokens", "24"];
    let object = json(&[&args[..], &["--json"]].concat());
    let text = object["text"].as_str().unwrap();
    assert!(!text.is_empty());
    // Only a line end that the text lacks is added.
    assert_eq!(ok(&args).trim_end_matches('\n'), text.trim_end_matches('\n'));
    assert_eq!(object["finish_reason"], "length");
    assert_eq!(object["tokens"].as_array().unwrap().len(), 24);
    assert_eq!(object["usage"]["completion_tokens"], 24);
    assert_eq!(object["tool_calls"], serde_json::json!([]));
    for field in ["load_s", "first_token_s", "prefill_tok_s", "decode_tok_s"] {
        assert!(object["timings"][field].as_f64().unwrap() > 0.0, "{field}");
    }
}

#[test]
fn a_thought_is_a_field_of_its_own_and_can_be_hidden() {
    let args = ["run", "-m", model(), "Hello", "--think", "--max-tokens", "12"];
    let object = json(&[&args[..], &["--json"]].concat());
    let thought = object["reasoning"].as_str().unwrap();
    assert!(!thought.is_empty());
    assert_eq!(object["text"], "");
    assert_eq!(ok(&args).trim_end(), format!("<think>\n{thought}").trim_end());
    assert_eq!(ok(&[&args[..], &["--hide-thinking"]].concat()), "");
    let closed =
        json(&["run", "-m", model(), "Hello", "--no-think", "--max-tokens", "12", "--json"]);
    assert_eq!(closed["reasoning"], Value::Null);
}

#[test]
fn an_answer_stands_behind_its_thought() {
    // The bias chooses `a`, the penalties then `</think>` (509), and then `a` again.
    let args = [
        "run",
        "-m",
        model(),
        "Hello",
        "--think",
        "--max-tokens",
        "3",
        "--presence-penalty",
        "2",
        "--frequency-penalty",
        "2",
        "--logit-bias",
        "97=100",
        "--logit-bias",
        "509=93",
    ];
    let object = json(&[&args[..], &["--json"]].concat());
    assert_eq!((&object["reasoning"], &object["text"]), (&"a".into(), &"a".into()));
    assert_eq!(ok(&args), "<think>\na\n</think>\n\na\n");
    assert_eq!(ok(&[&args[..], &["--hide-thinking"]].concat()), "a\n");
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_seed_another() {
    let text = |seed: &str| {
        let args = ["run", "-m", model(), "--raw", "A", "--temperature", "1", "--seed", seed];
        ok(&[&args[..], &["--max-tokens", "24"]].concat())
    };
    let one = text("1");
    assert_eq!(one, text("1"));
    assert_ne!(one, text("2"));
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let args = ["run", "-m", model(), "--raw", "Hello", "--max-tokens", "24"];
    let whole = json(&[&args[..], &["--json"]].concat());
    let whole = whole["text"].as_str().unwrap();
    let characters: Vec<char> = whole.chars().collect();
    let stop: String = characters[characters.len() / 2..][..2].iter().collect();
    let cut = json(&[&args[..], &["--json", "--stop", &stop]].concat());
    assert_eq!(cut["text"].as_str().unwrap(), whole.split(&stop).next().unwrap());
    assert_eq!(cut["finish_reason"], "stop");
    assert!(cut["tokens"].as_array().unwrap().len() < 24);
}

#[test]
fn a_dash_reads_the_prompt_from_standard_input() {
    let args = ["run", "-m", model(), "--max-tokens", "8"];
    let piped = with_input(&[&args[..], &["--raw", "-"]].concat(), "Hello");
    assert_eq!(out(&piped), ok(&[&args[..], &["--raw", "Hello"]].concat()));
    let piped = with_input(&[&args[..], &["-"]].concat(), "Hello");
    assert_eq!(out(&piped), ok(&[&args[..], &["Hello"]].concat()));
}

#[cfg(target_os = "linux")]
#[test]
fn too_little_address_space_is_not_blamed_on_the_template() {
    let run =
        format!("ulimit -v 200000; exec '{}' run -m '{}' hi", env!("CARGO_BIN_EXE_lily"), model());
    let output = input::with_input(Command::new("sh").args(["-c", &run]), "");
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("lily: no thread with a stack of ") && said.contains("(ulimit -v)"),
        "{said}"
    );
}

#[test]
fn an_empty_question_is_refused() {
    for (question, input) in [("", "Hello"), (" \n", "Hello"), ("-", ""), ("-", "\n")] {
        let output = with_input(&["run", "-m", model(), question], input);
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(1), ""), "{question:?}");
        assert!(err(&output).contains("the question is empty"), "{}", err(&output));
    }
}

#[test]
fn a_system_prompt_lengthens_the_prompt_and_a_chat_template_frames_it() {
    let tokens = |args: &[&str]| {
        let args = [&["run", "-m", model(), "--json", "--max-tokens", "1"], args].concat();
        let object = json(&args);
        object["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let (raw, plain) = (tokens(&["--raw", "Hello"]), tokens(&["Hello"]));
    assert_eq!(raw, 5);
    assert!(plain > raw);
    // The frame of a turn is three ids and the role's letters.
    assert!(tokens(&["Hello", "--system", "Be brief."]) >= plain + 9);
}

#[test]
fn a_pipe_gets_no_escape_codes() {
    for output in [
        lily(&["run", "-m", model(), "Hello", "--max-tokens", "16"]),
        with_input(
            &["chat", "-m", model(), "--max-tokens", "16", "--seed", "1"],
            "Hello\n/stats\n",
        ),
    ] {
        assert!(output.status.success(), "{}", err(&output));
        for text in [out(&output), err(&output)] {
            assert!(!text.contains("\u{1b}["), "{text:?}");
        }
    }
}

#[test]
fn a_chat_through_a_pipe_keeps_its_turns_until_reset() {
    let input = "Hello\nAnd now?\n/stats\n/reset\nHello\n/quit\nnever\n";
    let args =
        ["chat", "-m", model(), "--json", "--max-tokens", "6", "--temperature", "0", "--no-think"];
    let output = with_input(&args, input);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    let answers: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(answers.len(), 3, "{text}");
    let prompt = |i: usize| answers[i]["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt(1) > prompt(0) + 6, "the second prompt holds the first turn");
    assert_eq!(prompt(2), prompt(0), "a reset forgets the turns");
    assert_eq!(answers[2]["text"], answers[0]["text"]);
    assert!(text.contains("4 messages"), "{text}");
    assert!(text.contains("context"), "{text}");
}

#[test]
fn kept_thoughts_let_a_chat_read_only_what_is_new() {
    let args = [
        "chat",
        "-m",
        model(),
        "--json",
        "--max-tokens",
        "6",
        "--temperature",
        "0",
        "--no-think",
        "--preserve-thinking",
        // Always `a`: an answer that becomes the same ids again.
        "--logit-bias",
        "97=100",
    ];
    let text = out(&with_input(&args, "Hello\nAnd now?\n"));
    let second: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let reused = &second["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(reused.as_u64() >= first["usage"]["prompt_tokens"].as_u64(), "{text}");
}

#[test]
fn a_chat_reads_lines_that_belong_together_as_one_message() {
    let args = ["chat", "-m", model(), "--json", "--max-tokens", "1", "--no-think"];
    let prompt = |input: &str| {
        let object: Value = serde_json::from_str(&out(&with_input(&args, input))).unwrap();
        object["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let one = prompt("ab cd\n");
    assert_eq!(prompt("ab\\\ncd\n"), one);
    assert_eq!(prompt("\"\"\"\nab\ncd\n\"\"\"\n"), one);
}

#[test]
fn a_chat_survives_unknown_commands_and_a_full_context_and_says_so() {
    let long = "x".repeat(80);
    let input = format!("/nonsense\n{long}\nHi\n/reset\nHi\n");
    let args = ["chat", "-m", model(), "--ctx", "64", "--no-think", "--max-tokens", "4", "--json"];
    let output = with_input(&args, &input);
    assert_eq!(output.status.code(), Some(1), "a script learns that not all went well");
    let errors = err(&output);
    assert!(errors.contains("unknown command `/nonsense`"), "{errors}");
    assert!(errors.contains("context holds 64; start a new one (/reset)"), "{errors}");
    assert_eq!(out(&output).lines().count(), 2);
}

#[test]
fn the_chat_samples_as_the_checkpoint_says_and_the_command_line_overrides_it() {
    let stats = |args: &[&str]| {
        let args = [&["chat", "-m", model(), "--seed", "7"], args].concat();
        out(&with_input(&args, "/stats\n"))
    };
    let text = stats(&[]);
    assert!(text.contains("temperature 1, top-k 20, top-p 0.95, min-p 0, seed 7"), "{text}");
    let text = stats(&["--temperature", "0.5", "--top-k", "3"]);
    assert!(text.contains("temperature 0.5, top-k 3, top-p 0.95"), "{text}");
}

#[test]
fn help_system_and_think_answer_in_a_chat() {
    let input = "/help\n/system\n/system Be brief.\n/system\n/think maybe\n";
    let output = with_input(&["chat"], input);
    let text = out(&output);
    for wanted in ["/reset", "/think on|off", "no system prompt", "Be brief."] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(err(&output).contains("/think on or /think off"));
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [
        &["run"][..],
        &["run", "Hello", "--raw", "Hello"],
        &["run", "Hello", "--tokens", "1"],
        &["run", "--raw", "a", "--system", "b"],
        &["run", "--tokens", "x"],
        &["run", "Hello", "--temperature", "warm"],
        &["chat", "--tokens", "1"],
        &["completions", "tcsh"],
        &["bench", "--preset", "nope"],
        &["bench", "--preset", "tiny", "--json", "x.svg", "--plot", "x.svg"],
        &["bench", "--preset", "tiny", "--json", "a/./x.svg", "--plot", "./a/x.svg"],
    ] {
        assert_eq!(lily(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_device_that_is_not_there_is_said_before_the_built_in_model_is_named() {
    let mut refused = 0;
    // No machine has both.
    for device in ["cuda", "metal"] {
        let output = lily(&["run", "Hello", "--max-tokens", "1", "--device", device]);
        if !output.status.success() {
            refused += 1;
            assert!(!err(&output).contains(NOTICE), "{}", err(&output));
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let output = lily(&["run", "-m", "/nowhere/model", "Hello"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("found nothing at /nowhere/model"), "{}", err(&output));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let commands =
        ["run", "chat", "eval", "plan", "kernels", "inspect", "synth", "completions", "man"];
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ok(&["completions", shell]);
        for name in commands.iter().chain(&["preserve-thinking"]) {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    let page = ok(&["man"]);
    assert!(page.contains(".TH lily 1") && page.contains("\"lily 0."), "{page}");
    let folder = tempfile::tempdir().unwrap();
    ok(&["man", "--out", folder.path().to_str().unwrap()]);
    for name in commands {
        let page = std::fs::read_to_string(folder.path().join(format!("lily-{name}.1"))).unwrap();
        assert!(page.contains("\n.SH EXAMPLES\n") && !page.contains("EXTRA"), "{name}: {page}");
        assert!(!page.contains("Examples:"), "{name}: {page}");
    }
}

#[test]
fn every_command_has_an_example_in_its_help() {
    let help = ok(&["--help"]);
    let commands = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let names: Vec<&str> = commands
        .map_while(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() >= 8, "{help}");
    for name in names {
        let help = ok(&[name, "--help"]);
        assert!(help.contains(&format!("  lily {name}")), "{name}: {help}");
    }
}

#[test]
fn an_answer_fits_the_schema_that_was_given_and_a_bad_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("schema.json");
    let path = file.to_str().unwrap();
    let schema = r#"{"type": "object", "required": ["n"], "additionalProperties": false,
        "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}}"#;
    std::fs::write(&file, schema).unwrap();
    // Some editors begin a file with a mark.
    for (more, mark) in [(["--temperature", "1"], ""), (["--max-tokens", "300"], "\u{feff}")] {
        std::fs::write(&file, format!("{mark}{schema}")).unwrap();
        let mut args = vec!["run", "-m", model(), "Hello", "--no-think", "--json"];
        args.extend(["--json-schema", path]);
        args.extend(more);
        let answer: Value = serde_json::from_str(json(&args)["text"].as_str().unwrap()).unwrap();
        assert!((10..=99).contains(&answer["n"].as_i64().unwrap()), "{answer}");
    }
    std::fs::write(&file, r#"{"type": "array", "uniqueItems": true}"#).unwrap();
    let noted = lily(&["run", "-m", model(), "Hello", "--max-tokens", "1", "--json-schema", path]);
    assert!(err(&noted).contains("lily: .uniqueItems of the schema is not kept"), "{noted:?}");
    for (text, words) in [
        (r#"{"properties": {"a": {"not": {}}}}"#, ".properties.a"),
        ("{", "cannot be used as JSON"),
        (
            r#"{"type": "object", "properties": {"a": {}, "a": {}}}"#,
            "`properties.a` is given twice",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = lily(&["run", "-m", model(), "Hello", "--json-schema", path]);
        assert!(!output.status.success());
        assert!(err(&output).contains(words), "{}", err(&output));
    }
}
