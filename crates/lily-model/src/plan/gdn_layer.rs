//! Gated DeltaNet layer: input projection, convolution and delta rule, output projection.

use lily_kernels::residual::ResidualBuffers;
use lily_kernels::{
    gdn_chunk_prepare, gdn_chunk_scan, gdn_conv, gdn_gate, gdn_in, gdn_out, gdn_scan, gdn_step,
};

use super::{GdnBuffers, LayerBuffers, Recorder};

impl Recorder<'_> {
    /// `x += out_proj(gate(delta_rule(conv(in_proj(norm(x))))))`.
    pub(super) fn gdn_layer(&mut self, layer: &LayerBuffers, gdn: &GdnBuffers) {
        let prefill = self.cx.step.is_prefill();
        let s = &self.buffers.scratch;
        let control = self.buffers.control;
        // q, k, v into the convolution ring (prefill: into `qkv`); z, b, a
        let qkv = if prefill { s.qkv } else { gdn.conv };
        self.push(gdn_in::launch(
            &self.cx,
            gdn_in::Buffers {
                control,
                xn: s.xn,
                x_ss: s.x_ss,
                weight: gdn.weight_in,
                qkv,
                z: s.z,
                ba: s.ba,
            },
        ));
        if prefill {
            self.gdn_prefill(gdn);
        } else {
            // og [batch, v_heads, v_dim], not yet divided by its rms
            self.push(gdn_step::launch(
                &self.cx,
                gdn_step::Buffers {
                    control,
                    conv: gdn.conv,
                    z: s.z,
                    ba: s.ba,
                    conv1d: gdn.conv1d,
                    a_log: gdn.a_log,
                    dt_bias: gdn.dt_bias,
                    norm: gdn.norm,
                    state: gdn.state,
                    og: s.og,
                    o_ss: s.o_ss,
                },
            ));
        }
        // x [rows, hidden]
        let residual =
            ResidualBuffers { x: s.x, next_norm: layer.post_norm, xn: s.xn, x_ss: s.x_ss };
        self.push(gdn_out::launch(
            &self.cx,
            gdn_out::Buffers { control, og: s.og, o_ss: s.o_ss, weight: gdn.weight_out, residual },
        ));
    }

    /// The delta rule over a chunk: token by token, or in chunks of 64 with matrix products.
    fn gdn_prefill(&mut self, gdn: &GdnBuffers) {
        let s = &self.buffers.scratch;
        let control = self.buffers.control;
        // gq, gk [rows, k_heads, k_dim]; gv [rows, v_heads, v_dim]; beta, log_decay [rows, v_heads]
        self.push(gdn_conv::launch(
            &self.cx,
            gdn_conv::Buffers {
                control,
                qkv: s.qkv,
                conv: gdn.conv,
                ba: s.ba,
                conv1d: gdn.conv1d,
                a_log: gdn.a_log,
                dt_bias: gdn.dt_bias,
                gq: s.gq,
                gk: s.gk,
                gv: s.gv,
                beta: s.beta,
                log_decay: s.log_decay,
            },
        ));
        // core [rows, v_heads, v_dim]
        if self.cx.is_chunked() {
            self.push(gdn_chunk_prepare::launch(
                &self.cx,
                gdn_chunk_prepare::Buffers {
                    control,
                    gq: s.gq,
                    gk: s.gk,
                    gv: s.gv,
                    beta: s.beta,
                    log_decay: s.log_decay,
                    chunk_u: s.chunk_u,
                    chunk_w: s.chunk_w,
                    chunk_g: s.chunk_g,
                    chunk_p: s.chunk_p,
                },
            ));
            self.push(gdn_chunk_scan::launch(
                &self.cx,
                gdn_chunk_scan::Buffers {
                    control,
                    gq: s.gq,
                    gk: s.gk,
                    chunk_u: s.chunk_u,
                    chunk_w: s.chunk_w,
                    chunk_g: s.chunk_g,
                    chunk_p: s.chunk_p,
                    qkv: s.qkv,
                    state: gdn.state,
                    core: s.core,
                    conv: gdn.conv,
                },
            ));
        } else {
            self.push(gdn_scan::launch(
                &self.cx,
                gdn_scan::Buffers {
                    control,
                    gq: s.gq,
                    gk: s.gk,
                    gv: s.gv,
                    beta: s.beta,
                    log_decay: s.log_decay,
                    qkv: s.qkv,
                    state: gdn.state,
                    core: s.core,
                    conv: gdn.conv,
                },
            ));
        }
        // og [rows, v_heads, v_dim]
        self.push(gdn_gate::launch(
            &self.cx,
            gdn_gate::Buffers { control, core: s.core, z: s.z, norm: gdn.norm, og: s.og },
        ));
    }
}
