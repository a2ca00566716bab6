//! A request body, read field by field.
//!
//! An absent field and a null are the same; a wrong type is refused by the field's name.

use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of a request.
pub(super) struct Fields {
    map: Map<String, Value>,
    /// The id of the reply; empty if it has none.
    id: String,
}

impl Fields {
    pub(super) fn new(map: Map<String, Value>) -> Fields {
        Fields { map, id: String::new() }
    }

    /// The same fields, to be answered under an id.
    pub(super) fn under(self, id: String) -> Fields {
        Fields { id, ..self }
    }

    /// The id of the reply.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields::new(map)),
            Ok(_) => Err(ApiError::malformed("the body must be a JSON object")),
            Err(error) => Err(ApiError::malformed(format!("the body is not JSON: {error}"))),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Whether the field is there and null.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(Value::is_null)
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(ApiError::bad(name, "must be a boolean")),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::bad(name, "must be a string")),
        }
    }

    pub(super) fn list(&self, name: &str) -> Result<Option<&[Value]>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(ApiError::bad(name, "must be a list")),
        }
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(ApiError::bad(name, "must be an object")),
        }
    }

    /// A whole number; `2.0` is one.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number);
        let number = value.as_i64().or_else(|| value.as_f64().and_then(whole).map(|n| n as i64));
        number.map(Some).ok_or_else(|| ApiError::bad(name, "must be an integer"))
    }

    /// A whole number of at least `least`.
    pub(super) fn count(&self, name: &str, least: usize) -> Result<Option<usize>, ApiError> {
        let Some(number) = self.integer(name)? else { return Ok(None) };
        match usize::try_from(number) {
            Ok(count) if count >= least => Ok(Some(count)),
            _ => Err(ApiError::bad(name, format!("must be at least {least}, got {number}"))),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32);
        number.map(Some).ok_or_else(|| ApiError::bad(name, "must be a number"))
    }

    /// A number that any 64 bits may stand for.
    pub(super) fn seed(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
        seed.map(Some).ok_or_else(|| ApiError::bad(name, "must be an integer of 64 bits"))
    }

    /// A list of token ids below `vocab`.
    pub(super) fn ids(&self, name: &str, vocab: usize) -> Result<Vec<u32>, ApiError> {
        self.list(name)?.map_or(Ok(Vec::new()), |list| token_ids(name, list, vocab))
    }
}

/// Token ids below `vocab`; `name` is the field that they stand in.
pub(super) fn token_ids(name: &str, list: &[Value], vocab: usize) -> Result<Vec<u32>, ApiError> {
    let id = |value: &Value| match value.as_u64() {
        Some(id) if (id as usize) < vocab => Ok(id as u32),
        _ => {
            let message = format!("holds {value}, which is not a token id below {vocab}");
            Err(ApiError::bad(name, message))
        }
    };
    list.iter().map(id).collect()
}
