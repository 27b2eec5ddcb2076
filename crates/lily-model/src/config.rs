//! `config.json`: a [`Config`] exists only for a model that lily runs.

mod fields;
mod quantization;
#[cfg(test)]
pub(crate) mod testing;

use std::path::Path;

use lily_files::Files;
use lily_plan::{GROUP, RowFormat};
use serde_json::Value;

use fields::unsupported;
pub(crate) use fields::{Fields, wrong_type};
pub use quantization::Quantization;

use crate::error::{ConfigError, ConfigProblem};
use crate::text_file::{read_text, read_text_of, without_mark};
use crate::weights::names::{Place, place};

/// Model types and architectures of the family, as Qwen3.5 and Qwen3.6 files spell them.
const MODEL_TYPES: [&str; 2] = ["qwen3_5_moe", "qwen3_5_moe_text"];
const ARCHITECTURES: [&str; 3] =
    ["Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextForCausalLM"];

/// The family's embedding table is padded to 248,320 rows; ids from here on are never produced.
const PADDED_VOCAB: (usize, usize) = (248_320, 248_077);

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Gated DeltaNet: `linear_attention` in the file.
    LinearAttention,
    /// Grouped-query attention with an output gate: `full_attention` in the file.
    FullAttention,
}

/// Configuration of a supported model. Fields are spelled as in `config.json`.
///
/// All sizes are at least 1 and bounded so that no product of them overflows 64 bits.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// First entry of `architectures`, or the model type where the file names none.
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Kind of each layer; `num_hidden_layers` entries.
    pub layer_types: Vec<LayerKind>,
    /// Query heads of an attention layer.
    pub num_attention_heads: usize,
    /// Key and value heads of an attention layer; divides the query heads.
    pub num_key_value_heads: usize,
    /// Elements of one attention head.
    pub head_dim: usize,
    /// Leading elements of a head that are rotated; even.
    pub rotary_dim: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Key heads of a Gated DeltaNet layer; divides the value heads.
    pub linear_num_key_heads: usize,
    /// Value heads of a Gated DeltaNet layer.
    pub linear_num_value_heads: usize,
    /// Elements of one key head.
    pub linear_key_head_dim: usize,
    /// Elements of one value head.
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution.
    pub linear_conv_kernel_dim: usize,
    /// Routed experts of a layer.
    pub num_experts: usize,
    /// Routed experts that a token uses.
    pub num_experts_per_tok: usize,
    /// Inner width of a routed expert, and of the shared one.
    pub moe_intermediate_size: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Rows that stand for tokens; the rest are padding, never to be produced.
    pub vocab_used: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f32,
    /// Longest context that the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// `eos_token_id` of this file; the stop tokens proper come from `generation_config.json`.
    pub eos_token_ids: Vec<u32>,
    /// Layers of the multi-token prediction head that the model was trained with.
    pub mtp_num_hidden_layers: usize,
    /// Format of matrices that are not quantised.
    pub plain_format: RowFormat,
    /// How matrices are quantised; `None` for an unquantised checkpoint.
    pub quantization: Option<Quantization>,
}

