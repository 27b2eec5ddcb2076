//! What the tensors of a random checkpoint hold.
//!
//! Activations stay of order 1 through all layers: every projection has weights of standard
//! deviation `gain / sqrt(k)`, and what is added to the residual stream shrinks with the number of
//! layers. The router's large gain makes its choices clear and different for every token.

use half::{bf16, f16};
use lily_plan::{GROUP, RowFormat};

use super::SynthError;
use super::random::{Stream, normal, uniform};
use crate::config::Config;
use crate::weights::names::{Place, place};
use crate::weights::{Dtype, TensorSpec};

/// The values of one tensor, any part of which can be made at any time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    law: Law,
    stream: Stream,
    dtype: Dtype,
}

/// How an element follows from its random word.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Law {
    /// Packed codes, all equally frequent: the words themselves.
    Codes,
    /// Scales of quantisation groups.
    Scale(Groups),
    /// Biases of the same groups.
    Bias(Groups),
    Normal {
        mean: f64,
        sd: f64,
    },
    Uniform {
        low: f64,
        high: f64,
    },
    /// The logarithm of a uniform number.
    LogUniform {
        low: f64,
        high: f64,
    },
}

/// Quantisation groups of a matrix whose weights have mean 0 and a given standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Groups {
    /// Typical distance between neighbouring code values.
    step: f64,
    /// Code that stands for 0 on average.
    middle: f64,
}

impl Groups {
    /// Scales vary by 20 % to either side, a third of them are negative, and the zero point lies up
    /// to half a code beside the middle: so no part of the format can be ignored unnoticed.
    fn new(sd: f64, bits: usize) -> Self {
        let codes = f64::from(1u32 << bits);
        // Uniform codes have variance (n² - 1) / 12, the shifting zero point adds 1 / 12.
        let spread = (codes * codes / 12.0).sqrt() * (1.0 + 0.4 * 0.4 / 12.0_f64).sqrt();
        Self { step: sd / spread, middle: (codes - 1.0) / 2.0 }
    }

    fn scale(self, word: u64) -> bf16 {
        let (size, sign) = (word & 0xFFFF, (word >> 16) & 0xFFFF);
        let size = self.step * (0.8 + 0.4 * (size as f64 / 65_536.0));
        // A third of the 65,536 signs.
        bf16::from_f64(if sign < 21_845 { -size } else { size })
    }

    fn bias(self, word: u64) -> bf16 {
        let offset = (word >> 32) as f64 / 4_294_967_296.0 - 0.5;
        bf16::from_f64(-(self.middle + offset) * self.scale(word).to_f64())
    }
}

impl Values {
    /// The values of a tensor of [`mlx_tensors`](crate::mlx_tensors) under `seed`.
    ///
    /// # Errors
    /// A tensor that is not of the text model.
    pub fn new(config: &Config, spec: &TensorSpec, seed: u64) -> Result<Self, SynthError> {
        let unknown = || SynthError::UnknownTensor { name: spec.name.clone() };
        let Place::Text(name) = place(&spec.name) else { return Err(unknown()) };
        let (path, part) = name.rsplit_once('.').unwrap_or((&name, ""));
        let columns = spec.shape.last().copied().unwrap_or(1);
        let layers = config.num_hidden_layers;
        let named = |part: &str| Stream::new(seed, &format!("{path}.{part}"));
        let groups = || {
            let bits = match config.row_format(path) {
                RowFormat::Q8 => 8,
                _ => 4,
            };
            weight_sd(path, columns * GROUP, layers).map(|sd| Groups::new(sd, bits))
        };
        let (law, stream) = match (part, spec.dtype) {
            ("scales", _) => (groups().map(Law::Scale), named("groups")),
            ("biases", _) => (groups().map(Law::Bias), named("groups")),
            ("weight", Dtype::U32) => (Some(Law::Codes), named(part)),
            _ => (small(&name, columns, layers), named(part)),
        };
        let law = law.ok_or_else(unknown)?;
        Ok(Self { law, stream, dtype: spec.dtype })
    }

