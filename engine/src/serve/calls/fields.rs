//! The fields of a JSON request.
//!
//! An absent field and a null are the same. A wrong type is refused by the field's name. A route
//! declares the fields that it reads, and the OpenAPI document is made from these: a field has the
//! type that it is declared with, whether the request makes use of it or not. In a debug build,
//! reading a field that the route does not declare panics.

use std::borrow::Cow;
use std::sync::Arc;

use http::api::schema::Field;
use serde_json::{Map, Value};
use template::json::exact;

use super::error::ApiError;
use super::json::to_json;
use super::json_room::JsonLease;
use crate::bounds::SALT_BYTES_MAX;

/// The fields that templates write out. Their long integers are marked strings (`exact`), and those
/// of other fields are rounded.
const WRITTEN: [&str; 4] = ["messages", "tools", "documents", "chat_template_kwargs"];

/// The text before the attempt in the header of a scope.
const ATTEMPT: &str = "; attempt=";

/// The fields of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// The id of the reply; empty if it has none.
    reply_id: String,
    /// The scope of prefixes that the caller's proxy names.
    cache_scope: Option<Arc<str>>,
    /// The attempt of an episode that the caller's proxy names.
    attempt: Option<Arc<str>>,
    /// The memory of the values.
    lease: JsonLease,
    /// The fields that may be read; none where they are not checked.
    declared: Option<&'static [&'static [Field]]>,
}

impl Fields {
    /// Wraps an object, whose fields are not checked against a declaration.
    pub(crate) fn new(map: Map<String, Value>) -> Fields {
        Fields { map, ..Fields::default() }
    }

