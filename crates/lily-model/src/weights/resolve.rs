//! Finds the stored tensors behind every module of the model, and checks each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use half::{bf16, f16};
use lily_plan::{GROUP, RowFormat};

use super::checkpoint::Layout;
use super::files::{Stored, WeightFiles};
use super::layout::{Dtype, Module};
use crate::config::Config;
use crate::error::CheckpointError;

/// Types that small tensors and plain matrices may have.
const PLAIN: &str = "BF16, F16 or F32";

/// Norms that the original stores as `w - 1`. The norm inside Gated DeltaNet is not among them.
const ZERO_CENTRED: [&str; 4] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    ".self_attn.q_norm.weight",
    ".self_attn.k_norm.weight",
];

/// Stored rows of a module: all of its experts, or a range of them.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Stored tensor of the codes or values.
    pub(crate) tensor: String,
    pub(crate) format: RowFormat,
    pub(crate) experts: Range<usize>,
    pub(crate) source_row: usize,
    pub(crate) expert_stride: usize,
    pub(crate) codes: Bytes,
    pub(crate) scales: Bytes,
    pub(crate) biases: Bytes,
}

/// A module with its stored data.
#[derive(Clone, Debug)]
pub(crate) enum Resolved {
    /// `[rows, k]` for each expert.
    Matrix { rows: usize, k: usize, sources: Vec<Source> },
    /// A small tensor, widened, with norms in their final form.
    Small(Vec<f32>),
}

/// Where rows are looked up: a module path, and how many experts and rows one tensor holds.
struct Want<'a> {
    path: &'a str,
    weight: &'a str,
    lead: Option<usize>,
    rows: usize,
    k: usize,
}

