//! Thought, answer and stop strings.

use super::*;

fn split(case: &Case<'_>) -> (String, String, Option<FinishReason>) {
    let parsed = case.parse();
    assert_eq!((parsed.tool_calls.len(), &parsed.unfinished), (0, &None));
    (parsed.reasoning, parsed.content, parsed.finish)
}

fn thought(text: &str) -> (String, String) {
    let (reasoning, content, _) = split(&Case::thought(&tools(), text));
    let without_tools = split(&Case::thought(&[], text));
    assert_eq!((&without_tools.0, &without_tools.1), (&reasoning, &content));
    (reasoning, content)
}

fn pair(reasoning: &str, content: &str) -> (String, String) {
    (reasoning.to_owned(), content.to_owned())
}

#[test]
fn the_thought_ends_at_the_first_close_and_line_feeds_at_the_seam_are_dropped() {
    let cases = [
        ("", "", ""),
        ("\n", "\n", ""),
        ("Simple thought.\n</think>\n\nThe answer.", "Simple thought.", "The answer."),
        ("\n</think>\n\nHi", "", "Hi"),
        ("</think>", "", ""),
        ("</think>\n\n", "", ""),
        ("thought</think>answer", "thought", "answer"),
        ("thought\n\n\n</think>\n\n\n\nanswer\n\n", "thought", "answer\n\n"),
        ("a < b, a </ b, </t, <</think>x", "a < b, a </ b, </t, <", "x"),
        ("\n\nlead\n\nsecond\n</think>\n\nOne\n\nTwo", "\n\nlead\n\nsecond", "One\n\nTwo"),
        ("quoted `</think>` ends it", "quoted `", "` ends it"),
        ("<think>again</think>x", "<think>again", "x"),
        ("中文 😀\n</think>\n\n答案 é", "中文 😀", "答案 é"),
        ("\n<\n</\n</think\n</think>\n<", "\n<\n</\n</think", "<"),
        ("space \n \n</think>\n \nx", "space \n ", " \nx"),
    ];
    for (text, reasoning, content) in cases {
        assert_eq!(thought(text), pair(reasoning, content), "{text:?}");
    }
}

#[test]
fn r42_characters_stay_whole_and_plain_text_is_not_held_back() {
    let text = "😀👩‍👩‍👧‍👦 中文 é";
    assert_eq!(thought(text), pair(text, ""));
    let mut parser = MessageParser::new::<&str>(Thinking::Absent, tools(), &[]).unwrap();
    for piece in ["I ", "think a ", "< b, ", "<", "function", " 😀", " `x"] {
        let events: Vec<_> = parser.push(piece).collect();
        assert_eq!(events, [MessageEvent::Content(piece)]);
    }
}

#[test]
fn r42_bytes_of_streamed_characters_give_the_same_message() {
    // One token for each byte goes through the decoder first, as in a server.
    let tokenizer = lily_text::Tokenizer::bytes().unwrap();
    let text = "中 😀\n</think>\n\n👩‍👩‍👧‍👦 é END\n";
    let tools = tools();
    let case = Case::thought(&tools, text).stops(&["D\n"]);
    let ids = tokenizer.encode(text, lily_text::Markers::Plain).unwrap();
    let skip = lily_text::SpecialTokens::Skip;
    let mut decoder = lily_text::Detokenizer::new(&tokenizer, skip);
    let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id).to_owned()).collect();
    pieces.push(decoder.finish().to_owned());
    let parsed = case.read(pieces.iter().map(String::as_str));
    assert_eq!(parsed, case.at_once());
    assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("中 😀", "👩‍👩‍👧‍👦 é EN"));
}

#[test]
fn r43_the_last_characters_are_released_at_the_end() {
    for text in ["Yes", "Yes\n", "a <", "a\n<tool", "a\n<function=l", "a\n\n", "\n"] {
        assert_is_text(&Case::answer(&tools(), text));
        assert_is_text(&Case::answer(&tools(), text).cut_by_limit());
    }
}

#[test]
fn r45_a_thought_cut_by_the_limit_is_all_reasoning() {
    for text in ["I should", "I should\n\n", "I should\n</thi", "a\n<tool_call>\n<function=ls>"] {
        let found = split(&Case::thought(&tools(), text).cut_by_limit());
        assert_eq!(found, (text.to_owned(), String::new(), Some(FinishReason::Length)));
        let found = split(&Case::thought(&tools(), text));
        assert_eq!(found, (text.to_owned(), String::new(), Some(FinishReason::Stop)));
    }
}

