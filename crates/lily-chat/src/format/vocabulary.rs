//! A tokenizer as the library for formats sees it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lily_text::{Markers, Tokenizer};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::FormatError;

/// Begins a call.
pub(crate) const CALL: &str = "<tool_call>";
/// Ends a call.
pub(crate) const CALL_END: &str = "</tool_call>";
/// Longest token that takes part, in bytes: published vocabularies have runs of 128 spaces.
const LONGEST: usize = 512;

/// Tokens by their bytes, with what a format has to know besides.
pub(crate) struct Vocabulary {
    pub tokenizer: Tokenizer,
    trie: TokTrie,
    /// Tokens that end a text; not empty.
    pub stop_ids: Vec<u32>,
    /// Token that begins a call, if it is one token.
    pub call: Option<u32>,
    /// What must not stand in a thought in front of a format: tokens that end the turn, and the one
    /// that begins a call.
    pub closed_to_thoughts: Vec<u32>,
}

impl Vocabulary {
    /// The vocabulary of a tokenizer whose texts end with one of `stop_ids`.
    pub fn new(tokenizer: &Tokenizer, stop_ids: &[u32]) -> Result<Self, FormatError> {
        let ids = 0..u32::try_from(tokenizer.vocab_len()).unwrap_or(u32::MAX);
        let stop_ids: Vec<u32> = stop_ids.iter().copied().filter(|id| ids.contains(id)).collect();
        let Some(&end) = stop_ids.first() else {
            return Err(FormatError::Unavailable("the model has no token that ends a text".into()));
        };
        let words: Vec<Vec<u8>> = ids.clone().map(|id| word(tokenizer, id)).collect();
        let trie = catch_unwind(AssertUnwindSafe(|| {
            TokTrie::from(&TokRxInfo::new(ids.end, end), &words).with_eos_tokens(&stop_ids)
        }));
        let trie = trie.map_err(|_| {
            FormatError::Unavailable("the tokenizer's vocabulary cannot be searched".into())
        })?;
        let call = tokenizer.id_of(CALL);
        let special = ids.filter(|&id| tokenizer.is_special(id));
        let mut closed: Vec<u32> = special.chain(call).chain(stop_ids.iter().copied()).collect();
        closed.sort_unstable();
        closed.dedup();
        let tokenizer = tokenizer.clone();
        Ok(Self { tokenizer, trie, stop_ids, call, closed_to_thoughts: closed })
    }
}

/// The bytes of a token as the library wants them: control tokens are marked, so that no text
/// matches them.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or(&[]);
    // The mark is in no text, so a token with its byte fits nowhere.
    if bytes.len() > LONGEST || bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
        return Vec::new();
    }
    match tokenizer.is_control(id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        false => bytes.to_vec(),
    }
}

impl Vocabulary {
    /// Tokens, those without a text counted.
    pub fn len(&self) -> usize {
        self.trie.vocab_size()
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// The tokens that the model would have been taught for a text that can only be so.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let ids = std::str::from_utf8(bytes).ok().and_then(|text| {
            let ids = self.tokenizer.encode(text, Markers::Plain).ok()?;
            // A tokenizer may write a text in another way, with composed accents for example.
            (self.trie.decode_raw(&ids) == bytes).then_some(ids)
        });
        ids.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.trie.vocab_size()).finish()
    }
}

/// As the library shares it.
pub(crate) fn env(vocabulary: &std::sync::Arc<Vocabulary>) -> TokEnv {
    vocabulary.clone()
}
