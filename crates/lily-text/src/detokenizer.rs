//! Ids to text while they arrive, never in halves of a character.

use crate::Tokenizer;

/// What a decoder does with tokens that only frame the conversation, such as `<|im_end|>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpecialTokens {
    /// They are left out. `<think>` and `<tool_call>` are not special and stay.
    #[default]
    Skip,
    /// They are shown as they are written.
    Show,
}

/// Turns a stream of ids into text.
///
/// A token may hold part of a character. Text is given out as soon as its characters are whole, so
/// at most three bytes wait. Bytes that cannot become a character are replaced by U+FFFD exactly as
/// [`Tokenizer::decode`] replaces them: all pieces and [`Detokenizer::finish`] joined are its text.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    special: SpecialTokens,
    /// The beginning of a character, up to three bytes.
    pending: Vec<u8>,
    text: String,
}

impl Detokenizer {
    /// A decoder at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer, special: SpecialTokens) -> Detokenizer {
        Detokenizer {
            tokenizer: tokenizer.clone(),
            special,
            pending: Vec::new(),
            text: String::new(),
        }
    }

    /// Adds a token and returns the text that became whole; often one word, sometimes nothing.
    /// An id without a token adds nothing.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        if self.special == SpecialTokens::Skip && self.tokenizer.is_special(id) {
            return &self.text;
        }
        self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or(&[]));
        let mut done = 0;
        loop {
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.text.push_str(text);
                    done += rest.len();
                }
                Err(e) => {
                    let (whole, _) = rest.split_at(e.valid_up_to());
                    self.text.push_str(std::str::from_utf8(whole).unwrap_or(""));
                    done += whole.len();
                    if let Some(bad) = e.error_len() {
                        self.text.push(char::REPLACEMENT_CHARACTER);
                        done += bad;
                        continue;
                    }
                }
            }
            break;
        }
        self.pending.drain(..done);
        &self.text
    }

    /// Ends the text: what waits can no longer become a character and comes as U+FFFD. The decoder
    /// is at the beginning of a new text afterwards.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, String) {
        let mut decoder = Detokenizer::new(tokenizer, SpecialTokens::Show);
        let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id).to_owned()).collect();
        pieces.push(decoder.finish().to_owned());
        let joined = pieces.concat();
        (pieces, joined)
    }

    #[test]
    fn a_character_is_never_split_and_plain_text_never_waits() {
        let tokenizer = Tokenizer::bytes().unwrap();
        let text = "a😀👩‍👩‍👧‍👦 中文 é\n";
        let ids = tokenizer.encode(text, crate::Markers::Plain).unwrap();
        assert_eq!(ids.len(), text.len(), "the byte tokenizer has one id for each byte");
        let (pieces, joined) = stream(&tokenizer, &ids);
        assert_eq!(joined, text);
        let mut at = 0;
        for (i, piece) in pieces.iter().enumerate() {
            at += piece.len();
            // After each byte all whole characters are out.
            let whole = (0..=(i + 1).min(text.len())).rev().find(|&n| text.is_char_boundary(n));
            assert_eq!(Some(at), whole, "after byte {i}");
        }
    }

    #[test]
    fn a_tail_that_was_cut_comes_as_one_replacement_character() {
        let tokenizer = Tokenizer::bytes().unwrap();
        let ids = tokenizer.encode("ok 😀", crate::Markers::Plain).unwrap();
        let (pieces, joined) = stream(&tokenizer, &ids[..ids.len() - 1]);
        assert_eq!(joined, "ok \u{fffd}");
        assert_eq!(pieces.last().unwrap(), "\u{fffd}");
    }

    #[test]
    fn special_tokens_are_skipped_and_think_stays() {
        let tokenizer = Tokenizer::bytes().unwrap();
        let ids = tokenizer.encode("<think>a<|im_end|>b", crate::Markers::Control).unwrap();
        assert_eq!(ids.len(), 4);
        let mut decoder = Detokenizer::new(&tokenizer, SpecialTokens::Skip);
        let text: String = ids.iter().map(|&id| decoder.push(id).to_owned()).collect();
        assert_eq!(text, "<think>ab");
        assert_eq!(stream(&tokenizer, &ids).1, "<think>a<|im_end|>b");
    }

    #[test]
    fn ids_without_a_token_add_nothing() {
        let tokenizer = Tokenizer::bytes().unwrap();
        let ids = [u32::from(b'a'), u32::MAX, tokenizer.vocab_len() as u32];
        assert_eq!(stream(&tokenizer, &ids).1, tokenizer.decode(&ids));
        assert_eq!(tokenizer.decode(&ids).len(), 1);
    }

    proptest! {
        #[test]
        fn streaming_equals_decoding_at_once_for_any_bytes(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0xf0), Just(0x9f), Just(0x98), Just(0x80), Just(b'a')],
                0..60,
            )
        ) {
            let tokenizer = Tokenizer::bytes().unwrap();
            let ids: Vec<u32> = bytes
                .iter()
                .map(|&b| {
                    let same = |&id: &u32| tokenizer.token_bytes(id) == Some(&[b][..]);
                    (0..256).find(same).unwrap()
                })
                .collect();
            let text = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(&stream(&tokenizer, &ids).1, &text);
            prop_assert_eq!(&tokenizer.decode(&ids), &text);
        }
    }
}
