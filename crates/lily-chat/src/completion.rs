//! One completion: ids in, text out.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use lily_model::engine::{Chosen, Engine, Generation, SequenceId};
use lily_model::sampling::Sampling;
use lily_text::Thinking;

use crate::ChatError;
use crate::format::Bound;
use crate::parser::{MessageEvent, ToolCall, ToolSpec};

/// What to complete, and how.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// Ids that follow what is in the sequence already.
    pub prompt: Vec<u32>,
    /// Whether the prompt ends inside a thought.
    pub thinking: Thinking,
    /// Most tokens of a thought that the prompt has opened; it is closed behind them, with a few
    /// tokens more. `None` leaves it to the model.
    pub thinking_budget: Option<usize>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Tokens that end the text.
    pub stop_ids: Vec<u32>,
    /// Strings that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Tools that the reply may call; without any, what looks like a call is text.
    pub tools: Vec<ToolSpec>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Log probabilities of every token, and of so many of the most likely ones at its place.
    pub logprobs: Option<usize>,
    /// What the reply must look like; a thought comes in front of it.
    pub format: Option<Bound>,
}

/// Receives events. It may stop the work.
pub type OnEvent<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Something happened; the receiver may stop the work.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// So many tokens of the prompt are read.
    Prefilled(usize),
    /// An engine chose a token of the text, which is one that does not end it. Comes in front of its
    /// text.
    Token(&'a Chosen),
    /// So many tokens are generated. Comes behind the text of each token, also while there is none
    /// or it is held back, so that work can be stopped within one token.
    Generated(usize),
    /// A part of the reply. [`MessageEvent::Finish`] does not come: the [`Outcome`] says how it ended.
    Part(MessageEvent<'a>),
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or a stop string.
    Stop,
    /// The same, behind at least one whole tool call.
    ToolCalls,
    /// The limit, or the end of the context.
    Length,
    /// The receiver stopped the work.
    Cancelled,
}

impl FinishReason {
    /// Name in the OpenAI API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How long a completion took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timings {
    /// From the start to the first token.
    pub first_token: Duration,
    /// From the start to the end.
    pub total: Duration,
    /// Tokens of the prompt that were read.
    pub prompt_tokens: usize,
    /// Tokens generated, a stop token counted.
    pub completion_tokens: usize,
}

impl Timings {
    /// Prompt tokens each second.
    pub fn prefill_tok_s(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.first_token)
    }

    /// Generated tokens each second, the first not counted.
    pub fn decode_tok_s(&self) -> Option<f64> {
        let tokens = self.completion_tokens.saturating_sub(1);
        rate(tokens, self.total.saturating_sub(self.first_token))
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// A finished completion.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The thought.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Whole tool calls, in the order in which they began.
    pub tool_calls: Vec<ToolCall>,
    /// Text of a tool call that did not become whole: not part of the answer, for a debug field.
    pub unfinished_call: Option<String>,
    /// Generated ids, a stop token included.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt that were kept from an earlier sequence and not read again.
    pub cached_tokens: usize,
    /// Why it ended.
    pub finish: FinishReason,
    /// How long it took.
    pub timings: Timings,
}

/// Runs a completion of a model without a tokenizer: no text, and no stop strings. `on_token` may
/// stop the work.
///
/// # Errors
/// The engine refuses the prompt or fails.
pub fn complete_ids(
    engine: &mut Engine,
    sequence: SequenceId,
    prompt: &[u32],
    generation: &Generation,
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Outcome, ChatError> {
    let start = Instant::now();
    let mut first_token = Duration::ZERO;
    let mut tokens = Vec::new();
    let finish = engine.generate(sequence, prompt, generation, &mut |progress| {
        let Some(id) = progress.token() else { return ControlFlow::Continue(()) };
        if tokens.is_empty() {
            first_token = start.elapsed();
        }
        tokens.push(id);
        on_token(id)
    })?;
    Ok(Outcome {
        reasoning: String::new(),
        content: String::new(),
        tool_calls: Vec::new(),
        unfinished_call: None,
        cached_tokens: 0,
        finish: finish.into(),
        timings: Timings {
            first_token,
            total: start.elapsed(),
            prompt_tokens: prompt.len(),
            completion_tokens: tokens.len(),
        },
        tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{complete, random_model};
    use lily_cpu::{CpuDevice, CpuOptions};
    use lily_model::Checkpoint;
    use lily_model::engine::EngineOptions;
    use lily_model::plan::model_shape;
    use lily_text::Tokenizer;

    /// One byte of a character of four: its text waits for the others.
    const LEAD_BYTE: u32 = 0xf0;

    /// Runs a completion in which `token` is chosen again and again; stops it at the event that
    /// `leave` names, and gives the number of tokens and the text.
    fn cut(token: u32, stop: &[&str], leave: impl Fn(Event<'_>) -> bool) -> (usize, String) {
        let folder = random_model().unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
        let options = EngineOptions { context: 256, chunk: 64, ..EngineOptions::default() };
        let shape = model_shape(checkpoint.config());
        let weights = checkpoint.weights().unwrap();
        let mut engine = Engine::new(Box::new(device), shape, weights, options).unwrap();
        let sequence = engine.open().unwrap();
        let mut sampling = Sampling::greedy();
        sampling.logit_bias.insert(token, 100.0);
        let request = CompletionRequest {
            // Two chunks.
            prompt: vec![1; 100],
            thinking: Thinking::Absent,
            thinking_budget: None,
            max_tokens: 100,
            stop_ids: Vec::new(),
            stop: stop.iter().map(ToString::to_string).collect(),
            tools: Vec::new(),
            sampling,
            logprobs: None,
            format: None,
        };
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        let outcome = complete(&mut engine, sequence, &tokenizer, &request, &mut |event| {
            if leave(event) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(outcome.finish, FinishReason::Cancelled);
        (outcome.tokens.len(), outcome.content)
    }

    #[test]
    fn work_stops_at_a_token_whose_text_is_held_back() {
        let held = "a".repeat(64);
        let (tokens, text) = cut(u32::from(b'a'), &[&held], |event| event == Event::Generated(5));
        // What waited for the stop string belongs to the text that was generated.
        assert_eq!((tokens, text.as_str()), (5, "aaaaa"));
    }

    #[test]
    fn work_stops_at_a_token_that_is_half_a_character() {
        let (tokens, _) = cut(LEAD_BYTE, &[], |event| event == Event::Generated(1));
        assert_eq!(tokens, 1);
    }

    #[test]
    fn work_stops_inside_the_prompt() {
        let (tokens, _) = cut(0, &[], |event| event == Event::Prefilled(64));
        assert_eq!(tokens, 0);
    }
}
