//! Typed reads of the fields of a JSON configuration.

use std::path::Path;

use serde_json::Value;

use crate::error::{ConfigError, LoadError};

/// The largest count that is accepted; a product of two of them fits a machine word.
const LARGEST_COUNT: usize = 1 << 28;

/// Reads and parses a JSON file.
pub(crate) fn read_json(path: &Path) -> Result<Value, LoadError> {
    let bytes =
        std::fs::read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&bytes)
        .map_err(|source| LoadError::Json { path: path.to_owned(), source })
}

/// Returns a required positive whole number.
pub(crate) fn count(config: &Value, field: &'static str) -> Result<usize, ConfigError> {
    let value = config.get(field).ok_or(ConfigError::Missing { field })?;
    let count = value
        .as_u64()
        .and_then(|count| usize::try_from(count).ok())
        .filter(|count| *count > 0)
        .ok_or_else(|| {
            ConfigError::field(field, format!("is {value}, not a positive whole number"))
        })?;
    if count > LARGEST_COUNT {
        return Err(ConfigError::field(field, format!("is {count}, more than any model has")));
    }
    Ok(count)
}

/// Returns an optional positive whole number; null counts as absent.
pub(crate) fn optional_count(
    config: &Value,
    field: &'static str,
) -> Result<Option<usize>, ConfigError> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(_) => count(config, field).map(Some),
    }
}

/// Returns an optional number; null counts as absent.
pub(crate) fn number(config: &Value, field: &'static str) -> Result<Option<f64>, ConfigError> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(ConfigError::field(field, format!("is {value}, not a number"))),
        },
    }
}

/// Returns an optional boolean; null counts as absent.
pub(crate) fn flag(config: &Value, field: &'static str) -> Result<Option<bool>, ConfigError> {
    match config.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(value) => Err(ConfigError::field(field, format!("is {value}, not a boolean"))),
    }
}

/// Returns the ids of `eos_token_id`: none if absent, one id, or a list.
pub(crate) fn eos_ids(config: &Value) -> Result<Vec<u32>, ConfigError> {
    const FIELD: &str = "eos_token_id";
    let values = match config.get(FIELD) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.as_slice(),
        Some(id) => std::slice::from_ref(id),
    };
    values
        .iter()
        .map(|value| value.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect::<Option<_>>()
        .ok_or_else(|| ConfigError::field(FIELD, "must be a token id or a list of them"))
}

/// Returns a value for an error text: a string without its quotes, anything else as JSON.
pub(crate) fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
