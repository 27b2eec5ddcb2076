//! What a tokenizer file may hold, and what its ids are.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::file::{PATTERN_QWEN35, parse};
use super::{MAX_WHITE_SPACE, Markers, Tokenizer, byte_alphabet, byte_character};
use crate::TextError;

/// A file with all bytes, two merges, and the pattern of the family.
fn file() -> Value {
    let mut vocab: serde_json::Map<String, Value> =
        (0..=255u8).map(|byte| (byte_character(byte).to_string(), byte.into())).collect();
    vocab.insert("ab".into(), 256.into());
    vocab.insert("abc".into(), 257.into());
    let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": false });
    json!({
        "added_tokens": [
            { "id": 258, "content": "<a>", "special": true },
            { "id": 259, "content": "<a>b", "special": false },
            { "id": 260, "content": "<|im_end|>", "special": true },
        ],
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": PATTERN_QWEN35 }, "behavior": "Isolated", "invert": false },
            level,
        ] },
        "post_processor": level, "decoder": level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [["a", "b"], ["ab", "c"]] },
    })
}

fn open_with(file: &Value, config: &Value) -> Result<Tokenizer, TextError> {
    let text = file.to_string();
    Tokenizer::parse(Path::new("t.json"), text.as_bytes(), Path::new("c.json"), config)
}

fn open(file: &Value) -> Result<Tokenizer, TextError> {
    open_with(file, &Value::Null)
}

#[test]
fn r41_merges_apply_and_the_longest_added_token_wins() {
    let tokenizer = open(&file()).unwrap();
    let ids = |text: &str, markers| tokenizer.encode(text, markers).unwrap();
    assert_eq!(ids("abcab", Markers::Plain), [257, 256]);
    assert_eq!(ids("ab<a>b<a>c", Markers::Control), [256, 259, 258, u32::from(b'c')]);
    assert_eq!(ids("<a", Markers::Control), [u32::from(b'<'), u32::from(b'a')]);
    assert_eq!(ids("<a>", Markers::Plain).len(), 3);
    assert_eq!(tokenizer.decode(&ids("ab<a>b<a>c", Markers::Control)), "ab<a>b<a>c");
    assert_eq!(tokenizer.vocab_len(), 261);
    assert_eq!(tokenizer.end_tokens(), [260]);
    assert_eq!(tokenizer.id_of("<a>b"), Some(259));
    assert_eq!(tokenizer.id_of("ab"), None);
    assert!(tokenizer.is_control(259) && !tokenizer.is_special(259) && !tokenizer.is_control(257));
    assert_eq!(tokenizer.token_bytes(261), None);
}

#[test]
fn text_is_composed_before_it_is_cut() {
    let tokenizer = open(&file()).unwrap();
    let composed = tokenizer.encode("é", Markers::Plain).unwrap();
    assert_eq!(tokenizer.encode("e\u{301}", Markers::Plain).unwrap(), composed);
    assert_eq!(tokenizer.decode(&composed), "é");
}

#[test]
fn a_client_range_changes_only_the_control_tokens_that_touch_it() {
    let tokenizer = open(&file()).unwrap();
    let text = "<a>x<a>ab<a>b";
    let all = tokenizer.encode(text, Markers::Control).unwrap();
    assert_eq!(tokenizer.encode_around(text, &[]).unwrap(), all);
    let only_text = tokenizer.encode_around(text, &[3..4]).unwrap();
    assert_eq!(only_text, all, "the client's text has no control token");
    let middle = tokenizer.encode_around(text, &[5..6]).unwrap();
    let spelled = [258, b'x'.into(), b'<'.into(), b'a'.into(), b'>'.into(), 256, 259];
    assert_eq!(middle, spelled);
    // The last letter of the longer token is the client's: the shorter one is the frame's.
    let tail = tokenizer.encode_around(text, &[12..13]).unwrap();
    assert_eq!(tail[tail.len() - 2..], [258, u32::from(b'b')]);
    let whole = tokenizer.encode_around(text, &[0..text.len()]).unwrap();
    assert_eq!(whole, tokenizer.encode(text, Markers::Plain).unwrap());
}

