//! Once for each step: embedding, LM head, choice of the next token.

use lily_kernels::residual::ResidualBuffers;
use lily_kernels::{advance, draw, embed, head, sample};

use super::{Choice, PrefillEnd, Recorder};

impl Recorder<'_> {
    /// Starts the residual stream: `x = embed_tokens[token]`, `[rows, hidden]`.
    pub(super) fn embed(&mut self) {
        let s = &self.buffers.scratch;
        let next_norm = match self.buffers.layers.first() {
            Some(layer) => layer.input_norm,
            None => self.buffers.final_norm,
        };
        let residual = ResidualBuffers { x: s.x, next_norm, xn: s.xn, x_ss: s.x_ss };
        self.push(embed::launch(
            &self.cx,
            embed::Buffers {
                control: self.buffers.control,
                prompt: self.buffers.prompt,
                weight: self.buffers.embed_tokens,
                residual,
            },
        ));
    }

    /// End of a decode step: logits of every sequence, and the choice.
    pub(super) fn head(&mut self, choice: Choice) {
        self.logits(head::Rows::Sequences);
        match choice {
            Choice::Device => self.sample(),
            Choice::Draw => self.draw(),
            Choice::Host => {}
        }
    }

    /// End of a prefill chunk.
    pub(super) fn prefill_end(&mut self, end: PrefillEnd) {
        match end {
            PrefillEnd::More => {}
            PrefillEnd::Sample => {
                self.logits(head::Rows::Last);
                return self.sample();
            }
            PrefillEnd::Draw => {
                self.logits(head::Rows::Last);
                return self.draw();
            }
            PrefillEnd::Logits => self.logits(head::Rows::Last),
            PrefillEnd::AllLogits => self.logits(head::Rows::All),
        }
        let control = self.buffers.control;
        self.push(advance::launch(&self.cx, advance::Buffers { control }));
    }

    fn logits(&mut self, rows: head::Rows) {
        let s = &self.buffers.scratch;
        self.push(head::launch(
            &self.cx,
            rows,
            head::Buffers {
                control: self.buffers.control,
                xn: s.xn,
                x_ss: s.x_ss,
                weight: self.buffers.lm_head,
                logits: s.logits,
                best_value: s.best_value,
                best_id: s.best_id,
            },
        ));
    }

    fn sample(&mut self) {
        let s = &self.buffers.scratch;
        self.push(sample::launch(
            &self.cx,
            sample::Buffers {
                control: self.buffers.control,
                best_value: s.best_value,
                best_id: s.best_id,
                stop_ids: self.buffers.stop_ids,
                output: self.buffers.output,
            },
        ));
    }

    fn draw(&mut self) {
        let s = &self.buffers.scratch;
        self.push(draw::launch(
            &self.cx,
            draw::Buffers {
                control: self.buffers.control,
                best_value: s.best_value,
                logits: s.logits,
                sampling: self.buffers.sampling,
                stop_ids: self.buffers.stop_ids,
                output: self.buffers.output,
            },
        ));
    }
}
