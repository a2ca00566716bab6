//! Reads JSON bodies and queries. A name that is unknown is refused with a suggestion: half of a
//! request must not be acted on.

use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess};
use serde_json::{Map, Value};

use crate::api::reply::{JsonReply, bad_request};
use crate::api::suggest::nearest;

/// Letters of a value that an error quotes.
const QUOTED_CHARS_MAX: usize = 40;

/// Reads the body of a request. An empty body is an empty object.
///
/// # Errors
/// A 400 that names the field, if one is unknown, missing or has another type.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, JsonReply> {
    if body.trim_ascii().is_empty() {
        return parse_value(Value::Object(Map::new()));
    }
    let value = serde_json::from_slice(body)
        .map_err(|why| bad_request(&format!("the body is not a JSON object: {why}")))?;
    parse_value(value)
}

/// Reads an object, as [`parse`] does.
pub(crate) fn parse_value<T: DeserializeOwned>(value: Value) -> Result<T, JsonReply> {
    let Value::Object(fields) = value else {
        return Err(bad_request(&format!("{} is not a JSON object", quoted(&value))));
    };
    let fields = Fields { rest: fields.into_iter(), value: None };
    T::deserialize(MapAccessDeserializer::new(fields)).map_err(|error| bad_request(&error))
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
    type Error = BodyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, BodyError> {
        self.value = self.rest.next();
        let Some((name, _)) = &self.value else { return Ok(None) };
        let name: StringDeserializer<BodyError> = name.clone().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, BodyError> {
        let Some((name, value)) = self.value.take() else {
            return Err(BodyError("a value without a name".to_owned()));
        };
        seed.deserialize(value).map_err(|error| BodyError::of_field(&name, &error))
    }
}

/// An error of `serde` about a body.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BodyError(String);

/// Names of types in errors of `serde`, and those that a reader of JSON knows.
const TYPE_NAMES: [(&str, &str); 5] = [
    ("expected u32", "expected a whole number from 0"),
    ("expected i64", "expected a whole number"),
    ("expected f64", "expected a number"),
    ("expected a map", "expected an object"),
    ("expected a sequence", "expected a list"),
];

impl BodyError {
    fn of_field(name: &str, error: &serde_json::Error) -> Self {
        let message = error.to_string();
        let plain = TYPE_NAMES.iter().find_map(|(of_serde, of_json)| {
            Some(format!("{}{of_json}", message.strip_suffix(of_serde)?))
        });
        Self(format!("`{name}`: {}", plain.unwrap_or(message)))
    }
}

impl serde::de::Error for BodyError {
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

/// Says that a name is unknown, with a suggestion or the known names.
fn unknown_name(kind: &str, name: &str, known: &[&str]) -> String {
    let message = format!("`{name}` is not {kind} of this route");
    if name == "attempt" {
        return message + "; the attempt stands in the query: ?attempt=N";
    }
    if let Some(suggestion) = nearest(name, known) {
        return message + &format!("; did you mean `{suggestion}`?");
    }
    if known.is_empty() {
        return message;
    }
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    message + &format!("; there are {}", known.join(", "))
}

/// The decoded parameters of a query, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes a query. Each parameter may be there once.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, JsonReply> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (percent_decoded(name), percent_decoded(value));
            if parameters.iter().any(|(other, _)| *other == name) {
                return Err(bad_request(&format!("`{name}` is given twice")));
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    /// Refuses a parameter that is not among `known`.
    pub(crate) fn check_known(&self, known: &[&str]) -> Result<(), JsonReply> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(bad_request(&unknown_name("a parameter", name, known))),
            None => Ok(()),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The parameters as pairs of name and value.
    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Decodes percent escapes and plus signs. Text that is not UTF-8 then stays as it is.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = after
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|pair| std::str::from_utf8(pair).ok())
            .and_then(|pair| u8::from_str_radix(pair, 16).ok());
        bytes.push(escape.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if escape.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
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

    fn refusal<T: std::fmt::Debug>(result: Result<T, JsonReply>) -> String {
        let reply = result.unwrap_err();
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        reply.body["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn queries_are_decoded_and_name_a_parameter_once() {
        let read = |query| Query::parse(Some(query)).unwrap().0;
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            read("kind=main%2Cfork&a=b+c&d"),
            [pair("kind", "main,fork"), pair("a", "b c"), pair("d", "")]
        );
        assert_eq!(read("a=%zz%4"), [pair("a", "%zz%4")]);
        assert_eq!(Query::parse(None).unwrap(), Query::default());
        assert!(refusal(Query::parse(Some("a=1&%61=2"))).contains("given twice"));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_one_that_may_be_meant() {
        let why = |body: &str| refusal(parse::<Body>(body.as_bytes()));
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
        let query = |text| Query::parse(Some(text)).unwrap();
        assert!(query("attempt=2").check_known(&["attempt"]).is_ok());
        let misspelled = query("atempt=2").check_known(&["attempt"]);
        assert!(refusal(misspelled).contains("did you mean `attempt`?"));
    }
}
