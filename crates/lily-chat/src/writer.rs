//! From ids to the parts of a reply.

use std::ops::ControlFlow;

use lily_text::{Detokenizer, SpecialTokens, Tokenizer};

use crate::ChatError;
use crate::completion::{CompletionRequest, Event, FinishReason, OnEvent, Outcome, Timings};
use crate::format::Bound;
use crate::parser::{Ended, Events, MessageEvent, MessageParser, Parsed};
use crate::thought::SEAM;

/// Decodes ids, and tells thought, answer and calls apart up to a stop string. Knows nothing of
/// models: ids or characters come in, events go out as text becomes whole.
pub(crate) struct Writer {
    tokenizer: Tokenizer,
    /// Tokens that frame the conversation end the turn.
    control_ends: bool,
    /// One of them did.
    turn_ended: bool,
    detokenizer: Detokenizer,
    parser: MessageParser,
    parsed: Parsed,
}

impl Writer {
    /// A writer at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer, request: &CompletionRequest) -> Result<Self, ChatError> {
        let mut parser =
            MessageParser::new(request.thinking, request.tools.clone(), &request.stop)?;
        if request.format.as_ref().is_some_and(Bound::binds_answer) {
            // What comes behind the seam is of the format.
            parser = parser.with_seam(SEAM.1.len());
        }
        Ok(Self {
            tokenizer: tokenizer.clone(),
            // Whoever lets the model run on behind its stop tokens wants no other end either.
            control_ends: !request.stop_ids.is_empty(),
            turn_ended: false,
            detokenizer: Detokenizer::new(tokenizer, SpecialTokens::Skip),
            parser,
            parsed: Parsed::default(),
        })
    }

    /// Whether a token ends the turn although it is none that the request names.
    pub fn ends_turn(&self, id: u32) -> bool {
        self.control_ends && self.tokenizer.is_special(id)
    }

    /// Adds a token. Breaks if the text ends here: at a stop string, or at a token that belongs
    /// between the turns of a conversation, such as `<|im_start|>`.
    pub fn push(&mut self, id: u32, on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
        if self.ends_turn(id) {
            self.turn_ended = true;
            return ControlFlow::Break(());
        }
        let Self { detokenizer, parser, parsed, .. } = self;
        let flow = give_out(parser.push(detokenizer.push(id)), parsed, on_event);
        if parser.is_stopped() { ControlFlow::Break(()) } else { flow }
    }

    /// Adds whole characters.
    pub fn push_text(&mut self, piece: &str, on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
        let flow = give_out(self.parser.push(piece), &mut self.parsed, on_event);
        if self.parser.is_stopped() { ControlFlow::Break(()) } else { flow }
    }

    /// Ends the text, for the reason that the model's side gives, and gives out everything that
    /// waited. Returns the reason that counts.
    pub fn finish(&mut self, reason: FinishReason, on_event: &mut OnEvent<'_>) -> FinishReason {
        let Self { detokenizer, parser, parsed, .. } = self;
        let ended = match reason {
            _ if self.turn_ended => Ended::StopToken,
            FinishReason::Stop | FinishReason::ToolCalls => Ended::StopToken,
            FinishReason::Length => Ended::Limit,
            FinishReason::Cancelled => Ended::Cancelled,
        };
        let rest = give_out(parser.push(detokenizer.finish()), parsed, on_event);
        let last = give_out(parser.finish(ended), parsed, on_event);
        match parsed.finish.unwrap_or(reason) {
            // What comes behind a stop string is held back: nobody was asked.
            reason if parser.is_stopped() => reason,
            _ if rest.is_break() || last.is_break() => FinishReason::Cancelled,
            reason => reason,
        }
    }

    /// The whole reply.
    pub fn outcome(self, tokens: Vec<u32>, finish: FinishReason, timings: Timings) -> Outcome {
        let Parsed { reasoning, content, tool_calls, unfinished, .. } = self.parsed;
        Outcome {
            reasoning,
            content,
            tool_calls,
            unfinished_call: unfinished,
            tokens,
            cached_tokens: 0,
            finish,
            timings,
        }
    }
}

/// Passes parts of the reply on, all of them, and keeps them.
fn give_out(
    events: Events<'_>,
    parsed: &mut Parsed,
    on_event: &mut OnEvent<'_>,
) -> ControlFlow<()> {
    let mut flow = ControlFlow::Continue(());
    for part in events {
        parsed.add(&part);
        // Whoever wants no more hears no more.
        if flow.is_continue() && !matches!(part, MessageEvent::Finish { .. }) {
            flow = on_event(Event::Part(part));
        }
    }
    flow
}
