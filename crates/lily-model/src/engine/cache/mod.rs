//! Beginnings of earlier sequences: what a prompt need not have read again.
//!
//! Keys and values exist for every token, so they can be cut anywhere. Recurrent and convolution
//! state exist only where they were saved. So this is a tree of token runs: a node holds the rows of
//! its tokens, once for all that go on behind them, and, if one was saved there, the state behind
//! its last token. A prompt goes on at the last saved state whose tokens it begins with, all of them.
//!
//! Everything is a copy in host memory: a sequence neither sees nor changes what is kept here.

mod evict;
mod points;
mod tree;

pub(crate) use points::{NEAR, SavePoints};
pub(crate) use tree::{Found, PrefixCache, common, needed_bytes};

/// Memory of an engine for beginnings of earlier sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMemory {
    /// So many bytes; with 0 nothing is kept.
    Bytes(u64),
    /// Half of what the model leaves, and no more than 4 GiB.
    Spare,
}

/// What the cache holds, and what happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Most bytes that it may take.
    pub capacity: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Saved states.
    pub states: usize,
    /// Prompts that went on at a saved state.
    pub hits: u64,
    /// Prompts that were read from their first token.
    pub misses: u64,
    /// Tokens that did not have to be read again.
    pub reused_tokens: u64,
    /// States saved.
    pub saved: u64,
    /// States given up for others.
    pub evicted: u64,
    /// States that were not saved: there was no room, or a number was not finite.
    pub refused: u64,
}

#[cfg(test)]
mod tests;
