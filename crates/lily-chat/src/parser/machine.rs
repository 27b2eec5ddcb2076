//! The machine: tokens to events.

use lily_text::Thinking;

use super::buffer::Buffer;
use super::call::{Call, Place, Stage, Step, Token};
use super::event::{Ended, ToolSpec};
use super::lexer::{
    Kind, Lexer, Rest, Wanted, begins_body, begins_closer, begins_function, name_in,
};
use super::lines::Lines;
use super::out::{Events, Out};
use super::schema::Types;
use super::stop::{Stopped, Stops};
use super::text::{Answer, Thought};
use super::value::{ValueWriter, escape};
use crate::completion::FinishReason;

/// Which part of the message text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Thought,
    Answer,
}

#[derive(Debug)]
pub struct Machine {
    tools: Vec<ToolSpec>,
    buffer: Buffer,
    lexer: Lexer,
    rest: Rest,
    part: Part,
    thought: Thought,
    answer: Answer,
    lines: Lines,
    /// Line feeds behind the thought that are no part of the answer, at most.
    seam: usize,
    /// The call that is being read, if the text is not plain.
    call: Option<Call>,
    out: Out,
    /// Events of a call that may turn out to be text.
    held: Out,
    /// Calls begun, also those in `held`.
    begun: usize,
    /// Calls given out whole.
    whole: usize,
    stopped: bool,
    finished: bool,
    /// Bytes handed on.
    work: u64,
}

/// Whether the end of the text is settled.
enum End {
    /// Text is read again.
    Again,
    /// All is given out; the text from here on is an unfinished call.
    Unfinished(Option<usize>),
}

impl Machine {
    pub fn new(thinking: Thinking, tools: Vec<ToolSpec>, stops: Stops) -> Machine {
        let part = match thinking {
            Thinking::Open => Part::Thought,
            Thinking::Closed | Thinking::Absent => Part::Answer,
        };
        Machine {
            answer: Answer::new(stops, &tools),
            tools,
            buffer: Buffer::default(),
            lexer: Lexer::default(),
            rest: Rest::Open,
            part,
            thought: Thought::default(),
            lines: Lines::new(),
            seam: usize::MAX,
            call: None,
            out: Out::default(),
            held: Out::default(),
            begun: 0,
            whole: 0,
            stopped: false,
            finished: false,
            work: 0,
        }
    }

    /// Bounds the line feeds that are dropped behind the thought.
    pub fn set_seam(&mut self, most: usize) {
        self.seam = most;
    }

