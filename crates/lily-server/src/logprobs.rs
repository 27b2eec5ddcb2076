//! Log probabilities as the API has them.

use lily_model::engine::Chosen;
use lily_text::Tokenizer;
use serde_json::{Map, Value, json};

/// What the API has for a token that is next to impossible; JSON has no infinity.
const LEAST: f32 = -9999.0;

/// `logprobs` of a choice of a chat: one entry for each token.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[Chosen]) -> Value {
    let content: Vec<Value> = tokens
        .iter()
        .filter_map(|token| {
            let logprobs = token.logprobs.as_ref()?;
            let mut entry = entry(tokenizer, token.id, logprobs.chosen);
            let top = logprobs.top.iter().map(|&(id, logprob)| self::entry(tokenizer, id, logprob));
            entry["top_logprobs"] = top.collect();
            Some(entry)
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    json!({
        "token": tokenizer.decode(&[id]),
        "logprob": logprob.max(LEAST),
        // The text of a part of a character does not tell which.
        "bytes": tokenizer.token_bytes(id).unwrap_or_default(),
    })
}

/// Where the next token of a text begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Characters in front of it.
    characters: usize,
    /// Bytes of a character that is not whole yet: a token that begins inside of it has its place.
    begun: Vec<u8>,
}

impl Place {
    /// Moves on behind a token.
    fn pass(&mut self, token: &[u8]) {
        self.begun.extend_from_slice(token);
        let mut rest = self.begun.as_slice();
        while !rest.is_empty() {
            let (whole, behind) = match std::str::from_utf8(rest) {
                Ok(text) => (text.chars().count(), rest.len()),
                Err(error) => {
                    let valid = error.valid_up_to();
                    let text = String::from_utf8_lossy(&rest[..valid]).chars().count();
                    match error.error_len() {
                        // What is no character is shown as one.
                        Some(wrong) => (text + 1, valid + wrong),
                        None => {
                            self.characters += text;
                            rest = &rest[valid..];
                            break;
                        }
                    }
                }
            };
            self.characters += whole;
            rest = &rest[behind..];
        }
        self.begun = rest.to_vec();
    }
}

/// `logprobs` of a choice of a text completion, from a place on.
pub(crate) fn text(tokenizer: &Tokenizer, tokens: &[Chosen], place: &mut Place) -> Value {
    let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens {
        let Some(found) = &token.logprobs else { continue };
        offsets.push(place.characters);
        place.pass(tokenizer.token_bytes(token.id).unwrap_or_default());
        texts.push(name(tokenizer, token.id));
        logprobs.push(found.chosen.max(LEAST));
        let mut top = Map::new();
        for &(id, logprob) in &found.top {
            // Of two tokens with the same text the likelier one counts.
            top.entry(name(tokenizer, id)).or_insert_with(|| json!(logprob.max(LEAST)));
        }
        tops.push(top);
    }
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

/// The text of a token, or its bytes if they are no text by themselves.
fn name(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let codes: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{codes}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_inside_a_character_has_the_place_of_that_character() {
        let places = |tokens: &[&[u8]]| {
            let mut place = Place::default();
            let mut places = Vec::new();
            for token in tokens {
                places.push(place.characters);
                place.pass(token);
            }
            places
        };
        assert_eq!(places(&[b"a", b"\xf0\x9f", b"\x98", b"\x80", b"b"]), [0, 1, 1, 1, 2]);
        assert_eq!(places(&["\u{e9}".as_bytes(), b"xy", b"z"]), [0, 1, 3]);
        assert_eq!(places(&[b"a\xc3", b"\xa9b", b"c"]), [0, 1, 3]);
        // What becomes no character is shown as one.
        assert_eq!(places(&[b"\xf0", b"a", b"\x80\x80", b"c"]), [0, 0, 2, 4]);
    }
}
