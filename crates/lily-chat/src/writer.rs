//! From ids to the parts of a reply.

use std::ops::ControlFlow;

use lily_text::{Detokenizer, ReasoningSplitter, SpecialTokens, StopStrings, Tokenizer};

use crate::ChatError;
use crate::completion::{CompletionRequest, Event, FinishReason, OnEvent, Outcome, Timings};

/// Decodes ids, tells the thought from the answer, and ends the answer at a stop string. Knows
/// nothing of models: ids or characters come in, events go out as text becomes whole.
pub(crate) struct Writer {
    detokenizer: Detokenizer,
    splitter: ReasoningSplitter,
    /// Act on the answer only, counted from just after the thought.
    stops: StopStrings,
    reasoning: String,
    content: String,
    stopped: bool,
}

impl Writer {
    /// A writer at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer, request: &CompletionRequest) -> Result<Self, ChatError> {
        Ok(Self {
            detokenizer: Detokenizer::new(tokenizer, SpecialTokens::Skip),
            splitter: ReasoningSplitter::new(request.thinking),
            stops: StopStrings::new(&request.stop)?,
            reasoning: String::new(),
            content: String::new(),
            stopped: false,
        })
    }

    /// Adds a token, the `count`-th of the completion. Breaks if the text ends here.
    pub fn push(&mut self, id: u32, count: usize, on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
        let piece = self.detokenizer.push(id).to_owned();
        self.push_text(&piece, count, on_event)
    }

    /// Adds whole characters; with them the completion has `count` tokens.
    pub fn push_text(
        &mut self,
        piece: &str,
        count: usize,
        on_event: &mut OnEvent<'_>,
    ) -> ControlFlow<()> {
        let split = self.splitter.push(piece);
        let step = self.stops.push(split.content, count);
        self.stopped = step.stop.is_some();
        let flow =
            emit(on_event, (split.reasoning, &mut self.reasoning), (step.text, &mut self.content));
        if self.stopped { ControlFlow::Break(()) } else { flow }
    }

    /// Ends the text, for the reason that the model's side gives, and gives out everything that
    /// waited. Returns the reason that counts.
    pub fn finish(&mut self, reason: FinishReason, on_event: &mut OnEvent<'_>) -> FinishReason {
        // What was held back belongs to the text unless a stop string ended it.
        let flow = if self.stopped { ControlFlow::Continue(()) } else { self.give_out(on_event) };
        match reason {
            FinishReason::Cancelled if self.stopped => FinishReason::Stop,
            _ if flow.is_break() => FinishReason::Cancelled,
            reason => reason,
        }
    }

    /// The whole reply.
    pub fn outcome(self, tokens: Vec<u32>, finish: FinishReason, timings: Timings) -> Outcome {
        Outcome {
            reasoning: self.reasoning,
            content: self.content,
            tool_calls: Vec::new(),
            unfinished_call: None,
            tokens,
            finish,
            timings,
        }
    }

    fn give_out(&mut self, on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
        let piece = self.detokenizer.finish();
        let split = self.splitter.push(piece);
        let (mut reasoning, mut content) = (split.reasoning.to_string(), String::new());
        content.push_str(self.stops.push(split.content, usize::MAX).text);
        let rest = self.splitter.finish();
        reasoning.push_str(rest.reasoning);
        content.push_str(self.stops.push(rest.content, usize::MAX).text);
        content.push_str(self.stops.finish());
        emit(on_event, (&reasoning, &mut self.reasoning), (&content, &mut self.content))
    }
}

fn emit(
    on_event: &mut OnEvent<'_>,
    (reasoning, all_reasoning): (&str, &mut String),
    (content, all_content): (&str, &mut String),
) -> ControlFlow<()> {
    all_reasoning.push_str(reasoning);
    all_content.push_str(content);
    if reasoning.is_empty() && content.is_empty() {
        return ControlFlow::Continue(());
    }
    on_event(Event::Text { reasoning, content })
}
