//! Stop strings: where an answer ends before the model ends it.

use lily_text::TextError;

/// Ends a text at the first stop string, whatever pieces the text comes in.
///
/// The first stop string that is *complete* wins, because generation ends there; of those complete
/// at the same character, the longest. Text that may be the beginning of one waits until that is
/// settled, everything else is given out at once.
#[derive(Clone, Debug)]
pub struct Stops {
    stops: Vec<Stop>,
    /// The end of the text, which may be the beginning of a stop string.
    held: String,
}

#[derive(Clone, Debug)]
struct Stop {
    text: Box<[u8]>,
    /// For each length of a matched beginning the longest proper suffix that is a beginning too.
    fallback: Box<[usize]>,
    matched: usize,
}

/// What a piece of text led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    No,
    Yes,
}

impl Stops {
    /// Prepares stop strings; without any, text passes as it comes.
    ///
    /// # Errors
    /// [`TextError::Request`] if one is empty: it would end every text at once.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Stops, TextError> {
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(TextError::Request {
                field: format!("stop[{index}]"),
                expected: "a string of at least one character",
                found: "it is empty".into(),
            });
        }
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref().as_bytes())).collect();
        Ok(Stops { stops, held: String::new() })
    }

    /// Adds a piece of text, and adds to `out` what may be given out.
    pub fn push(&mut self, piece: &str, out: &mut String) -> Stopped {
        if self.stops.is_empty() {
            out.push_str(piece);
            return Stopped::No;
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (i, &byte) in piece.as_bytes().iter().enumerate() {
            if let Some(len) = self.advance(byte) {
                // A stop string begins with a whole character, so this is a boundary.
                let end = (before + i + 1).saturating_sub(len);
                out.push_str(self.held.get(..end).unwrap_or(""));
                self.held.clear();
                return Stopped::Yes;
            }
        }
        let waiting = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let free = self.held.len().saturating_sub(waiting);
        // Pieces are whole characters and so is the beginning of a stop string.
        out.extend(self.held.drain(..free));
        Stopped::No
    }

    /// Adds to `out` what was held back. A stop string does not go on behind this place.
    pub fn release(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        for stop in &mut self.stops {
            stop.matched = 0;
        }
    }

    /// Feeds one byte to all stop strings; the length of the longest that is complete, if any.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut longest = None;
        for stop in &mut self.stops {
            if stop.advance(byte) {
                longest = longest.max(Some(stop.text.len()));
            }
        }
        longest
    }
}

impl Stop {
    fn new(text: &[u8]) -> Stop {
        let mut fallback = vec![0; text.len() + 1];
        let mut length = 0;
        for i in 1..text.len() {
            while length > 0 && text[i] != text[length] {
                length = fallback[length];
            }
            if text[i] == text[length] {
                length += 1;
            }
            fallback[i + 1] = length;
        }
        Stop { text: text.into(), fallback: fallback.into(), matched: 0 }
    }

    /// Feeds one byte; whether the whole string has just been seen.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        if self.text[self.matched] == byte {
            self.matched += 1;
        }
        // The text ends here, so the state behind a whole match is never used.
        self.matched == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by looking at every end of the text in turn.
    fn plain(stops: &[&str], text: &str) -> (String, bool) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let complete = stops.iter().filter(|stop| text[..end].ends_with(**stop));
            if let Some(len) = complete.map(|stop| stop.len()).max() {
                return (text[..end - len].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut machine = Stops::new(stops).unwrap();
        let mut text = String::new();
        for piece in pieces {
            if machine.push(piece, &mut text) == Stopped::Yes {
                return (text, true);
            }
        }
        machine.release(&mut text);
        (text, false)
    }

    #[test]
    fn text_that_may_begin_a_stop_waits_and_nothing_else_does() {
        let mut stops = Stops::new(&["\n\nUser:"]).unwrap();
        let mut push = |piece: &str| {
            let mut out = String::new();
            assert_eq!(stops.push(piece, &mut out), Stopped::No);
            out
        };
        assert_eq!(push("Hello"), "Hello");
        assert_eq!(push(" there\n"), " there");
        assert_eq!(push("\n"), "");
        assert_eq!(push("\n"), "\n");
        assert_eq!(push("Use it"), "\n\nUse it");
        assert_eq!(push("\n\nUser"), "");
        let mut out = String::new();
        stops.release(&mut out);
        assert_eq!(out, "\n\nUser");
    }

    #[test]
    fn the_first_complete_stop_wins_and_of_equal_ends_the_longest() {
        assert_eq!(run(&["abcdef", "bcd"], &["xabcdef"]), ("xa".to_owned(), true));
        assert_eq!(run(&["cd", "abcd"], &["xab", "cd"]), ("x".to_owned(), true));
    }

    #[test]
    fn a_stop_string_does_not_go_on_behind_a_release() {
        let mut stops = Stops::new(&["ab"]).unwrap();
        let mut out = String::new();
        assert_eq!(stops.push("xa", &mut out), Stopped::No);
        stops.release(&mut out);
        assert_eq!(stops.push("b", &mut out), Stopped::No);
        assert_eq!(out, "xab");
    }

    #[test]
    fn an_empty_stop_is_refused_by_name() {
        let error = Stops::new(&["x", ""]).unwrap_err();
        assert!(error.to_string().starts_with("stop[1] should be"), "{error}");
        assert!(error.is_request_error());
    }

    proptest! {
        #[test]
        fn every_cut_gives_the_same_text_and_stop(
            text in "[abé\n]{0,40}",
            stops in proptest::collection::vec("[abé\n]{1,5}", 0..4),
            cuts in proptest::collection::vec(0usize..40, 0..12),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let wanted = plain(&stops, &text);
            let mut cuts: Vec<usize> =
                cuts.into_iter().filter(|&c| c <= text.len() && text.is_char_boundary(c)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(run(&stops, &pieces), wanted.clone());
            let single: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &single), wanted);
        }
    }
}
