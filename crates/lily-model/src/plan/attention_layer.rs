//! Attention layer: input projection, norm and rotary, attention over the cache, output projection.

use lily_kernels::residual::ResidualBuffers;
use lily_kernels::{attn_flash, attn_in, attn_merge_gate, attn_out, attn_prepare, attn_split};

use super::{AttentionBuffers, LayerBuffers, Recorder};

impl Recorder<'_> {
    /// `x += out_proj(gate ∘ attention(norm(x)))`.
    pub(super) fn attention_layer(&mut self, layer: &LayerBuffers, attention: &AttentionBuffers) {
        let s = &self.buffers.scratch;
        let control = self.buffers.control;
        // aq, gate [rows, q_heads, head_dim]; ak, av [rows, kv_heads, head_dim]
        self.push(attn_in::launch(
            &self.cx,
            attn_in::Buffers {
                control,
                xn: s.xn,
                x_ss: s.x_ss,
                weight: attention.weight_in,
                aq: s.aq,
                gate: s.gate,
                ak: s.ak,
                av: s.av,
            },
        ));
        // q [rows, q_heads, head_dim]; the new keys and values go to the cache
        self.push(attn_prepare::launch(
            &self.cx,
            attn_prepare::Buffers {
                control,
                aq: s.aq,
                ak: s.ak,
                av: s.av,
                q_norm: attention.q_norm,
                k_norm: attention.k_norm,
                q: s.q,
                k: attention.k,
                v: attention.v,
            },
        ));
        // att [rows, q_width]
        if self.cx.step.is_prefill() {
            self.push(attn_flash::launch(
                &self.cx,
                attn_flash::Buffers {
                    control,
                    q: s.q,
                    gate: s.gate,
                    k: attention.k,
                    v: attention.v,
                    att: s.att,
                },
            ));
        } else {
            self.push(attn_split::launch(
                &self.cx,
                attn_split::Buffers {
                    control,
                    q: s.q,
                    k: attention.k,
                    v: attention.v,
                    part_o: s.part_o,
                    part_ml: s.part_ml,
                },
            ));
            self.push(attn_merge_gate::launch(
                &self.cx,
                attn_merge_gate::Buffers {
                    control,
                    part_o: s.part_o,
                    part_ml: s.part_ml,
                    gate: s.gate,
                    att: s.att,
                },
            ));
        }
        // x [rows, hidden]
        let residual =
            ResidualBuffers { x: s.x, next_norm: layer.post_norm, xn: s.xn, x_ss: s.x_ss };
        self.push(attn_out::launch(
            &self.cx,
            attn_out::Buffers { control, att: s.att, weight: attention.weight_out, residual },
        ));
    }
}
