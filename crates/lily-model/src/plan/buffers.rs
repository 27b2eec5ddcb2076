//! Buffers of a session, by name and by place in the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_kernels::draw::Draw;
use lily_kernels::{CHUNK, Mixer, ModelShape, SessionShape};
use lily_plan::{BufferId, BufferKind, Buffers, Element, control};

/// Bytes of every weight matrix by buffer name; vectors are sized by their shape.
pub type MatrixBytes = BTreeMap<String, u64>;

/// All buffers of a session. Decode and prefill plans share them.
#[derive(Clone, Debug)]
pub struct SessionBuffers {
    /// The table.
    pub table: Arc<Buffers>,
    /// i32 `[batch, WORDS]`.
    pub control: BufferId,
    /// i32 `[batch, STOP_IDS]`, padded with `NO_ID`.
    pub stop_ids: BufferId,
    /// How tokens are drawn, i32 `[batch, 8]`: rows of `lily_kernels::draw::Draw`.
    pub sampling: BufferId,
    /// Chosen ids, i32 `[batch, ring]`.
    pub output: BufferId,
    /// Ids of the prefill chunk, i32 `[rows]`.
    pub prompt: BufferId,
    /// Matrix `[vocab, hidden]`.
    pub embed_tokens: BufferId,
    /// Matrix `[vocab, hidden]`.
    pub lm_head: BufferId,
    /// Vector `[hidden]`.
    pub final_norm: BufferId,
    /// Buffers of each layer.
    pub layers: Vec<LayerBuffers>,
    /// Memory that is dead between two steps.
    pub scratch: Scratch,
}

/// Weights and states of a layer.
#[derive(Clone, Debug)]
pub struct LayerBuffers {
    /// Vector `[hidden]`: norm before the mixer.
    pub input_norm: BufferId,
    /// Vector `[hidden]`: norm before the experts.
    pub post_norm: BufferId,
    /// The mixer.
    pub mixer: MixerBuffers,
    /// Matrix `[experts + 1, hidden]`; the last row is the shared expert's gate.
    pub router: BufferId,
    /// Matrix `[experts + 1, 2 inner, hidden]`, gate and up rows alternate; the last is shared.
    pub gate_up: BufferId,
    /// Matrix `[experts + 1, hidden, inner]`.
    pub down: BufferId,
}

/// Weights and states of a layer's mixer.
#[derive(Clone, Debug)]
pub enum MixerBuffers {
    /// Gated DeltaNet.
    Gdn(GdnBuffers),
    /// Gated attention.
    Attention(AttentionBuffers),
}

/// Gated DeltaNet.
#[derive(Clone, Debug)]
pub struct GdnBuffers {
    /// Matrix `[gdn_rows, hidden]`: q, k, v, z, b, a.
    pub weight_in: BufferId,
    /// Matrix `[hidden, v_width]`.
    pub weight_out: BufferId,
    /// Vector `[conv_channels, conv_width]`.
    pub conv1d: BufferId,
    /// Vector `[v_heads]`.
    pub a_log: BufferId,
    /// Vector `[v_heads]`.
    pub dt_bias: BufferId,
    /// Vector `[v_dim]`.
    pub norm: BufferId,
    /// Convolution ring, f32 `[batch, conv_slots, conv_channels]`.
    pub conv: BufferId,
    /// Recurrent state ring, f32 `[batch, state_slots, v_heads, v_dim, k_dim]`.
    pub state: BufferId,
}

/// Gated attention.
#[derive(Clone, Debug)]
pub struct AttentionBuffers {
    /// Matrix `[attn_rows, hidden]`: (query, gate) by head, k, v.
    pub weight_in: BufferId,
    /// Matrix `[hidden, q_width]`.
    pub weight_out: BufferId,
    /// Vector `[head_dim]`.
    pub q_norm: BufferId,
    /// Vector `[head_dim]`.
    pub k_norm: BufferId,
    /// Keys after norm and rotary, kv `[batch, kv_heads, capacity, head_dim]`.
    pub k: BufferId,
    /// Values, as `k`.
    pub v: BufferId,
}

