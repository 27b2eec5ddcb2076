//! Stop strings: where a text ends before the model ends it.

use std::collections::VecDeque;

use crate::TextError;

/// Ends a text at the first stop string, whatever pieces the text comes in.
///
/// The first stop string that is *complete* wins, because generation ends there; of those complete
/// at the same character, the longest. The stop string itself is not given out. Text that may be
/// its beginning waits until that is settled, everything else is given out at once.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<Stop>,
    /// Given out or waiting: bytes since the beginning.
    seen: usize,
    /// The end of the text, which may be the beginning of a stop string.
    held: String,
    /// Of the tokens whose text is still held: how many tokens so far, and where their text ends.
    marks: VecDeque<Mark>,
    /// Tokens whose text is wholly given out.
    tokens_out: usize,
    out: String,
    stopped: bool,
}

#[derive(Debug, Clone)]
struct Stop {
    text: Box<[u8]>,
    /// For each length of a matched beginning the longest proper suffix that is a beginning too.
    fallback: Box<[usize]>,
    matched: usize,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    tokens: usize,
    start: usize,
    end: usize,
}

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopStep<'a> {
    /// Text to give out now.
    pub text: &'a str,
    /// Set when a stop string is complete: the text ends.
    pub stop: Option<StopMatch>,
}

/// The stop string that ended a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Which of the stop strings.
    pub index: usize,
    /// Bytes of text in front of it, counted from the beginning.
    pub text_bytes: usize,
    /// Tokens generated until it was complete.
    pub tokens_used: usize,
    /// Tokens whose text lies wholly in front of it: where a session steps back to. A token whose
    /// text came out only together with the beginning of the stop string is not counted.
    pub tokens_before: usize,
}

