//! Tokenizer and template for models that lily makes itself.

use serde_json::{Map, Value, json};

use crate::TextError;
use crate::tokenizer::byte_character;

/// Control tokens: text, id in the published vocabulary, whether decoders drop it. In a small
/// vocabulary they are the last ids, in this order, so that the end of a turn is the very last.
const CONTROL: [(&str, usize, bool); 13] = [
    ("<|endoftext|>", 248_044, true),
    ("<|vision_start|>", 248_053, true),
    ("<|vision_end|>", 248_054, true),
    ("<|image_pad|>", 248_056, true),
    ("<|video_pad|>", 248_057, true),
    ("<tool_call>", 248_058, false),
    ("</tool_call>", 248_059, false),
    ("<tool_response>", 248_066, false),
    ("</tool_response>", 248_067, false),
    ("<think>", 248_068, false),
    ("</think>", 248_069, false),
    ("<|im_start|>", 248_045, true),
    ("<|im_end|>", 248_046, true),
];

/// From this size on the control tokens have their published ids.
const PUBLISHED_VOCAB: usize = 248_070;

/// The smallest vocabulary: one token for each byte, and the control tokens.
pub const SYNTH_MIN_VOCAB: usize = 256 + CONTROL.len();

/// The three files that make a folder of weights a model one can talk to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SynthTokenizer {
    /// Text of `tokenizer.json`.
    pub tokenizer_json: String,
    /// Text of `tokenizer_config.json`.
    pub tokenizer_config_json: String,
    /// Text of `chat_template.jinja`.
    pub chat_template_jinja: String,
}

/// Tokenizer and template for a model of lily's own with `vocab` rows.
///
/// Ids 0…255 are the bytes, so any text can be encoded and each byte is one id. The control tokens
/// are the last ids, `<|im_end|>` the very last; in a vocabulary of the published size they have
/// their published ids. The other ids are words that only a decoder meets: what a random model
/// says can be seen.
///
/// # Errors
/// [`TextError::Request`] if `vocab` is below [`SYNTH_MIN_VOCAB`].
pub fn synth_tokenizer_files(vocab: usize) -> Result<SynthTokenizer, TextError> {
    if vocab < SYNTH_MIN_VOCAB {
        return Err(TextError::Request {
            field: "the vocabulary".into(),
            expected: "at least 269 ids, for all bytes and the control tokens",
            found: format!("it has {vocab}"),
        });
    }
    let id = |i: usize| match vocab {
        PUBLISHED_VOCAB.. => CONTROL[i].1,
        _ => vocab - CONTROL.len() + i,
    };
    let added: Vec<Value> = CONTROL
        .iter()
        .enumerate()
        .map(|(i, (content, _, special))| {
            json!({
                "id": id(i), "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special
            })
        })
        .collect();
    let mut tokens: Map<String, Value> =
        (0..=255).map(|byte| (byte_character(byte).to_string(), Value::from(byte))).collect();
    let taken: Vec<usize> = (0..CONTROL.len()).map(id).collect();
    let last = taken.iter().copied().max().unwrap_or(0);
    for id in (256..last).filter(|id| !taken.contains(id)) {
        tokens.insert(word(id - 256), id.into());
    }
    let level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": tokens, "merges": []
        }
    });
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": false, "bos_token": null,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": null,
        "clean_up_tokenization_spaces": false
    });
    Ok(SynthTokenizer {
        tokenizer_json: tokenizer.to_string(),
        tokenizer_config_json: format!("{config:#}\n"),
        chat_template_jinja: include_str!("synth/chat_template.jinja").to_owned(),
    })
}

/// The n-th word: a space, two letters or more; all differ.
fn word(mut n: usize) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(b"aeiou"[n % 5]);
        n /= 5;
        letters.push(b"bdfgklmnprstvz"[n % 14]);
        n /= 14;
        if n == 0 {
            break;
        }
    }
    let spelled = letters.iter().rev().map(|&letter| char::from(letter));
    [byte_character(b' ')].into_iter().chain(spelled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChatTemplate, Markers, Tokenizer};

    fn folder(vocab: usize) -> tempfile::TempDir {
        let files = synth_tokenizer_files(vocab).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("tokenizer.json", files.tokenizer_json),
            ("tokenizer_config.json", files.tokenizer_config_json),
            ("chat_template.jinja", files.chat_template_jinja),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn the_files_open_and_every_byte_is_its_own_id() {
        for vocab in [SYNTH_MIN_VOCAB, 512] {
            let folder = folder(vocab);
            let tokenizer = Tokenizer::open(folder.path()).unwrap();
            ChatTemplate::open(folder.path()).unwrap();
            assert_eq!(tokenizer.vocab_len(), vocab);
            let text = "Grüße, 世界 😀\u{0}\r\n";
            let ids = tokenizer.encode(text, Markers::Plain).unwrap();
            let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
            assert_eq!(ids, bytes);
            assert_eq!(tokenizer.decode(&ids), text);
            let last = u32::try_from(vocab).unwrap() - 1;
            assert_eq!(tokenizer.id_of("<|im_end|>"), Some(last));
            assert!(tokenizer.end_tokens().contains(&last));
            for (content, _, special) in CONTROL {
                let id = tokenizer.id_of(content).unwrap();
                assert_eq!(tokenizer.encode(content, Markers::Control).unwrap(), [id], "{content}");
                assert!(tokenizer.is_control(id));
                assert_eq!(tokenizer.is_special(id), special);
                assert!(tokenizer.encode(content, Markers::Plain).unwrap().len() > 1);
            }
        }
    }

    #[test]
    fn a_full_vocabulary_has_the_published_ids_and_no_silent_ids_below_them() {
        let folder = folder(248_320);
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        assert_eq!(tokenizer.id_of("<|im_end|>"), Some(248_046));
        assert_eq!(tokenizer.end_tokens(), [248_044, 248_046]);
        assert!((0..248_044).all(|id| tokenizer.token_bytes(id).is_some_and(|b| !b.is_empty())));
    }

    #[test]
    fn a_vocabulary_that_is_too_small_is_refused() {
        let error = synth_tokenizer_files(268).unwrap_err().to_string();
        assert!(error.contains("at least 269"), "{error}");
    }
}
