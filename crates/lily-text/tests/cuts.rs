//! A hundred random cuts of every test text through the way out, ids to characters, thought apart
//! from answer, answer up to a stop string: one result.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use lily_text::{
    Detokenizer, Markers, ReasoningSplitter, SpecialTokens, StopStrings, Thinking, Tokenizer,
};
use serde_json::Value;

const CUTS: usize = 100;
/// Among them beginnings of each other and of the closing tag.
const STOPS: [&str; 5] = ["END", "\n\n\n", "</think><", "é😀", "😀\n"];

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

/// What a text comes to: thought, answer, and the stop string that ended it.
#[derive(Debug, PartialEq)]
struct Result {
    thought: String,
    answer: String,
    stop: Option<usize>,
}

struct Way {
    splitter: ReasoningSplitter,
    stops: StopStrings,
    pushed: usize,
    result: Result,
}

impl Way {
    fn new(thinking: Thinking) -> Way {
        Way {
            splitter: ReasoningSplitter::new(thinking),
            stops: StopStrings::new(&STOPS).unwrap(),
            pushed: 0,
            result: Result { thought: String::new(), answer: String::new(), stop: None },
        }
    }

    fn push(&mut self, piece: &str) {
        if self.result.stop.is_some() {
            return;
        }
        self.pushed += 1;
        let split = self.splitter.push(piece);
        self.result.thought.push_str(split.reasoning);
        let step = self.stops.push(split.content, self.pushed);
        self.result.answer.push_str(step.text);
        self.result.stop = step.stop.map(|stop| stop.index);
    }

    fn finish(mut self) -> Result {
        if self.result.stop.is_none() {
            let rest = self.splitter.finish();
            self.result.thought.push_str(rest.reasoning);
            self.result.answer.push_str(rest.content);
            self.result.answer.push_str(self.stops.finish());
        }
        self.result
    }
}

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
    for thinking in [Thinking::Open, Thinking::Absent] {
        let mut whole = Way::new(thinking);
        whole.push(text);
        let wanted = whole.finish();
        for _ in 0..CUTS {
            let pieces = random.pieces(text);
            let mut cut = Way::new(thinking);
            pieces.iter().for_each(|piece| cut.push(piece));
            assert_eq!(cut.finish(), wanted, "{text:?} as {pieces:?}");

            // Each piece on its own: other ids for the same text, down to parts of characters.
            let markers = [Markers::Plain, Markers::Control][random.below(2)];
            let mut decoder = Detokenizer::new(tokenizer, SpecialTokens::Show);
            let mut streamed = Way::new(thinking);
            for piece in &pieces {
                for id in tokenizer.encode(piece, markers).unwrap() {
                    streamed.push(decoder.push(id));
                }
            }
            streamed.push(decoder.finish());
            assert_eq!(streamed.finish(), wanted, "ids of {text:?} as {pieces:?}");
        }
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