    /// Parses a body.
    ///
    /// # Errors
    /// 400 if it is not JSON, or not an object.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        let marked = std::str::from_utf8(body).ok().map(exact::with_marked_integers);
        let read = match &marked {
            Some(Cow::Owned(marked)) => serde_json::from_str(marked),
            _ => serde_json::from_slice(body),
        };
        match read {
            Ok(Value::Object(mut map)) => {
                if let Some(Cow::Owned(_)) = marked {
                    let others =
                        map.iter_mut().filter(|(name, _)| !WRITTEN.contains(&name.as_str()));
                    others.for_each(|(_, value)| exact::round(value));
                }
                Ok(Fields::new(map))
            }
            Ok(_) => Err(ApiError::bad_request("the body must be a JSON object")),
            Err(error) => Err(ApiError::bad_request(format!("the body is not JSON: {error}"))),
        }
    }

    /// Names the fields that may be read.
    ///
    /// # Errors
    /// 400 that names a field whose type is not the declared one.
    pub(crate) fn declared_as(
        self,
        declared: &'static [&'static [Field]],
    ) -> Result<Fields, ApiError> {
        let fields = Fields { declared: Some(declared), ..self };
        for (name, value) in fields.map.iter().filter(|(_, value)| !value.is_null()) {
            let json_type = fields.declaration(name).and_then(|field| field.json_type);
            json_type.map_or(Ok(()), |json_type| check_type(name, value, json_type))?;
        }
        Ok(fields)
    }

    /// Sets the scope within which prefixes are shared, and the attempt that stands behind it.
    pub(crate) fn with_cache_scope(self, header: Option<&str>) -> Fields {
        let parts = header.map(|header| header.split_once(ATTEMPT).unwrap_or((header, "")));
        let (scope, attempt) = parts.unwrap_or_default();
        let given = |text: &str| (!text.is_empty()).then(|| Arc::from(text));
        Fields { cache_scope: given(scope), attempt: given(attempt), ..self }
    }

    /// Returns the attempt of an episode that the call is of.
    pub(crate) fn attempt(&self) -> Option<Arc<str>> {
        self.attempt.clone()
    }

    /// Keeps the memory of the values reserved.
    pub(crate) fn holding(self, lease: JsonLease) -> Fields {
        Fields { lease, ..self }
    }

    /// Returns the fields of another object of the same request, which are not checked against a
    /// declaration.
    pub(crate) fn nested(&self, map: Map<String, Value>) -> Fields {
        Fields {
            map,
            reply_id: self.reply_id.clone(),
            cache_scope: self.cache_scope.clone(),
            attempt: self.attempt.clone(),
            lease: self.lease.clone(),
            declared: None,
        }
    }

    /// Returns what calls must have in common to share prefixes: the scope, and the salt that the
    /// request itself gives.
    ///
    /// # Errors
    /// 400 for a salt that is empty or too long.
    pub(crate) fn cache_salt(&self) -> Result<Option<Arc<str>>, ApiError> {
        const FIELD: &str = "cache_salt";
        let own = self.text(FIELD)?;
        if own == Some("") {
            return Err(ApiError::bad_field(FIELD, "must not be empty"));
        }
        if own.is_some_and(|salt| salt.len() > SALT_BYTES_MAX) {
            let message = format!("must be at most {SALT_BYTES_MAX} bytes");
            return Err(ApiError::bad_field(FIELD, message));
        }
        // A header has no line break, so no salt of one scope is that of another.
        Ok(match (&self.cache_scope, own) {
            (Some(scope), Some(own)) => Some(format!("{scope}\n{own}").into()),
            (Some(scope), None) => Some(Arc::clone(scope)),
            (None, own) => own.map(Arc::from),
        })
    }

    /// Names the reply to this request.
    pub(crate) fn with_reply_id(self, reply_id: String) -> Fields {
        Fields { reply_id, ..self }
    }

    /// Returns the id of the reply; empty if it has none.
    pub(crate) fn reply_id(&self) -> &str {
        &self.reply_id
    }

    /// Removes a field.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name)
    }

    /// Returns the same fields with another value of one.
    pub(crate) fn with(&self, name: &str, value: Value) -> Fields {
        let mut fields = self.clone();
        fields.map.insert(name.to_owned(), value);
        fields
    }

    /// Counts the bytes of the fields as JSON.
    pub(crate) fn json_len(&self) -> usize {
        to_json(&self.map).len()
    }

    /// Returns a field of any type; none if it is absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        if cfg!(debug_assertions) {
            let is_known = self.declared.is_none() || self.declaration(name).is_some();
            assert!(is_known, "the route does not declare `{name}`");
        }
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// True if the field is present and null.
    pub(crate) fn is_null(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(Value::is_null)
    }

    /// Reads a boolean.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.typed(name, "boolean") {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(ApiError::bad_field(name, "must be a boolean")),
        }
    }

    /// Reads a string.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        match self.typed(name, "string") {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::bad_field(name, "must be a string")),
        }
    }

    /// Reads a list.
    pub(crate) fn list(&self, name: &str) -> Result<Option<&[Value]>, ApiError> {
        match self.typed(name, "array") {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(ApiError::bad_field(name, "must be a list")),
        }
    }

    /// Reads an object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, ApiError> {
        match self.typed(name, "object") {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(ApiError::bad_field(name, "must be an object")),
        }
    }

    /// Reads an integer; `2.0` is one.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.typed(name, "integer") else { return Ok(None) };
        match value.as_i64().or_else(|| value.as_f64().and_then(whole_number)) {
            Some(number) => Ok(Some(number)),
            None => Err(ApiError::bad_field(name, "must be an integer")),
        }
    }

    /// Reads an integer of at least `least`.
    pub(crate) fn count(&self, name: &str, least: usize) -> Result<Option<usize>, ApiError> {
        let Some(number) = self.integer(name)? else { return Ok(None) };
        match usize::try_from(number) {
            Ok(count) if count >= least => Ok(Some(count)),
            _ => Err(ApiError::bad_field(name, format!("must be at least {least}, got {number}"))),
        }
    }

    /// Reads a number, rounded to 32 bits.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.typed(name, "number") else { return Ok(None) };
        match value.as_f64() {
            Some(number) => Ok(Some(number as f32)),
            None => Err(ApiError::bad_field(name, "must be a number")),
        }
    }

    /// Reads an integer of 64 bits, signed or not. A negative one stands for its bits.
    pub(crate) fn seed(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.typed(name, "integer") else { return Ok(None) };
        match value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)) {
            Some(seed) => Ok(Some(seed)),
            None => Err(ApiError::bad_field(name, "must be an integer of 64 bits")),
        }
    }

    /// Reads a list of token ids below `vocab`; empty if it is absent.
    pub(crate) fn token_ids(&self, name: &str, vocab: usize) -> Result<Vec<u32>, ApiError> {
        self.list(name)?.map_or(Ok(Vec::new()), |list| parse_token_ids(name, list, vocab))
    }

    /// Returns a field that is declared with this type, with any or as refused.
    fn typed(&self, name: &str, json_type: &str) -> Option<&Value> {
        if cfg!(debug_assertions) {
            let declared = self.declaration(name).and_then(|field| field.json_type);
            let is_readable = declared.is_none_or(|declared| declared == json_type);
            assert!(is_readable, "`{name}`: {json_type} is not {declared:?}");
        }
        self.get(name)
    }

    /// Returns the declaration of a field; none where none are declared.
    fn declaration(&self, name: &str) -> Option<&'static Field> {
        self.declared?.iter().copied().flatten().find(|field| field.name == name)
    }
}

/// Refuses a value that is not of JSON's type of that name.
fn check_type(name: &str, value: &Value, json_type: &str) -> Result<(), ApiError> {
    let (is_right, expected) = match json_type {
        "array" => (value.is_array(), "must be a list"),
        "boolean" => (value.is_boolean(), "must be a boolean"),
        "integer" => (is_integer(value), "must be an integer"),
        "number" => (value.is_number(), "must be a number"),
        "object" => (value.is_object(), "must be an object"),
        "string" => (value.is_string(), "must be a string"),
        _ => (true, ""),
    };
    if is_right { Ok(()) } else { Err(ApiError::bad_field(name, expected)) }
}

/// True for a number without a fraction, of any size.
fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// Returns a float that is an integer of at most 53 bits.
fn whole_number(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

/// Parses token ids below `vocab` from the list in the field `name`.
///
/// # Errors
/// 400 that names the first entry that is not such an id.
pub(crate) fn parse_token_ids(
    name: &str,
    list: &[Value],
    vocab: usize,
) -> Result<Vec<u32>, ApiError> {
    let mut ids = Vec::with_capacity(list.len());
    for value in list {
        match value.as_u64() {
            Some(id) if (id as usize) < vocab => ids.push(id as u32),
            _ => {
                let message = format!("holds {value}, which is not a token id below {vocab}");
                return Err(ApiError::bad_field(name, message));
            }
        }
    }
    Ok(ids)
}