#[test]
fn tokens_that_only_the_configuration_lists_are_added() {
    let config = json!({
        "eos_token": { "content": "<a>" },
        "added_tokens_decoder": {
            "258": { "content": "<a>", "special": true },
            "270": { "content": "<new>", "special": false },
        },
    });
    let tokenizer = open_with(&file(), &config).unwrap();
    assert_eq!(tokenizer.encode("<new>", Markers::Control).unwrap(), [270]);
    assert_eq!(tokenizer.end_tokens(), [258, 260]);
    assert_eq!(tokenizer.vocab_len(), 271);
    assert_eq!(tokenizer.token_bytes(265), None);

    let unknown = open_with(&file(), &json!({ "eos_token": "</s>" })).unwrap_err().to_string();
    assert!(unknown.contains("`eos_token` is \"</s>\""), "{unknown}");
}

#[test]
fn r40_what_lily_does_not_follow_is_refused_by_name() {
    let level = json!({ "type": "ByteLevel", "add_prefix_space": true, "use_regex": true });
    let metaspace = json!({ "type": "Metaspace", "replacement": "_" });
    let cases = [
        ("/pre_tokenizer", metaspace.clone(), "`pre_tokenizer` `Metaspace`, but only `ByteLevel`"),
        ("/pre_tokenizer", Value::Null, "`pre_tokenizer` none"),
        ("/pre_tokenizer", level, "puts a space in front"),
        (
            "/pre_tokenizer/pretokenizers/0/pattern/Regex",
            json!("\\w+"),
            "splits by `\\w+`, but only `(?i:",
        ),
        ("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed"), "`behavior: Isolated`"),
        ("/pre_tokenizer/pretokenizers/1/use_regex", json!(true), "`use_regex: false`"),
        ("/normalizer", json!({ "type": "NFKC" }), "`normalizer` `NFKC`, but only `NFC`"),
        ("/decoder", metaspace, "`decoder` `Metaspace`"),
        ("/decoder", Value::Null, "`decoder` none, but only `ByteLevel`"),
        (
            "/post_processor",
            json!({ "type": "TemplateProcessing" }),
            "`post_processor` `TemplateProcessing`",
        ),
        ("/model/type", json!("WordPiece"), "`model` of type `WordPiece`, but only `BPE`"),
        ("/model/merges", json!([["a", "nothing"]]), "malformed"),
        ("/model/vocab/ab", json!(257), "id 257 belongs to two tokens"),
        ("/model/vocab/ab", json!(4_000_000_000u32), "ids end at"),
        ("/added_tokens/0/id", json!(4_000_000_000u32), "ids end at"),
        ("/added_tokens/0/content", json!(""), "a token has text"),
        ("/added_tokens/0/content", json!("hello"), "which any word may hold"),
        ("/added_tokens/0/id", json!(97), "id 97 belongs to two tokens"),
    ];
    for (pointer, value, wanted) in cases {
        let mut file = file();
        *file.pointer_mut(pointer).unwrap() = value;
        let message = open(&file).unwrap_err().to_string();
        assert!(message.contains(wanted), "{pointer}: {message}");
        assert!(message.starts_with("t.json "), "{message}");
    }
    let mut without_a_byte = file();
    without_a_byte["model"]["vocab"].as_object_mut().unwrap().remove("Ā");
    let message = open(&without_a_byte).unwrap_err().to_string();
    assert!(message.contains("no token for byte 0,"), "{message}");
    for flag in ["lstrip", "rstrip", "single_word"] {
        let mut file = file();
        file["added_tokens"][1][flag] = json!(true);
        let message = open(&file).unwrap_err().to_string();
        assert!(message.contains(&format!("`<a>b` with `{flag}`")), "{message}");
    }
    for (field, value) in
        [("dropout", json!(0.1)), ("unk_token", json!("a")), ("byte_fallback", json!(true))]
    {
        let mut file = file();
        file["model"][field] = value;
        let message = open(&file).unwrap_err().to_string();
        assert!(message.contains(&format!("`model` with `{field}`")), "{message}");
    }
}