/// Memory between launches; `rows` is the larger of chunk and batch. See `docs/plan.md` for meanings.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // names and shapes stand together in `declare_scratch`
pub struct Scratch {
    pub x: BufferId,
    pub xn: BufferId,
    pub x_ss: BufferId,
    pub z: BufferId,
    pub ba: BufferId,
    pub og: BufferId,
    pub o_ss: BufferId,
    pub qkv: BufferId,
    pub gq: BufferId,
    pub gk: BufferId,
    pub gv: BufferId,
    pub beta: BufferId,
    pub log_decay: BufferId,
    pub core: BufferId,
    pub chunk_u: BufferId,
    pub chunk_w: BufferId,
    pub chunk_g: BufferId,
    pub chunk_p: BufferId,
    pub aq: BufferId,
    pub gate: BufferId,
    pub ak: BufferId,
    pub av: BufferId,
    pub q: BufferId,
    pub att: BufferId,
    pub part_o: BufferId,
    pub part_ml: BufferId,
    pub router_logits: BufferId,
    pub ids: BufferId,
    pub route: BufferId,
    pub h: BufferId,
    pub row_token: BufferId,
    pub row_slot: BufferId,
    pub work: BufferId,
    pub hs: BufferId,
    pub moe_y: BufferId,
    pub logits: BufferId,
    pub best_value: BufferId,
    pub best_id: BufferId,
}

/// Declares all buffers of a session.
pub fn declare(
    shape: &ModelShape,
    session: &SessionShape,
    matrix_bytes: &MatrixBytes,
) -> SessionBuffers {
    let mut table = Buffers::new();
    let batch = session.batch;
    let mut int =
        |name: &str, shape: Vec<usize>| table.add(BufferKind::Control, name, Element::I32, shape);
    let control = int(control::NAME, vec![batch, control::WORDS]);
    let stop_ids = int("stop_ids", vec![batch, control::STOP_IDS]);
    let sampling = int("sampling", vec![batch, Draw::WORDS]);
    let output = int("output", vec![batch, session.ring]);
    let prompt = int("prompt", vec![session.rows()]);
    let mut weights = WeightTable { table: &mut table, matrix_bytes };
    let embed_tokens = weights.matrix("embed_tokens", [shape.vocab, shape.hidden]);
    let lm_head = weights.matrix("lm_head", [shape.vocab, shape.hidden]);
    let final_norm = weights.vector("final_norm", [shape.hidden]);
    let layers = (0..shape.layers.len())
        .map(|layer| declare_layer(shape, session, &mut weights, layer))
        .collect();
    let scratch = declare_scratch(shape, session, &mut table);
    SessionBuffers {
        table: Arc::new(table),
        control,
        stop_ids,
        sampling,
        output,
        prompt,
        embed_tokens,
        lm_head,
        final_norm,
        layers,
        scratch,
    }
}

struct WeightTable<'a> {
    table: &'a mut Buffers,
    matrix_bytes: &'a MatrixBytes,
}

impl WeightTable<'_> {
    fn matrix(&mut self, name: &str, shape: impl Into<Vec<usize>>) -> BufferId {
        let total_bytes = self.matrix_bytes.get(name).copied().unwrap_or(0);
        self.table.add(BufferKind::Weight, name, Element::Matrix { total_bytes }, shape)
    }

    fn vector(&mut self, name: &str, shape: impl Into<Vec<usize>>) -> BufferId {
        self.table.add(BufferKind::Weight, name, Element::Bf16, shape)
    }
}

fn declare_layer(
    shape: &ModelShape,
    session: &SessionShape,
    weights: &mut WeightTable<'_>,
    layer: usize,
) -> LayerBuffers {
    let name = |part: &str| format!("layers.{layer}.{part}");
    let (hidden, batch) = (shape.hidden, session.batch);
    let mixer = match shape.layers[layer] {
        Mixer::Attention => {
            let cache = [batch, shape.kv_heads, session.capacity, shape.head_dim];
            let kv = session.precision.kv;
            MixerBuffers::Attention(AttentionBuffers {
                weight_in: weights.matrix(&name("attn_in"), [shape.attn_rows(), hidden]),
                weight_out: weights.matrix(&name("attn_out"), [hidden, shape.q_width()]),
                q_norm: weights.vector(&name("q_norm"), [shape.head_dim]),
                k_norm: weights.vector(&name("k_norm"), [shape.head_dim]),
                k: weights.table.add(BufferKind::State, name("k"), kv, cache),
                v: weights.table.add(BufferKind::State, name("v"), kv, cache),
            })
        }
        Mixer::Gdn => {
            let conv = [batch, session.conv_slots(shape), shape.conv_channels()];
            let state = [batch, session.state_slots(), shape.v_heads, shape.v_dim, shape.k_dim];
            let f32 = Element::F32;
            MixerBuffers::Gdn(GdnBuffers {
                weight_in: weights.matrix(&name("gdn_in"), [shape.gdn_rows(), hidden]),
                weight_out: weights.matrix(&name("gdn_out"), [hidden, shape.v_width()]),
                conv1d: weights.vector(&name("conv1d"), [shape.conv_channels(), shape.conv_width]),
                a_log: weights.table.add(BufferKind::Weight, name("A_log"), f32, [shape.v_heads]),
                dt_bias: weights.vector(&name("dt_bias"), [shape.v_heads]),
                norm: weights.vector(&name("gdn_norm"), [shape.v_dim]),
                conv: weights.table.add(BufferKind::State, name("conv"), f32, conv),
                state: weights.table.add(BufferKind::State, name("state"), f32, state),
            })
        }
    };
    LayerBuffers {
        input_norm: weights.vector(&name("input_norm"), [hidden]),
        post_norm: weights.vector(&name("post_norm"), [hidden]),
        mixer,
        router: weights.matrix(&name("router"), [shape.experts + 1, hidden]),
        gate_up: weights.matrix(&name("gate_up"), [shape.experts + 1, 2 * shape.inner, hidden]),
        down: weights.matrix(&name("down"), [shape.experts + 1, hidden, shape.inner]),
    }
}

