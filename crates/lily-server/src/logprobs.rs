//! Log probabilities as the API has them.

use lily_model::engine::Chosen;
use lily_text::Tokenizer;
use serde_json::{Map, Value, json};

/// What the API has for a token that is next to impossible; JSON has no infinity.
const LEAST: f32 = -9999.0;

/// `logprobs` of a choice of a chat: one entry for each token.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[Chosen]) -> Value {
    let content: Vec<Value> = tokens
        .iter()
        .filter_map(|token| {
            let logprobs = token.logprobs.as_ref()?;
            let mut entry = entry(tokenizer, token.id, logprobs.chosen);
            let top = logprobs.top.iter().map(|&(id, logprob)| self::entry(tokenizer, id, logprob));
            entry["top_logprobs"] = top.collect();
            Some(entry)
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    json!({
        "token": tokenizer.decode(&[id]),
        "logprob": logprob.max(LEAST),
        // The text of a part of a character does not tell which.
        "bytes": tokenizer.token_bytes(id).unwrap_or_default(),
    })
}

/// `logprobs` of a choice of a text completion; `offset` characters are in front of it.
pub(crate) fn text(tokenizer: &Tokenizer, tokens: &[Chosen], mut offset: usize) -> Value {
    let (mut texts, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens {
        let Some(found) = &token.logprobs else { continue };
        let text = tokenizer.decode(&[token.id]);
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
        logprobs.push(found.chosen.max(LEAST));
        let mut top = Map::new();
        for &(id, logprob) in &found.top {
            // Of two tokens with the same text the likelier one counts.
            top.entry(tokenizer.decode(&[id])).or_insert_with(|| json!(logprob.max(LEAST)));
        }
        tops.push(top);
    }
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

/// Characters of the texts of tokens.
pub(crate) fn characters(tokenizer: &Tokenizer, tokens: &[Chosen]) -> usize {
    tokens.iter().map(|token| tokenizer.decode(&[token.id]).chars().count()).sum()
}
