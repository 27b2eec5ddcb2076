//! Thought and answer on their way out.

use super::event::ToolSpec;
use super::out::Out;
use super::stop::{Stopped, Stops};

/// The thought: line feeds at its end wait, because they are dropped at a seam.
#[derive(Clone, Debug, Default)]
pub struct Thought {
    line_feeds: usize,
}

impl Thought {
    pub fn push(&mut self, text: &str, out: &mut Out) {
        let body = text.trim_end_matches('\n');
        if !body.is_empty() {
            self.release(out);
            out.reasoning(|all| all.push_str(body));
        }
        self.line_feeds += text.len() - body.len();
    }

    /// Ends the thought at a seam.
    pub fn drop_seam(&mut self) {
        self.line_feeds = 0;
    }

    /// Gives out what waits.
    pub fn release(&mut self, out: &mut Out) {
        release(&mut self.line_feeds, |all| out.reasoning(all));
    }
}

/// The answer: stop strings act on it, and where a tool call may follow, line feeds at its end wait.
#[derive(Clone, Debug)]
pub struct Answer {
    stops: Stops,
    line_feeds_wait: bool,
    passed: String,
    line_feeds: usize,
    /// Something was given out.
    begun: bool,
    seam: Seam,
}

/// What is dropped at the beginning of a part of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seam {
    /// Nothing.
    None,
    /// So many line feeds at most: the thought ended here.
    Thought(usize),
    /// Line feeds, and all of this white space if nothing else comes before the next call or the
    /// end: a call ended here.
    Call(String),
}

impl Answer {
    /// An answer with stop strings; `tools` tells whether it may hold calls.
    pub fn new(stops: Stops, tools: &[ToolSpec]) -> Answer {
        Answer {
            stops,
            line_feeds_wait: !tools.is_empty(),
            passed: String::new(),
            line_feeds: 0,
            begun: false,
            seam: Seam::None,
        }
    }

    /// The answer begins behind a thought, and behind at most `seam` line feeds.
    pub fn begin(&mut self, seam: usize) {
        self.seam = Seam::Thought(seam);
    }

    pub fn push(&mut self, mut text: &str, out: &mut Out) -> Stopped {
        if self.seam != Seam::None {
            if let Seam::Thought(left) = &mut self.seam {
                let feeds = text.bytes().take_while(|&byte| byte == b'\n').take(*left).count();
                *left -= feeds;
                text = &text[feeds..];
            }
            if let Seam::Call(space) = &mut self.seam {
                let body = text.trim_ascii_start();
                space.push_str(&text[..text.len() - body.len()]);
                text = body;
            }
            if text.is_empty() {
                return Stopped::No;
            }
            if let Seam::Call(space) = std::mem::replace(&mut self.seam, Seam::None)
                && self.pass(space.trim_start_matches('\n'), out) == Stopped::Yes
            {
                return Stopped::Yes;
            }
        }
        self.pass(text, out)
    }

    /// A tool call begins behind the answer so far. The line feeds in front of it stay if more of
    /// the answer comes behind it.
    pub fn break_for_call(&mut self, out: &mut Out) {
        self.release_stops(out);
        if !self.begun {
            self.line_feeds = 0;
        }
        self.seam = Seam::Call(String::new());
    }

    /// Gives out what waits at the end of the text.
    pub fn release(&mut self, out: &mut Out) {
        self.release_stops(out);
        if !matches!(self.seam, Seam::Call(_)) {
            release(&mut self.line_feeds, |all| out.content(all));
        }
    }

    fn pass(&mut self, text: &str, out: &mut Out) -> Stopped {
        self.passed.clear();
        let stopped = self.stops.push(text, &mut self.passed);
        self.give(out);
        if stopped == Stopped::Yes {
            // They stand in front of the stop string.
            release(&mut self.line_feeds, |all| out.content(all));
        }
        stopped
    }

    fn release_stops(&mut self, out: &mut Out) {
        self.passed.clear();
        self.stops.release(&mut self.passed);
        self.give(out);
    }

    fn give(&mut self, out: &mut Out) {
        let body = match self.line_feeds_wait {
            true => self.passed.trim_end_matches('\n'),
            false => &self.passed,
        };
        if !body.is_empty() {
            release(&mut self.line_feeds, |all| out.content(all));
            out.content(|all| all.push_str(body));
            self.begun = true;
        }
        self.line_feeds += self.passed.len() - body.len();
    }
}

fn release(line_feeds: &mut usize, write: impl FnOnce(&dyn Fn(&mut String))) {
    let count = std::mem::take(line_feeds);
    write(&move |all: &mut String| all.extend(std::iter::repeat_n('\n', count)));
}
