//! The grammar of a tool call: which token means what.
//!
//! ```text
//! <tool_call>              Outer
//! <function=NAME>          Body
//! <parameter=KEY>          Value
//! …
//! </parameter>             Closed
//! </function>              Ended
//! </tool_call>             Done
//! ```
//!
//! A closing tag inside a value counts only together with what follows it. While that is open, the
//! text from the first closing tag on (the *chain*) waits: it is either the end of the value or a
//! part of it.

use std::collections::HashSet;

use super::lexer::{Kind, Wanted};
use super::value::ValueWriter;

/// Where a call stands, and so what may become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the answer, with the outer tag: it is a call as soon as its body begins.
    Answer,
    /// In the answer, without the outer tag: it is a call once it is whole.
    Bare,
    /// In the thought: it is a call if nothing but calls follows.
    Thought,
}

/// What was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Outer,
    Body,
    Value,
    Closed,
    Ended,
    Done,
}

/// A token of the text, by bytes of the joined text.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
    /// The tool that a [`Kind::FunctionOpen`] names, by its place among the request's.
    pub tool: Option<usize>,
}

/// What follows from a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The call goes on.
    Stay,
    /// The body begins with an argument.
    First,
    /// The body ends without an argument.
    Empty,
    /// The value goes on up to a byte; what stands behind it waits.
    Data(usize),
    /// The value ends where the chain begins, and another argument begins.
    Next,
    /// The call ends at a byte; what stands behind it is read again.
    Finish(usize),
    /// The same, and the token is the head of another call in the same outer tag.
    Another(usize),
    /// The same, and the token is the outer tag of another call in the same thought.
    InThought(usize),
    /// It was no call: all is text up to a byte, from where it is read again.
    Text(usize),
    /// The call ended at the doubtful chain; what stands behind that is read again.
    Rewind,
}

/// The end of a call, as it seems, with something other than a call behind it: a part of the value
/// if another end follows, the true end otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Doubt {
    /// Where its chain begins.
    pub chain: usize,
    /// Behind its last tag.
    pub end: usize,
}

/// A call that is being read.
#[derive(Debug)]
pub struct Call {
    pub place: Place,
    pub stage: Stage,
    /// Where the text begins that is no call if this one is not.
    pub run: usize,
    /// Where this call begins.
    pub start: usize,
    pub tool: usize,
    /// Place among the calls of the reply, once it is one.
    pub index: Option<usize>,
    /// Whole calls in front of it in the same thought.
    pub whole: usize,
    /// Names of the arguments so far.
    pub keys: HashSet<String>,
    /// The open value has the name of an earlier one, which counts.
    pub is_repeated: bool,
    pub value: Option<ValueWriter>,
    /// The value is written up to here.
    pub written: usize,
    /// Where the chain begins that waits.
    pub chain: usize,
    pub doubt: Option<Doubt>,
    /// Behind the last tag of the chain.
    end: usize,
    /// No line feed stands behind it.
    same_line: bool,
    /// The next line feed belongs to the opening tag.
    opening: bool,
    /// The token before was a line feed, and begins here.
    line_feed: Option<usize>,
    at_line: bool,
    /// Calls inside the value that are open, and the outer tag that may begin one.
    inner: usize,
    inner_open: Option<usize>,
}

impl Call {
    /// A call whose outer tag begins at a byte.
    pub fn new(place: Place, start: usize) -> Call {
        Call {
            place,
            stage: Stage::Outer,
            run: start,
            start,
            tool: 0,
            index: None,
            whole: 0,
            keys: HashSet::new(),
            is_repeated: false,
            value: None,
            written: 0,
            chain: 0,
            doubt: None,
            end: 0,
            same_line: true,
            opening: false,
            line_feed: None,
            at_line: false,
            inner: 0,
            inner_open: None,
        }
    }

    /// A call of which `<function=NAME>` is read.
    pub fn with_head(place: Place, start: usize, tool: usize) -> Call {
        Call { stage: Stage::Body, tool, ..Call::new(place, start) }
    }

