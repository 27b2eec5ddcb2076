//! A hundred random cuts of every test text into ids and back to characters: one text.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use lily_text::{Detokenizer, Markers, SpecialTokens, Tokenizer};
use serde_json::Value;

const CUTS: usize = 100;
/// Texts that models write, apart from those of the conversations.
const WRITTEN: [&str; 8] = [
    "why\n</think>\n\nanswer",
    "\n\n\nwhy\n\n</think>\n\n\n\nan </think> answer\n",
    "</think>answer END more",
    "<</think></think><",
    "no end </thin",
    "é😀\n👩‍👩‍👧‍👦 中文 ENEND\n\n\n",
    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "",
];

/// Random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    /// A text in up to nine pieces, or one for each character.
    fn pieces<'a>(&mut self, text: &'a str) -> Vec<&'a str> {
        let inner: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
        let mut cuts = vec![0, text.len()];
        if self.below(10) == 0 {
            cuts.extend(&inner);
        } else if !inner.is_empty() {
            cuts.extend((0..self.below(9)).map(|_| inner[self.below(inner.len())]));
        }
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
    }
}

/// `text` is composed already: encoding does not change it.
fn check(tokenizer: &Tokenizer, text: &str, random: &mut Random) {
    for _ in 0..CUTS {
        // Each piece on its own: other ids for the same text, down to parts of characters.
        let pieces = random.pieces(text);
        let markers = [Markers::Plain, Markers::Control][random.below(2)];
        let mut decoder = Detokenizer::new(tokenizer, SpecialTokens::Show);
        let mut streamed = String::new();
        for piece in &pieces {
            for id in tokenizer.encode(piece, markers).unwrap() {
                streamed.push_str(decoder.push(id));
            }
        }
        streamed.push_str(decoder.finish());
        assert_eq!(streamed, text, "ids of {pieces:?}");
    }
}

/// Every string in a value.
fn strings<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => out.push(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
        Value::Object(fields) => fields.values().for_each(|field| strings(field, out)),
        _ => {}
    }
}

#[test]
fn every_cut_of_the_texts_at_hand_gives_one_result() {
    let tokenizer = Tokenizer::bytes().unwrap();
    let conversations = common::conversations();
    let mut texts = WRITTEN.to_vec();
    for case in &conversations {
        case.messages.iter().for_each(|message| strings(message, &mut texts));
    }
    texts.sort_unstable();
    texts.dedup();
    assert!(texts.len() > 60, "{}", texts.len());
    let mut random = Random(1);
    for text in texts {
        check(&tokenizer, text, &mut random);
    }
}

#[test]
#[cfg_attr(not(lily_reference), ignore = "set LILY_REFERENCE to the folder of the reference files")]
fn every_cut_of_the_published_texts_gives_one_result() {
    let Some((root, folder)) = common::reference_root().zip(common::reference()) else { return };
    let tokenizer = Tokenizer::open(&folder).unwrap();
    let text = std::fs::read_to_string(root.join("tokenizer_cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 150);
    let mut random = Random(2);
    for case in &cases {
        let text = case.get("decoded").unwrap_or(&case["text"]).as_str().unwrap();
        check(&tokenizer, text, &mut random);
    }
}
