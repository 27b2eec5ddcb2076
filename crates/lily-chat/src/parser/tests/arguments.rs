//! Values: byte for byte, typed by the schema, and streamed.

use super::*;

/// The value that `content` gets from a call with this text.
fn value_of(text: &str) -> Value {
    let parsed = Case::answer(&tools(), text).parse();
    assert_eq!((parsed.tool_calls.len(), parsed.content.as_str()), (1, ""), "{text}");
    let (_, arguments) = calls(&parsed).remove(0);
    arguments["content"].clone()
}

#[test]
fn r53_a_value_that_speaks_of_the_format_is_kept_whole() {
    let call = render("ls", &[("path", "."), ("deep", "x")]);
    let values = [
        "s = \"<parameter=x>1</parameter>\" # </tool_call>".to_owned(),
        "<parameter=x>\n1\n</parameter>\nand </tool_call>".to_owned(),
        "</function>\n</parameter>\n</tool_call>\nx".to_owned(),
        "</parameter></tool_call>".to_owned(),
        "<tool_call>".to_owned(),
        "<tool_call>\n<function=unknown>\n<parameter=x>\n".to_owned(),
        "</parameter>\n</parameter>".to_owned(),
        "</think>\n<think>".to_owned(),
        // Whole calls of a given tool.
        call.clone(),
        format!("An example:\n{call}\nand more\n"),
        format!("\n{call}\n{call}\n"),
        // One that began elsewhere.
        format!("{}\nand more", render("ls", &[("path", ".")]).split_once('\n').unwrap().1),
    ];
    for value in &values {
        let text = render("write", &[("path", "a"), ("content", value)]);
        assert_eq!(value_of(&text), json!(value));
        let text = format!("{text}\n{}", render("ls", &[("path", ".")]));
        let parsed = Case::answer(&tools(), &text).parse();
        assert_eq!(calls(&parsed)[0].1["content"], json!(value));
        assert_eq!(calls(&parsed)[1..], [("ls", json!({"path": "."}))]);
    }
}

#[test]
fn values_are_kept_byte_for_byte() {
    let values = [
        "",
        " ",
        "\n",
        "\n\n",
        "a\n",
        "\na",
        " a ",
        "a\r\nb\r\n",
        "\r\n",
        "\ta",
        "\"\\\u{1}\u{7f}",
        "😀 é\u{2028}",
        "<",
        "</",
        "</parameter",
        "a<b>c",
        "\0",
        "<parameter=x>",
        "`\"'",
    ];
    for value in values {
        let text = render("write", &[("content", value), ("path", value)]);
        if value == "</parameter" {
            // Mangled, and in front of a tag: it closes.
            continue;
        }
        assert_eq!(value_of(&text), json!(value), "{text:?}");
    }
    // Without line feeds beside the tags nothing is removed.
    let tight =
        "<tool_call><function=write><parameter=content> a \r\n</parameter></function></tool_call>";
    assert_eq!(value_of(tight), json!(" a \r"));
    let tight =
        "<tool_call><function=write><parameter=content>\r\na</parameter></function></tool_call>";
    assert_eq!(value_of(tight), json!("\r\na"));
}

#[test]
fn keys_keep_their_order_and_their_characters() {
    let text = render("write", &[("z", "1"), ("a", "2"), ("m \"q\"\\", "3"), ("é", "4")]);
    let parsed = Case::answer(&tools(), &text).parse();
    let wanted = r#"{"z":"1","a":"2","m \"q\"\\":"3","é":"4"}"#;
    assert_eq!(parsed.tool_calls[0].arguments, wanted);
}

