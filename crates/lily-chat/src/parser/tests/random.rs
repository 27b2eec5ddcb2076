//! Random texts over random cuts, and calls that come back as they were rendered.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// What texts are made of: every tag, whole and in parts, and what may stand around it.
const PARTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<function=ls>",
    "<function=write>",
    "<function=rm>",
    "</function>",
    "<parameter=path>",
    "<parameter=content>",
    "</parameter>",
    "</parameter/>",
    "</parameter",
    "</think>",
    "<think>",
    "<tool_",
    "<function=",
    "<parameter=",
    "</",
    "<",
    ">",
    "\n",
    "\n\n",
    "\r\n",
    " ",
    "a",
    "END",
    "EN",
    "é😀",
    "```",
    "`",
    "\"",
    "~~~",
    "\n<tool_call>\n<function=ls>\n<parameter=path>\n",
    "\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=ls>\n<parameter=path>\n.\n</parameter>\n</function>\n</tool_call>",
    "\n<function=ls>\n<parameter=path>\n.\n</parameter>\n</function>\n",
];

/// A text of parts.
fn text(parts: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    vec(select(PARTS), parts).prop_map(|parts| parts.concat())
}

/// A value that speaks of the format, or of nothing.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![text(0..8), "[a-z\\n\\r <>/=é\"\\\\\u{0}-\u{1f}]{0,24}"]
}

fn pieces<'t>(text: &'t str, cuts: &[proptest::sample::Index]) -> Vec<&'t str> {
    let ends: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&ends)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Whether the table says that a value is kept whatever follows it: no tag of the format in it.
fn is_safe(value: &str) -> bool {
    !["</parameter", "</function>", "<tool_call>"].iter().any(|tag| value.contains(tag))
}

proptest! {
    #[test]
    fn any_text_is_read_the_same_in_any_pieces(
        text in text(0..24),
        open in any::<bool>(),
        ended in select(&[Ended::StopToken, Ended::Limit, Ended::Cancelled][..]),
        with_stops in any::<bool>(),
        cuts in vec(vec(any::<proptest::sample::Index>(), 1..12), 4),
    ) {
        let thinking = if open { Thinking::Open } else { Thinking::Closed };
        let stops: &[&str] = if with_stops { &["END", "\n\n"] } else { &[] };
        for tools in [&tools()[..2], &[]] {
            let case = Case { thinking, tools, stops, ended, text: &text };
            let wanted = case.at_once();
            let ends: Vec<usize> =
                (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
            let single = ends.windows(2).map(|pair| &text[pair[0]..pair[1]]);
            prop_assert_eq!(&case.read(single), &wanted);
            for cuts in &cuts {
                prop_assert_eq!(&case.read(pieces(&text, cuts)), &wanted, "cut at {:?}", cuts);
            }
        }
    }

    #[test]
    fn calls_come_back_as_they_were_rendered(
        content in "[a-zé\\n]{0,12}",
        values in vec(vec(value().prop_filter("without tags", |value| is_safe(value)), 0..4), 1..4),
        cuts in vec(any::<proptest::sample::Index>(), 1..12),
    ) {
        let keys = ["path", "content", "third", "fourth"];
        let rendered: Vec<String> = values
            .iter()
            .map(|values| {
                let arguments: Vec<_> =
                    values.iter().enumerate().map(|(i, value)| (keys[i], value.as_str())).collect();
                render("write", &arguments)
            })
            .collect();
        let content = content.trim_matches('\n');
        let text = format!("{content}\n\n{}", rendered.join("\n"));
        let tools = tools();
        let parsed = Case::answer(&tools, &text).read(pieces(&text, &cuts));
        prop_assert_eq!(&parsed.content, content);
        prop_assert_eq!(parsed.tool_calls.len(), values.len());
        for ((name, arguments), values) in calls(&parsed).into_iter().zip(&values) {
            prop_assert_eq!(name, "write");
            let wanted: serde_json::Map<String, Value> =
                values.iter().enumerate().map(|(i, value)| (keys[i].to_owned(), json!(value))).collect();
            prop_assert_eq!(arguments, Value::Object(wanted));
        }
    }

    /// The last value of the last call may hold any tag: only the true end stands at the end, as
    /// long as the value does not end with a tag of its own, and no `</parameter>` in it is followed
    /// by another argument.
    #[test]
    fn the_last_value_may_speak_of_the_format(
        value in value(),
        cuts in vec(any::<proptest::sample::Index>(), 1..12),
    ) {
        let body = format!("{value}.");
        // What the table calls a closer: in front of an argument, or of the next call.
        let squeezed: String = body.split_ascii_whitespace().collect();
        let closes = ["<parameter=", "</function><function=", "</function><tool_call>",
            "</tool_call><tool_call>"];
        let head = |text: &str| text.contains("<tool_call>") || text.contains("<function=");
        prop_assume!(!closes[1..].iter().any(|c| squeezed.contains(c)));
        prop_assume!(!squeezed.match_indices("<parameter=").any(|(at, _)| {
            ["</parameter>", "</parameter/>", "</parameter"].iter().any(|c| squeezed[..at].ends_with(c))
        }));
        // The beginning of a call behind what looks like the end of this one.
        prop_assume!(!squeezed.split_once("</tool_call>").is_some_and(|(_, rest)| head(rest)));
        let text = render("write", &[("path", "a"), ("content", &body)]);
        let tools = tools();
        let parsed = Case::answer(&tools, &text).read(pieces(&text, &cuts));
        prop_assert_eq!(calls(&parsed), [("write", json!({"path": "a", "content": body}))]);
    }
}

#[test]
fn every_short_text_of_tags_is_read_the_same_by_characters() {
    // All texts of up to three parts: seams, chains and heads next to each other.
    let tools = tools();
    for a in PARTS {
        for b in PARTS {
            for c in ["", "\n", "</parameter>", "<tool_call>", "<", "</function>", "x"] {
                let text = format!("<tool_call>\n<function=ls>\n<parameter=path>\nv{a}{b}{c}");
                for text in
                    [&text[..], &text["<tool_call>\n<function=ls>\n<parameter=path>\n".len()..]]
                {
                    for case in [Case::answer(&tools, text), Case::thought(&tools, text)] {
                        let wanted = case.at_once();
                        let ends: Vec<usize> =
                            (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
                        let single = ends.windows(2).map(|pair| &text[pair[0]..pair[1]]);
                        assert_eq!(case.read(single), wanted, "{case:?}");
                    }
                }
            }
        }
    }
}
