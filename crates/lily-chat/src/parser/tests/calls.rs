//! What is a call and what is text.

use super::*;

const LS: &str =
    "<tool_call>\n<function=ls>\n<parameter=path>\n.\n</parameter>\n</function>\n</tool_call>";

#[track_caller]
fn assert_one_ls(parsed: &Parsed) {
    assert_eq!(calls(parsed), [("ls", json!({ "path": "." }))]);
    assert_eq!(parsed.finish, Some(FinishReason::ToolCalls));
    assert_eq!(parsed.unfinished, None);
}

#[test]
fn a_call_at_the_start_of_a_line_of_the_answer() {
    for (before, content) in [("", ""), ("Look:\n\n", "Look:"), ("a\n b\n", "a\n b"), ("\n\n", "")]
    {
        for behind in ["", "\n", " \n\n"] {
            let text = format!("{before}{LS}{behind}");
            let parsed = Case::answer(&tools(), &text).parse();
            assert_one_ls(&parsed);
            assert_eq!(parsed.content, content);
        }
    }
    let text = format!("Look.\n</think>\n\nNow.\n\n{LS}");
    let parsed = Case::thought(&tools(), &text).parse();
    assert_one_ls(&parsed);
    assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("Look.", "Now."));
}

#[test]
fn r44_a_call_that_ends_an_open_thought_is_a_call() {
    for behind in ["", "\n", "\n\n  "] {
        let text = format!("I should look.\n{LS}{behind}");
        let parsed = Case::thought(&tools(), &text).parse();
        assert_one_ls(&parsed);
        assert_eq!((parsed.reasoning.as_str(), parsed.content.as_str()), ("I should look.", ""));
    }
    let text = format!("{LS}\n{LS}");
    let parsed = Case::thought(&tools(), &text).parse();
    assert_eq!(parsed.tool_calls.len(), 2);
    assert_eq!(parsed.reasoning, "");
}

#[test]
fn r44_a_whole_call_counts_though_the_next_one_is_cut() {
    for cut in ["", "\n<func", "\n<function=w", "\n<function=write>\n<parameter=path>\nx"] {
        let text = format!("Two.\n{LS}\n<tool_call>{cut}");
        let parsed = Case::thought(&tools(), &text).cut_by_limit().parse();
        assert_eq!(calls(&parsed), [("ls", json!({ "path": "." }))], "{cut:?}");
        assert_eq!(parsed.finish, Some(FinishReason::Length));
        assert_eq!(parsed.unfinished, Some(format!("<tool_call>{cut}")));
        assert_eq!(parsed.reasoning, "Two.");
    }
}

#[test]
fn r44_a_call_in_a_thought_with_prose_behind_it_is_text() {
    let rehearsed = [
        format!("I could\n{LS}\nbut no."),
        format!("I could\n{LS} or\n{LS}x"),
        format!("A or B:\n{LS}\n{LS}\nB it is."),
        format!("{LS}\n<tool_call>\n<function=rm>\n</function>\n</tool_call>"),
        format!("unknown\n{}", LS.replace("ls", "dir")),
        format!("```\n{LS}\n```"),
        format!("`\n{LS}"),
        format!("he said \"\n{LS}"),
        format!("inline {LS}"),
        // Not well-formed.
        LS.replace("</parameter>", "</parameter"),
        LS.replace("\n</tool_call>", ""),
        LS.replace("<parameter=path>", "path"),
    ];
    for text in &rehearsed {
        let parsed = Case::thought(&tools(), text).parse();
        assert_eq!((parsed.reasoning.as_str(), parsed.tool_calls.len()), (text.as_str(), 0));
        // The same with the thought closed behind it, and the real call in the answer.
        let text = format!("{text}\n</think>\n\n{LS}");
        let parsed = Case::thought(&tools(), &text).parse();
        assert_eq!(parsed.reasoning, text[..text.len() - LS.len() - "\n</think>\n\n".len()]);
        assert_one_ls(&parsed);
    }
}

