//! What formats cost: the time for a mask in a vocabulary, token by token along a text.
//!
//! `cargo run --release -p lily-chat --example mask_times [FOLDER]`, where the folder has a
//! checkpoint's `tokenizer.json`. Without one the vocabulary is lily's own with 248,320 words.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lily_chat::{Bound, CallRule, Format, Formats, Rules, ToolSpec};
use lily_model::engine::{Allowed, Constraint, TokenMask};
use lily_text::{Markers, Tokenizer, synth_tokenizer_files};
use serde_json::{Value, json};

/// Words of the published vocabulary.
const VOCAB: usize = 248_320;

fn main() -> Result<(), Box<dyn Error>> {
    let tokenizer = match std::env::args_os().nth(1) {
        Some(folder) => Tokenizer::open(&PathBuf::from(folder))?,
        None => Tokenizer::from_json(synth_tokenizer_files(VOCAB)?.tokenizer_json.as_bytes())?,
    };
    let start = Instant::now();
    let formats = Formats::new(&tokenizer, tokenizer.end_tokens())?;
    println!("{} tokens, made ready in {:.2?}", tokenizer.vocab_len(), start.elapsed());
    println!(
        "{:<22} {:>9} {:>7} {:>9} {:>9} {:>9}",
        "format", "build", "tokens", "median", "mean", "longest"
    );

    let answer = json!({ "orders": [person(1), person(2), person(3), person(4)] });
    let answer = serde_json::to_string_pretty(&answer)?;
    let row = |name, bound: &dyn Fn() -> Result<Bound, Box<dyn Error>>, text: &str| {
        along(name, bound, text, &tokenizer)
    };
    let format = |format: Format| bind(&formats, Some(&format), &[]);
    row("JSON schema", &|| format(Format::JsonSchema(orders())), &answer)?;
    row("JSON object", &|| format(Format::JsonObject), &answer)?;
    let lines = "[^<>]+";
    row("regular expression", &|| format(Format::Regex(lines.into())), &answer)?;
    let lark = "start: value\nvalue: object | array | STRING | NUMBER | \"null\"\n\
                object: \"{\" [pair (\",\" pair)*] \"}\"\npair: STRING \":\" value\n\
                array: \"[\" [value (\",\" value)*] \"]\"\n\
                STRING: /\"[^\"\\\\\\x00-\\x1f]*\"/\nNUMBER: /-?[0-9]+(\\.[0-9]+)?/\n\
                %ignore /[ \\n]+/\n";
    row("Lark grammar", &|| format(Format::Grammar(lark.into())), &answer)?;
    let tools = [ToolSpec::new("write_file", file())];
    let text: String = (0..60).map(|i| format!("    let x{i} = f(x, {i})?; // <b>\n")).collect();
    let call = format!(
        "<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/a.rs\n</parameter>\n\
         <parameter=content>\n{text}</parameter>\n<parameter=mode>\n420\n</parameter>\n\
         </function>\n</tool_call>"
    );
    row("forced call", &|| bind(&formats, None, &tools), &call)?;
    Ok(())
}

fn bind(
    formats: &Formats,
    format: Option<&Format>,
    tools: &[ToolSpec],
) -> Result<Bound, Box<dyn Error>> {
    let calls = if tools.is_empty() { CallRule::Auto } else { CallRule::Required };
    let rules = Rules { format, tools, strict: &[], calls, parallel: true };
    formats.bind(&rules)?.ok_or_else(|| "nothing is bound".into())
}

/// Goes along a text and prints a row.
fn along(
    name: &str,
    make: &dyn Fn() -> Result<Bound, Box<dyn Error>>,
    text: &str,
    tokenizer: &Tokenizer,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut bound = make()?;
    let build = start.elapsed();
    let mut mask = TokenMask::none(VOCAB.max(tokenizer.vocab_len()));
    let mut times = Vec::new();
    for id in tokenizer.encode(text, Markers::Control)? {
        mask.words_mut().fill(0);
        let start = Instant::now();
        let allowed = bound.mask(&mut mask)?;
        times.push(start.elapsed());
        if allowed == Allowed::Masked && !mask.allows(id) {
            let text = tokenizer.decode(&[id]);
            return Err(format!("{name}: token {} ({text:?}) is not allowed", times.len()).into());
        }
        bound.accept(id)?;
    }
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / u32::try_from(times.len()).unwrap_or(u32::MAX);
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    let micros = |time: Duration| format!("{:.0} µs", time.as_secs_f64() * 1e6);
    println!(
        "{name:<22} {:>9} {:>7} {:>9} {:>9} {:>9}",
        format!("{:.1} ms", build.as_secs_f64() * 1e3),
        times.len(),
        micros(median),
        micros(mean),
        micros(longest)
    );
    Ok(())
}

/// A schema of moderate size.
fn orders() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["orders"],
        "properties": { "orders": { "type": "array", "items": { "$ref": "#/$defs/order" } } },
        "$defs": {
            "order": {
                "type": "object", "additionalProperties": false,
                "required": ["id", "name", "mail", "state", "lines", "address"],
                "properties": {
                    "id": { "type": "integer", "minimum": 1 },
                    "name": { "type": "string", "maxLength": 100 },
                    "mail": { "type": "string", "pattern": "^[^@ ]+@[^@ ]+$" },
                    "state": { "enum": ["new", "paid", "sent", "returned"] },
                    "lines": { "type": "array", "minItems": 1, "items": { "type": "object",
                        "additionalProperties": false, "required": ["sku", "count", "price"],
                        "properties": { "sku": { "type": "string" },
                            "count": { "type": "integer", "minimum": 1, "maximum": 999 },
                            "price": { "type": "number" },
                            "note": { "type": ["string", "null"] } } } },
                    "address": { "anyOf": [{ "type": "null" }, { "type": "object",
                        "required": ["street", "city"], "properties": {
                            "street": { "type": "string" }, "city": { "type": "string" } } }] },
                },
            },
        },
    })
}

fn person(id: u32) -> Value {
    json!({
        "id": id, "name": "Grace Hopper", "mail": "grace@example.com", "state": "paid",
        "lines": [{ "sku": "A-17", "count": 2, "price": 9.5, "note": "as a gift, wrapped" },
            { "sku": "B 4", "count": 1, "price": 120.0, "note": null }],
        "address": { "street": "Marktstraße 12", "city": "Köln" },
    })
}

fn file() -> Value {
    json!({ "type": "object", "required": ["path", "content"], "properties": {
        "path": { "type": "string" }, "content": { "type": "string" },
        "mode": { "type": "integer" } } })
}
