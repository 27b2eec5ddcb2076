//! Questions and answers, turn by turn.

use std::ops::ControlFlow;
use std::time::Duration;

use lily_model::engine::Engine;
use lily_model::sampling::Sampling;
use lily_text::{ChatInput, Markers, Prompt, PromptEncoder, TemplateOptions};
use serde_json::{Value, json};

use crate::completion::{CompletionRequest, Event, FinishReason, Outcome};
use crate::conversation::Conversation;
use crate::error::ChatError;

/// How answers are given.
#[derive(Clone, Debug)]
pub struct DialogueOptions {
    /// System prompt.
    pub system: Option<String>,
    /// Whether answers begin with a thought; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Whether earlier thoughts stay in the prompt; `None` leaves it to the template.
    pub preserve_thinking: Option<bool>,
    /// Most tokens of an answer; `None` for what the context holds.
    pub max_tokens: Option<usize>,
    /// Tokens that end an answer.
    pub stop_ids: Vec<u32>,
    /// Strings that end an answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen. Each turn has a seed of its own: this one plus the turn.
    pub sampling: Sampling,
}

impl DialogueOptions {
    /// Variables of the chat template.
    pub fn template(&self) -> TemplateOptions {
        TemplateOptions {
            enable_thinking: self.enable_thinking,
            preserve_thinking: self.preserve_thinking,
            ..TemplateOptions::default()
        }
    }
}

/// An answer and what it took.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The answer.
    pub outcome: Outcome,
    /// Tokens of the whole prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the states already.
    pub reused_tokens: usize,
}

impl Turn {
    /// Tokens of prompt and answer.
    pub fn total_tokens(&self) -> usize {
        self.prompt_tokens + self.outcome.tokens.len()
    }

    /// The turn as one JSON object: text, reasoning, tool_calls, tokens, finish_reason, usage, and
    /// timings with the time that the model took to load.
    pub fn json(&self, load_time: Duration) -> Value {
        let Outcome { reasoning, content, tokens, finish, timings, .. } = &self.outcome;
        json!({
            "text": content,
            "reasoning": (!reasoning.is_empty()).then_some(reasoning),
            "tool_calls": [],
            "tokens": tokens,
            "finish_reason": finish.name(),
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": tokens.len(),
                "total_tokens": self.total_tokens(),
                "prompt_tokens_details": { "cached_tokens": self.reused_tokens },
            },
            "timings": {
                "load_s": load_time.as_secs_f64(),
                "first_token_s": timings.first_token.as_secs_f64(),
                "prefill_tok_s": timings.prefill_tok_s(),
                "decode_tok_s": timings.decode_tok_s(),
            },
        })
    }
}

/// A conversation of a person with a model.
#[derive(Debug)]
pub struct Dialogue {
    /// May change between turns.
    pub options: DialogueOptions,
    /// Questions and answers, without the system prompt.
    messages: Vec<Value>,
    conversation: Conversation,
    /// Turns since the beginning, also those before a reset.
    turns: u64,
}

impl Dialogue {
    /// A conversation without a word yet.
    pub fn new(options: DialogueOptions) -> Self {
        Self { options, messages: Vec::new(), conversation: Conversation::new(), turns: 0 }
    }

    /// Number of questions and answers.
    pub fn n_messages(&self) -> usize {
        self.messages.len()
    }

    /// Tokens in the states.
    pub fn tokens(&self, engine: &Engine) -> usize {
        self.conversation.tokens(engine)
    }

    /// Forgets all messages; the system prompt stays.
    pub fn reset(&mut self, engine: &mut Engine) {
        self.messages.clear();
        self.conversation.reset(engine);
    }

    /// The prompt of a turn that begins with `question`. Changes nothing.
    ///
    /// # Errors
    /// The template refuses the conversation, or it leaves no room for an answer.
    pub fn prompt(
        &self,
        engine: &Engine,
        encoder: &PromptEncoder,
        question: &str,
    ) -> Result<Prompt, ChatError> {
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let system = self.options.system.iter().map(|text| message("system", text));
        let messages: Vec<Value> = system
            .chain(self.messages.iter().cloned())
            .chain([message("user", question)])
            .collect();
        let options = self.options.template();
        let input = ChatInput { messages: &messages, tools: None, options: &options };
        let prompt = encoder.encode(&input, Markers::Plain)?;
        let (tokens, context) = (prompt.ids.len(), engine.session().capacity);
        if tokens >= context {
            return Err(ChatError::ContextFull { tokens, context });
        }
        Ok(prompt)
    }

    /// Answers `question`, of which `prompt` was made. Both become part of the conversation, also
    /// when the receiver stops the work, unless no token was generated.
    ///
    /// # Errors
    /// The engine fails; the question is then not part of the conversation.
    pub fn answer(
        &mut self,
        engine: &mut Engine,
        encoder: &PromptEncoder,
        question: &str,
        prompt: Prompt,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Turn, ChatError> {
        let prompt_tokens = prompt.ids.len();
        let room = engine.session().capacity.saturating_sub(prompt_tokens);
        let seed = self.options.sampling.seed.wrapping_add(self.turns);
        let request = CompletionRequest {
            prompt: prompt.ids,
            thinking: prompt.thinking,
            thinking_budget: None,
            max_tokens: self.options.max_tokens.map_or(room, |most| most.min(room)),
            stop_ids: self.options.stop_ids.clone(),
            stop: self.options.stop.clone(),
            tools: Vec::new(),
            sampling: Sampling { seed, ..self.options.sampling.clone() },
            logprobs: None,
            format: None,
        };
        self.turns += 1;
        let (outcome, reused_tokens) =
            self.conversation.complete(engine, encoder.tokenizer(), &request, on_event)?;
        if !outcome.tokens.is_empty() {
            self.messages.push(json!({ "role": "user", "content": question }));
            self.messages.push(json!({
                "role": "assistant",
                "content": outcome.content,
                "reasoning_content": outcome.reasoning,
            }));
        }
        Ok(Turn { outcome, prompt_tokens, reused_tokens })
    }

    /// Whether a turn ended because the context is full.
    pub fn is_full(&self, engine: &Engine, turn: &Turn) -> bool {
        turn.outcome.finish == FinishReason::Length
            && turn.total_tokens() >= engine.session().capacity
    }
}
