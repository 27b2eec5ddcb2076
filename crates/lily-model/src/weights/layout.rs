//! The tensors of the text model: names, shapes and types in MLX's layout.

use lily_plan::{GROUP, RowFormat};

use crate::config::{Config, LayerKind};

/// Element type of a stored tensor, as spelled in safetensors headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The names are the documentation.
pub enum Dtype {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    Bf16,
    F16,
    F32,
    F64,
}

impl Dtype {
    const NAMES: [(Self, &'static str, usize); 16] = [
        (Self::Bool, "BOOL", 1),
        (Self::U8, "U8", 1),
        (Self::I8, "I8", 1),
        (Self::U16, "U16", 2),
        (Self::I16, "I16", 2),
        (Self::U32, "U32", 4),
        (Self::I32, "I32", 4),
        (Self::U64, "U64", 8),
        (Self::I64, "I64", 8),
        (Self::F8E4M3, "F8_E4M3", 1),
        (Self::F8E5M2, "F8_E5M2", 1),
        (Self::F8E8M0, "F8_E8M0", 1),
        (Self::Bf16, "BF16", 2),
        (Self::F16, "F16", 2),
        (Self::F32, "F32", 4),
        (Self::F64, "F64", 8),
    ];

    /// Name in a safetensors header.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        Self::NAMES[self as usize].2
    }

    /// The type of that name, if it is known.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|known| known.1 == name).map(|known| known.0)
    }

    /// The row format of a plain matrix of this type, if lily reads such matrices.
    pub fn plain_format(self) -> Option<RowFormat> {
        match self {
            Self::Bf16 => Some(RowFormat::Bf16),
            Self::F16 => Some(RowFormat::F16),
            Self::F32 => Some(RowFormat::F32),
            _ => None,
        }
    }
}

/// One tensor of a checkpoint: name, shape (row-major) and type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the file.
    pub name: String,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: Dtype,
}

impl TensorSpec {
    /// Bytes of the data.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().map(|&d| d as u64).product::<u64>() * self.dtype.bytes() as u64
    }
}

/// A matrix or a small tensor of the text model, named without the prefix `language_model.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Module {
    /// A linear layer or embedding. `path` has no `.weight`.
    Matrix { path: String, experts: Option<usize>, rows: usize, k: usize },
    /// An unquantised tensor. `name` is complete; `dtype` is what a conversion stores.
    Small { name: String, shape: Vec<usize>, dtype: Dtype },
}

impl Module {
    /// Weights of the module.
    pub(crate) fn elements(&self) -> u64 {
        match self {
            Self::Small { shape, .. } => shape.iter().map(|&d| d as u64).product(),
            Self::Matrix { experts, rows, k, .. } => {
                experts.unwrap_or(1) as u64 * *rows as u64 * *k as u64
            }
        }
    }
}

/// All modules of the text model in converted (MLX) form, in file order.
pub(crate) fn modules(config: &Config) -> Vec<Module> {
    let mut list = vec![matrix("model.embed_tokens".into(), config.vocab_size, config.hidden_size)];
    for (i, kind) in config.layer_types.iter().enumerate() {
        let layer = format!("model.layers.{i}.");
        list.push(norm(format!("{layer}input_layernorm"), config.hidden_size));
        list.push(norm(format!("{layer}post_attention_layernorm"), config.hidden_size));
        match kind {
            LayerKind::LinearAttention => gdn_modules(config, &layer, &mut list),
            LayerKind::FullAttention => attention_modules(config, &layer, &mut list),
        }
        moe_modules(config, &layer, &mut list);
    }
    list.push(norm("model.norm".into(), config.hidden_size));
    if !config.tie_word_embeddings {
        list.push(matrix("lm_head".into(), config.vocab_size, config.hidden_size));
    }
    list
}

fn matrix(path: String, rows: usize, k: usize) -> Module {
    Module::Matrix { path, experts: None, rows, k }
}

fn norm(path: String, size: usize) -> Module {
    Module::Small { name: format!("{path}.weight"), shape: vec![size], dtype: Dtype::Bf16 }
}

fn gdn_modules(config: &Config, layer: &str, list: &mut Vec<Module>) {
    let (hidden, v_heads) = (config.hidden_size, config.linear_num_value_heads);
    let (channels, value_dim) = (config.conv_channels(), config.gdn_value_dim());
    let at = |name: &str| format!("{layer}linear_attn.{name}");
    let small =
        |name: &str, shape: Vec<usize>, dtype| Module::Small { name: at(name), shape, dtype };
    list.extend([
        matrix(at("in_proj_qkv"), channels, hidden),
        matrix(at("in_proj_z"), value_dim, hidden),
        matrix(at("in_proj_b"), v_heads, hidden),
        matrix(at("in_proj_a"), v_heads, hidden),
        small("conv1d.weight", vec![channels, config.linear_conv_kernel_dim, 1], Dtype::Bf16),
        small("A_log", vec![v_heads], Dtype::F32),
        small("dt_bias", vec![v_heads], Dtype::Bf16),
        norm(at("norm"), config.linear_value_head_dim),
        matrix(at("out_proj"), hidden, value_dim),
    ]);
}