#[test]
fn r44_the_call_at_the_end_counts_and_not_the_ones_before() {
    let other = LS.replace("\n.\n", "\n/\n");
    let unclosed = "<tool_call>\n<function=ls>\n<parameter=path>\nhm, no";
    for before in [other.as_str(), unclosed, "<tool_call>", "<tool_call>\n<function=ls>"] {
        let text = format!("First:\n{before}\nNo.\n{LS}");
        let parsed = Case::thought(&tools(), &text).parse();
        assert_one_ls(&parsed);
        assert_eq!(parsed.reasoning, format!("First:\n{before}\nNo."));
    }
}

#[test]
fn examples_in_fences_backticks_and_quotes_stay_text() {
    let texts = [
        format!("```\n{LS}\n```"),
        format!("```xml\n{LS}"),
        format!("~~~~\n```\n{LS}\n~~~\n{LS}"),
        format!("  ```\n{LS}\n  ```\nend"),
        format!("`{LS}`"),
        format!("`\n{LS}\n`"),
        format!("\"{LS}\""),
        format!("So \"\n{LS}\n\""),
        format!("So „\n{LS}\n“"),
        format!("> {LS}"),
        format!("- {LS}"),
        format!("The form is {LS}"),
    ];
    for text in &texts {
        assert_is_text(&Case::answer(&tools(), text));
    }
}

#[test]
fn a_call_behind_closed_fences_and_quotes_is_a_call() {
    let befores = [
        "```\nx\n```\n",
        "````\n```\n````\n\n",
        "a `b` and \"c\"\n",
        "`\n\n",
        "say \"\nhello\"\n",
        "```a`b\n",
        "~~~\n~~~~\n",
    ];
    for before in befores {
        let text = format!("{before}{LS}");
        let parsed = Case::answer(&tools(), &text).parse();
        assert_one_ls(&parsed);
        assert_eq!(parsed.content, before.trim_end_matches('\n'));
    }
}

#[test]
fn r56_calls_of_tools_that_are_not_given_are_text() {
    let bare = "<function=ls><parameter=path>a</parameter></function>";
    for text in [LS, bare] {
        assert_is_text(&Case::answer(&[], text));
        assert_is_text(&Case::answer(&tools()[1..], text));
        let parsed = Case::thought(&[], text).parse();
        assert_eq!((parsed.reasoning.as_str(), parsed.tool_calls.len()), (text, 0));
    }
    let unknown = LS.replace("ls", "lsx");
    assert_is_text(&Case::answer(&tools(), &unknown));
    // The text of an unknown call may be followed by a known one.
    let text = format!("{unknown}\n{LS}");
    let parsed = Case::answer(&tools(), &text).parse();
    assert_one_ls(&parsed);
    assert_eq!(parsed.content, unknown);
}

#[test]
fn r56_a_whole_block_without_the_outer_tag_is_a_call() {
    let bare = "<function=ls><parameter=path>.</parameter></function>";
    let lines = "<function=ls>\n<parameter=path>\n.\n</parameter>\n</function>";
    for block in [bare, lines] {
        for behind in ["", "\n", "\n</tool_call>", "</tool_call>\n"] {
            let text = format!("So:\n{block}{behind}");
            let parsed = Case::answer(&tools(), &text).parse();
            assert_one_ls(&parsed);
            assert_eq!(parsed.content, "So:");
        }
        let text = format!("{block}\nDone.");
        let parsed = Case::answer(&tools(), &text).parse();
        assert_one_ls(&parsed);
        assert_eq!(parsed.content, "Done.");
        let text = format!("{block}\n{block}{LS}");
        assert_eq!(Case::answer(&tools(), &text).parse().tool_calls.len(), 3);
    }
}

#[test]
fn r56_anything_less_than_a_whole_block_is_text() {
    let bare = "<function=ls><parameter=path>.</parameter></function>";
    let texts = [
        format!("say {bare}"),
        format!("{bare} is the form"),
        format!("```\n{bare}\n```"),
        "<function=ls>".to_owned(),
        "<function=ls> lists".to_owned(),
        "<function=ls>\n<parameter=path>\n.\n</parameter>\n".to_owned(),
        "<function=ls>\n<parameter=path>\n.\n<function=".to_owned(),
        "<function=".to_owned(),
    ];
    for text in &texts {
        assert_is_text(&Case::answer(&tools(), text));
        assert_is_text(&Case::answer(&tools(), text).cut_by_limit());
    }
    // In a thought it is text even if it is whole.
    let parsed = Case::thought(&tools(), bare).parse();
    assert_eq!((parsed.reasoning.as_str(), parsed.tool_calls.len()), (bare, 0));
}

