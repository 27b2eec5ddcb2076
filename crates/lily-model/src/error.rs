//! Why a configuration is not one that lily runs.

use std::path::PathBuf;

/// A file of the model folder that cannot be used, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("`{}`: {problem}", .file.display())]
pub struct ConfigError {
    /// The file, as given by the caller.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: ConfigProblem,
}

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// What should be a model folder is none: usually a file inside it was named.
    #[error(
        "{0}, need a folder in the Hugging Face or MLX layout; give the one with `config.json`"
    )]
    Folder(&'static str),
    /// The file cannot be read: usually the folder is not a model folder.
    #[error("cannot be read ({0}); give a folder in the Hugging Face or MLX layout")]
    Unreadable(#[source] std::io::Error),
    /// The file is not JSON: usually a broken download.
    #[error("is not valid JSON ({0}); download it again")]
    NotJson(#[source] serde_json::Error),
    /// A field that has no safe default is absent.
    #[error(
        "has no field `{field}`; it is needed to run the model, take it from the original checkpoint"
    )]
    Missing {
        /// Field, as spelled in the file.
        field: String,
    },
    /// A field has the wrong JSON type, or a number that is negative, fractional or infinite.
    #[error("has `{field}` = {found}, need {expected}; correct the file")]
    Type {
        /// Field, with its path inside the file.
        field: String,
        /// What the field has to be.
        expected: &'static str,
        /// The value, shortened.
        found: String,
    },
    /// Another architecture, or a variant of this one that lily does not run.
    #[error("has `{field}` = {found}, but lily runs only {expected}; use another checkpoint")]
    Unsupported {
        /// Field, with its path inside the file.
        field: String,
        /// The value, shortened.
        found: String,
        /// What is supported, and why where it is not obvious.
        expected: String,
    },
    /// A dimension is out of range or does not fit another one.
    #[error(
        "has `{field}` = {found}, need {expected}; the file does not describe a model of this family"
    )]
    Dimension {
        /// Field, or the product of fields.
        field: String,
        /// The value.
        found: u64,
        /// The rule that it breaks.
        expected: String,
    },
    /// Two places of the file contradict each other.
    #[error("says one thing in `{first}` and another in `{second}`; remove the wrong one")]
    Contradiction {
        /// First place.
        first: String,
        /// Second place.
        second: String,
    },
}