#[test]
fn damaged_files_are_refused_without_a_panic() {
    let text = file().to_string();
    for cut in (0..text.len()).step_by(97).filter(|&cut| text.is_char_boundary(cut)) {
        assert!(parse(Path::new("t.json"), &text.as_bytes()[..cut]).is_err());
    }
    for text in ["", "null", "[]", "{}", "{\"model\": null}", "{\"model\": {}}", "\u{0}"] {
        assert!(parse(Path::new("t.json"), text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_folder_without_a_tokenizer_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let message = Tokenizer::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json is missing; copy it"), "{message}");
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("\u{feff}{}", file());
    std::fs::write(folder.path().join("tokenizer.json"), text).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), "\u{feff}{}").unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), "\u{feff}hello").unwrap();
    assert_eq!(Tokenizer::open(folder.path()).unwrap().vocab_len(), 261);
    assert_eq!(crate::ChatTemplate::open(folder.path()).unwrap().source(), "hello");
}

#[test]
fn long_runs_of_white_space_are_exact_or_refused() {
    let tokenizer = open(&file()).unwrap();
    let run = " ".repeat(MAX_WHITE_SPACE);
    let ids = tokenizer.encode(&format!("{run}ab"), Markers::Plain).unwrap();
    // The pattern leaves one space to the word behind; both pieces end up as single bytes here.
    assert_eq!(ids.len(), MAX_WHITE_SPACE + 1);
    assert_eq!(ids.last(), Some(&256));
    let error = tokenizer.encode(&format!("{run} ab"), Markers::Plain).unwrap_err();
    assert!(error.is_request_error(), "{error}");
}

#[test]
fn the_byte_alphabet_names_each_byte_once() {
    let bytes_of = byte_alphabet();
    let characters: Vec<char> = (0..=255).map(byte_character).collect();
    for (byte, &c) in (0..=255).zip(&characters) {
        assert_eq!(bytes_of(c), Some(byte));
    }
    assert_eq!((characters[0], characters[32], characters[65]), ('Ā', 'Ġ', 'A'));
}

/// Where every value of a file stands, apart from most of the byte tokens.
fn collect_pointers(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                collect_pointers(item, format!("{at}/{i}"), out);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields.iter().filter(|(key, _)| *key < &"b".into() || key.len() > 2)
            {
                let key = key.replace('~', "~0").replace('/', "~1");
                collect_pointers(field, format!("{at}/{key}"), out);
            }
        }
        _ => {}
    }
    out.push(at);
}

proptest! {
    #[test]
    fn any_text_survives_the_round_trip_up_to_composition(text in "\\PC{0,40}") {
        let tokenizer = open(&file()).unwrap();
        let once = tokenizer.decode(&tokenizer.encode(&text, Markers::Plain).unwrap());
        let twice = tokenizer.decode(&tokenizer.encode(&once, Markers::Plain).unwrap());
        prop_assert_eq!(&once, &twice);
        if text.is_ascii() {
            prop_assert_eq!(once, text);
        }
    }

    #[test]
    fn a_file_with_one_wrong_value_opens_or_is_refused(at in any::<prop::sample::Index>(), with in 0usize..9) {
        let mut file = file();
        let mut pointers = Vec::new();
        collect_pointers(&file, String::new(), &mut pointers);
        let values = [
            Value::Null, json!(true), json!(-1), json!(1e300), json!(u32::MAX), json!(""), json!([]),
            json!({}), json!("\u{0}<a>"),
        ];
        let pointer: &String = at.get(&pointers);
        *file.pointer_mut(pointer).unwrap() = values[with].clone();
        if let Ok(tokenizer) = open(&file) {
            // What opens works.
            let text = "ab <a>é\n\n  <|im_end|>";
            let ids = tokenizer.encode(text, Markers::Control).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids), text);
        }
    }

    #[test]
    fn plain_ids_never_hold_a_control_token(
        parts in proptest::collection::vec(
            prop_oneof![Just("<a>"), Just("<|im_end|>"), Just("<"), Just("b"), Just("|>"), Just("ab ")],
            0..12,
        )
    ) {
        let tokenizer = open(&file()).unwrap();
        let text = parts.concat();
        let ids = tokenizer.encode(&text, Markers::Plain).unwrap();
        prop_assert!(ids.iter().all(|&id| !tokenizer.is_control(id)));
        prop_assert_eq!(tokenizer.decode(&ids), text);
    }
}