#[test]
fn r56_a_block_whose_last_line_the_limit_cuts_is_text() {
    let bare = "<function=ls><parameter=path>.</parameter></function>";
    for behind in ["", " ", "\t"] {
        let text = format!("{bare}{behind}");
        assert_is_text(&Case::answer(&tools(), &text).cut_by_limit());
        assert_eq!(Case::answer(&tools(), &text).parse().tool_calls.len(), 1);
    }
    let whole = format!("{bare}\n");
    assert_eq!(Case::answer(&tools(), &whole).cut_by_limit().parse().tool_calls.len(), 1);
}

#[test]
fn r58_any_piece_size_gives_the_same_calls() {
    let write = render("write", &[("path", "a.txt"), ("content", "one\n\ntwo\n")]);
    let text = format!("Write.</think>{}\n{LS}", write.replace("<tool_call>\n", "<tool_call>"));
    let case_tools = tools();
    let case = Case::thought(&case_tools, &text);
    let wanted = case.parse();
    let write = json!({ "path": "a.txt", "content": "one\n\ntwo\n" });
    assert_eq!(calls(&wanted), [("write", write), ("ls", json!({ "path": "." }))]);
    assert_eq!(wanted.reasoning, "Write.");
    // Words as tokens, one to eight in a piece.
    let tokens: Vec<&str> = text.split_inclusive([' ', '\n', '>', '=']).collect();
    for size in 1..=8 {
        let pieces: Vec<String> = tokens.chunks(size).map(<[&str]>::concat).collect();
        assert_eq!(case.read(pieces.iter().map(String::as_str)), wanted);
    }
}

#[test]
fn r59_several_calls_have_indexes_in_order_and_equal_ones_are_kept() {
    let write = render("write", &[("path", "x")]);
    for between in ["", "\n", "\n\n", "  \n "] {
        let text = [LS, write.as_str(), LS].join(between);
        let parsed = Case::answer(&tools(), &text).parse();
        let ls = ("ls", json!({ "path": "." }));
        assert_eq!(calls(&parsed), [ls.clone(), ("write", json!({ "path": "x" })), ls]);
        assert_eq!((parsed.content.as_str(), parsed.finish), ("", Some(FinishReason::ToolCalls)));
    }
    // Several functions in one outer tag.
    let text =
        "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>";
    let parsed = Case::answer(&tools(), text).parse();
    assert_eq!(calls(&parsed), [("now", json!({})), ("now", json!({}))]);
}

#[test]
fn text_behind_a_call_is_content() {
    let other = LS.replace("\n.\n", "\n/\n");
    let text = format!("{LS}\nThen\n\n{other}\n\nend");
    let parsed = Case::answer(&tools(), &text).parse();
    assert_eq!(calls(&parsed), [("ls", json!({"path": "."})), ("ls", json!({"path": "/"}))]);
    assert_eq!(parsed.content, "Then\n\nend");
    let parsed = Case::answer(&tools(), &text).stops(&["Th"]).parse();
    assert_eq!((parsed.tool_calls.len(), parsed.content.as_str()), (1, ""));
    assert_eq!(parsed.finish, Some(FinishReason::ToolCalls));
}

#[test]
fn stop_strings_do_not_act_inside_calls() {
    let text = format!("{LS}\n{LS}");
    let stops = ["ls", ".", "\n", "<tool_call>", "</parameter>"];
    let parsed = Case::answer(&tools(), &text).stops(&stops).parse();
    assert_eq!((parsed.tool_calls.len(), parsed.content.as_str()), (2, ""));
    // Nor across one.
    let parsed = Case::answer(&tools(), &format!("A\n{LS}B")).stops(&["AB", "A\nB"]).parse();
    assert_eq!((parsed.tool_calls.len(), parsed.content.as_str()), (1, "A\nB"));
}