impl Config {
    /// Reads the `config.json` of a model.
    ///
    /// # Errors
    /// There is no such folder, or as [`Self::read_file`].
    pub fn read<'a>(files: impl Into<Files<'a>>) -> Result<Self, ConfigError> {
        let files = files.into();
        if let Files::Folder(folder) = files
            && !folder.is_dir()
        {
            let found = if folder.exists() { "is no folder" } else { "does not exist" };
            return Err(ConfigError { file: folder.into(), problem: ConfigProblem::Folder(found) });
        }
        let file = files.path("config.json");
        match read_text_of(files, "config.json") {
            Ok(text) => Self::from_json(&text, file),
            Err(e) => Err(ConfigError { file, problem: ConfigProblem::Unreadable(e) }),
        }
    }

    /// Reads a `config.json`, whatever its name.
    ///
    /// # Errors
    /// The file cannot be read, or as [`Self::from_json`].
    pub fn read_file(file: &Path) -> Result<Self, ConfigError> {
        match read_text(file) {
            Ok(text) => Self::from_json(&text, file),
            Err(e) => Err(ConfigError { file: file.into(), problem: ConfigProblem::Unreadable(e) }),
        }
    }

    /// Parses the text of a `config.json`; `file` is named in errors.
    ///
    /// # Errors
    /// The text is not JSON, lacks a field, or describes a model that lily does not run.
    pub fn from_json(text: &str, file: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let parsed = serde_json::from_str(without_mark(text)).map_err(ConfigProblem::NotJson);
        parsed
            .and_then(|root| parse(&root))
            .map_err(|problem| ConfigError { file: file.as_ref().into(), problem })
    }

    /// Format of the matrix at a module path, such as `model.layers.0.mlp.gate`; the prefix
    /// `language_model.` may be there or not.
    pub fn row_format(&self, path: &str) -> RowFormat {
        let Some(quantization) = &self.quantization else { return self.plain_format };
        match place(path) {
            Place::Text(path) => match quantization.overrides.get(&path) {
                Some(format) => format.unwrap_or(self.plain_format),
                None => quantization.default,
            },
            _ => self.plain_format,
        }
    }

    /// Elements of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Elements of all key (or value) heads of an attention layer.
    pub fn kv_dim(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Elements of all key heads of a Gated DeltaNet layer.
    pub fn gdn_key_dim(&self) -> usize {
        self.linear_num_key_heads * self.linear_key_head_dim
    }

    /// Elements of all value heads of a Gated DeltaNet layer.
    pub fn gdn_value_dim(&self) -> usize {
        self.linear_num_value_heads * self.linear_value_head_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn conv_channels(&self) -> usize {
        2 * self.gdn_key_dim() + self.gdn_value_dim()
    }
}

fn parse(root: &Value) -> Result<Config, ConfigProblem> {
    let Some(root) = root.as_object() else {
        return Err(wrong_type("(whole file)", "an object", root));
    };
    let root_only = Fields::new(Some(root), None);
    let text = root_only.object("text_config")?;
    // Old text-only exports have no `text_config`.
    let fields = Fields::new(text, Some(root));
    let architecture = check_family(root_only, Fields::new(text, None))?;
    check_variant(fields)?;

    let num_hidden_layers = fields.size("num_hidden_layers", 1024)?;
    let vocab_size = fields.size("vocab_size", 1 << 22)?;
    let head_dim = fields.size("head_dim", 1024)?;
    let (rope_theta, rotary_dim) = parse_rope(fields, head_dim)?;
    let config = Config {
        architecture,
        hidden_size: fields.size("hidden_size", 1 << 16)?,
        num_hidden_layers,
        layer_types: parse_layer_types(fields, num_hidden_layers)?,
        num_attention_heads: fields.size("num_attention_heads", 1024)?,
        num_key_value_heads: fields.size("num_key_value_heads", 1024)?,
        head_dim,
        rotary_dim,
        rope_theta,
        linear_num_key_heads: fields.size("linear_num_key_heads", 1024)?,
        linear_num_value_heads: fields.size("linear_num_value_heads", 1024)?,
        linear_key_head_dim: fields.size("linear_key_head_dim", 1024)?,
        linear_value_head_dim: fields.size("linear_value_head_dim", 1024)?,
        linear_conv_kernel_dim: parse_taps(fields)?,
        num_experts: fields.size("num_experts", 1 << 12)?,
        num_experts_per_tok: fields.size("num_experts_per_tok", 1 << 12)?,
        moe_intermediate_size: fields.size("moe_intermediate_size", 1 << 16)?,
        vocab_size,
        vocab_used: if vocab_size == PADDED_VOCAB.0 { PADDED_VOCAB.1 } else { vocab_size },
        rms_norm_eps: parse_eps(fields)?,
        max_position_embeddings: fields.size("max_position_embeddings", 1 << 30)?,
        tie_word_embeddings: fields.flag("tie_word_embeddings", false)?,
        eos_token_ids: fields.token_ids("eos_token_id")?,
        mtp_num_hidden_layers: match fields.value("mtp_num_hidden_layers").and_then(Value::as_u64) {
            Some(0) => 0,
            _ => fields.size_or("mtp_num_hidden_layers", 1024, 0)?,
        },
        plain_format: quantization::plain_format(fields)?,
        quantization: Quantization::parse(Fields::new(Some(root), text))?,
    };
    check_dimensions(&config, fields)?;
    Ok(config)
}

/// Checks model types and architecture; returns the architecture's name.
fn check_family(root: Fields<'_>, text: Fields<'_>) -> Result<String, ConfigProblem> {
    let expected = || format!("the Qwen3.5/3.6 MoE family ({})", MODEL_TYPES.join(", "));
    let mut name = None;
    for (fields, field) in [(root, "model_type"), (text, "text_config.model_type")] {
        let Some(value) = fields.value("model_type") else { continue };
        match value.as_str().filter(|name| MODEL_TYPES.contains(name)) {
            Some(known) => name = name.or(Some(known)),
            None => return Err(unsupported(field, value, expected())),
        }
    }
    let Some(mut name) = name else {
        return Err(ConfigProblem::Missing { field: "model_type".into() });
    };
    if let Some(value) = root.value("architectures") {
        let first = value.as_array().and_then(|list| list.first()).and_then(Value::as_str);
        match first.filter(|name| ARCHITECTURES.contains(name)) {
            Some(known) => name = known,
            None => {
                let expected = format!("the architectures {}", ARCHITECTURES.join(", "));
                return Err(unsupported("architectures", value, expected));
            }
        }
    }
    Ok(name.into())
}

/// Refuses settings of the family's code that no kernel here implements.
fn check_variant(fields: Fields<'_>) -> Result<(), ConfigProblem> {
    for (field, needed, default) in [
        ("norm_topk_prob", true, true),
        ("attn_output_gate", true, true),
        ("attention_bias", false, false),
    ] {
        if fields.flag(field, default)? != needed {
            return Err(unsupported(field, &Value::Bool(!needed), format!("`{needed}`")));
        }
    }
    if let Some(act) = fields.value("hidden_act")
        && act.as_str() != Some("silu")
    {
        return Err(unsupported("hidden_act", act, "`silu`"));
    }
    if let Some(step) = fields.value("decoder_sparse_step")
        && step.as_u64() != Some(1)
    {
        return Err(unsupported("decoder_sparse_step", step, "1 (experts in every layer)"));
    }
    if let Some(dense) = fields.value("mlp_only_layers")
        && dense.as_array().is_none_or(|list| !list.is_empty())
    {
        return Err(unsupported("mlp_only_layers", dense, "[] (experts in every layer)"));
    }
    Ok(())
}

fn parse_layer_types(fields: Fields<'_>, layers: usize) -> Result<Vec<LayerKind>, ConfigProblem> {
    let Some(value) = fields.value("layer_types") else {
        let interval = fields.size_or("full_attention_interval", 1024, 4)?;
        let kind = |i: usize| {
            if (i + 1).is_multiple_of(interval) {
                LayerKind::FullAttention
            } else {
                LayerKind::LinearAttention
            }
        };
        return Ok((0..layers).map(kind).collect());
    };
    let Some(list) = value.as_array() else {
        return Err(wrong_type("layer_types", "a list", value));
    };
    if list.len() != layers {
        return Err(ConfigProblem::Dimension {
            field: "layer_types (entries)".into(),
            found: list.len() as u64,
            expected: format!("one for each of the {layers} layers"),
        });
    }
    let kind = |(i, value): (usize, &Value)| match value.as_str() {
        Some("linear_attention") => Ok(LayerKind::LinearAttention),
        Some("full_attention") => Ok(LayerKind::FullAttention),
        _ => Err(unsupported(
            &format!("layer_types[{i}]"),
            value,
            "`linear_attention` and `full_attention`",
        )),
    };
    list.iter().enumerate().map(kind).collect()
}

/// Base and rotated elements. Old exports have the fields beside `rope_parameters`.
fn parse_rope(fields: Fields<'_>, head_dim: usize) -> Result<(f64, usize), ConfigProblem> {
    for section in ["rope_parameters", "rope_scaling"] {
        let Some(rope) = fields.object(section)? else { continue };
        let inside = Fields::new(Some(rope), None);
        for name in ["rope_type", "type"] {
            if let Some(value) = inside.value(name)
                && !matches!(value.as_str(), Some("default" | "mrope"))
            {
                let field = format!("{section}.{name}");
                return Err(unsupported(&field, value, "`default` (positions are not scaled)"));
            }
        }
    }
    let inside = Fields::new(fields.object("rope_parameters")?, None);
    let number = |field: &str| -> Result<Option<f64>, ConfigProblem> {
        Ok(inside.number(field)?.or(fields.number(field)?))
    };
    let theta = number("rope_theta")?
        .ok_or_else(|| ConfigProblem::Missing { field: "rope_theta".into() })?;
    if theta < 1.0 {
        return Err(ConfigProblem::Type {
            field: "rope_theta".into(),
            expected: "a number of at least 1",
            found: theta.to_string(),
        });
    }
    // The family's code takes a quarter where the file is silent.
    let factor = number("partial_rotary_factor")?.unwrap_or(0.25);
    let rotary = factor * head_dim as f64;
    if !(2.0..=head_dim as f64).contains(&rotary) || rotary % 2.0 != 0.0 {
        return Err(ConfigProblem::Unsupported {
            field: "partial_rotary_factor".into(),
            found: factor.to_string(),
            expected: format!("an even number of rotated elements among the {head_dim} of a head"),
        });
    }
    Ok((theta, rotary as usize))
}

/// Taps of the convolution. With one, converted and unconverted files could not be told apart.
fn parse_taps(fields: Fields<'_>) -> Result<usize, ConfigProblem> {
    match fields.size("linear_conv_kernel_dim", 16)? {
        1 => Err(ConfigProblem::Dimension {
            field: "linear_conv_kernel_dim".into(),
            found: 1,
            expected: "2 to 16".into(),
        }),
        taps => Ok(taps),
    }
}

fn parse_eps(fields: Fields<'_>) -> Result<f32, ConfigProblem> {
    match fields.number("rms_norm_eps")? {
        None => Err(ConfigProblem::Missing { field: "rms_norm_eps".into() }),
        Some(eps) if eps > 0.0 && eps < 1.0 && eps as f32 > 0.0 => Ok(eps as f32),
        Some(eps) => Err(ConfigProblem::Type {
            field: "rms_norm_eps".into(),
            expected: "a number between 0 and 1",
            found: eps.to_string(),
        }),
    }
}

fn check_dimensions(config: &Config, fields: Fields<'_>) -> Result<(), ConfigProblem> {
    let refuse = |field: &str, found: usize, expected: String| {
        Err(ConfigProblem::Dimension { field: field.into(), found: found as u64, expected })
    };
    let (q_heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
    if !q_heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of `num_attention_heads` = {q_heads}");
        return refuse("num_key_value_heads", kv_heads, expected);
    }
    let (k_heads, v_heads) = (config.linear_num_key_heads, config.linear_num_value_heads);
    if !v_heads.is_multiple_of(k_heads) {
        let expected = format!("a divisor of `linear_num_value_heads` = {v_heads}");
        return refuse("linear_num_key_heads", k_heads, expected);
    }
    if config.num_experts_per_tok > config.num_experts {
        let expected = format!("at most `num_experts` = {}", config.num_experts);
        return refuse("num_experts_per_tok", config.num_experts_per_tok, expected);
    }
    let inner = config.moe_intermediate_size;
    let shared = fields.size("shared_expert_intermediate_size", 1 << 16)?;
    if shared != inner {
        let expected = format!(
            "`moe_intermediate_size` = {inner}, because the shared expert runs in the same launch \
             as the routed ones"
        );
        return refuse("shared_expert_intermediate_size", shared, expected);
    }
    if let Some(&id) = config.eos_token_ids.iter().find(|&&id| id as usize >= config.vocab_size) {
        let expected = format!("a token id below `vocab_size` = {}", config.vocab_size);
        return refuse("eos_token_id", id as usize, expected);
    }
    if config.quantization.is_some() {
        for (field, k) in [
            ("hidden_size", config.hidden_size),
            ("moe_intermediate_size", inner),
            ("num_attention_heads * head_dim", config.q_dim()),
            ("linear_num_value_heads * linear_value_head_dim", config.gdn_value_dim()),
        ] {
            if !k.is_multiple_of(GROUP) {
                let expected = format!("a multiple of {GROUP} in a quantised checkpoint");
                return refuse(field, k, expected);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
