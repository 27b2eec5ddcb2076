//! However a text is cut, what comes out and where it stops are the same.
//!
//! The input is what a model may have written: stop strings, one a line, an empty line, and the
//! text's bytes as ids. Its length and contents choose the cuts.
//!
//! `cargo +nightly fuzz run stop_strings fuzz/corpus/stop_strings fuzz/seeds/stop_strings`

#![no_main]

use std::sync::LazyLock;

use lily_text::{Detokenizer, ReasoningSplitter, SpecialTokens, StopStrings, Thinking, Tokenizer};

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::bytes().expect("lily's own files are whole"));
/// The id of each byte.
static BYTE_IDS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let id = |byte: u8| (0..256).find(|&id| TOKENIZER.token_bytes(id) == Some(&[byte]));
    (0..=255).map(|byte| id(byte).expect("the tokenizer spells every byte")).collect()
});

/// Thought, answer, and which stop string ended it.
type Split = (String, String, Option<usize>);

/// Runs pieces through the splitter, and the answer through the stop strings.
fn split(pieces: &[&str], stops: &[&str], thinking: Thinking) -> Split {
    let mut splitter = ReasoningSplitter::new(thinking);
    let mut machine = StopStrings::new(stops).expect("no stop string is empty");
    let (mut thought, mut answer, mut stop) = (String::new(), String::new(), None);
    for (i, piece) in pieces.iter().enumerate() {
        let step = splitter.push(piece);
        thought.push_str(step.reasoning);
        let step = machine.push(step.content, i + 1);
        answer.push_str(step.text);
        if let Some(found) = step.stop {
            assert_eq!(found.text_bytes, answer.len());
            assert!(found.tokens_before <= found.tokens_used && found.tokens_used == i + 1);
            stop = Some(found.index);
            break;
        }
    }
    if stop.is_none() {
        let rest = splitter.finish();
        thought.push_str(rest.reasoning);
        answer.push_str(rest.content);
        answer.push_str(machine.finish());
    }
    (thought, answer, stop)
}

/// The same by looking at every end of the answer in turn.
fn plain(thought: String, answer: String, stops: &[&str]) -> Split {
    for end in (0..=answer.len()).filter(|&end| answer.is_char_boundary(end)) {
        let complete = |i: &usize| answer[..end].ends_with(stops[*i]);
        let longest = |&i: &usize| (usize::MAX - stops[i].len(), i);
        if let Some(i) = (0..stops.len()).filter(complete).min_by_key(longest) {
            return (thought, answer[..end - stops[i].len()].to_owned(), Some(i));
        }
    }
    (thought, answer, None)
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if input.len() > 4096 {
        return;
    }
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    let (head, bytes) = end.map_or((&[][..], input), |end| (&input[..end], &input[end + 2..]));
    let head = String::from_utf8_lossy(head);
    let stops: Vec<&str> = head.split('\n').filter(|stop| !stop.is_empty()).take(16).collect();

    // Ids one by one, as a model gives them: the pieces are whole characters.
    let mut stream = Detokenizer::new(&TOKENIZER, SpecialTokens::Show);
    let id = |byte: &u8| BYTE_IDS[usize::from(*byte)];
    let mut streamed: Vec<String> =
        bytes.iter().map(|byte| stream.push(id(byte)).to_owned()).collect();
    streamed.push(stream.finish().to_owned());
    let whole = String::from_utf8_lossy(bytes);
    assert_eq!(streamed.concat(), whole);

    // Cuts by a generator that the input seeds.
    let mut seed = bytes.iter().fold(1u32, |h, &byte| h.wrapping_mul(31).wrapping_add(byte.into()));
    let mut cuts = vec![0];
    for (at, _) in whole.char_indices().skip(1) {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if seed >> 30 == 0 {
            cuts.push(at);
        }
    }
    cuts.push(whole.len());
    let cut: Vec<&str> = cuts.windows(2).map(|pair| &whole[pair[0]..pair[1]]).collect();
    let streamed: Vec<&str> = streamed.iter().map(String::as_str).collect();

    for thinking in [Thinking::Open, Thinking::Absent] {
        let (thought, answer, _) = split(&[&whole], &[], thinking);
        let wanted = plain(thought, answer, &stops);
        for pieces in [&[&*whole][..], &streamed, &cut] {
            assert_eq!(split(pieces, &stops, thinking), wanted);
        }
    }
});
