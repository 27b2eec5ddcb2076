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
