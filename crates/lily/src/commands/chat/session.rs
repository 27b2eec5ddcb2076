//! The conversation of `lily chat`, with its model.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use lily_chat::{Dialogue, DialogueOptions, FinishReason, Turn};
use lily_text::PromptEncoder;

use crate::answer::{Stream, rate};
use crate::model::Loaded;
use crate::output::{print_json, written};
use crate::terminal::Screen;

/// A dialogue, and all that it needs.
pub struct Session {
    /// Messages and settings.
    pub dialogue: Dialogue,
    name: String,
    loaded: Loaded,
    encoder: PromptEncoder,
    /// One JSON object for each answer instead of its text.
    json: bool,
    last: Option<Turn>,
}

impl Session {
    /// A conversation with the model `name`.
    pub fn new(
        name: String,
        loaded: Loaded,
        encoder: PromptEncoder,
        options: DialogueOptions,
        json: bool,
    ) -> Self {
        Self { dialogue: Dialogue::new(options), name, loaded, encoder, json, last: None }
    }

    /// Answers a message until the model ends, or `stop` is set.
    ///
    /// # Errors
    /// The context is full, the template refuses the text, or the engine fails; the message is then
    /// not part of the conversation. An `io::Error` if nobody reads the answer.
    pub fn answer(&mut self, text: &str, screen: &mut Screen, stop: &AtomicBool) -> Result<()> {
        let engine = &mut self.loaded.engine;
        let prompt = self.dialogue.prompt(engine, &self.encoder, text)?;
        let mut stream = Stream::new(screen, prompt.ids.len(), self.json);
        let turn =
            self.dialogue.answer(engine, &self.encoder, text, prompt, &mut |event| match stop
                .load(Ordering::Relaxed)
            {
                true => ControlFlow::Break(()),
                false => stream.event(event),
            });
        written(stream.finish())?;
        let turn = turn?;
        if self.json {
            print_json(&turn.json(self.loaded.load_time))?;
        } else {
            screen.note(&self.summary(&turn));
        }
        self.last = Some(turn);
        Ok(())
    }

    fn summary(&self, turn: &Turn) -> String {
        let ended = match turn.outcome.finish {
            FinishReason::Cancelled => "stopped, ",
            FinishReason::Length if self.dialogue.is_full(&self.loaded.engine, turn) => {
                "the context is full (/reset starts anew), "
            }
            FinishReason::Length => "cut by --max-tokens, ",
            FinishReason::Stop | FinishReason::ToolCalls => "",
        };
        format!(
            "{ended}{} tokens, {} tok/s, context {} of {}",
            turn.outcome.tokens.len(),
            rate(turn.outcome.timings.decode_tok_s()),
            turn.total_tokens(),
            self.loaded.engine.session().capacity
        )
    }

    /// Forgets all messages; the system prompt stays.
    pub fn reset(&mut self) {
        self.dialogue.reset(&mut self.loaded.engine);
        self.last = None;
    }

    /// The state of things, for people.
    pub fn stats(&self) -> String {
        let engine = &self.loaded.engine;
        let sampling = &self.dialogue.options.sampling;
        let mut text = format!(
            "model      {} on {}, loaded in {:.1} s\n\
             context    {} of {} tokens in {} messages\n\
             sampling   temperature {}, top-k {}, top-p {}, min-p {}, seed {}",
            self.name,
            engine.device_name(),
            self.loaded.load_time.as_secs_f64(),
            self.dialogue.tokens(engine),
            engine.session().capacity,
            self.dialogue.n_messages(),
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.seed,
        );
        if let Some(turn) = &self.last {
            let timings = &turn.outcome.timings;
            text.push_str(&format!(
                "\nprompt     {} tokens, {} of them new, {} tok/s\n\
                 answer     {} tokens, {} tok/s, first after {:.2} s",
                turn.prompt_tokens,
                timings.prompt_tokens,
                rate(timings.prefill_tok_s()),
                timings.completion_tokens,
                rate(timings.decode_tok_s()),
                timings.first_token.as_secs_f64(),
            ));
        }
        text
    }
}