    pub fn push(&mut self, piece: &str) -> Events<'_> {
        self.out.clear();
        if !self.stopped && !self.finished {
            self.buffer.push(piece);
            self.run();
            let pos = self.buffer.pos();
            self.buffer.forget(self.call.as_ref().map_or(pos, |call| call.run));
        }
        self.out.events()
    }

    pub fn finish(&mut self, ended: Ended) -> Events<'_> {
        self.out.clear();
        if self.finished {
            return self.out.events();
        }
        self.finished = true;
        let mut unfinished = None;
        if !self.stopped {
            self.take_cut_tag(ended);
            self.rest = Rest::Ended;
            unfinished = loop {
                self.run();
                if self.stopped {
                    break None;
                }
                if let End::Unfinished(start) = self.end(ended) {
                    break start;
                }
            };
        }
        let reason = match ended {
            Ended::Limit if !self.stopped => FinishReason::Length,
            Ended::Cancelled if !self.stopped => FinishReason::Cancelled,
            _ if self.whole > 0 => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        let raw = unfinished.map(|start| self.buffer.slice(start, self.buffer.end()));
        self.out.finish(reason, raw);
        self.out.events()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub fn is_reasoning(&self) -> bool {
        self.part == Part::Thought
    }

    pub fn work(&self) -> u64 {
        self.lexer.work + self.work
    }

    /// Reads tokens until more text is needed.
    fn run(&mut self) {
        while !self.stopped {
            let wanted = self.wanted();
            let Some((kind, len)) = self.lexer.next(self.buffer.unread(), wanted, self.rest) else {
                return;
            };
            let start = self.buffer.pos();
            let end = start + len;
            self.buffer.seek(end);
            let tool = match kind {
                Kind::FunctionOpen => {
                    let name = name_in(self.buffer.slice(start, end));
                    self.tools.iter().position(|tool| tool.name == name)
                }
                _ => None,
            };
            let token = Token { kind, start, end, tool };
            match self.call.take() {
                Some(call) => self.read_call(call, token),
                None => self.read_text(token),
            }
        }
    }

    fn wanted(&self) -> Wanted {
        if let Some(call) = &self.call {
            return call.wanted();
        }
        let may_call = !self.tools.is_empty() && self.lines.can_open();
        match (self.part, may_call) {
            (Part::Thought, true) => Wanted::THINK_CLOSE.and(Wanted::TOOL_CALL_OPEN),
            (Part::Thought, false) => Wanted::THINK_CLOSE,
            (Part::Answer, true) => Wanted::TOOL_CALL_OPEN.and(Wanted::FUNCTION_OPEN),
            (Part::Answer, false) => Wanted::NONE,
        }
    }

    fn read_text(&mut self, token: Token) {
        let place = if self.part == Part::Thought { Place::Thought } else { Place::Answer };
        match (token.kind, token.tool) {
            (Kind::ThinkClose, _) => {
                self.thought.drop_seam();
                self.answer.begin(self.seam);
                self.part = Part::Answer;
                self.lines = Lines::new();
            }
            (Kind::ToolCallOpen, _) => self.call = Some(Call::new(place, token.start)),
            (Kind::FunctionOpen, Some(tool)) if !self.lines.is_behind_outer_tag() => {
                self.call = Some(Call::with_head(Place::Bare, token.start, tool));
            }
            _ => self.text(token.start, token.end),
        }
    }

    fn read_call(&mut self, mut call: Call, token: Token) {
        match call.read(token) {
            Step::Stay => self.call = Some(call),
            Step::First => {
                self.begin(&mut call);
                self.open_value(&mut call, token);
                self.call = Some(call);
            }
            Step::Empty => {
                self.begin(&mut call);
                self.call = Some(call);
            }
            Step::Data(end) => {
                // In doubt nothing is written: all of it may be an answer behind the call.
                if call.doubt.is_none() {
                    self.write_value(&mut call, end);
                }
                self.call = Some(call);
            }
            Step::Next => {
                self.close_value(&mut call);
                self.open_value(&mut call, token);
                self.call = Some(call);
            }
            Step::Finish(end) => self.finish_call(call, end),
            Step::Another(end) => {
                let tool = token.tool.unwrap_or(call.tool);
                self.finish_call(call, end);
                self.buffer.seek(token.end);
                self.call = Some(Call::with_head(Place::Answer, token.start, tool));
            }
            Step::InThought(end) => {
                let next = call.next_in_thought(token.start);
                self.end_call(call, end);
                self.call = Some(next);
            }
            Step::Text(end) => self.reject(&call, end),
            Step::Rewind => self.rewind(call),
        }
    }

    /// Text of the thought or of the answer.
    fn text(&mut self, start: usize, end: usize) {
        let text = self.buffer.slice(start, end);
        self.work += text.len() as u64;
        self.lines.push(text);
        match self.part {
            Part::Thought => self.thought.push(text, &mut self.out),
            Part::Answer => {
                self.stopped = self.answer.push(text, &mut self.out) == Stopped::Yes;
            }
        }
    }

    /// What was read as a call is text.
    fn reject(&mut self, call: &Call, end: usize) {
        self.begun -= call.whole + usize::from(call.index.is_some());
        self.held.clear();
        self.text(call.run, end);
        self.buffer.seek(end);
    }

    /// Events of a call go here.
    fn sink(&mut self, place: Place) -> &mut Out {
        match place {
            Place::Answer => &mut self.out,
            Place::Bare | Place::Thought => &mut self.held,
        }
    }

    fn begin(&mut self, call: &mut Call) {
        if call.place == Place::Answer {
            self.answer.break_for_call(&mut self.out);
        }
        let index = self.begun;
        self.begun += 1;
        call.index = Some(index);
        let name = self.tools.get(call.tool).map_or("", |tool| &tool.name);
        match call.place {
            Place::Answer => self.out.started(index, name),
            Place::Bare | Place::Thought => self.held.started(index, name),
        }
        self.write(call, |json| json.push('{'));
    }

    fn write(&mut self, call: &Call, write: impl FnOnce(&mut String)) {
        if let Some(index) = call.index.filter(|_| !call.is_repeated) {
            self.sink(call.place).arguments(index, write);
        }
    }

    fn open_value(&mut self, call: &mut Call, token: Token) {
        let key = name_in(self.buffer.slice(token.start, token.end)).to_owned();
        let types = match self.tools.get(call.tool) {
            Some(tool) => Types::of_argument(&tool.parameters, &key),
            None => Types::STRING,
        };
        let is_first = call.keys.is_empty();
        call.is_repeated = call.keys.contains(&key);
        self.write(call, |json| {
            json.push_str(if is_first { "\"" } else { ",\"" });
            escape(&key, json);
            json.push_str("\":");
        });
        call.keys.insert(key);
        call.open_value(ValueWriter::new(types), token.end);
    }

    fn write_value(&mut self, call: &mut Call, end: usize) {
        let (Some(index), Some(writer)) = (call.index, call.value.as_mut()) else { return };
        if end <= call.written {
            return;
        }
        let text = self.buffer.slice(call.written, end);
        self.work += text.len() as u64;
        call.written = end;
        if call.is_repeated {
            return;
        }
        let sink = match call.place {
            Place::Answer => &mut self.out,
            Place::Bare | Place::Thought => &mut self.held,
        };
        sink.arguments(index, |json| writer.push(text, json));
    }

    /// Ends the open value where its chain begins.
    fn close_value(&mut self, call: &mut Call) {
        self.write_value(call, call.chain);
        call.doubt = None;
        if let Some(writer) = call.value.take() {
            self.write(call, |json| writer.finish(json));
        }
    }

    /// Ends the events of a call.
    fn end_call(&mut self, mut call: Call, end: usize) {
        self.close_value(&mut call);
        call.is_repeated = false;
        self.write(&call, |json| json.push('}'));
        if let Some(index) = call.index {
            self.sink(call.place).finished(index, call.start..end);
        }
    }

    /// A call is whole, and text follows.
    fn finish_call(&mut self, call: Call, end: usize) {
        let (place, whole) = (call.place, call.whole + 1);
        self.end_call(call, end);
        self.behind_call(place, whole, end);
    }

    /// So many calls are whole: they are given out, and text follows.
    fn behind_call(&mut self, place: Place, whole: usize, end: usize) {
        if place == Place::Thought {
            self.thought.drop_seam();
            self.part = Part::Answer;
        }
        if place != Place::Answer {
            self.answer.break_for_call(&mut self.out);
            self.out.append(&mut self.held);
        }
        self.whole += whole;
        self.lines = Lines::behind_call();
        self.buffer.seek(end);
    }

    /// The call ended before the text that looked like a part of it.
    fn rewind(&mut self, mut call: Call) {
        let Some(doubt) = call.doubt else { return };
        call.chain = doubt.chain;
        self.finish_call(call, doubt.end);
    }

    /// A tag that the end of the text cuts belongs to the call where its meaning is plain.
    fn take_cut_tag(&mut self, ended: Ended) {
        let cut = self.buffer.unread();
        let in_answer = |call: &&Call| match call.place {
            Place::Answer => true,
            Place::Bare => false,
            // Behind a whole call the thought has ended.
            Place::Thought => call.whole > 0,
        };
        let Some(call) = self.call.as_ref().filter(in_answer) else { return };
        let by_model = ended == Ended::StopToken;
        let plain = match call.stage {
            Stage::Outer => begins_function(cut, self.tools.iter().map(|tool| tool.name.as_str())),
            Stage::Body => begins_body(cut),
            Stage::Value | Stage::Done => false,
            Stage::Closed => by_model && begins_closer(cut, Kind::FunctionClose),
            Stage::Ended => by_model && begins_closer(cut, Kind::ToolCallClose),
        };
        if plain {
            self.buffer.seek(self.buffer.end());
            self.lexer.restart();
        }
    }

    /// Settles what the end of the text means.
    fn end(&mut self, ended: Ended) -> End {
        let Some(mut call) = self.call.take() else {
            self.thought.release(&mut self.out);
            self.answer.release(&mut self.out);
            return End::Unfinished(None);
        };
        let end = self.buffer.end();
        let by_model = ended == Ended::StopToken;
        let whole = match call.place {
            // Behind the limit its last line might go on, and then it would be text.
            Place::Bare => call.closed_at().filter(|_| by_model || call.has_line_end()),
            Place::Thought => call.closed_at().filter(|_| call.stage == Stage::Done),
            Place::Answer => None,
        };
        match (call.place, whole) {
            (Place::Bare | Place::Thought, Some(whole)) => {
                self.finish_call(call, whole);
                return End::Again;
            }
            (Place::Thought, None) if call.whole > 0 => {
                // The thought ended at the first of its calls; this one is in the answer.
                self.behind_call(Place::Thought, call.whole, end);
                (call.place, call.whole) = (Place::Answer, 0);
            }
            (Place::Bare | Place::Thought, None) => {
                self.reject(&call, end);
                return End::Again;
            }
            (Place::Answer, _) => {}
        }
        if call.ends_whole(by_model) {
            let end = call.closed_at().filter(|_| call.stage == Stage::Done).unwrap_or(end);
            self.finish_call(call, end);
            return End::Again;
        }
        if call.doubt.is_some() {
            self.rewind(call);
            return End::Again;
        }
        self.answer.break_for_call(&mut self.out);
        self.answer.release(&mut self.out);
        End::Unfinished(Some(call.start))
    }
}