    /// Writes the bytes of the tensor from `first_byte` on, a multiple of 8.
    pub fn fill(&self, first_byte: u64, out: &mut [u8]) {
        debug_assert!(first_byte.is_multiple_of(8));
        match self.law {
            Law::Codes => {
                for (chunk, position) in out.chunks_mut(8).zip(first_byte / 8..) {
                    chunk.copy_from_slice(&self.stream.word(position).to_le_bytes()[..chunk.len()]);
                }
            }
            Law::Scale(groups) => self.elements(first_byte, out, |word| groups.scale(word).into()),
            Law::Bias(groups) => self.elements(first_byte, out, |word| groups.bias(word).into()),
            Law::Normal { mean, sd } => {
                self.elements(first_byte, out, |word| mean + sd * normal(word));
            }
            Law::Uniform { low, high } => {
                self.elements(first_byte, out, |word| low + (high - low) * uniform(word));
            }
            Law::LogUniform { low, high } => {
                self.elements(first_byte, out, |word| (low + (high - low) * uniform(word)).ln());
            }
        }
    }

    fn elements(&self, first_byte: u64, out: &mut [u8], value: impl Fn(u64) -> f64) {
        let bytes = self.dtype.bytes();
        let first = first_byte / bytes as u64;
        for (element, position) in out.chunks_exact_mut(bytes).zip(first..) {
            let value = value(self.stream.word(position));
            match self.dtype {
                Dtype::F32 => element.copy_from_slice(&(value as f32).to_le_bytes()),
                Dtype::F16 => element.copy_from_slice(&f16::from_f64(value).to_le_bytes()),
                _ => element.copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
            }
        }
    }
}

/// Standard deviation of the weights of a matrix with rows of `k`; `None` for an unknown one.
fn weight_sd(path: &str, k: usize, layers: usize) -> Option<f64> {
    // The residual stream doubles over 8 layers of these gains; deeper models add less per layer.
    let depth = (8.0 / layers as f64).sqrt().min(1.0);
    let within = path.strip_prefix("model.layers.").and_then(|rest| Some(rest.split_once('.')?.1));
    let gain = match within.unwrap_or(path) {
        // One row is one token's vector: its elements have standard deviation 1 at any width.
        "model.embed_tokens" => return Some(1.0),
        "lm_head" => 3.0,
        "mlp.gate" => 4.0,
        "linear_attn.in_proj_b" => 1.5,
        "linear_attn.in_proj_qkv" | "linear_attn.in_proj_z" | "linear_attn.in_proj_a" => 1.0,
        "self_attn.q_proj" | "self_attn.k_proj" | "self_attn.v_proj" => 1.0,
        "mlp.switch_mlp.gate_proj" | "mlp.switch_mlp.up_proj" => 1.0,
        "mlp.shared_expert.gate_proj" | "mlp.shared_expert.up_proj" => 1.0,
        "mlp.shared_expert_gate" => 1.0,
        "linear_attn.out_proj" => 0.5 * depth,
        "self_attn.o_proj" => depth,
        "mlp.switch_mlp.down_proj" => depth,
        "mlp.shared_expert.down_proj" => 0.75 * depth,
        _ => return None,
    };
    Some(gain / (k as f64).sqrt())
}

/// The law of an unquantised tensor.
fn small(name: &str, columns: usize, layers: usize) -> Option<Law> {
    let last_two = name.rmatch_indices('.').nth(1).map_or(name, |(dot, _)| &name[dot + 1..]);
    Some(match last_two {
        "linear_attn.A_log" => Law::LogUniform { low: 0.05, high: 3.0 },
        "linear_attn.dt_bias" => Law::Uniform { low: -4.0, high: 0.5 },
        "conv1d.weight" => Law::Normal { mean: 0.0, sd: 0.6 },
        // Larger, so that attention has clear favourites.
        "q_norm.weight" | "k_norm.weight" => Law::Normal { mean: 1.3, sd: 0.15 },
        "input_layernorm.weight" | "post_attention_layernorm.weight" | "norm.weight" => {
            Law::Normal { mean: 1.0, sd: 0.15 }
        }
        _ => Law::Normal {
            mean: 0.0,
            sd: weight_sd(name.strip_suffix(".weight")?, columns, layers)?,
        },
    })
}
