//! The thought and the answer, apart.

use crate::Thinking;

const CLOSE: &str = "</think>";

/// Splits the model's text at the first `</think>`.
///
/// Whether the text begins as reasoning is decided by what the prompt rendered, never by the
/// request's wording:
///
/// | the prompt | the text |
/// |---|---|
/// | ended inside `<think>` | reasoning until the first `</think>`; line feeds on both sides of it are dropped |
/// | closed the thought, or has none | all content; a `</think>` is text |
///
/// A second `</think>` is text. A text that ends while thinking is all reasoning. What comes out
/// depends on the joined text only, not on its pieces; at most the line feeds and the part of a tag
/// that may belong to the seam wait.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    state: State,
    /// While thinking: line feeds, then the beginning of the closing tag.
    held: String,
    reasoning: String,
    content: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reasoning,
    /// Behind the closing tag, before the first character that is no line feed.
    Seam,
    Content,
}

/// Text to give out now, by the field it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitText<'a> {
    /// The thought.
    pub reasoning: &'a str,
    /// The answer.
    pub content: &'a str,
}

impl ReasoningSplitter {
    /// A splitter for the text behind a prompt.
    pub fn new(thinking: Thinking) -> ReasoningSplitter {
        let state = match thinking {
            Thinking::Open => State::Reasoning,
            Thinking::Closed | Thinking::Absent => State::Content,
        };
        ReasoningSplitter {
            state,
            held: String::new(),
            reasoning: String::new(),
            content: String::new(),
        }
    }

    /// Adds a piece of text.
    pub fn push(&mut self, piece: &str) -> SplitText<'_> {
        self.reasoning.clear();
        self.content.clear();
        for c in piece.chars() {
            match self.state {
                State::Content => self.content.push(c),
                State::Seam if c == '\n' => {}
                State::Seam => {
                    self.state = State::Content;
                    self.content.push(c);
                }
                State::Reasoning => self.think(c),
            }
        }
        SplitText { reasoning: &self.reasoning, content: &self.content }
    }

    /// Ends the text: what waited was part of the thought after all.
    pub fn finish(&mut self) -> SplitText<'_> {
        self.reasoning.clear();
        self.content.clear();
        self.reasoning.push_str(&self.held);
        self.held.clear();
        SplitText { reasoning: &self.reasoning, content: "" }
    }

    /// Whether the text is inside the thought.
    pub fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    fn think(&mut self, c: char) {
        let tag = self.held.trim_start_matches('\n').len();
        if c == '\n' && tag == 0 {
            self.held.push(c);
            return;
        }
        if CLOSE[tag..].starts_with(c) {
            self.held.push(c);
            if tag + 1 == CLOSE.len() {
                self.held.clear();
                self.state = State::Seam;
            }
            return;
        }
        // `<` occurs once in the tag: a beginning that fails holds no other beginning.
        self.reasoning.push_str(&self.held);
        self.held.clear();
        if c == '\n' || CLOSE.starts_with(c) {
            self.held.push(c);
        } else {
            self.reasoning.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;

    /// The rule on the whole text.
    fn plain(thinking: Thinking, text: &str) -> (String, String) {
        if thinking != Thinking::Open {
            return (String::new(), text.to_owned());
        }
        match text.split_once(CLOSE) {
            None => (text.to_owned(), String::new()),
            Some((thought, answer)) => (
                thought.trim_end_matches('\n').to_owned(),
                answer.trim_start_matches('\n').to_owned(),
            ),
        }
    }

    fn run<'a>(thinking: Thinking, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(thinking);
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in pieces {
            let out = splitter.push(piece);
            reasoning.push_str(out.reasoning);
            content.push_str(out.content);
        }
        let out = splitter.finish();
        reasoning.push_str(out.reasoning);
        content.push_str(out.content);
        (reasoning, content)
    }

    const TEXTS: &[&str] = &[
        "",
        "\n",
        "Simple thought.\n</think>\n\nThe answer.",
        "\n</think>\n\nHi",
        "</think>",
        "</think>\n\n",
        "thought</think>answer",
        "thought\n\n\n</think>\n\n\n\nanswer\n\n",
        "cut while thinking\n\n",
        "cut inside the tag\n</thin",
        "a < b, a </ b, </t, <</think>x",
        "\n\nlead and paragraphs\n\nsecond\n</think>\n\nOne\n\nTwo",
        "quoted `</think>` ends it",
        "done\n</think>\n\nThe tag </think> in an answer\n</think>\n\nstays",
        "<think>again</think>x",
        "中文 😀\n</think>\n\n答案 é",
        "\n<\n</\n</think\n</think>\n<",
        "trailing space \n \n</think>\n \nx",
    ];

    #[test]
    fn the_table_holds_for_every_text_and_100_random_cuts_and_single_characters() {
        for thinking in [Thinking::Open, Thinking::Closed, Thinking::Absent] {
            for text in TEXTS {
                let wanted = plain(thinking, text);
                assert_eq!(run(thinking, [*text]), wanted, "{text:?} at once");
                let bounds: Vec<usize> =
                    (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
                let single = bounds.windows(2).map(|w| &text[w[0]..w[1]]);
                assert_eq!(run(thinking, single), wanted, "{text:?} one by one");
                let mut runner = TestRunner::deterministic();
                for _ in 0..100 {
                    let cuts = proptest::sample::subsequence(bounds.clone(), 0..=bounds.len());
                    let mut cuts = cuts.new_tree(&mut runner).unwrap().current();
                    cuts.insert(0, 0);
                    cuts.push(text.len());
                    let pieces = cuts.windows(2).map(|w| &text[w[0]..w[1]]);
                    assert_eq!(run(thinking, pieces), wanted, "{text:?} cut at {cuts:?}");
                }
            }
        }
    }

    #[test]
    fn the_answer_is_what_stands_behind_the_seam() {
        let text = "Simple thought.\n</think>\n\nThe answer.";
        let split = run(Thinking::Open, [text]);
        assert_eq!(split, ("Simple thought.".to_owned(), "The answer.".to_owned()));
        assert_eq!(run(Thinking::Closed, [text]).1, text);
    }

    #[test]
    fn plain_text_is_given_out_at_once() {
        let mut splitter = ReasoningSplitter::new(Thinking::Open);
        assert_eq!(splitter.push("I think a < b").reasoning, "I think a < b");
        assert_eq!(splitter.push("\n\n</th").reasoning, "");
        assert!(splitter.is_reasoning());
        assert_eq!(splitter.push("is").reasoning, "\n\n</this");
        assert_eq!(splitter.push("\n</think>\n").reasoning, "");
        assert!(!splitter.is_reasoning());
        assert_eq!(splitter.push("\nYes").content, "Yes");
    }

    #[test]
    fn bytes_of_a_streamed_character_give_the_same_split() {
        // Single-byte tokens go through the decoder first, as in a server.
        let tokenizer = crate::Tokenizer::bytes().unwrap();
        for text in TEXTS {
            let ids = tokenizer.encode(text, crate::Markers::Plain).unwrap();
            let mut decoder = crate::Detokenizer::new(&tokenizer, crate::SpecialTokens::Skip);
            let mut pieces: Vec<String> =
                ids.iter().map(|&id| decoder.push(id).to_owned()).collect();
            pieces.push(decoder.finish().to_owned());
            let pieces = pieces.iter().map(String::as_str);
            assert_eq!(run(Thinking::Open, pieces), plain(Thinking::Open, text), "{text:?}");
        }
    }
}
