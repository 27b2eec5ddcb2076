//! Bounds, refusals, and following a client's text through a template.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{ChatInput, ChatTemplate, TemplateOptions};
use crate::TextError;

fn messages(text: &str) -> Vec<Json> {
    vec![json!({ "role": "user", "content": text })]
}

fn render(source: &str, text: &str) -> Result<String, TextError> {
    let template = ChatTemplate::from_source(source)?;
    let options = TemplateOptions::default();
    template.render(&ChatInput { messages: &messages(text), tools: None, options: &options })
}

/// The rendering and the client's pieces of it.
fn marked(source: &str, text: &str) -> (String, Vec<String>) {
    let template = ChatTemplate::from_source(source).unwrap();
    let options = TemplateOptions::default();
    let messages = messages(text);
    let input = ChatInput { messages: &messages, tools: None, options: &options };
    let out = template.render_marked(&input, &['<']).unwrap();
    let client = out.client.iter().map(|range| out.text[range.clone()].to_owned()).collect();
    (out.text, client)
}

#[test]
fn variables_are_what_a_template_reads_and_nobody_else_sets() {
    let source = "{# remark #}text {{ messages[0].content }} {{ mood }}{{ bos_token }}\
                  {% set ns = namespace(count=0) %}{% set mine = 1 %}{{ mine }}\
                  {% for item in tools or [] %}{{ loop.index }}{{ item.field }}{% endfor %}\
                  {% macro m(inner) %}{{ inner }}{{ tone }}{% endmacro %}{{ m('literal') }}\
                  {% if enable_thinking is defined %}{{ strftime_now('%Y') }}{% endif %}\
                  {{ raise_exception('x') if add_generation_prompt is undefined }}";
    let template = ChatTemplate::from_source(source).unwrap();
    assert_eq!(template.variables(), ["enable_thinking", "mood", "tone"]);
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    assert!(matches!(render(endless, ""), Err(TextError::Endless { .. })));
    let doubling = "{% set ns = namespace(x='0123456789') %}\
                    {% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}";
    assert!(matches!(render(doubling, ""), Err(TextError::Endless { .. })));
    let recursion = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    assert!(render(recursion, "").is_err());
}

/// The engine's parser recurses along chains: none that fits the size limit may end the program.
#[test]
fn long_chains_of_operators_are_compiled_or_refused() {
    let limit = 64 << 10;
    for (head, link, tail) in [
        ("{{ 1", "+1", " }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ 'a'", "|string", " }}"),
        ("{{ x", ".a", " }}"),
        ("{{ ", "(", "1"),
    ] {
        let links = (limit - head.len() - tail.len()) / link.len();
        // Any outcome but an abort.
        let _ = render(&format!("{head}{}{tail}", link.repeat(links)), "");
        let long = render(&format!("{head}{}{tail}", link.repeat(links + 8)), "").unwrap_err();
        assert!(long.to_string().contains("need at most 65536"), "{long}");
    }
}

#[test]
fn a_fault_of_the_engine_is_an_error_of_the_template() {
    let source = "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}";
    assert!(matches!(render(source, ""), Err(TextError::Render { .. })));
}

#[test]
fn a_template_that_does_not_parse_names_the_line() {
    let message = ChatTemplate::from_source("a\n{% if %}").unwrap_err().to_string();
    assert!(message.contains("not a valid template") && message.contains(":2"), "{message}");
}

#[test]
fn raise_exception_gives_the_templates_own_words() {
    let source = "{% macro check(m) %}{{ raise_exception('no ' ~ m.content) }}{% endmacro %}\
                  {{ check(messages[0]) }}";
    match render(source, "way").unwrap_err() {
        TextError::Raised { message } => assert_eq!(message, "no way"),
        other => panic!("{other}"),
    }
}

#[test]
fn the_date_of_today_can_be_asked_for() {
    let year = render("{{ strftime_now('%Y') }}", "").unwrap();
    assert!(year.len() == 4 && year.parse::<u32>().unwrap() >= 2024, "{year}");
    assert!(matches!(render("{{ strftime_now('%!') }}", ""), Err(TextError::Render { .. })));
}

