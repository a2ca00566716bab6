//! Bodies of JSON. A field that is unknown is refused with a suggestion: half of a request must not
//! be acted on.

use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess};
use serde_json::{Map, Value};

use crate::api::BadRequest;
use crate::api::suggest::unknown_name;

/// Letters of a value that an error quotes.
const QUOTED_CHARS_MAX: usize = 40;

/// Reads the body of a request. An empty body is an empty object.
///
/// # Errors
/// [`BadRequest`] that names the field, if one is unknown, missing or has another type.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, BadRequest> {
    if body.trim_ascii().is_empty() {
        return parse_value(Value::Object(Map::new()));
    }
    let value = serde_json::from_slice(body)
        .map_err(|why| BadRequest(format!("the body is not a JSON object: {why}")))?;
    parse_value(value)
}

/// Reads an object, as [`parse`] does.
///
/// # Errors
/// As those of [`parse`].
pub fn parse_value<T: DeserializeOwned>(value: Value) -> Result<T, BadRequest> {
    let Value::Object(fields) = value else {
        return Err(BadRequest(format!("{} is not a JSON object", quoted(&value))));
    };
    let fields = Fields { rest: fields.into_iter(), value: None };
    T::deserialize(MapAccessDeserializer::new(fields))
        .map_err(|error: FieldError| BadRequest(error.to_string()))
}

/// The beginning of a value, in backticks.
fn quoted(value: &Value) -> String {
    let text = value.to_string();
    let beginning: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    match beginning.len() < text.len() {
        true => format!("`{beginning}...`"),
        false => format!("`{beginning}`"),
    }
}

/// The fields of an object, for `serde`. Errors name the field that they are about.
struct Fields {
    rest: serde_json::map::IntoIter,
    /// The field whose name was read last.
    value: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = FieldError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, FieldError> {
        self.value = self.rest.next();
        let Some((name, _)) = &self.value else { return Ok(None) };
        let name: StringDeserializer<FieldError> = name.clone().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, FieldError> {
        let Some((name, value)) = self.value.take() else {
            return Err(FieldError("a value without a name".to_owned()));
        };
        seed.deserialize(value).map_err(|error| FieldError::of_field(&name, &error))
    }
}

/// An error of `serde` about a body.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct FieldError(String);

/// Names of types in errors of `serde`, and those that a reader of JSON knows.
const TYPE_NAMES: [(&str, &str); 5] = [
    ("expected u32", "expected a whole number from 0"),
    ("expected i64", "expected a whole number"),
    ("expected f64", "expected a number"),
    ("expected a map", "expected an object"),
    ("expected a sequence", "expected a list"),
];

impl FieldError {
    fn of_field(name: &str, error: &serde_json::Error) -> Self {
        let message = error.to_string();
        let plain = TYPE_NAMES.iter().find_map(|(of_serde, of_json)| {
            Some(format!("{}{of_json}", message.strip_suffix(of_serde)?))
        });
        Self(format!("`{name}`: {}", plain.unwrap_or(message)))
    }
}

impl serde::de::Error for FieldError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self(unknown_name("a field", name, known))
    }

    fn missing_field(name: &'static str) -> Self {
        Self(format!("`{name}` is missing"))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Body {
        episode_id: Option<String>,
        group_id: Option<String>,
        group_size: Option<u32>,
        status: Option<String>,
        ttl_s: Option<i64>,
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_one_that_may_be_meant() {
        let why = |body: &str| parse::<Body>(body.as_bytes()).unwrap_err().0;
        assert!(why(r#"{"group":"g"}"#).contains("`group` is not a field of this route"));
        assert!(why(r#"{"group":"g"}"#).ends_with("did you mean `group_id`?"));
        assert!(why(r#"{"state":"failed"}"#).ends_with("did you mean `status`?"));
        assert!(why(r#"{"ttl":1}"#).ends_with("did you mean `ttl_s`?"));
        assert!(why(r#"{"attempt":1}"#).ends_with("?attempt=N"));
        assert!(why(r#"{"colour":1}"#).contains("there are `episode_id`, `group_id`"));
        assert!(why(r#"{"status":NaN}"#).contains("expected value at line 1 column 11"));
        assert_eq!(
            why(r#"{"group_size":-1}"#),
            "`group_size`: invalid value: integer `-1`, expected a whole number from 0"
        );
        assert_eq!(why("[1]"), "`[1]` is not a JSON object");
        assert_eq!(parse::<Body>(b" ").unwrap(), parse::<Body>(br#"{"status":null}"#).unwrap());
    }
}
