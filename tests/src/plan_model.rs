//! A model as plans see it: dimensions and what its matrices take, without weights.

use std::collections::HashMap;

use lily_kernels::gpu::MatrixFormat;
use lily_kernels::{ModelShape, SessionShape};
use lily_model::Config;
use lily_model::plan::{
    MatrixBytes, SessionBuffers, config_matrix_bytes, config_matrix_formats, declare, model_shape,
    splits,
};
use lily_model::synth::{self, preset};
use lily_plan::Precision;

/// The configuration of Qwen3.6-35B-A3B.
pub fn full_size_config() -> Config {
    let preset = preset("qwen3.6-35b-a3b").expect("the preset");
    let text = synth::plan(&preset, 0).expect("the preset is supported").config().to_string();
    Config::from_json(&text, "preset").expect("the preset is supported")
}

/// What plans need to know of a model.
pub struct PlanModel {
    /// Dimensions.
    pub shape: ModelShape,
    /// Bytes of its matrices.
    pub bytes: MatrixBytes,
    /// Their formats on a GPU.
    pub formats: HashMap<String, MatrixFormat>,
    /// Positions that it was made for.
    pub context: usize,
}

impl PlanModel {
    /// The model of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            shape: model_shape(config),
            bytes: config_matrix_bytes(config),
            formats: config_matrix_formats(config),
            context: config.max_position_embeddings,
        }
    }

    /// Qwen3.6-35B-A3B.
    pub fn full_size() -> Self {
        Self::new(&full_size_config())
    }

    /// A session on a GPU, with logits for each sequence.
    pub fn session(&self, batch: usize, tokens: usize) -> SessionShape {
        SessionShape {
            batch,
            tokens: tokens.min(self.context),
            capacity: self.context,
            run_ahead: 1,
            splits: splits(self.context),
            ring: 64,
            logit_rows: batch,
            precision: Precision::BF16,
        }
    }

    /// The buffers of a session.
    pub fn buffers(&self, session: &SessionShape) -> SessionBuffers {
        declare(&self.shape, session, &self.bytes)
    }
}