#[test]
fn r55_the_schema_decides_the_type() {
    let texts =
        ["null", "True", "5", "007", "[1,2]", "{\"a\": 1.50}", "", " 7\n", "2.0", "-1e2", "x"];
    let odd = |text: &str| json!(text);
    let string: Vec<Value> = texts.iter().map(|text| json!(text)).collect();
    // The same table with some rows typed.
    let with = |typed: &[(usize, Value)]| {
        let mut row: Vec<Value> = texts.iter().map(|text| odd(text)).collect();
        typed.iter().for_each(|(i, value)| row[*i] = value.clone());
        row
    };
    let integers = [(2, json!(5)), (7, json!(7)), (8, json!(2.0)), (9, json!(-1e2))];
    let null = (0, Value::Null);
    let [five, seven, two, minus] = integers.clone();
    let with_null = [null.clone(), five, seven, two, minus];
    let schemas: Vec<(Value, Vec<Value>)> = vec![
        (json!({"type": "string"}), string.clone()),
        (json!({}), string.clone()),
        (json!(true), string.clone()),
        (json!({"type": "datetime"}), string.clone()),
        (json!({"enum": ["5", "x"]}), string),
        (json!({"type": "integer"}), with(&integers)),
        (json!({"type": "number"}), with(&integers)),
        (json!({"const": 5}), with(&integers)),
        (json!({"type": ["integer", "null"]}), with(&with_null)),
        (json!({"type": "integer", "nullable": true}), with(&with_null)),
        (json!({"$ref": "#/$defs/count"}), with(&integers)),
        (json!({"allOf": [{"$ref": "#/$defs/count"}, {"minimum": 0}]}), with(&integers)),
        (json!({"type": "boolean"}), with(&[(1, json!(true))])),
        (json!({"type": "array"}), with(&[(4, json!([1, 2]))])),
        (json!({"items": {}}), with(&[(4, json!([1, 2]))])),
        (json!({"type": "object"}), with(&[(5, json!({"a": 1.5}))])),
        (json!({"properties": {}}), with(&[(5, json!({"a": 1.5}))])),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            with(std::slice::from_ref(&null)),
        ),
        (json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}), with(&integers)),
        (json!({"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}]}), with(&[null])),
    ];
    for (schema, row) in schemas {
        let parameters = json!({
            "type": "object",
            "$defs": {
                "count": {"$ref": "#/$defs/whole"},
                "whole": {"type": "integer"},
                "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]},
            },
            "properties": {"v": schema},
        });
        let tools = [ToolSpec::new("t", parameters)];
        for (text, wanted) in texts.iter().zip(row) {
            let call = render("t", &[("v", text)]);
            let parsed = Case::answer(&tools, &call).parse();
            assert_eq!(calls(&parsed)[0].1["v"], wanted, "{text:?} as {schema}");
        }
    }
}

#[test]
fn r55_properties_are_found_through_references_and_for_other_keys() {
    let tools = [
        ToolSpec::new(
            "r",
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"v": {"type": "integer"}}}}}),
        ),
        ToolSpec::new("m", json!({"additionalProperties": {"type": "integer"}})),
        ToolSpec::new(
            "c",
            json!({"allOf": [{"properties": {}}, {"properties": {"v": {"type": "integer"}}}]}),
        ),
        ToolSpec::new("s", json!({"properties": {"w": {"type": "integer"}}})),
        ToolSpec::new("o", json!({"$ref": "#"})),
    ];
    for (name, wanted) in
        [("r", json!(5)), ("m", json!(5)), ("c", json!(5)), ("s", json!("5")), ("o", json!("5"))]
    {
        let text = render(name, &[("v", "5")]);
        let parsed = Case::answer(&tools, &text).parse();
        assert_eq!(calls(&parsed)[0].1["v"], wanted, "{name}");
    }
}

#[test]
fn r54_a_value_that_does_not_fit_is_delivered_as_a_string() {
    let tools = [ToolSpec::new(
        "t",
        json!({"properties": {"n": {"type": "integer"}, "o": {"type": "object"}, "d": {"type": "datetime"}}}),
    )];
    let code = "fn main() {}\n".repeat(320);
    let deep = format!("{}{}", "{\"a\":".repeat(300), "}".repeat(300));
    let values = [
        ("n", "2026-01-15"),
        ("n", "1.5"),
        ("n", "1e999"),
        ("o", "{'a': 1}"),
        ("o", "[1]"),
        ("o", code.as_str()),
        ("o", "{\"a\": [1, 2"),
        ("o", "{\"a\": \"\\ud800\"}"),
        ("o", deep.as_str()),
        ("d", "2026-01-15"),
    ];
    for (key, value) in values {
        let text = render("t", &[(key, value)]);
        let parsed = Case::answer(&tools, &text).at_once();
        assert_eq!(calls(&parsed), [("t", json!({ key: value }))]);
    }
}

