//! The text that may be needed again.

/// Text is dropped from the front in steps of at least this many bytes.
const DROP_BYTES: usize = 4096;

/// The end of a text that grows, addressed by bytes from the text's beginning.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    text: String,
    /// Bytes dropped from the front.
    base: usize,
    /// Text is read up to here.
    pos: usize,
}

impl Buffer {
    pub fn push(&mut self, piece: &str) {
        self.text.push_str(piece);
    }

    /// Text that is not read yet.
    pub fn unread(&self) -> &str {
        self.slice(self.pos, self.end())
    }

    pub fn pos(&self) -> usize {
        self.pos
    }

    pub fn end(&self) -> usize {
        self.base + self.text.len()
    }

    /// Reads on, or again, from a byte.
    pub fn seek(&mut self, pos: usize) {
        self.pos = pos;
    }

    /// Text between two bytes; what was dropped is missing.
    pub fn slice(&self, start: usize, end: usize) -> &str {
        let start = start.saturating_sub(self.base);
        self.text.get(start..end.saturating_sub(self.base)).unwrap_or("")
    }

    /// Nothing in front of a byte is needed again.
    pub fn forget(&mut self, start: usize) {
        let old = start.saturating_sub(self.base);
        // Each byte is moved at most once for each byte dropped.
        if old >= DROP_BYTES && old * 2 >= self.text.len() {
            self.text.drain(..old);
            self.base = start;
        }
    }
}
