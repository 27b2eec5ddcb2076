//! Tool calls in replies, streamed and whole. The numbers tell the reports of users of other
//! servers apart.

// A failure in a helper fails the test.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use crate::common::{Served, ask, serve_script};
use lily_server::Settings;
use serde_json::{Value, json};

const CALL: &str = "<tool_call>\n<function=read>\n<parameter=path>\na.rs\n</parameter>\n</function>\n\
                    </tool_call>";

fn with_tools(more: Value) -> Value {
    let tool = |name: &str| {
        json!({ "type": "function", "function": { "name": name, "parameters": {
            "type": "object", "properties": {
                "path": { "type": "string" }, "lines": { "type": "integer" } } } } })
    };
    let mut body = ask(json!({ "tools": [tool("read"), tool("write")] }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A choice put together from the chunks of a stream, as clients do it.
fn assembled(chunks: &[Value]) -> Value {
    let mut message = json!({ "role": "assistant", "content": "" });
    let mut calls: Vec<Value> = Vec::new();
    let mut reasons = Vec::new();
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        for field in ["content", "reasoning_content"] {
            if let Some(text) = choice["delta"][field].as_str() {
                let before = message[field].as_str().unwrap_or("").to_owned();
                message[field] = json!(before + text);
            }
        }
        for piece in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                // Id, type and name come once, with the first piece.
                assert!(piece["id"].is_string() && piece["type"] == "function", "{piece}");
                calls.push(piece.clone());
                continue;
            }
            assert_eq!(index, calls.len() - 1, "pieces of a call come together");
            let keys: Vec<&String> = piece.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["index", "function"]);
            let arguments = calls[index]["function"]["arguments"].as_str().unwrap().to_owned();
            let more = piece["function"]["arguments"].as_str().unwrap();
            calls[index]["function"]["arguments"] = json!(arguments + more);
        }
        if !choice["finish_reason"].is_null() {
            reasons.push(choice["finish_reason"].clone());
        }
    }
    assert_eq!(reasons.len(), 1, "one chunk ends the choice: {reasons:?}");
    json!({ "message": message, "calls": calls, "finish_reason": reasons[0] })
}

/// Names and arguments of calls, which must have ids of their own.
fn calls_of(calls: &Value) -> Vec<(String, String)> {
    let calls = calls.as_array().cloned().unwrap_or_default();
    let ids: HashSet<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), calls.len());
    assert!(ids.iter().all(|id| id.starts_with("call_")));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let parts =
        |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    calls.iter().map(parts).collect()
}

/// Serves `pieces`; checks that the streamed reply is the whole one, and gives that choice.
fn both(pieces: &[&str], body: &Value) -> Value {
    let server: Served = serve_script(&[pieces], Settings::default());
    let whole = server.chat(body)["choices"][0].clone();
    let streamed = assembled(&server.stream_chat(body).rest());
    assert_eq!(streamed["finish_reason"], whole["finish_reason"]);
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    for field in ["content", "reasoning_content"] {
        assert_eq!(text(&streamed["message"][field]), text(&whole["message"][field]));
    }
    if whole["finish_reason"] == "tool_calls" {
        assert_eq!(calls_of(&streamed["calls"]), calls_of(&whole["message"]["tool_calls"]));
    }
    whole
}

fn read(path: &str) -> (String, String) {
    ("read".into(), json!({ "path": path }).to_string())
}

#[test]
fn r44_a_call_inside_an_open_thought_is_a_call() {
    let text = format!("I should look.\n{CALL}");
    let choice = both(&[&text], &with_tools(json!({})));
    assert_eq!(choice["message"]["reasoning_content"], "I should look.");
    assert_eq!(calls_of(&choice["message"]["tool_calls"]), [read("a.rs")]);
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
}

