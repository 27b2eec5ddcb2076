//! Typed access to JSON fields with errors that name them.

use serde_json::{Map, Value};

use crate::error::ConfigProblem;

/// Characters of a value that are quoted in an error.
const QUOTED: usize = 80;

/// A value for an error message, shortened.
pub(crate) fn quote(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The error for a field of the wrong type.
pub(crate) fn wrong_type(field: &str, expected: &'static str, found: &Value) -> ConfigProblem {
    ConfigProblem::Type { field: field.into(), expected, found: quote(found) }
}

/// The error for a value that lily does not run.
pub(crate) fn unsupported(
    field: &str,
    found: &Value,
    expected: impl Into<String>,
) -> ConfigProblem {
    ConfigProblem::Unsupported {
        field: field.into(),
        found: quote(found),
        expected: expected.into(),
    }
}

/// Objects that are searched in order for a field; `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    places: [Option<&'a Map<String, Value>>; 2],
}

impl<'a> Fields<'a> {
    /// Looks into `first`, then into `second`.
    pub(crate) fn new(
        first: Option<&'a Map<String, Value>>,
        second: Option<&'a Map<String, Value>>,
    ) -> Self {
        Self { places: [first, second] }
    }

    /// The raw value.
    pub(crate) fn value(&self, field: &str) -> Option<&'a Value> {
        self.places
            .iter()
            .flatten()
            .find_map(|place| place.get(field).filter(|value| !value.is_null()))
    }

    fn required(&self, field: &str) -> Result<&'a Value, ConfigProblem> {
        self.value(field).ok_or_else(|| ConfigProblem::Missing { field: field.into() })
    }

    /// A dimension within `1..=limit`. Limits keep every later product far from overflow.
    pub(crate) fn size(&self, field: &str, limit: usize) -> Result<usize, ConfigProblem> {
        let value = self.required(field)?;
        let found = value.as_u64().ok_or_else(|| wrong_type(field, "a whole number", value))?;
        match usize::try_from(found) {
            Ok(size) if (1..=limit).contains(&size) => Ok(size),
            _ => Err(ConfigProblem::Dimension {
                field: field.into(),
                found,
                expected: format!("1 to {limit}"),
            }),
        }
    }

    /// As [`Self::size`], with a value for an absent field.
    pub(crate) fn size_or(
        &self,
        field: &str,
        limit: usize,
        default: usize,
    ) -> Result<usize, ConfigProblem> {
        if self.value(field).is_none() { Ok(default) } else { self.size(field, limit) }
    }

    /// A finite number, or `None` if the field is absent.
    pub(crate) fn number(&self, field: &str) -> Result<Option<f64>, ConfigProblem> {
        let number = |value: &Value| match value.as_f64() {
            Some(x) if x.is_finite() => Ok(x),
            _ => Err(wrong_type(field, "a finite number", value)),
        };
        self.value(field).map(number).transpose()
    }

    /// A truth value, or `default` if the field is absent.
    pub(crate) fn flag(&self, field: &str, default: bool) -> Result<bool, ConfigProblem> {
        match self.value(field) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(wrong_type(field, "true or false", other)),
        }
    }

    /// An object, or `None` if the field is absent.
    pub(crate) fn object(
        &self,
        field: &str,
    ) -> Result<Option<&'a Map<String, Value>>, ConfigProblem> {
        let object = |value: &'a Value| {
            value.as_object().ok_or_else(|| wrong_type(field, "an object", value))
        };
        self.value(field).map(object).transpose()
    }

    /// Token ids, given as one number or a list; empty if the field is absent.
    pub(crate) fn token_ids(&self, field: &str) -> Result<Vec<u32>, ConfigProblem> {
        let Some(value) = self.value(field) else { return Ok(Vec::new()) };
        let ids = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        ids.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| wrong_type(field, "a token id or a list of token ids", value))
    }
}