#[test]
fn r46_without_an_open_thought_all_is_content_and_a_close_is_text() {
    for thinking in [Thinking::Closed, Thinking::Absent] {
        let text = "A.\n</think>\n\nB.";
        assert_is_text(&Case { thinking, ..Case::answer(&tools(), text) });
    }
}

#[test]
fn r48_a_close_that_the_engine_forces_splits_cleanly() {
    let found = thought("one two thr\n</think>\n\nAnswer");
    assert_eq!(found, pair("one two thr", "Answer"));
}

#[test]
fn r50_a_second_close_stays_text() {
    let text = "done\n</think>\n\nThe tag </think> in an answer\n</think>\n\nstays";
    let answer = "The tag </think> in an answer\n</think>\n\nstays";
    assert_eq!(thought(text), pair("done", answer));
}

#[test]
fn r78_a_stop_string_is_removed_whole_and_a_half_is_delivered() {
    let long = "=== END OF PATCH ===";
    let cases: [(&[&str], &str, &str, bool); 8] = [
        (&[long], "a\n=== END OF PATCH === b", "a\n", true),
        (&[long], "a\n=== END OF", "a\n=== END OF", false),
        (&["=== END", long], "a === END OF PATCH ===", "a ", true),
        (&["END OF", long], "a === END OF PATCH ===", "a === ", true),
        (&["\n\n"], "a\n\nb", "a", true),
        (&["\n"], "\nb", "", true),
        (&["é😀"], "ééé😀😀", "éé", true),
        (&["<tool_call>"], "x <tool_call>", "x ", true),
    ];
    for (stops, text, content, stopped) in cases {
        for tools in [&tools()[..], &[]] {
            let case = Case::answer(tools, text).stops(stops).cut_by_limit();
            let finish = if stopped { FinishReason::Stop } else { FinishReason::Length };
            let (_, found, reason) = split(&case);
            assert_eq!((found.as_str(), reason), (content, Some(finish)), "{text:?}");
        }
    }
}

#[test]
fn r78_stop_strings_count_from_just_after_the_thought() {
    let case = |text: &'static str| Case::thought(&[], text).stops(&["END", "\n\nA"]);
    let (reasoning, content, _) = split(&case("the END\n</think>\n\nAll END more"));
    assert_eq!((reasoning.as_str(), content.as_str()), ("the END", "All "));
    // The seam is no part of the answer, and a stop string does not reach over it.
    let (_, content, _) = split(&case("E</think>ND\n\nB"));
    assert_eq!(content, "ND\n\nB");
}

#[test]
fn r78_the_machine_says_at_once_that_it_stopped() {
    let mut parser = MessageParser::new(Thinking::Absent, tools(), &["STOP", "\n"]).unwrap();
    assert_eq!(parser.push("a ST").collect::<Vec<_>>(), [MessageEvent::Content("a ")]);
    assert!(!parser.is_stopped());
    assert_eq!(parser.push("OP").count(), 0);
    assert!(parser.is_stopped());
    // A line feed waits for a call behind it, but not as a stop string.
    let mut parser = MessageParser::new(Thinking::Absent, tools(), &["\n\n"]).unwrap();
    parser.push("a\n").for_each(drop);
    parser.push("\n").for_each(drop);
    assert!(parser.is_stopped());
}

#[test]
fn an_empty_stop_string_is_refused_by_name() {
    let error = MessageParser::new(Thinking::Absent, Vec::new(), &["x", ""]).unwrap_err();
    assert!(error.to_string().starts_with("stop[1] should be"), "{error}");
}

#[test]
fn r51_line_feeds_behind_a_bounded_seam_are_of_the_answer() {
    let text = "a\n\n</think>\n\n\n\n{}\n";
    let tools = tools();
    for tools in [&tools[..], &[]] {
        for (seam, content) in [(2, "\n\n{}\n"), (0, "\n\n\n\n{}\n"), (9, "{}\n")] {
            for at in 0..=text.len() {
                let none: [&str; 0] = [];
                let parser = MessageParser::new(Thinking::Open, tools.to_vec(), &none).unwrap();
                let mut parser = parser.with_seam(seam);
                let mut parsed = Parsed::default();
                for piece in [&text[..at], &text[at..]] {
                    parser.push(piece).for_each(|event| parsed.add(&event));
                }
                parser.finish(Ended::StopToken).for_each(|event| parsed.add(&event));
                assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("a", content));
            }
        }
    }
}
