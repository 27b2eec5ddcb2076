//! Events that wait to be taken.

use std::ops::Range;

use super::event::MessageEvent;
use crate::completion::FinishReason;

/// Events of one push, in one text.
#[derive(Clone, Debug, Default)]
pub struct Out {
    text: String,
    ops: Vec<Op>,
}

/// An event, and where its text ends; it begins where that of the one before ends.
#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    end: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    Started(usize),
    Arguments(usize),
    Finished(usize, Range<usize>),
    Finish(FinishReason, bool),
}

impl Out {
    pub fn clear(&mut self) {
        self.text.clear();
        self.ops.clear();
    }

    pub fn reasoning(&mut self, write: impl FnOnce(&mut String)) {
        self.write(Kind::Reasoning, write);
    }

    pub fn content(&mut self, write: impl FnOnce(&mut String)) {
        self.write(Kind::Content, write);
    }

    pub fn arguments(&mut self, index: usize, write: impl FnOnce(&mut String)) {
        self.write(Kind::Arguments(index), write);
    }

    pub fn started(&mut self, index: usize, name: &str) {
        self.text.push_str(name);
        self.push(Kind::Started(index));
    }

    pub fn finished(&mut self, index: usize, span: Range<usize>) {
        self.push(Kind::Finished(index, span));
    }

    pub fn finish(&mut self, reason: FinishReason, unfinished: Option<&str>) {
        self.text.push_str(unfinished.unwrap_or(""));
        self.push(Kind::Finish(reason, unfinished.is_some()));
    }

    /// Takes over all events of another one.
    pub fn append(&mut self, other: &mut Out) {
        let base = self.text.len();
        self.text.push_str(&other.text);
        self.ops.extend(other.ops.drain(..).map(|op| Op { end: op.end + base, ..op }));
        other.clear();
    }

    pub fn events(&self) -> Events<'_> {
        Events { text: &self.text, ops: self.ops.iter(), start: 0 }
    }

    /// Adds text to the last event if it is of the same kind, else as a new one.
    fn write(&mut self, kind: Kind, write: impl FnOnce(&mut String)) {
        let before = self.text.len();
        write(&mut self.text);
        if self.text.len() == before {
            return;
        }
        match self.ops.last_mut() {
            Some(op) if op.kind == kind => op.end = self.text.len(),
            _ => self.push(kind),
        }
    }

    fn push(&mut self, kind: Kind) {
        self.ops.push(Op { kind, end: self.text.len() });
    }
}

/// What a piece of text led to, in order.
#[derive(Clone, Debug)]
pub struct Events<'a> {
    text: &'a str,
    ops: std::slice::Iter<'a, Op>,
    start: usize,
}

impl<'a> Iterator for Events<'a> {
    type Item = MessageEvent<'a>;

    fn next(&mut self) -> Option<MessageEvent<'a>> {
        let Op { kind, end } = self.ops.next()?;
        let text = self.text.get(self.start..*end).unwrap_or("");
        self.start = *end;
        Some(match kind {
            Kind::Reasoning => MessageEvent::Reasoning(text),
            Kind::Content => MessageEvent::Content(text),
            Kind::Started(index) => MessageEvent::CallStarted { index: *index, name: text },
            Kind::Arguments(index) => MessageEvent::CallArguments { index: *index, json: text },
            Kind::Finished(index, span) => {
                MessageEvent::CallFinished { index: *index, span: span.clone() }
            }
            Kind::Finish(reason, unfinished) => {
                MessageEvent::Finish { reason: *reason, unfinished: unfinished.then_some(text) }
            }
        })
    }
}