fn attention_modules(config: &Config, layer: &str, list: &mut Vec<Module>) {
    let (hidden, q_dim, kv_dim) = (config.hidden_size, config.q_dim(), config.kv_dim());
    let at = |name: &str| format!("{layer}self_attn.{name}");
    list.extend([
        // Each head's query rows are followed by its output gate rows.
        matrix(at("q_proj"), 2 * q_dim, hidden),
        matrix(at("k_proj"), kv_dim, hidden),
        matrix(at("v_proj"), kv_dim, hidden),
        norm(at("q_norm"), config.head_dim),
        norm(at("k_norm"), config.head_dim),
        matrix(at("o_proj"), hidden, q_dim),
    ]);
}

fn moe_modules(config: &Config, layer: &str, list: &mut Vec<Module>) {
    let (hidden, inner, experts) =
        (config.hidden_size, config.moe_intermediate_size, config.num_experts);
    let at = |name: &str| format!("{layer}mlp.{name}");
    let routed = |name: &str, rows, k| Module::Matrix {
        path: at(&format!("switch_mlp.{name}")),
        experts: Some(experts),
        rows,
        k,
    };
    list.extend([
        matrix(at("gate"), experts, hidden),
        routed("gate_proj", inner, hidden),
        routed("up_proj", inner, hidden),
        routed("down_proj", hidden, inner),
        matrix(at("shared_expert.gate_proj"), inner, hidden),
        matrix(at("shared_expert.up_proj"), inner, hidden),
        matrix(at("shared_expert.down_proj"), hidden, inner),
        matrix(at("shared_expert_gate"), 1, hidden),
    ]);
}

/// Every stored tensor of the text model in MLX's layout, with MLX's names, in file order.
///
/// Quantised matrices are three tensors each: `weight` (packed codes), `scales` and `biases`.
pub fn mlx_tensors(config: &Config) -> Vec<TensorSpec> {
    let mut list = Vec::new();
    for module in modules(config) {
        match module {
            Module::Small { name, shape, dtype } => {
                list.push(TensorSpec { name: format!("language_model.{name}"), shape, dtype });
            }
            Module::Matrix { path, experts, rows, k } => {
                let format = config.row_format(&path);
                let mut push = |part: &str, columns: usize, dtype: Dtype| {
                    list.push(TensorSpec {
                        name: format!("language_model.{path}.{part}"),
                        shape: experts.into_iter().chain([rows, columns]).collect(),
                        dtype,
                    });
                };
                if format.is_quantised() {
                    push("weight", k * format.bits() / 32, Dtype::U32);
                    push("scales", k / GROUP, Dtype::Bf16);
                    push("biases", k / GROUP, Dtype::Bf16);
                } else {
                    let dtype = match format {
                        RowFormat::F16 => Dtype::F16,
                        RowFormat::F32 => Dtype::F32,
                        _ => Dtype::Bf16,
                    };
                    push("weight", k, dtype);
                }
            }
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::qwen36_mlx;

    #[test]
    fn the_reference_model_has_its_published_tensors_and_bytes() {
        let config = Config::from_json(&qwen36_mlx().to_string(), "config.json").unwrap();
        let tensors = mlx_tensors(&config);
        assert_eq!(tensors.len(), 1757);
        assert_eq!(tensors.iter().map(TensorSpec::bytes).sum::<u64>(), 19_508_789_376);
        let gate = tensors
            .iter()
            .find(|t| t.name == "language_model.model.layers.7.mlp.gate.weight")
            .unwrap();
        assert_eq!((gate.shape.as_slice(), gate.dtype), ([256, 512].as_slice(), Dtype::U32));
    }

    #[test]
    fn the_unquantised_model_has_one_tensor_for_each_matrix() {
        let mut json = qwen36_mlx();
        json.as_object_mut().unwrap().retain(|key, _| !key.starts_with("quantization"));
        let config = Config::from_json(&json.to_string(), "config.json").unwrap();
        let tensors = mlx_tensors(&config);
        // 693 in the original, where gate and up projections of the experts are one tensor.
        assert_eq!(tensors.len(), 693 + 40);
        let elements: u64 = tensors.iter().map(|t| t.bytes() / t.dtype.bytes() as u64).sum();
        assert_eq!(elements, 34_660_610_688);
    }

    #[test]
    fn dtype_names_and_order_agree() {
        for (dtype, name, _) in Dtype::NAMES {
            assert_eq!((dtype.name(), Dtype::from_name(name)), (name, Some(dtype)));
        }
    }
}
