//! Expert block: router, top-k, gate and up, down, residual. The shared expert is slot `top_k`.

use lily_kernels::residual::ResidualBuffers;
use lily_kernels::{
    combine, experts_down, experts_gate_up, group_experts, grouped_down, grouped_gate_up, router,
    topk,
};
use lily_plan::BufferId;

use super::{LayerBuffers, Recorder};

impl Recorder<'_> {
    /// `x += Σ route · down(silu(gate(norm(x))) ∘ up(norm(x)))` over the chosen experts and the
    /// shared one.
    pub(super) fn moe_block(&mut self, layer: &LayerBuffers, next_norm: BufferId) {
        let s = &self.buffers.scratch;
        let control = self.buffers.control;
        // router_logits [rows, experts + 1]
        self.push(router::launch(
            &self.cx,
            router::Buffers {
                control,
                x: s.x,
                x_ss: s.x_ss,
                post_norm: layer.post_norm,
                weight: layer.router,
                router_logits: s.router_logits,
            },
        ));
        let residual = ResidualBuffers { x: s.x, next_norm, xn: s.xn, x_ss: s.x_ss };
        if self.cx.step.is_prefill() {
            self.topk();
            self.moe_grouped(layer, residual);
        } else if self.fusions.topk {
            self.moe_slots_fused(layer, residual);
        } else {
            self.topk();
            self.moe_slots(layer, residual);
        }
    }

    /// ids, route `[rows, slots]`.
    fn topk(&mut self) {
        let s = &self.buffers.scratch;
        self.push(topk::launch(
            &self.cx,
            topk::Buffers {
                control: self.buffers.control,
                router_logits: s.router_logits,
                ids: s.ids,
                route: s.route,
            },
        ));
    }

    /// Every slot of every sequence reads its expert.
    fn moe_slots(&mut self, layer: &LayerBuffers, residual: ResidualBuffers) {
        let s = &self.buffers.scratch;
        let control = self.buffers.control;
        // h [batch, slots, inner]
        self.push(experts_gate_up::launch(
            &self.cx,
            experts_gate_up::Buffers {
                control,
                xn: s.xn,
                x_ss: s.x_ss,
                ids: s.ids,
                gate_up: layer.gate_up,
                h: s.h,
            },
        ));
        // x [batch, hidden]
        self.push(experts_down::launch(
            &self.cx,
            experts_down::Buffers {
                control,
                h: s.h,
                ids: s.ids,
                route: s.route,
                down: layer.down,
                residual,
            },
        ));
    }

    /// The same with the choice of experts at the start of both products.
    fn moe_slots_fused(&mut self, layer: &LayerBuffers, residual: ResidualBuffers) {
        let s = &self.buffers.scratch;
        let (control, router_logits) = (self.buffers.control, s.router_logits);
        // h [batch, slots, inner]
        self.push(experts_gate_up::launch_fused(
            &self.cx,
            experts_gate_up::FusedBuffers {
                control,
                xn: s.xn,
                x_ss: s.x_ss,
                router_logits,
                gate_up: layer.gate_up,
                h: s.h,
            },
        ));
        // x [batch, hidden]
        self.push(experts_down::launch_fused(
            &self.cx,
            experts_down::FusedBuffers {
                control,
                h: s.h,
                router_logits,
                down: layer.down,
                residual,
            },
        ));
    }

    /// The rows of a chunk sorted by expert, so that each expert is read once for all its rows.
    fn moe_grouped(&mut self, layer: &LayerBuffers, residual: ResidualBuffers) {
        let s = &self.buffers.scratch;
        let control = self.buffers.control;
        // row_token, row_slot [rows * slots] sorted by expert; work: tiles of up to 32 of them
        self.push(group_experts::launch(
            &self.cx,
            group_experts::Buffers {
                control,
                ids: s.ids,
                row_token: s.row_token,
                row_slot: s.row_slot,
                work: s.work,
            },
        ));
        // hs [rows * slots, inner], sorted
        self.push(grouped_gate_up::launch(
            &self.cx,
            grouped_gate_up::Buffers {
                control,
                xn: s.xn,
                x_ss: s.x_ss,
                work: s.work,
                row_token: s.row_token,
                gate_up: layer.gate_up,
                hs: s.hs,
            },
        ));
        // moe_y [rows, slots, hidden], by token
        self.push(grouped_down::launch(
            &self.cx,
            grouped_down::Buffers {
                control,
                hs: s.hs,
                work: s.work,
                row_token: s.row_token,
                row_slot: s.row_slot,
                route: s.route,
                down: layer.down,
                moe_y: s.moe_y,
            },
        ));
        // x [rows, hidden]
        self.push(combine::launch(
            &self.cx,
            combine::Buffers { control, moe_y: s.moe_y, residual },
        ));
    }
}