    /// The next call in the same thought, whose outer tag begins at a byte.
    pub fn next_in_thought(&self, start: usize) -> Call {
        Call { run: self.run, whole: self.whole + 1, ..Call::new(Place::Thought, start) }
    }

    /// Tags that mean something next.
    pub fn wanted(&self) -> Wanted {
        let wanted = match self.stage {
            Stage::Outer => Wanted::FUNCTION_OPEN,
            Stage::Body => Wanted::PARAMETER_OPEN.and(Wanted::FUNCTION_CLOSE),
            Stage::Value => {
                let mut wanted = Wanted::PARAMETER_CLOSE;
                if self.at_line {
                    wanted = wanted.and(Wanted::FUNCTION_CLOSE).and(Wanted::TOOL_CALL_OPEN);
                }
                let heads = self.at_line && self.place == Place::Bare;
                if heads || self.inner_open.is_some() {
                    wanted = wanted.and(Wanted::FUNCTION_OPEN);
                }
                wanted
            }
            Stage::Closed | Stage::Ended | Stage::Done => Wanted::CALL,
        };
        match self.place {
            Place::Thought => wanted.and(Wanted::THINK_CLOSE),
            Place::Answer | Place::Bare => wanted,
        }
    }

    /// A value begins behind a byte.
    pub fn open_value(&mut self, writer: ValueWriter, start: usize) {
        self.stage = Stage::Value;
        self.value = Some(writer);
        (self.written, self.chain) = (start, start);
        self.opening = true;
        (self.line_feed, self.at_line) = (None, true);
        (self.inner, self.inner_open, self.doubt) = (0, None, None);
    }

    /// Reads a token.
    pub fn read(&mut self, token: Token) -> Step {
        let space = matches!(token.kind, Kind::LineFeed | Kind::Space);
        if token.kind == Kind::ThinkClose {
            return Step::Text(token.start);
        }
        let step = match self.stage {
            Stage::Value => self.read_value(token),
            _ if space => Step::Stay,
            Stage::Outer => match token.tool {
                Some(tool) => {
                    (self.stage, self.tool) = (Stage::Body, tool);
                    Step::Stay
                }
                None => Step::Text(token.start),
            },
            Stage::Body => match token.kind {
                Kind::ParameterOpen => Step::First,
                Kind::FunctionClose => {
                    self.end_at(Stage::Ended, token.end);
                    Step::Empty
                }
                _ => Step::Text(token.start),
            },
            Stage::Closed => match token.kind {
                Kind::ParameterOpen if self.inner == 0 => Step::Next,
                Kind::FunctionClose => {
                    self.end_at(Stage::Ended, token.end);
                    Step::Stay
                }
                _ => self.not_closed(token),
            },
            Stage::Ended => self.read_ended(token),
            Stage::Done => self.read_done(token),
        };
        self.same_line &= token.kind != Kind::LineFeed;
        if !matches!(step, Step::First | Step::Next) {
            self.at_line = token.kind == Kind::LineFeed;
            self.line_feed = (self.at_line && !self.opening).then_some(token.start);
            self.opening = false;
        }
        step
    }

    /// Whether the call is whole if the text ends here; `by_model` tells whether the model ended it.
    pub fn ends_whole(&self, by_model: bool) -> bool {
        match self.stage {
            Stage::Done => true,
            Stage::Closed | Stage::Ended => by_model,
            Stage::Outer | Stage::Body | Stage::Value => false,
        }
    }

    /// Whether a line feed stands behind its last tag.
    pub fn has_line_end(&self) -> bool {
        !self.same_line
    }

    /// Behind its last tag, if that is `</function>` or `</tool_call>`.
    pub fn closed_at(&self) -> Option<usize> {
        matches!(self.stage, Stage::Ended | Stage::Done).then_some(self.end)
    }