/// Why a checkpoint folder cannot be run.
///
/// Where a tensor is at fault, `file` is the weight file that holds it and `tensor` its name there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// `config.json` or a file like it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder has no weight files: often an empty or half-made download.
    #[error(
        "`{}` holds neither `model.safetensors.index.json` nor `model.safetensors`; \
         give a folder with a complete checkpoint", .0.display()
    )]
    NoWeights(PathBuf),
    /// A weight file cannot be opened or mapped.
    #[error("`{}` cannot be read ({source}); check the file and its permissions", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system maps no file of this size.
    #[error(
        "`{}` cannot be mapped ({source}); raise the limit of address space (ulimit -v), which needs room for all weights",
        .file.display()
    )]
    AddressSpace {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The index is not JSON with a `weight_map`.
    #[error("`{}` is not a usable index ({reason}); download it again", .file.display())]
    Index {
        /// The index.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The index names a file that is not there: an interrupted download.
    #[error(
        "`{}` is missing, but the index needs it for tensor `{tensor}` and others; \
         finish the download", .file.display()
    )]
    MissingShard {
        /// The missing file.
        file: PathBuf,
        /// The first tensor that it must hold.
        tensor: String,
    },
    /// A weight file that the index does not name: left over from another version.
    #[error(
        "`{}` is not named in the index; remove it, or download the index that belongs to it",
        .0.display()
    )]
    StrayShard(PathBuf),
    /// The header of a weight file is broken, or the file is cut short.
    #[error("`{}` {problem}", .file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: crate::weights::HeaderError,
    },
    /// The index names a tensor that its file does not hold.
    #[error(
        "`{}` does not hold tensor `{tensor}`, which the index expects there; \
         download both again", .file.display()
    )]
    NotInShard {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A file holds a tensor that the index does not place there.
    #[error(
        "`{}` holds tensor `{tensor}`, but the index has it {expected}; download both again",
        .file.display()
    )]
    Misplaced {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where the index has it: `in <file>`, or `nowhere`.
        expected: String,
    },
    /// The same tensor under two names.
    #[error("`{}` holds tensor `{tensor}` again after `{first}`; remove one", .file.display())]
    Doubled {
        /// The file.
        file: PathBuf,
        /// The second name.
        tensor: String,
        /// The first name.
        first: String,
    },
    /// A tensor of the model is absent: another architecture, or names of an unknown converter.
    #[error(
        "`{}` lacks tensor `{tensor}`, needed for {architecture}; accepted are MLX names \
         (`language_model.model.layers.0.mlp.switch_mlp.up_proj.weight`) and original names \
         (`model.language_model.layers.0.mlp.experts.gate_up_proj`)", .file.display()
    )]
    Missing {
        /// The weight file or index.
        file: PathBuf,
        /// The tensor by its MLX name.
        tensor: String,
        /// The model's architecture.
        architecture: String,
    },
    /// A tensor that is not part of the model.
    #[error(
        "`{}` holds tensor `{tensor}`, which is not part of {architecture} as `config.json` \
         describes it; use a checkpoint of this architecture", .file.display()
    )]
    Unknown {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The model's architecture.
        architecture: String,
    },
    /// A tensor has another shape than the configuration gives.
    #[error(
        "`{}`: tensor `{tensor}` has shape {found:?}, need {expected:?} by `config.json`; \
         use weights and configuration of the same model", .file.display()
    )]
    Shape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape by the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A tensor has an element type that lily does not read there.
    #[error(
        "`{}`: tensor `{tensor}` has type {found}, need {expected}; convert the checkpoint again",
        .file.display()
    )]
    Dtype {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Types that are read.
        expected: &'static str,
        /// Type in the file.
        found: &'static str,
    },
    /// A tensor that must stay exact carries quantisation side tensors.
    #[error(
        "`{}`: tensor `{tensor}` shows that `{module}` was quantised, which must stay in floating \
         point; convert the checkpoint again without quantising it", .file.display()
    )]
    MustNotBeQuantised {
        /// The file.
        file: PathBuf,
        /// The side tensor.
        tensor: String,
        /// What it belongs to.
        module: String,
    },
    /// Scales or biases beside a plain matrix.
    #[error(
        "`{}`: tensor `{tensor}` belongs to a quantised matrix, but `{weight}` is of type {found}; \
         convert the checkpoint again", .file.display()
    )]
    StraySide {
        /// The file.
        file: PathBuf,
        /// The side tensor.
        tensor: String,
        /// The matrix.
        weight: String,
        /// Its type.
        found: &'static str,
    },
    /// A quantised matrix of another width or group size.
    #[error(
        "`{}`: tensor `{tensor}` is quantised with {found}, need {expected}; \
         use a checkpoint with 4 or 8 bits and groups of 64", .file.display()
    )]
    Width {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What lily reads.
        expected: &'static str,
        /// What the shapes say.
        found: String,
    },
    /// The shapes of a matrix contradict its own entry in `config.json`.
    #[error(
        "`{}`: tensor `{tensor}` is stored as {found}, but `config.json` has {expected} for \
         `{module}`; use weights and configuration of the same conversion", .file.display()
    )]
    Override {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The module path of the entry.
        module: String,
        /// Format by the entry.
        expected: &'static str,
        /// Format by the shapes.
        found: &'static str,
    },
    /// NaN or infinity in a small tensor.
    #[error(
        "`{}`: tensor `{tensor}` has {value} at element {index}, need finite numbers; \
         the file is damaged, download it again", .file.display()
    )]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Position in the tensor.
        index: usize,
        /// The value.
        value: f32,
    },
    /// The norm weights betray a conversion that shifted them twice, or not at all.
    #[error(
        "`{}`: tensor `{tensor}` and its like have a mean weight of {mean:.2}, need about 1: \
         {cause}; convert the original checkpoint again", .file.display()
    )]
    NormShift {
        /// The file of the named tensor.
        file: PathBuf,
        /// The norm with the median mean.
        tensor: String,
        /// Its mean weight, as the model would use it.
        mean: f32,
        /// What must have happened.
        cause: &'static str,
    },
    /// Stored rows do not form a matrix that the kernels read.
    #[error("weight `{weight}`: {source}")]
    Matrix {
        /// The weight, as the plan names it.
        weight: String,
        /// What is wrong.
        source: lily_plan::MatrixError,
    },
}