#[test]
fn special_tokens_and_further_variables_reach_the_template() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "bos_token": null, "eos_token": { "content": "<end>" },
        "chat_template": [
            { "name": "other", "template": "other" },
            { "name": "default", "template": "{{ eos_token }}{{ bos_token is defined }}{{ mood }}" },
        ],
    });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let template = ChatTemplate::open(folder.path()).unwrap();
    let mut options = TemplateOptions::default();
    options.extra.insert("mood".into(), "good".into());
    let input = ChatInput { messages: &[], tools: None, options: &options };
    assert_eq!(template.render(&input).unwrap(), "<end>Falsegood");

    std::fs::write(folder.path().join("chat_template.jinja"), "own file").unwrap();
    let template = ChatTemplate::open(folder.path()).unwrap();
    assert_eq!(template.render(&input).unwrap(), "own file");

    options.extra.insert("messages".into(), json!([]));
    let input = ChatInput { messages: &[], tools: None, options: &options };
    assert!(matches!(template.render(&input), Err(TextError::Request { .. })));
}

#[test]
fn a_folder_without_a_template_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let message = ChatTemplate::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("chat_template.jinja is missing; copy it"), "{message}");
}

#[test]
fn client_text_is_followed_through_string_functions() {
    let print = "<f>{{ messages[0].content | trim }}</f>";
    assert_eq!(marked(print, "  a<b> "), ("<f>a<b></f>".into(), vec!["a<b>".into()]));
    let split = "{% set c = messages[0].content %}\
                 {% if c.startswith('<t>') and '</t>' in c %}\
                 {{ c.split('</t>')[0].split('<t>')[-1].strip('\\n') ~ '|' ~ c.split('</t>')[-1] }}\
                 {% endif %}";
    let (text, client) = marked(split, "<t>\nx<y\n</t>z<");
    assert_eq!((text.as_str(), client.as_slice()), ("x<y|z<", &["x<y".into(), "z<".into()][..]));
    let json = "{{ messages | tojson }}";
    let (text, client) = marked(json, "a<\"\n");
    assert_eq!(text, r#"[{"role": "user", "content": "a<\"\n"}]"#);
    assert_eq!(client, ["a<\\\"\\n"]);
    let lines =
        "{% for line in messages[0].content.splitlines() %}{{ loop.index }}{{ line }}{% endfor %}";
    assert_eq!(marked(lines, "a<\nb").1, ["a<", "b"]);
    let length = "{{ messages[0].content | length }}";
    assert_eq!(marked(length, "<<"), ("2".into(), vec![]));
}

#[test]
fn client_text_is_told_apart_even_where_the_template_takes_strings_to_pieces() {
    // Slices and comparisons see the marks, so these go the other way.
    let slice = "<f>{{ messages[0].content[1:] }}";
    let (text, client) = marked(slice, "a<b>");
    assert_eq!(text, "<f><b>");
    assert!(client.concat().contains('<'), "{client:?}");
    let equal =
        "{{ 'same' if messages[0].content == '<x>' else 'other' }}<f>{{ messages[0].content }}";
    let (text, client) = marked(equal, "<x>");
    assert!(text.ends_with("<f><x>"));
    assert_eq!(client, ["<"]);
    let reverse = "{{ messages[0].content | reverse }}";
    assert!(marked(reverse, "ab<").1.concat().contains('<'));
}

#[test]
fn text_with_the_marks_themselves_is_rendered_as_it_is() {
    let text = "\u{fdd0}<\u{fdd1}";
    let (found, client) = marked("{{ messages[0].content | trim }}", text);
    assert_eq!(found, text);
    assert_eq!(client, [text]);
}

#[test]
fn values_nested_without_end_are_refused() {
    let mut value = json!(1);
    for _ in 0..1000 {
        value = json!([value]);
    }
    let template = ChatTemplate::from_source("{{ messages | tojson }}").unwrap();
    let options = TemplateOptions::default();
    let messages = [value];
    let input = ChatInput { messages: &messages, tools: None, options: &options };
    assert!(matches!(template.render(&input), Err(TextError::Request { .. })));
}

proptest! {
    #[test]
    fn a_damaged_template_is_refused_or_renders(
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 1usize..80), 1..8)
    ) {
        let source: Vec<char> = include_str!("../synth/chat_template.jinja").chars().collect();
        let mut damaged = source.clone();
        for (at, length) in cuts {
            let at = at.index(damaged.len().max(1)).min(damaged.len());
            let end = (at + length).min(damaged.len());
            damaged.drain(at..end);
        }
        let damaged: String = damaged.into_iter().collect();
        if let Ok(template) = ChatTemplate::from_source(&damaged) {
            let options = TemplateOptions::default();
            let messages = messages("<x> \u{fdd0}");
            let input = ChatInput { messages: &messages, tools: None, options: &options };
            let plain = template.render(&input);
            let marked = template.render_marked(&input, &['<']);
            prop_assert_eq!(plain.is_ok(), marked.is_ok());
        }
    }
}
