//! However a text is cut, the message that is read from it is the same, and nothing of it is lost.
//!
//! The input is what a model may have written: stop strings, one a line, an empty line, and the
//! text's bytes as ids. Its length and contents choose the cuts.
//!
//! `cargo +nightly fuzz run output_parser fuzz/corpus/output_parser fuzz/seeds/output_parser`

#![no_main]

use std::ops::Range;
use std::sync::LazyLock;

use lily_chat::{Ended, MessageEvent, MessageParser, Parsed, ToolSpec, parse_json};
use lily_text::{Detokenizer, SpecialTokens, Thinking, Tokenizer};
use serde_json::{Value, json};

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::bytes().expect("lily's own files are whole"));
/// The id of each byte.
static BYTE_IDS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let id = |byte: u8| (0..256).find(|&id| TOKENIZER.token_bytes(id) == Some(&[byte]));
    (0..=255).map(|byte| id(byte).expect("the tokenizer spells every byte")).collect()
});
static TOOLS: LazyLock<Vec<ToolSpec>> = LazyLock::new(|| {
    let types = json!({ "properties": {
        "s": { "type": "string" },
        "n": { "type": "number" },
        "b": { "type": "boolean" },
        "o": { "type": ["object", "array", "null"] },
        "u": { "anyOf": [{ "type": "string" }, { "type": "integer" }, { "type": "null" }] },
    } });
    vec![ToolSpec::new("f", types), ToolSpec::new("g", Value::Null)]
});

/// How a text is read.
#[derive(Clone, Copy, Debug)]
struct Way<'a> {
    thinking: Thinking,
    tools: &'a [ToolSpec],
    stops: &'a [&'a str],
    ended: Ended,
}

/// Reads pieces, and checks the order of events.
fn read(pieces: &[&str], way: Way<'_>) -> (Parsed, Vec<Range<usize>>, bool) {
    let mut parser = MessageParser::new(way.thinking, way.tools.to_vec(), way.stops)
        .expect("no stop string is empty");
    let mut parsed = Parsed::default();
    let mut spans: Vec<Range<usize>> = Vec::new();
    let (mut begun, mut ends) = (0, 0);
    let mut see = |event: MessageEvent<'_>| {
        assert_eq!(ends, 0, "nothing comes behind the end");
        let open = begun != spans.len();
        match &event {
            MessageEvent::Reasoning(text) | MessageEvent::Content(text) => {
                assert!(!open && !text.is_empty());
            }
            MessageEvent::CallStarted { index, .. } => {
                assert!(!open && *index == begun);
                begun += 1;
            }
            MessageEvent::CallArguments { index, json } => {
                assert!(open && index + 1 == begun && !json.is_empty());
            }
            MessageEvent::CallFinished { index, span } => {
                assert!(open && index + 1 == begun);
                spans.push(span.clone());
            }
            MessageEvent::Finish { .. } => ends += 1,
        }
        parsed.add(&event);
    };
    for piece in pieces {
        let stopped = parser.is_stopped();
        let events = parser.push(piece);
        assert!(!stopped || events.clone().next().is_none());
        events.for_each(&mut see);
    }
    parser.finish(way.ended).for_each(&mut see);
    assert_eq!(ends, 1);
    (parsed, spans, parser.is_stopped())
}

/// What a text without tools comes to, by looking at it as a whole.
fn plain(text: &str, way: Way<'_>) -> (String, String) {
    let (thought, answer) = match (way.thinking, text.split_once("</think>")) {
        (Thinking::Open, None) => (text, ""),
        (Thinking::Open, Some((thought, answer))) => {
            (thought.trim_end_matches('\n'), answer.trim_start_matches('\n'))
        }
        _ => ("", text),
    };
    for end in (0..=answer.len()).filter(|&end| answer.is_char_boundary(end)) {
        let complete = way.stops.iter().filter(|stop| answer[..end].ends_with(**stop));
        if let Some(len) = complete.map(|stop| stop.len()).max() {
            return (thought.to_owned(), answer[..end - len].to_owned());
        }
    }
    (thought.to_owned(), answer.to_owned())
}

/// Outside calls, every byte is in the thought or in the answer, apart from what seams drop.
fn check(text: &str, way: Way<'_>, parsed: &Parsed, spans: &[Range<usize>], stopped: bool) {
    for call in &parsed.tool_calls {
        let arguments = parse_json(call.arguments.as_bytes()).expect("each key is there once");
        assert!(arguments.is_object());
        assert!(way.tools.iter().any(|tool| tool.name == call.name));
    }
    assert_eq!(spans.len(), parsed.tool_calls.len());
    let (mut outside, mut from) = (String::new(), 0);
    for span in spans {
        outside.push_str(&text[from..span.start]);
        from = span.end;
    }
    let unfinished = parsed.unfinished.as_deref().unwrap_or("");
    outside.push_str(text[from..].strip_suffix(unfinished).expect("it stands at the end"));
    let mut rest = outside.strip_prefix(&parsed.reasoning).expect("the thought comes first");
    if way.thinking == Thinking::Open {
        let seam = rest.trim_start_matches('\n').strip_prefix("</think>");
        rest = seam.unwrap_or(rest);
    }
    let mut kept = parsed.content.chars().peekable();
    for c in rest.chars() {
        if kept.next_if_eq(&c).is_none() && !stopped {
            assert!(c.is_ascii_whitespace(), "{c:?} is lost");
        }
    }
    assert_eq!(kept.next(), None, "nothing is made up");
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
        for tools in [&TOOLS[..], &[]] {
            for ended in [Ended::StopToken, Ended::Limit] {
                let way = Way { thinking, tools, stops: &stops, ended };
                let wanted = read(&[&*whole], way);
                check(&whole, way, &wanted.0, &wanted.1, wanted.2);
                for pieces in [&streamed, &cut] {
                    assert_eq!(read(pieces, way), wanted);
                }
                if tools.is_empty() {
                    let texts = (wanted.0.reasoning, wanted.0.content);
                    assert_eq!(texts, plain(&whole, way));
                    assert!(wanted.1.is_empty() && wanted.0.unfinished.is_none());
                }
            }
        }
    }
});
