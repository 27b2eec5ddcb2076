//! The small files of a model folder: what `lily inspect` says about them, and who refuses them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{golden, lily};

/// A random model with all of its text files.
fn model() -> TempDir {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("m");
    let made = lily(&["synth", "--preset", "tiny", "--out", out.to_str().unwrap()]);
    assert_eq!(made.code, Some(0), "{made:?}");
    parent
}

fn text_files(folder: &Path) -> (Value, Vec<Value>) {
    let outcome = lily(&["inspect", folder.to_str().unwrap(), "--json"]);
    let object = outcome.object();
    assert_eq!(outcome.code == Some(0), object["supported"] == true, "{object}");
    (object["supported"].clone(), object["text_files"].as_array().unwrap().clone())
}

#[test]
fn inspect_says_which_text_files_are_there_and_load() {
    let parent = model();
    let folder = parent.path().join("m");
    let (supported, files) = text_files(&folder);
    let names: Vec<(&Value, &Value)> = files.iter().map(|f| (&f["part"], &f["file"])).collect();
    let wanted = [
        (json!("sampling"), json!("generation_config.json")),
        (json!("tokenizer"), json!("tokenizer.json")),
        (json!("template"), json!("chat_template.jinja")),
    ];
    assert_eq!(names, wanted.iter().map(|(part, file)| (part, file)).collect::<Vec<_>>());
    assert!(supported == true && files.iter().all(|file| file["error"].is_null()), "{files:?}");

    // A folder without them runs by ids.
    let (supported, files) = text_files(Path::new(&golden("mixed")));
    assert!(supported == true && files.iter().all(|file| file["file"].is_null()), "{files:?}");
    let text = lily(&["inspect", &golden("mixed")]).stdout;
    assert!(text.contains("  tokenizer     none: only `lily run --tokens` works\n"), "{text}");
    assert!(text.contains("  template      none: no chat\n"), "{text}");
    let question = lily(&["run", "-m", &golden("mixed"), "hello"]);
    question.assert_fails("a text needs a tokenizer; `lily run --tokens` does without: ");
    assert!(!question.stderr.contains("--raw"), "{question:?}");

    // With a tokenizer alone a text can be continued.
    let template = folder.join("chat_template.jinja");
    let aside = folder.join("aside");
    fs::rename(&template, &aside).unwrap();
    let text = lily(&["inspect", folder.to_str().unwrap()]).stdout;
    assert!(text.contains("none: no chat; `lily run --raw` and `--tokens` do without\n"), "{text}");
    let question = lily(&["run", "-m", folder.to_str().unwrap(), "hello"]);
    question.assert_fails("a question needs a chat template; --raw and --tokens do without: ");
    fs::rename(&aside, &template).unwrap();

    for (file, bad, part) in [
        ("tokenizer.json", "{}", "tokenizer"),
        ("chat_template.jinja", "{% if %}", "template"),
        ("generation_config.json", "{\"top_p\": 7}", "sampling"),
    ] {
        let path = folder.join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, bad).unwrap();
        let (supported, files) = text_files(&folder);
        let broken = files.iter().find(|f| f["part"] == part).unwrap();
        assert!(supported == false && broken["error"].as_str().unwrap().contains(file), "{broken}");
        let text = lily(&["inspect", folder.to_str().unwrap()]).stdout;
        assert!(text.contains("does not load: ") && text.contains("supported     no: "), "{text}");
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn a_bad_generation_config_is_refused_by_every_command_that_loads_the_model() {
    let parent = model();
    let folder = parent.path().join("m");
    let path = folder.to_str().unwrap();
    for (text, part) in [
        ("{\"temperature\": \"hot\"}", "`temperature` = \"hot\""),
        ("{\"top_k\": -3}", "`top_k` = -3"),
        ("[", "not valid JSON"),
    ] {
        fs::write(folder.join("generation_config.json"), text).unwrap();
        for args in [
            &["run", "-m", path, "--tokens", "1"][..],
            &["run", "-m", path, "hello"],
            &["chat", "-m", path],
        ] {
            lily(args).assert_fails(part);
        }
    }
}

#[test]
fn ids_run_without_a_usable_tokenizer_and_say_so() {
    let parent = model();
    let folder = parent.path().join("m");
    let args = ["run", "-m", folder.to_str().unwrap(), "--tokens", "1,2", "--max-tokens", "2"];
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    let outcome = lily(&args);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stderr.contains("lily: warning: ") && outcome.stderr.contains("tokenizer.json")
    );
    assert!(outcome.stdout.trim().split(',').all(|id| id.parse::<u32>().is_ok()), "{outcome:?}");
    lily(&[&args[..], &["--stop", "x"]].concat()).assert_fails("a stop string needs a tokenizer");
}

#[test]
fn a_file_in_place_of_a_folder_is_named_as_one() {
    let file = format!("{}/config.json", golden("mixed"));
    lily(&["run", "-m", &file, "--tokens", "1"]).assert_fails("found a file at ");
    lily(&["inspect", &file]).assert_fails("found a file at ");
}

#[test]
fn a_reason_is_given_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    fs::copy(format!("{}/config.json", golden("mixed")), folder.path().join("config.json"))
        .unwrap();
    fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    let outcome = lily(&["run", "-m", path, "--tokens", "1"]);
    outcome.assert_fails("model.safetensors");
    for reason in ["Is a directory", "os error", "regular file"] {
        assert!(outcome.stderr.matches(reason).count() < 2, "{outcome:?}");
    }
}

#[test]
fn a_byte_order_mark_does_not_matter() {
    let parent = model();
    let folder = parent.path().join("m");
    for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        fs::write(folder.join(file), format!("\u{feff}{text}")).unwrap();
    }
    let run = ["run", "-m", folder.to_str().unwrap(), "hello", "--max-tokens", "2"];
    assert_eq!(lily(&run).code, Some(0), "{:?}", lily(&run));
}

#[test]
fn options_that_a_greedy_checkpoint_leaves_idle_are_refused_in_a_chat() {
    let parent = model();
    let folder = parent.path().join("m");
    let path = folder.to_str().unwrap();
    fs::write(folder.join("generation_config.json"), "{\"do_sample\": false}").unwrap();
    let chat = ["chat", "-m", path, "--seed", "3"];
    lily(&chat).assert_fails("--seed has no effect");
    let asked = lily(&[&chat[..], &["--temperature", "1"]].concat());
    assert_eq!(asked.code, Some(0), "{asked:?}");
    lily(&["chat", "-m", path, "--logit-bias", "99999=1"]).assert_fails("names token 99999");
}
