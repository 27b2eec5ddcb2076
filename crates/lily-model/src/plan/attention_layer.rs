//! Attention layer: input projection, norm and rotary, attention over the cache, output projection.

use lily_kernels::attention::PreparedBuffers;
use lily_kernels::residual::ResidualBuffers;
use lily_kernels::{
    attn_flash, attn_in, attn_merge_gate, attn_out, attn_prepare, attn_short, attn_split,
    attn_split_prepare,
};

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
        // att [rows, q_width]
        if self.cx.step.is_prefill() {
            self.attn_prepare(attention);
            self.attn_flash(attention);
        } else if self.short_attention {
            self.attn_short(attention);
        } else {
            if self.fusions.prepare {
                self.attn_split_prepare(attention);
            } else {
                self.attn_prepare(attention);
                self.attn_split(attention);
            }
            self.attn_merge_gate();
        }
        // x [rows, hidden]
        let residual =
            ResidualBuffers { x: s.x, next_norm: layer.post_norm, xn: s.xn, x_ss: s.x_ss };
        self.push(attn_out::launch(
            &self.cx,
            attn_out::Buffers { control, att: s.att, weight: attention.weight_out, residual },
        ));
    }
    /// q `[rows, q_heads, head_dim]`; the new keys and values go to the cache.
    fn attn_prepare(&mut self, attention: &AttentionBuffers) {
        let s = &self.buffers.scratch;
        self.push(attn_prepare::launch(
            &self.cx,
            attn_prepare::Buffers {
                control: self.buffers.control,
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
    }

    /// The rows of a chunk over the cache: att `[rows, q_width]`.
    fn attn_flash(&mut self, attention: &AttentionBuffers) {
        let s = &self.buffers.scratch;
        self.push(attn_flash::launch(
            &self.cx,
            attn_flash::Buffers {
                control: self.buffers.control,
                q: s.q,
                gate: s.gate,
                k: attention.k,
                v: attention.v,
                att: s.att,
            },
        ));
    }

    /// Blocks of keys: part_o `[batch, q_heads, splits, head_dim]`, part_ml `[.., 2]`.
    fn attn_split(&mut self, attention: &AttentionBuffers) {
        let s = &self.buffers.scratch;
        self.push(attn_split::launch(
            &self.cx,
            attn_split::Buffers {
                control: self.buffers.control,
                q: s.q,
                k: attention.k,
                v: attention.v,
                part_o: s.part_o,
                part_ml: s.part_ml,
            },
        ));
    }

    /// The same, with norm and rotary at its start.
    fn attn_split_prepare(&mut self, attention: &AttentionBuffers) {
        let s = &self.buffers.scratch;
        let prepared = self.prepared(attention);
        self.push(attn_split_prepare::launch(
            &self.cx,
            attn_split_prepare::Buffers { prepared, part_o: s.part_o, part_ml: s.part_ml },
        ));
    }

    /// The blocks of all keys together: att `[batch, q_width]`.
    fn attn_merge_gate(&mut self) {
        let s = &self.buffers.scratch;
        self.push(attn_merge_gate::launch(
            &self.cx,
            attn_merge_gate::Buffers {
                control: self.buffers.control,
                part_o: s.part_o,
                part_ml: s.part_ml,
                gate: s.gate,
                att: s.att,
            },
        ));
    }

    /// Everything between the projections in one launch.
    fn attn_short(&mut self, attention: &AttentionBuffers) {
        let s = &self.buffers.scratch;
        let prepared = self.prepared(attention);
        self.push(attn_short::launch(
            &self.cx,
            attn_short::Buffers { prepared, gate: s.gate, att: s.att },
        ));
    }

    fn prepared(&self, attention: &AttentionBuffers) -> PreparedBuffers {
        let s = &self.buffers.scratch;
        PreparedBuffers {
            control: self.buffers.control,
            aq: s.aq,
            ak: s.ak,
            av: s.av,
            q_norm: attention.q_norm,
            k_norm: attention.k_norm,
            k: attention.k,
            v: attention.v,
        }
    }
}
