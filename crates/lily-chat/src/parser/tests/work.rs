//! Work grows with the text and not with its square.

use super::*;

/// Bytes looked at for each byte of text: a generous constant, far from the length.
const WORK_PER_BYTE: u64 = 64;

fn work(thinking: Thinking, text: &str, piece_bytes: usize) -> u64 {
    let mut parser = MessageParser::new(thinking, tools(), &["\n\nUser:", "<<<<END"]).unwrap();
    let mut rest = text;
    while !rest.is_empty() {
        let mut at = piece_bytes.min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        let (piece, behind) = rest.split_at(at);
        parser.push(piece).for_each(drop);
        rest = behind;
    }
    parser.finish(Ended::StopToken).for_each(drop);
    assert!(!parser.is_stopped());
    parser.work()
}

/// Texts of a megabyte by what repeats in them.
fn texts() -> Vec<String> {
    let head = "<tool_call>\n<function=write>\n<parameter=content>\n";
    let close = "\n</parameter>\n</function>\n</tool_call>";
    let repeated = [
        "<",
        "</",
        "<<<<",
        " ",
        "\n",
        "plain text, 12 words of it. ",
        "<tool_call>\n",
        "<tool_call>",
        "\n<function=write>\n<parameter=content>\n",
        head,
        close,
        "</parameter>\n</function>\n",
        "</parameter>",
        "\n</parameter",
        "<parameter=abcdefghijklmnopqrstuvwxyz",
        "</parameter>\n<parameter=abcdefghijklmnopqrstuvwxyz",
        "```\n",
        "1",
    ];
    let long = |part: &str| part.repeat(1_000_000 / part.len());
    let mut texts = Vec::new();
    for part in repeated {
        texts.push(long(part));
        // Inside a value, and in doubt behind what looks like its end.
        texts.push(format!("{head}{}", long(part)));
        texts.push(format!("{head}x{close}\nand {}", long(part)));
    }
    // Ends in doubt, one behind the other, and whole calls with text between them.
    texts.push(long(&format!("{head}x{close}\nand\n")));
    texts.push(long(&format!("{head}{head}x{close}\nand\n")));
    texts.push(format!("<tool_call>{}", long(" ")));
    texts.push(format!("{head}x</parameter>{}", long(" ")));
    texts.push(format!("{head}x{close}{}", long("\n ")));
    texts
}

#[test]
fn a_megabyte_is_read_in_linear_work() {
    for text in texts() {
        // What begins with a call waits in a thought as a whole; the rest is read there too.
        let in_thought =
            (!text.starts_with("<tool_call>\n<function")).then_some((Thinking::Open, 7));
        for (thinking, piece_bytes) in in_thought.into_iter().chain([(Thinking::Closed, 1)]) {
            let work = work(thinking, &text, piece_bytes);
            let begin: String = text.chars().take(120).collect();
            let most = WORK_PER_BYTE * text.len() as u64;
            assert!(work <= most, "{work} > {most} for {begin:?}, {piece_bytes} a piece");
        }
    }
}

#[test]
fn a_megabyte_of_a_value_of_another_type_is_read_in_linear_work() {
    let schema = json!({"anyOf": [{"type": "integer"}, {"type": "null"}, {"type": "string"}]});
    for part in ["1", " ", "null", "[", "a"] {
        let tools = vec![ToolSpec::new("t", json!({"properties": {"v": schema}}))];
        let mut parser = MessageParser::new::<&str>(Thinking::Closed, tools, &[]).unwrap();
        parser.push("<tool_call>\n<function=t>\n<parameter=v>\n").for_each(drop);
        for _ in 0..1_000_000 / part.len() {
            parser.push(part).for_each(drop);
        }
        parser.finish(Ended::Limit).for_each(drop);
        assert!(parser.work() <= WORK_PER_BYTE * 1_000_000, "{part:?}");
    }
}