/// Looks modules up among the text model's tensors, and remembers which of those were used.
pub(crate) struct Resolver<'a> {
    config: &'a Config,
    files: &'a WeightFiles,
    /// By name without prefix.
    tensors: &'a BTreeMap<String, Stored>,
    layout: Layout,
    used: BTreeSet<&'a str>,
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(
        config: &'a Config,
        files: &'a WeightFiles,
        tensors: &'a BTreeMap<String, Stored>,
        layout: Layout,
    ) -> Self {
        Self { config, files, tensors, layout, used: BTreeSet::new() }
    }

    /// Finds and checks one module.
    pub(crate) fn resolve(&mut self, module: &Module) -> Result<Resolved, CheckpointError> {
        match module {
            Module::Small { name, shape, .. } => self.small(name, shape).map(Resolved::Small),
            Module::Matrix { path, experts, rows, k } => {
                let sources = match experts {
                    None => vec![self.whole(path, None, *rows, *k)?],
                    Some(experts) => self.routed(path, *experts, *rows, *k)?,
                };
                Ok(Resolved::Matrix { rows: *rows, k: *k, sources })
            }
        }
    }

    /// The first tensor that no module has asked for.
    pub(crate) fn unused(&self) -> Option<&'a Stored> {
        let unused = |(name, _): &(&'a String, &'a Stored)| !self.used.contains(name.as_str());
        self.tensors.iter().find(unused).map(|(_, stored)| stored)
    }

    fn find(&mut self, name: &str) -> Option<&'a Stored> {
        let (name, stored) = self.tensors.get_key_value(name)?;
        self.used.insert(name);
        Some(stored)
    }

    fn need(&mut self, name: &str) -> Result<&'a Stored, CheckpointError> {
        self.find(name).ok_or_else(|| CheckpointError::Missing {
            file: self.files.root.clone(),
            tensor: format!("language_model.{name}"),
            architecture: self.config.architecture.clone(),
        })
    }

    fn small(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        let stored = self.need(name)?;
        let mut expected = shape.to_vec();
        if self.layout == Layout::Original && expected.len() == 3 {
            // The convolution keeps its taps on the last axis: the same bytes in another shape.
            expected.swap(1, 2);
        }
        self.check_shape(stored, expected)?;
        let mut values = widen(stored).ok_or_else(|| self.wrong_dtype(stored, PLAIN))?;
        if let Some((index, &value)) = values.iter().enumerate().find(|(_, x)| !x.is_finite()) {
            return Err(CheckpointError::NotFinite {
                file: self.files.path(stored),
                tensor: stored.name.clone(),
                index,
                value,
            });
        }
        let zero_centred =
            name == "model.norm.weight" || ZERO_CENTRED.iter().any(|suffix| name.ends_with(suffix));
        // In f32: a conversion rounds the sum to bfloat16, which would only lose digits here.
        if self.layout == Layout::Original && zero_centred {
            values.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(values)
    }

    /// Rows of a module that one tensor holds completely.
    fn whole(
        &mut self,
        path: &str,
        experts: Option<usize>,
        rows: usize,
        k: usize,
    ) -> Result<Source, CheckpointError> {
        let weight = format!("{path}.weight");
        self.rows(&Want { path, weight: &weight, lead: experts, rows, k })
    }

    /// Rows of the routed experts, in any of the three forms that files have.
    fn routed(
        &mut self,
        path: &str,
        experts: usize,
        rows: usize,
        k: usize,
    ) -> Result<Vec<Source>, CheckpointError> {
        // Converted: one tensor for each projection.
        let Some((block, projection)) = path.split_once("switch_mlp.") else {
            return Ok(vec![self.whole(path, Some(experts), rows, k)?]);
        };
        if self.tensors.contains_key(&format!("{path}.weight")) {
            return Ok(vec![self.whole(path, Some(experts), rows, k)?]);
        }
        // Original: gate rows and up rows of an expert in one tensor.
        let (fused, parts, part) = match projection {
            "gate_proj" => (format!("{block}experts.gate_up_proj"), 2, 0),
            "up_proj" => (format!("{block}experts.gate_up_proj"), 2, 1),
            _ => (format!("{block}experts.{projection}"), 1, 0),
        };
        if self.tensors.contains_key(&fused) {
            let want = Want { path, weight: &fused, lead: Some(experts), rows: parts * rows, k };
            return Ok(vec![Source { source_row: part * rows, ..self.rows(&want)? }]);
        }
        // Some exports: one tensor for each expert.
        let single = |e: usize| format!("{block}experts.{e}.{projection}");
        if self.tensors.contains_key(&format!("{}.weight", single(0))) {
            return (0..experts)
                .map(|e| Ok(Source { experts: e..e + 1, ..self.whole(&single(e), None, rows, k)? }))
                .collect();
        }
        Ok(vec![self.whole(path, Some(experts), rows, k)?])
    }

    fn rows(&mut self, want: &Want<'_>) -> Result<Source, CheckpointError> {
        let stored = self.need(want.weight)?;
        let (format, scales, biases) = match stored.dtype.plain_format() {
            Some(format) => {
                self.check_shape(stored, want.shape(want.k))?;
                self.refuse_sides(want, stored)?;
                (format, Bytes::new(), Bytes::new())
            }
            None if stored.dtype == Dtype::U32 => {
                let format = self.width(want, stored)?;
                let scales = self.side(want, "scales")?;
                (format, scales, self.side(want, "biases")?)
            }
            None => return Err(self.wrong_dtype(stored, "U32 (packed codes), BF16, F16 or F32")),
        };
        self.check_override(want, stored, format)?;
        Ok(Source {
            tensor: stored.name.clone(),
            format,
            experts: 0..want.lead.unwrap_or(1),
            source_row: 0,
            expert_stride: want.rows,
            codes: stored.data.clone(),
            scales,
            biases,
        })
    }

    /// The width of packed codes, from their number of columns.
    fn width(&self, want: &Want<'_>, stored: &Stored) -> Result<RowFormat, CheckpointError> {
        let columns = stored.shape.last().copied().unwrap_or(0);
        // A shape with a zero in it may have any other number beside it.
        let bits = (columns as u64).saturating_mul(32);
        let format = match bits / want.k as u64 {
            4 => RowFormat::Q4,
            8 => RowFormat::Q8,
            bits_each if bits_each > 0 && bits.is_multiple_of(want.k as u64) => {
                self.check_shape(stored, want.shape(columns))?;
                return Err(self.wrong_width(stored, "4 or 8 bits", format!("{bits_each} bits")));
            }
            _ => match self.config.row_format(want.path) {
                RowFormat::Q8 => RowFormat::Q8,
                _ => RowFormat::Q4,
            },
        };
        self.check_shape(stored, want.shape(want.k * format.bits() / 32))?;
        Ok(format)
    }

    /// Scales or biases of a quantised matrix.
    fn side(&mut self, want: &Want<'_>, part: &str) -> Result<Bytes, CheckpointError> {
        let stored = self.need(&want.side(part))?;
        if stored.dtype == Dtype::U8 {
            let found = "an fp4 or fp8 mode (its scales are of type U8)".into();
            return Err(self.wrong_width(stored, "MLX's affine mode", found));
        }
        if stored.dtype != Dtype::Bf16 {
            return Err(self.wrong_dtype(stored, "BF16"));
        }
        let columns = stored.shape.last().copied().unwrap_or(0);
        if columns > 0 && want.k.is_multiple_of(columns) && want.k / columns != GROUP {
            self.check_shape(stored, want.shape(columns))?;
            let found = format!("groups of {}", want.k / columns);
            return Err(self.wrong_width(stored, "groups of 64", found));
        }
        self.check_shape(stored, want.shape(want.k / GROUP))?;
        Ok(stored.data.clone())
    }

    fn refuse_sides(&self, want: &Want<'_>, weight: &Stored) -> Result<(), CheckpointError> {
        for part in ["scales", "biases"] {
            if let Some(side) = self.tensors.get(&want.side(part)) {
                return Err(CheckpointError::StraySide {
                    file: self.files.path(side),
                    tensor: side.name.clone(),
                    weight: weight.name.clone(),
                    found: weight.dtype.name(),
                });
            }
        }
        Ok(())
    }

    /// Shapes decide the format; an entry for this very module must not contradict them.
    fn check_override(
        &self,
        want: &Want<'_>,
        stored: &Stored,
        found: RowFormat,
    ) -> Result<(), CheckpointError> {
        let overrides = self.config.quantization.as_ref().map(|q| &q.overrides);
        let (expected, agrees) = match overrides.and_then(|map| map.get(want.path)) {
            None => return Ok(()),
            Some(Some(expected)) => (expected.name(), *expected == found),
            Some(None) => ("no quantisation", !found.is_quantised()),
        };
        if agrees {
            return Ok(());
        }
        Err(CheckpointError::Override {
            file: self.files.path(stored),
            tensor: stored.name.clone(),
            module: want.path.into(),
            expected,
            found: found.name(),
        })
    }

    fn check_shape(&self, stored: &Stored, expected: Vec<usize>) -> Result<(), CheckpointError> {
        if stored.shape == expected {
            return Ok(());
        }
        Err(CheckpointError::Shape {
            file: self.files.path(stored),
            tensor: stored.name.clone(),
            expected,
            found: stored.shape.clone(),
        })
    }

    fn wrong_dtype(&self, stored: &Stored, expected: &'static str) -> CheckpointError {
        CheckpointError::Dtype {
            file: self.files.path(stored),
            tensor: stored.name.clone(),
            expected,
            found: stored.dtype.name(),
        }
    }

    fn wrong_width(
        &self,
        stored: &Stored,
        expected: &'static str,
        found: String,
    ) -> CheckpointError {
        CheckpointError::Width {
            file: self.files.path(stored),
            tensor: stored.name.clone(),
            expected,
            found,
        }
    }
}

impl Want<'_> {
    fn shape(&self, columns: usize) -> Vec<usize> {
        self.lead.into_iter().chain([self.rows, columns]).collect()
    }

    fn side(&self, part: &str) -> String {
        format!("{}.{part}", self.weight.strip_suffix(".weight").unwrap_or(self.weight))
    }
}

/// Values of a small tensor as f32, or `None` if it is not of a floating-point type.
pub(crate) fn widen(stored: &Stored) -> Option<Vec<f32>> {
    let data = &stored.data;
    let pairs = || data.as_chunks::<2>().0.iter();
    Some(match stored.dtype {
        Dtype::Bf16 => pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F16 => pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        _ => return None,
    })
}
