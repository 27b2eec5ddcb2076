//! The `quantization` section that an MLX conversion writes.

use std::collections::BTreeMap;

use lily_plan::{GROUP, RowFormat};
use serde_json::{Map, Value};

use super::fields::{Fields, quote, unsupported, wrong_type};
use crate::error::ConfigProblem;
use crate::weights::names::{Place, place};

/// How the matrices of a checkpoint are quantised: a default, and modules that differ from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// Format of every matrix without an override.
    pub default: RowFormat,
    /// Modules that differ, by path without prefix (`model.layers.0.mlp.gate`); `None` means that
    /// the module is not quantised.
    pub overrides: BTreeMap<String, Option<RowFormat>>,
}

impl Quantization {
    /// Reads the section from the root or the text configuration, under either of its two names.
    pub(super) fn parse(fields: Fields<'_>) -> Result<Option<Self>, ConfigProblem> {
        let mut found: Option<(Self, &str)> = None;
        for name in ["quantization", "quantization_config"] {
            let Some(section) = fields.object(name)? else { continue };
            let section = Self::from_section(name, section)?;
            match &found {
                Some((first, first_name)) if *first != section => {
                    return Err(ConfigProblem::Contradiction {
                        first: (*first_name).into(),
                        second: name.into(),
                    });
                }
                _ => found = Some((section, name)),
            }
        }
        Ok(found.map(|(section, _)| section))
    }

    fn from_section(name: &str, section: &Map<String, Value>) -> Result<Self, ConfigProblem> {
        if let Some(method) = section.get("quant_method") {
            let field = format!("{name}.quant_method");
            return Err(unsupported(&field, method, "MLX's affine quantisation (4 or 8 bits)"));
        }
        let bits = format!("{name}.bits");
        let Some(default) = row_format(name, section, None)? else {
            return Err(ConfigProblem::Missing { field: bits });
        };
        let mut overrides = BTreeMap::new();
        for (path, value) in section {
            // Only objects and truth values are per-module settings; the rest are the defaults
            // above, and remarks of converters, which the check against tensor shapes backs up.
            if !value.is_object() && !value.is_boolean() {
                continue;
            }
            let Place::Text(path) = place(path) else { continue };
            let format = match value {
                Value::Object(module) => {
                    row_format(&format!("{name}.{path}"), module, Some(default))?
                }
                Value::Bool(true) => Some(default),
                _ => None,
            };
            overrides.insert(path, format);
        }
        Ok(Self { default, overrides })
    }
}

/// The format that `bits`, `group_size` and `mode` name; absent ones are taken from `inherited`.
fn row_format(
    path: &str,
    settings: &Map<String, Value>,
    inherited: Option<RowFormat>,
) -> Result<Option<RowFormat>, ConfigProblem> {
    let fields = Fields::new(Some(settings), None);
    if let Some(mode) = fields.value("mode")
        && mode.as_str() != Some("affine")
    {
        return Err(unsupported(&format!("{path}.mode"), mode, "`affine`"));
    }
    if let Some(group) = fields.value("group_size")
        && group.as_u64() != Some(GROUP as u64)
    {
        let field = format!("{path}.group_size");
        return Err(unsupported(&field, group, format!("groups of {GROUP}")));
    }
    match fields.value("bits") {
        None => Ok(inherited),
        Some(bits) => match bits.as_u64() {
            Some(4) => Ok(Some(RowFormat::Q4)),
            Some(8) => Ok(Some(RowFormat::Q8)),
            Some(_) => Err(unsupported(&format!("{path}.bits"), bits, "4 and 8 bits")),
            None => Err(wrong_type(&format!("{path}.bits"), "a whole number", bits)),
        },
    }
}

/// Format of an unquantised matrix, from `dtype` (formerly `torch_dtype`); bfloat16 if absent.
pub(super) fn plain_format(fields: Fields<'_>) -> Result<RowFormat, ConfigProblem> {
    for field in ["dtype", "torch_dtype"] {
        let Some(value) = fields.value(field) else { continue };
        return match value.as_str() {
            Some("bfloat16") => Ok(RowFormat::Bf16),
            Some("float16") => Ok(RowFormat::F16),
            Some("float32") => Ok(RowFormat::F32),
            _ => Err(ConfigProblem::Unsupported {
                field: field.into(),
                found: quote(value),
                expected: "`bfloat16`, `float16` and `float32`".into(),
            }),
        };
    }
    Ok(RowFormat::Bf16)
}