impl StopStrings {
    /// Prepares stop strings; without any, text passes as it comes.
    ///
    /// # Errors
    /// [`TextError::Request`] if one is empty: it would end every text at once.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<StopStrings, TextError> {
        if let Some(i) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(TextError::Request {
                field: format!("stop[{i}]"),
                expected: "a string of at least one character",
                found: "it is empty".into(),
            });
        }
        Ok(StopStrings {
            stops: stops.iter().map(|stop| Stop::new(stop.as_ref().as_bytes())).collect(),
            seen: 0,
            held: String::new(),
            marks: VecDeque::new(),
            tokens_out: 0,
            out: String::new(),
            stopped: false,
        })
    }

    /// Adds a piece of text. `tokens` is how many tokens have been generated with this piece; a
    /// token that gave no text may be pushed with an empty piece or not at all. After a stop
    /// nothing more comes out.
    pub fn push(&mut self, piece: &str, tokens: usize) -> StopStep<'_> {
        self.out.clear();
        if self.stopped {
            return StopStep { text: "", stop: None };
        }
        let before = self.seen - self.held.len();
        let piece_start = self.seen;
        self.held.push_str(piece);
        self.marks.push_back(Mark { tokens, start: piece_start, end: piece_start + piece.len() });
        for (i, &byte) in piece.as_bytes().iter().enumerate() {
            self.seen = piece_start + i + 1;
            let complete = self.advance(byte);
            if let Some(index) = complete {
                let start = self.seen - self.stops[index].text.len();
                // A stop string begins with a whole character, so this is a boundary.
                self.out.push_str(self.held.get(..start - before).unwrap_or(""));
                self.held.clear();
                self.stopped = true;
                let stop = StopMatch {
                    index,
                    text_bytes: start,
                    tokens_used: tokens,
                    tokens_before: self.tokens_before(start),
                };
                return StopStep { text: &self.out, stop: Some(stop) };
            }
        }
        let waiting = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let free = self.held.len().saturating_sub(waiting);
        // Pieces are whole characters and so is the beginning of a stop string.
        self.out.extend(self.held.drain(..free));
        self.forget(self.seen - self.held.len());
        StopStep { text: &self.out, stop: None }
    }

    /// Ends the text and gives out what was held back.
    pub fn finish(&mut self) -> &str {
        self.out.clear();
        std::mem::swap(&mut self.out, &mut self.held);
        self.stopped = true;
        &self.out
    }

    /// Whether a stop string has ended the text, or [`StopStrings::finish`] has.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Feeds one byte to all stop strings; the longest that is complete, if any.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            let length = stop.text.len();
            if stop.advance(byte) && best.is_none_or(|(best, _)| length > best) {
                best = Some((length, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// Drops the marks of tokens whose text is given out, up to a byte.
    fn forget(&mut self, out: usize) {
        while let Some(mark) = self.marks.front()
            && mark.end <= out
            && mark.start < out
        {
            self.tokens_out = mark.tokens;
            self.marks.pop_front();
        }
    }

    fn tokens_before(&self, start: usize) -> usize {
        // A token without text at the very start of the stop string may hold its first bytes.
        let whole = |mark: &&Mark| mark.end <= start && mark.start < start;
        self.marks
            .iter()
            .filter(whole)
            .map(|mark| mark.tokens)
            .max()
            .unwrap_or(0)
            .max(self.tokens_out)
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
    fn plain(stops: &[&str], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let complete = |i: &usize| text[..end].ends_with(stops[*i]);
            let found =
                (0..stops.len()).filter(complete).min_by_key(|&i| (usize::MAX - stops[i].len(), i));
            if let Some(i) = found {
                return (text[..end - stops[i].len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<StopMatch>) {
        let mut machine = StopStrings::new(stops).unwrap();
        let mut text = String::new();
        for (i, piece) in pieces.iter().enumerate() {
            let step = machine.push(piece, i + 1);
            text.push_str(step.text);
            if let Some(stop) = step.stop {
                assert_eq!(stop.text_bytes, text.len());
                assert_eq!(machine.push("more", i + 2), StopStep { text: "", stop: None });
                assert_eq!(machine.finish(), "");
                return (text, Some(stop));
            }
        }
        text.push_str(machine.finish());
        (text, None)
    }

    #[test]
    fn text_that_may_begin_a_stop_waits_and_nothing_else_does() {
        let mut stops = StopStrings::new(&["\n\nUser:"]).unwrap();
        assert_eq!(stops.push("Hello", 1).text, "Hello");
        assert_eq!(stops.push(" there\n", 2).text, " there");
        assert_eq!(stops.push("\n", 3).text, "");
        assert_eq!(stops.push("\n", 4).text, "\n");
        assert_eq!(stops.push("Use it", 5).text, "\n\nUse it");
        assert_eq!(stops.push("\n\nUser", 6).text, "");
        assert_eq!(stops.finish(), "\n\nUser");
    }

    #[test]
    fn the_first_complete_stop_wins_and_of_equal_ends_the_longest() {
        let (text, stop) = run(&["abcdef", "bcd"], &["xabcdef"]);
        assert_eq!((text.as_str(), stop.unwrap().index), ("xa", 1));
        let (text, stop) = run(&["cd", "abcd"], &["xab", "cd"]);
        assert_eq!((text.as_str(), stop.unwrap().index), ("x", 1));
    }

    #[test]
    fn the_session_steps_back_to_the_last_token_before_the_stop() {
        let stop = |stops: &[&str], pieces: &[&str]| {
            let stop = run(stops, pieces).1.unwrap();
            (stop.tokens_before, stop.tokens_used)
        };
        assert_eq!(stop(&["END"], &["a", "b", "E", "ND"]), (2, 4));
        assert_eq!(stop(&["END"], &["a", "bE", "ND", "x"]), (1, 3));
        assert_eq!(stop(&["END"], &["END"]), (0, 1));
        // The second token held the first bytes of the character that the third one ended.
        assert_eq!(stop(&["é"], &["a", "", "é"]), (1, 3));
        assert_eq!(stop(&["é"], &["a", "", "b", "é"]), (3, 4));
    }

    #[test]
    fn an_empty_stop_is_refused_by_name() {
        let error = StopStrings::new(&["x", ""]).unwrap_err();
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
            let (found, stop) = run(&stops, &pieces);
            prop_assert_eq!((found, stop.map(|stop| stop.index)), wanted.clone());
            let single: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();
            let (found, stop) = run(&stops, &single);
            prop_assert_eq!((found, stop.map(|stop| stop.index)), wanted);
        }
    }
}
