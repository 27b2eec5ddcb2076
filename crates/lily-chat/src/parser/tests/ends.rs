//! Calls that the end of the text cuts, and closing tags that are mangled.

use super::*;

const WRITE: &str = "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n";

#[test]
fn r57_mangled_closers_are_repaired_where_the_next_tag_makes_them_plain() {
    let whole = render("write", &[("path", "a"), ("content", "b")]);
    let close = "\n</parameter>\n</function>";
    let texts = [
        whole.clone(),
        whole.replace("</parameter>", "</parameter/>"),
        whole.replace("</parameter>", "</parameter"),
        whole.replace("</parameter>\n", "</parameter"),
        whole.replace(close, "\n</function>"),
        whole.replace("\n</tool_call>", ""),
        whole.replace("\n</function>\n</tool_call>", ""),
        whole.replace("</parameter>\n</function>\n</tool_call>", "</parameter"),
    ];
    for text in &texts {
        let parsed = Case::answer(&tools(), text).parse();
        assert_eq!(calls(&parsed), [("write", json!({"path": "a", "content": "b"}))], "{text}");
        assert_eq!(parsed.finish, Some(FinishReason::ToolCalls));
        // Also in front of another call.
        if text.contains("</function>") {
            let text = format!("{text}\n{whole}");
            assert_eq!(Case::answer(&tools(), &text).parse().tool_calls.len(), 2, "{text}");
        }
    }
}

#[test]
fn r57_what_is_not_plain_stays_data() {
    for inner in
        ["</parameter", "</parameter/>", "</function>", "</parameters>", "</parameter/", "</"]
    {
        let value = format!("a\n{inner}\nb {inner}");
        let text = render("write", &[("path", "a"), ("content", &value)]);
        let parsed = Case::answer(&tools(), &text).parse();
        assert_eq!(calls(&parsed), [("write", json!({"path": "a", "content": value}))], "{inner}");
    }
}

#[test]
fn r57_the_end_inside_a_value_is_an_incomplete_call() {
    for cut in ["", "<parameter=content>", "<parameter=content>\nabc", "<parameter=con"] {
        let text = format!("So.\n\n{WRITE}{cut}");
        for limit in [false, true] {
            let tools = tools();
            let case = Case::answer(&tools, &text);
            let case = if limit { case.cut_by_limit() } else { case };
            let parsed = case.parse();
            if cut.is_empty() && !limit {
                // The only value is closed, and the model ended the text.
                assert_eq!(calls(&parsed), [("write", json!({"path": "a"}))]);
                continue;
            }
            let wanted = if limit { FinishReason::Length } else { FinishReason::Stop };
            assert_eq!((parsed.tool_calls.len(), parsed.finish), (0, Some(wanted)), "{cut:?}");
            assert_eq!(parsed.unfinished, Some(format!("{WRITE}{cut}")));
            assert_eq!(parsed.content, "So.");
        }
    }
}

#[test]
fn r61_half_a_call_is_no_content_and_the_finish_says_why() {
    for text in [
        "<tool_call>\n<function=web",
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>\n<func",
        "<tool_call>\n<function=web_search>",
        "<tool_call>\n<function=web_search>\n<param",
        "<tool_call>\n<function=web_search>\n<parameter=query>\nli",
    ] {
        let tools = tools();
        let case = Case::answer(&tools, text);
        for (case, finish) in
            [(case.clone(), FinishReason::Stop), (case.cut_by_limit(), FinishReason::Length)]
        {
            let parsed = case.parse();
            assert_eq!((parsed.content.as_str(), parsed.tool_calls.len()), ("", 0), "{text}");
            assert_eq!(parsed.unfinished.as_deref(), Some(text));
            assert_eq!(parsed.finish, Some(finish));
        }
    }
    // No given tool begins so.
    assert_is_text(&Case::answer(&tools(), "<tool_call>\n<function=wob"));
}

#[test]
fn r61_a_whole_call_stands_though_the_next_is_cut() {
    let whole = render("ls", &[("path", ".")]);
    let text = format!("{whole}\n{WRITE}<parameter=content>\nx");
    let parsed = Case::answer(&tools(), &text).cut_by_limit().parse();
    assert_eq!(calls(&parsed), [("ls", json!({"path": "."}))]);
    assert_eq!(parsed.finish, Some(FinishReason::Length));
    assert!(parsed.unfinished.unwrap().starts_with("<tool_call>\n<function=write>"));
    let parsed = Case::answer(&tools(), &text).parse();
    assert_eq!((parsed.tool_calls.len(), parsed.finish), (1, Some(FinishReason::ToolCalls)));
}

#[test]
fn a_call_that_the_limit_cuts_before_its_last_tag_is_not_guessed() {
    let whole = render("ls", &[("path", ".")]);
    for keep in 1..whole.len() {
        let parsed = Case::answer(&tools(), &whole[..keep]).cut_by_limit().at_once();
        assert_eq!(parsed.tool_calls, [], "{:?}", &whole[..keep]);
        assert_eq!(parsed.finish, Some(FinishReason::Length));
    }
    let parsed = Case::answer(&tools(), &whole).cut_by_limit().parse();
    assert_eq!((parsed.tool_calls.len(), parsed.finish), (1, Some(FinishReason::Length)));
}

#[test]
fn a_model_that_stops_inside_the_closing_tags_has_made_the_call() {
    let whole = render("ls", &[("path", ".")]);
    let closed = whole.find("</parameter>").unwrap() + "</parameter".len();
    for keep in closed..=whole.len() {
        let cut = &whole[..keep];
        // A single `<` may begin anything.
        let wanted = usize::from(!cut.ends_with('<'));
        let parsed = Case::answer(&tools(), cut).parse();
        assert_eq!(parsed.tool_calls.len(), wanted, "{cut:?}");
        assert_eq!(parsed.unfinished.is_some(), wanted == 0);
    }
}

#[test]
fn a_cancelled_reply_says_so() {
    for text in ["Hi", WRITE] {
        let tools = tools();
        let case = Case { ended: Ended::Cancelled, ..Case::answer(&tools, text) };
        assert_eq!(case.parse().finish, Some(FinishReason::Cancelled));
    }
}
