//! Puts stored rows together to the weights that the plan binds.

use std::collections::BTreeMap;

use lily_plan::{RowSegment, Weight, WeightMatrix};

use super::checkpoint::Checkpoint;
use super::resolve::Resolved;
use crate::config::LayerKind;
use crate::error::CheckpointError;

impl Checkpoint {
    /// The weights of the plan by name. Matrices stay in their mapped files.
    ///
    /// `embed_tokens` and `lm_head` are `[vocab, hidden]`, `final_norm` is `[hidden]`. Layer `i`
    /// has, after `layers.{i}.`:
    ///
    /// | name | shape | rows |
    /// |---|---|---|
    /// | `input_norm`, `post_norm` | `[hidden]` | |
    /// | `router` | `[experts + 1, hidden]` | gate, then the shared expert's gate |
    /// | `gate_up` | `[experts + 1, 2 * inner, hidden]` | row `2j` gate, `2j + 1` up; shared expert last |
    /// | `down` | `[experts + 1, hidden, inner]` | shared expert last |
    /// | `attn_in` | `[2 * q_dim + 2 * kv_dim, hidden]` | q (with gates), k, v |
    /// | `attn_out` | `[hidden, q_dim]` | |
    /// | `q_norm`, `k_norm` | `[head_dim]` | |
    /// | `gdn_in` | `[channels + value_dim + 2 * v_heads, hidden]` | q, k, v, z, b, a |
    /// | `gdn_out` | `[hidden, value_dim]` | |
    /// | `conv1d` | `[channels, taps]` | |
    /// | `A_log`, `dt_bias` | `[v_heads]` | |
    /// | `gdn_norm` | `[v_head_dim]` | |
    ///
    /// # Errors
    /// [`CheckpointError::Matrix`] if rows do not form a matrix that the kernels read.
    pub fn weights(&self) -> Result<BTreeMap<String, Weight>, CheckpointError> {
        let mut out = BTreeMap::new();
        let head = if self.config().tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
        out.insert("embed_tokens".into(), self.stacked("embed_tokens", &["model.embed_tokens"])?);
        out.insert("lm_head".into(), self.stacked("lm_head", &[head])?);
        out.insert("final_norm".into(), self.small("model.norm.weight"));
        for (i, kind) in self.config().layer_types.iter().enumerate() {
            let layer = Layer { checkpoint: self, stored: format!("model.layers.{i}."), i };
            layer.common(&mut out)?;
            match kind {
                LayerKind::LinearAttention => layer.gdn(&mut out)?,
                LayerKind::FullAttention => layer.attention(&mut out)?,
            }
        }
        Ok(out)
    }

    fn small(&self, name: &str) -> Weight {
        match self.module(name) {
            Resolved::Small(values) => Weight::Vector(values.clone()),
            Resolved::Matrix { .. } => unreachable!("`{name}` is listed as a small tensor"),
        }
    }

    fn module(&self, name: &str) -> &Resolved {
        self.resolved.get(name).expect("every module of the configuration was resolved on opening")
    }

    /// Matrices without experts, one below the other.
    fn stacked(&self, weight: &str, paths: &[&str]) -> Result<Weight, CheckpointError> {
        let mut matrix = Stack::default();
        for path in paths {
            let first_row = matrix.rows;
            matrix.rows += matrix.add(self.module(path), Target { first_row, step: 1, expert: 0 });
        }
        matrix.finish(weight, 1)
    }
}

/// Where the rows of a module go in a matrix.
struct Target {
    first_row: usize,
    step: usize,
    expert: usize,
}

#[derive(Default)]
struct Stack {
    rows: usize,
    k: usize,
    segments: Vec<RowSegment>,
}