    fn read_value(&mut self, token: Token) -> Step {
        let at_line = self.at_line;
        if self.opening && token.kind == Kind::LineFeed {
            (self.written, self.chain) = (token.end, token.end);
            return Step::Stay;
        }
        self.opening = false;
        match token.kind {
            Kind::LineFeed => return Step::Data(token.start),
            Kind::Space => return Step::Data(token.end),
            Kind::ToolCallOpen if at_line => self.inner_open = Some(token.start),
            Kind::FunctionOpen if token.tool.is_some() => {
                let outer = self.inner_open.take();
                match (self.place, outer) {
                    (Place::Answer, Some(_)) if self.doubt.is_some() => return Step::Rewind,
                    (Place::Answer, Some(_)) => self.inner += 1,
                    (Place::Bare | Place::Thought, Some(outer)) => return Step::Text(outer),
                    (Place::Bare, None) if at_line => return Step::Text(token.start),
                    _ => {}
                }
            }
            Kind::ParameterClose => return self.begin_chain(Stage::Closed, token),
            Kind::ParameterCloseMangled if self.repairs() => {
                return self.begin_chain(Stage::Closed, token);
            }
            Kind::FunctionClose if at_line && self.repairs() => {
                return self.begin_chain(Stage::Ended, token);
            }
            _ => self.inner_open = None,
        }
        Step::Data(token.end)
    }

    fn read_ended(&mut self, token: Token) -> Step {
        match (token.kind, self.place) {
            (Kind::ToolCallClose, _) => {
                self.end_at(Stage::Done, token.end);
                return Step::Stay;
            }
            (Kind::FunctionOpen, Place::Answer) if token.tool.is_some() && self.inner == 0 => {
                return Step::Another(self.end);
            }
            (Kind::ToolCallOpen, Place::Answer) if self.inner == 0 => {
                return Step::Finish(self.end);
            }
            (Kind::ToolCallOpen | Kind::FunctionOpen, Place::Bare) => {
                return Step::Finish(self.end);
            }
            _ => {}
        }
        match (self.place, self.value.is_some()) {
            (Place::Answer, false) => Step::Finish(self.end),
            (Place::Bare, _) if !self.same_line => Step::Finish(self.end),
            (Place::Bare | Place::Thought, false) => Step::Text(token.start),
            (_, true) => self.not_closed(token),
        }
    }

    fn read_done(&mut self, token: Token) -> Step {
        match (self.place, &self.value) {
            (Place::Thought, _) if token.kind == Kind::ToolCallOpen => Step::InThought(self.end),
            (Place::Thought, _) => Step::Text(token.start),
            (Place::Bare, _) if token.kind == Kind::ToolCallOpen || !self.same_line => {
                Step::Finish(self.end)
            }
            (Place::Bare, None) => Step::Text(token.start),
            (Place::Bare, Some(_)) => self.not_closed(token),
            (Place::Answer, Some(_)) if self.inner > 0 => {
                self.inner -= 1;
                self.not_closed(token)
            }
            // A value of another type does not hold tags.
            (Place::Answer, Some(value))
                if token.kind != Kind::ToolCallOpen && value.may_be_string() =>
            {
                self.doubt.get_or_insert(Doubt { chain: self.chain, end: self.end });
                self.not_closed(token)
            }
            (Place::Answer, _) => Step::Finish(self.end),
        }
    }

    /// What looked like the end of the value is a part of it.
    fn not_closed(&mut self, token: Token) -> Step {
        self.stage = Stage::Value;
        self.inner_open = None;
        self.read_value(token)
    }

    fn begin_chain(&mut self, stage: Stage, token: Token) -> Step {
        self.chain = self.line_feed.unwrap_or(token.start);
        self.end_at(stage, token.end);
        self.inner_open = None;
        Step::Data(self.chain)
    }

    fn end_at(&mut self, stage: Stage, end: usize) {
        (self.stage, self.end, self.same_line) = (stage, end, true);
    }

    /// In a thought only a well-formed block is a call.
    fn repairs(&self) -> bool {
        self.place != Place::Thought
    }
}