#[test]
fn numbers_keep_their_digits() {
    let tools = [ToolSpec::new("t", json!({"properties": {"n": {"type": "number"}}}))];
    for number in ["1.50", "123456789012345678901234567890", "-0", "1E5"] {
        let parsed = Case::answer(&tools, &render("t", &[("n", number)])).parse();
        assert_eq!(parsed.tool_calls[0].arguments, format!("{{\"n\":{number}}}"));
    }
}

#[test]
fn r64_pieces_of_a_string_flow_as_they_come() {
    let nullable = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    for schema in [json!({"type": "string"}), nullable] {
        let tools = vec![ToolSpec::new("write", json!({"properties": {"content": schema}}))];
        let mut parser = MessageParser::new::<&str>(Thinking::Closed, tools, &[]).unwrap();
        let mut push = |piece: &str| -> String {
            parser
                .push(piece)
                .map(|event| match event {
                    MessageEvent::CallStarted { name, .. } => format!("[{name}]"),
                    MessageEvent::CallArguments { json, .. } => json.to_owned(),
                    MessageEvent::CallFinished { .. } => "[end]".to_owned(),
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        assert_eq!(push("<tool_call>\n<function=write>"), "");
        assert_eq!(push("\n<parameter="), "");
        assert_eq!(push("content>"), "[write]{\"content\":");
        assert_eq!(push("\n"), "");
        assert_eq!(push("fn main"), "\"fn main");
        assert_eq!(push("() {\n"), "() {");
        assert_eq!(push("    a \"b\""), "\\n    a \\\"b\\\"");
        assert_eq!(push(" <"), " ");
        assert_eq!(push("b"), "<b");
        assert_eq!(push("\n</parameter>"), "");
        assert_eq!(push("\n"), "");
        assert_eq!(push("no"), "\\n</parameter>\\nno");
        assert_eq!(push("\n</parameter>\n</function>"), "");
        assert_eq!(push("\n</tool_call>"), "");
        assert_eq!(push("\n<tool_call>"), "\"}[end]");
    }
}

#[test]
fn r64_a_call_is_announced_when_its_body_begins() {
    let mut parser = MessageParser::new::<&str>(Thinking::Closed, tools(), &[]).unwrap();
    assert_eq!(parser.push("<tool_call>\n<function=now>\n").count(), 0);
    let events: Vec<_> = parser.push("</function>").collect();
    let wanted = [
        MessageEvent::CallStarted { index: 0, name: "now" },
        MessageEvent::CallArguments { index: 0, json: "{" },
    ];
    assert_eq!(events, wanted);
}

#[test]
fn r55_the_table_of_the_server_documentation_holds() {
    let document = include_str!("../../../../../docs/server-api.md");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .collect()
    };
    let mut lines = document.lines().skip_while(|line| !line.starts_with("| the model writes |"));
    let head = cells(lines.next().unwrap());
    let mut rows = 0;
    for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let row = cells(line);
        for (column, wanted) in head.iter().zip(&row).skip(1) {
            for name in column.split(", or ") {
                let types: Vec<&str> = name.split(" or ").collect();
                let schema = match name {
                    "no schema" => json!({}),
                    _ => json!({ "type": types }),
                };
                let tools = [ToolSpec::new("t", json!({ "properties": { "v": schema } }))];
                let parsed = Case::answer(&tools, &render("t", &[("v", &row[0])])).at_once();
                assert_eq!(parsed.tool_calls[0].arguments, format!("{{\"v\":{wanted}}}"), "{name}");
                rows += 1;
            }
        }
    }
    assert_eq!(rows, 7 * 9);
}

#[test]
fn of_an_argument_that_is_given_twice_the_first_counts() {
    let arguments =
        [("path", "a"), ("content", "one"), ("path", "b\nc"), ("path", ""), ("content", "1")];
    let text = render("write", &arguments);
    for case in [Case::answer(&tools(), &text), Case::thought(&tools(), &text)] {
        let parsed = case.parse();
        assert_eq!(parsed.tool_calls[0].arguments, r#"{"path":"a","content":"one"}"#);
    }
    let text = format!("{}\n{text}", render("add", &[("n", "5"), ("n", "6")]));
    let parsed = Case::answer(&tools(), &text).parse();
    assert_eq!(parsed.tool_calls[0].arguments, r#"{"n":5}"#);
    assert_eq!(parsed.tool_calls[1].arguments, r#"{"path":"a","content":"one"}"#);
}