impl Stack {
    /// Adds all rows of a module; returns how many each of its experts has.
    fn add(&mut self, module: &Resolved, target: Target) -> usize {
        let Resolved::Matrix { rows, k, sources } = module else {
            unreachable!("a small tensor is never part of a matrix")
        };
        self.k = *k;
        self.segments.extend(sources.iter().map(|source| RowSegment {
            tensor: source.tensor.clone(),
            format: source.format,
            experts: source.experts.start + target.expert..source.experts.end + target.expert,
            first_row: target.first_row,
            row_step: target.step,
            rows: *rows,
            source_row: source.source_row,
            expert_stride: source.expert_stride,
            codes: source.codes.clone(),
            scales: source.scales.clone(),
            biases: source.biases.clone(),
        }));
        *rows
    }

    fn finish(self, weight: &str, experts: usize) -> Result<Weight, CheckpointError> {
        WeightMatrix::new(experts, self.rows, self.k, self.segments)
            .map(Weight::Matrix)
            .map_err(|source| CheckpointError::Matrix { weight: weight.into(), source })
    }
}

struct Layer<'a> {
    checkpoint: &'a Checkpoint,
    stored: String,
    i: usize,
}

type Weights = BTreeMap<String, Weight>;

impl Layer<'_> {
    fn name(&self, name: &str) -> String {
        format!("layers.{}.{name}", self.i)
    }

    fn small(&self, out: &mut Weights, name: &str, stored: &str) {
        out.insert(self.name(name), self.checkpoint.small(&format!("{}{stored}", self.stored)));
    }

    fn stacked(
        &self,
        out: &mut Weights,
        name: &str,
        parts: &[&str],
    ) -> Result<(), CheckpointError> {
        let name = self.name(name);
        let paths: Vec<String> = parts.iter().map(|p| format!("{}{p}", self.stored)).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let weight = self.checkpoint.stacked(&name, &paths)?;
        out.insert(name, weight);
        Ok(())
    }

    fn common(&self, out: &mut Weights) -> Result<(), CheckpointError> {
        self.small(out, "input_norm", "input_layernorm.weight");
        self.small(out, "post_norm", "post_attention_layernorm.weight");
        self.stacked(out, "router", &["mlp.gate", "mlp.shared_expert_gate"])?;
        let inner = self.checkpoint.config().moe_intermediate_size;
        self.experts(out, "gate_up", 2 * inner, &["gate_proj", "up_proj"])?;
        self.experts(out, "down", self.checkpoint.config().hidden_size, &["down_proj"])
    }

    /// Routed experts and the shared one behind them; rows of several projections alternate.
    fn experts(
        &self,
        out: &mut Weights,
        name: &str,
        rows: usize,
        projections: &[&str],
    ) -> Result<(), CheckpointError> {
        let experts = self.checkpoint.config().num_experts;
        let mut matrix = Stack { rows, ..Stack::default() };
        for (place, expert) in [("switch_mlp", 0), ("shared_expert", experts)] {
            for (first_row, projection) in projections.iter().enumerate() {
                let path = format!("{}mlp.{place}.{projection}", self.stored);
                let target = Target { first_row, step: projections.len(), expert };
                matrix.add(self.checkpoint.module(&path), target);
            }
        }
        let name = self.name(name);
        let weight = matrix.finish(&name, experts + 1)?;
        out.insert(name, weight);
        Ok(())
    }

    fn attention(&self, out: &mut Weights) -> Result<(), CheckpointError> {
        let parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        self.stacked(out, "attn_in", &parts)?;
        self.stacked(out, "attn_out", &["self_attn.o_proj"])?;
        self.small(out, "q_norm", "self_attn.q_norm.weight");
        self.small(out, "k_norm", "self_attn.k_norm.weight");
        Ok(())
    }

    fn gdn(&self, out: &mut Weights) -> Result<(), CheckpointError> {
        let parts = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"]
            .map(|part| format!("linear_attn.{part}"));
        self.stacked(out, "gdn_in", &parts.each_ref().map(String::as_str))?;
        self.stacked(out, "gdn_out", &["linear_attn.out_proj"])?;
        self.small(out, "conv1d", "linear_attn.conv1d.weight");
        self.small(out, "A_log", "linear_attn.A_log");
        self.small(out, "dt_bias", "linear_attn.dt_bias");
        self.small(out, "gdn_norm", "linear_attn.norm.weight");
        Ok(())
    }
}