fn declare_scratch(shape: &ModelShape, session: &SessionShape, table: &mut Buffers) -> Scratch {
    let (rows, batch, act) = (session.rows(), session.batch, session.act());
    let (f32, i32) = (Element::F32, Element::I32);
    let slots = shape.slots();
    let sorted_rows = rows * slots;
    let mut add = |name: &str, element: Element, shape: &[usize]| {
        table.add(BufferKind::Scratch, name, element, shape)
    };
    Scratch {
        // Residual stream, its copy as a matrix input, partial sums of its squares.
        x: add("x", f32, &[rows, shape.hidden]),
        xn: add("xn", act, &[rows, shape.hidden]),
        x_ss: add("x_ss", f32, &[rows, shape.hidden / 8]),
        // Gated DeltaNet.
        z: add("z", act, &[rows, shape.v_width()]),
        ba: add("ba", f32, &[rows, 2 * shape.v_heads]),
        og: add("og", act, &[rows, shape.v_width()]),
        o_ss: add("o_ss", f32, &[batch, shape.v_heads, shape.o_ss_slices()]),
        qkv: add("qkv", f32, &[rows, shape.conv_channels()]),
        gq: add("gq", act, &[rows, shape.k_heads, shape.k_dim]),
        gk: add("gk", act, &[rows, shape.k_heads, shape.k_dim]),
        gv: add("gv", act, &[rows, shape.v_heads, shape.v_dim]),
        beta: add("beta", f32, &[rows, shape.v_heads]),
        log_decay: add("log_decay", f32, &[rows, shape.v_heads]),
        core: add("core", f32, &[rows, shape.v_heads, shape.v_dim]),
        chunk_u: add("chunk_u", session.precision.chunk, &[rows, shape.v_heads, shape.v_dim]),
        chunk_w: add("chunk_w", session.precision.chunk, &[rows, shape.v_heads, shape.k_dim]),
        chunk_g: add("chunk_g", f32, &[rows, shape.v_heads]),
        chunk_p: add("chunk_p", session.precision.chunk, &[rows, shape.v_heads, CHUNK]),
        // Attention.
        aq: add("aq", f32, &[rows, shape.q_heads, shape.head_dim]),
        gate: add("gate", act, &[rows, shape.q_heads, shape.head_dim]),
        ak: add("ak", f32, &[rows, shape.kv_heads, shape.head_dim]),
        av: add("av", f32, &[rows, shape.kv_heads, shape.head_dim]),
        q: add("q", act, &[rows, shape.q_heads, shape.head_dim]),
        att: add("att", act, &[rows, shape.q_width()]),
        part_o: add("part_o", f32, &[batch, shape.q_heads, session.splits, shape.head_dim]),
        part_ml: add("part_ml", f32, &[batch, shape.q_heads, session.splits, 2]),
        // Experts.
        router_logits: add("router_logits", f32, &[rows, shape.experts + 1]),
        ids: add("ids", i32, &[rows, slots]),
        route: add("route", f32, &[rows, slots]),
        h: add("h", act, &[batch, slots, shape.inner]),
        row_token: add("row_token", i32, &[sorted_rows]),
        row_slot: add("row_slot", i32, &[sorted_rows]),
        work: add("work", i32, &[shape.work_entries(rows), 4]),
        hs: add("hs", act, &[sorted_rows, shape.inner]),
        moe_y: add("moe_y", f32, &[rows, slots, shape.hidden]),
        // Head.
        logits: add("logits", f32, &[session.logit_rows.max(batch), shape.vocab]),
        best_value: add("best_value", f32, &[batch, shape.head_tiles()]),
        best_id: add("best_id", i32, &[batch, shape.head_tiles()]),
    }
}
