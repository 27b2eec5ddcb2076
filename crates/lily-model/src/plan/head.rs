//! Once for each step: embedding, LM head, choice of the next token.

use lily_kernels::residual::ResidualBuffers;
use lily_kernels::{advance, embed, head, sample};

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
                table: self.buffers.embed_tokens,
                residual,
            },
        ));
    }

    /// End of a decode step: logits of every sequence, and the choice.
    pub(super) fn head(&mut self, choice: Choice) {
        self.logits_with_candidates();
        if choice == Choice::Device {
            self.sample();
        }
    }

    /// End of a prefill chunk.
    pub(super) fn prefill_end(&mut self, end: PrefillEnd) {
        match end {
            PrefillEnd::More => self.advance(),
            PrefillEnd::Sample => {
                self.logits_with_candidates();
                self.sample();
            }
            PrefillEnd::Logits => {
                self.logits_with_candidates();
                self.advance();
            }
            PrefillEnd::AllLogits => {
                self.logits(None);
                self.advance();
            }
        }
    }

    /// Logits of every sequence, or of the last row of a chunk, and the best of each group of ids.
    fn logits_with_candidates(&mut self) {
        let s = &self.buffers.scratch;
        self.logits(Some(head::Candidates { best_value: s.best_value, best_id: s.best_id }));
    }

    fn logits(&mut self, candidates: Option<head::Candidates>) {
        let s = &self.buffers.scratch;
        self.push(head::launch(
            &self.cx,
            head::Buffers {
                control: self.buffers.control,
                xn: s.xn,
                x_ss: s.x_ss,
                weight: self.buffers.lm_head,
                logits: s.logits,
                candidates,
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

    fn advance(&mut self) {
        let control = self.buffers.control;
        self.push(advance::launch(&self.cx, advance::Buffers { control }));
    }
}