#[test]
fn r59_r60_calls_have_indexes_ids_and_one_finish() {
    let text = format!("hm\n</think>\n\nLooking.\n\n{CALL}\n{CALL}\n{}", CALL.replace("a.rs", "b"));
    // Whole, and cut into single characters.
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    for pieces in [&[text.as_str()][..], &characters] {
        let choice = both(pieces, &with_tools(json!({})));
        let calls = calls_of(&choice["message"]["tool_calls"]);
        assert_eq!(calls, [read("a.rs"), read("a.rs"), read("b")]);
        assert_eq!(choice["message"]["content"], "Looking.");
        assert_eq!(choice["finish_reason"], "tool_calls");
    }
}

#[test]
fn r53_values_come_byte_for_byte() {
    let value = "let x = \"<parameter=x>1</parameter>\";\r\n  </tool_call> \ttail  ";
    let text = format!(
        "</think><tool_call>\n<function=write>\n<parameter=path>\n{value}\n</parameter>\n\
         </function>\n</tool_call>"
    );
    let choice = both(&[&text], &with_tools(json!({})));
    let arguments = &calls_of(&choice["message"]["tool_calls"])[0].1;
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(arguments["path"], value);
}

#[test]
fn r56_calls_are_text_without_tools_and_with_none() {
    for more in [json!({ "tools": null }), json!({ "tool_choice": "none" })] {
        let choice = both(&["</think>", CALL], &with_tools(more));
        assert_eq!(choice["message"]["content"], CALL);
        assert_eq!(choice["finish_reason"], "stop");
        assert!(choice["message"].get("tool_calls").is_none());
    }
}

#[test]
fn r61_a_call_that_is_cut_off_is_no_call_and_is_kept_for_finding_out() {
    let text = "</think>I'll call.\n<tool_call>\n<function=read>\n<parameter=path>\na";
    let choice = both(&[text, "bcdef"], &with_tools(json!({ "max_tokens": 50 })));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], "I'll call.");
    assert!(choice["message"].get("tool_calls").is_none());
    let raw = choice["lily"]["unfinished_call"].as_str().unwrap();
    assert!(raw.starts_with("<tool_call>"), "{raw}");
}

#[test]
fn r64_arguments_flow_while_they_are_generated() {
    let lines: Vec<String> = (0..40).map(|line| format!("line {line}\n")).collect();
    let mut pieces = vec!["</think><tool_call>\n<function=write>\n<parameter=path>\n"];
    pieces.extend(lines.iter().map(String::as_str));
    pieces.push("</parameter>\n</function>\n</tool_call>");
    let server = serve_script(&[&pieces], Settings::default());
    let chunks = server.stream_chat(&with_tools(json!({}))).rest();
    let arguments: Vec<String> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0))
        .map(|call| call["function"]["arguments"].as_str().unwrap().to_owned())
        .filter(|piece| !piece.is_empty())
        .collect();
    assert!(arguments.len() > 30, "{} pieces", arguments.len());
    let joined: Value = serde_json::from_str(&arguments.concat()).unwrap();
    assert_eq!(joined["path"], lines.concat().trim_end_matches('\n'));
}

#[test]
fn one_call_is_one_call_where_no_more_are_wanted() {
    let text = format!("</think>{CALL}\n{CALL}");
    let body = with_tools(json!({ "parallel_tool_calls": false }));
    let choice = both(&[&text], &body);
    assert_eq!(calls_of(&choice["message"]["tool_calls"]), [read("a.rs")]);
    assert_eq!(choice["finish_reason"], "tool_calls");
}

#[test]
fn r45_r60_a_failed_stream_has_an_error_and_no_finish() {
    let limit = Some(std::time::Duration::from_millis(200));
    let settings = Settings { request_timeout: limit, ..Settings::default() };
    let server = crate::common::serve(settings);
    let mut events = server.stream_chat(&crate::common::endless(json!({})));
    let mut reasons = 0;
    let error = loop {
        let event = events.next();
        if !event["error"].is_null() {
            break event;
        }
        reasons += usize::from(!event["choices"][0]["finish_reason"].is_null());
    };
    assert_eq!((reasons, &error["error"]["type"]), (0, &json!("server_error")));
}
