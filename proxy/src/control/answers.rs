//! What requests to the control listener say, and how they are answered.

use std::fmt::Display;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use store::{CommitError, SnapshotError};

use crate::fault::{Fault, whole};
use crate::tee::ReplyBody;

/// Letters by which a name may differ from the one that was meant.
const EDITS_MAX: usize = 2;
/// Letters of a word that are looked at.
const WORD_CHARS_MAX: usize = 40;

/// A status with its body.
pub(crate) type Answer = (StatusCode, Value);

/// An answer as a response.
pub(super) fn response((status, body): Answer) -> Response<ReplyBody> {
    let mut response = Response::new(whole(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// It is done, and on disk.
pub(super) fn done() -> Answer {
    (StatusCode::OK, json!({ "status": "ok" }))
}

/// The fields of a body, all of them among `known`; an empty body has none.
pub(super) fn fields(body: &[u8], known: &[&str]) -> Result<Value, Answer> {
    if body.trim_ascii().is_empty() {
        return Ok(json!({}));
    }
    let read = serde_json::from_slice::<Value>(body);
    let read = read.map_err(|why| bad(&format!("the body is not a JSON object: {why}")))?;
    only(&read, known)?;
    Ok(read)
}

/// Refuses what is no object, and fields that nobody reads: a statement that was half understood
/// would be acted on and lost.
pub(super) fn only(object: &Value, known: &[&str]) -> Result<(), Answer> {
    let Some(object) = object.as_object() else {
        return Err(bad(&format!("{} is not a JSON object", shown(object))));
    };
    let unknown = object.keys().find(|name| !known.contains(&name.as_str()));
    unknown.map_or(Ok(()), |name| Err(bad(&not_known("a field", name, known))))
}

/// The parameters of a query, all of them among `known`.
pub(super) fn query(query: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, Answer> {
    let given = parameters(query)?;
    let unknown = given.iter().find(|(name, _)| !known.contains(&name.as_str()));
    match unknown {
        Some((name, _)) => Err(bad(&not_known("a parameter", name, known))),
        None => Ok(given),
    }
}

/// Says that a name is not known, and which one may have been meant.
fn not_known(what: &str, name: &str, known: &[&str]) -> String {
    let mut told = format!("`{name}` is not {what} that is known here");
    if name == "attempt" {
        return told + "; the attempt stands in the query: ?attempt=N";
    }
    if let Some(meant) = nearest(name, known) {
        return told + &format!("; did you mean `{meant}`?");
    }
    if !known.is_empty() {
        let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        told += &format!("; there are {}", known.join(", "));
    }
    told
}

/// The known name that is most like this one, if any is.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().filter_map(|other| {
        let whole = other.starts_with(name) || name.starts_with(other);
        let far = if whole { 1 } else { distance(name, other) };
        (far <= EDITS_MAX).then_some((far, *other))
    });
    near.min_by_key(|(far, _)| *far).map(|(_, other)| other)
}

/// How many letters must be put in, taken out or changed to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().take(WORD_CHARS_MAX).enumerate() {
        let mut above = std::mem::replace(&mut row[0], line + 1);
        for (at, its) in other.iter().enumerate() {
            let changed = above + usize::from(letter != *its);
            above = row[at + 1];
            row[at + 1] = changed.min(above + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

/// The beginning of a value, for a sentence about it.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let cut: String = text.chars().take(WORD_CHARS_MAX).collect();
    if cut.len() < text.len() { format!("`{cut}...`") } else { format!("`{cut}`") }
}

/// A whole number of 32 bits, where there is one.
pub(super) fn number(fields: &Value, name: &str) -> Result<Option<u32>, Answer> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(number) => {
            let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
            let wrong = || bad(&format!("`{name}` is not a number from 0"));
            number.map(Some).ok_or_else(wrong)
        }
    }
}

/// A text, where there is one.
pub(super) fn text(fields: &Value, name: &str) -> Result<Option<String>, Answer> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(bad(&format!("`{name}` is not a string"))),
    }
}

/// The parameters of a query, decoded; each may be there once.
pub(super) fn parameters(query: Option<&str>) -> Result<Vec<(String, String)>, Answer> {
    let mut found: Vec<(String, String)> = Vec::new();
    for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name), decoded(value));
        if found.iter().any(|(known, _)| *known == name) {
            return Err(bad(&format!("`{name}` is given twice")));
        }
        found.push((name, value));
    }
    Ok(found)
}

/// Text without its percent signs; what is no text stays as it is.
pub(crate) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let pair = after.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = pair.filter(|_| *first == b'%').and_then(|p| u8::from_str_radix(p, 16).ok());
        bytes.push(byte.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The request is no good.
pub(crate) fn bad(reason: &dyn Display) -> Answer {
    error(StatusCode::BAD_REQUEST, &reason.to_string())
}

/// The store does not take it.
pub(crate) fn refused(reason: CommitError) -> Answer {
    let status = match reason {
        CommitError::Unknown(..) | CommitError::UnknownCall(..) => StatusCode::NOT_FOUND,
        CommitError::Closed(..) | CommitError::Taken | CommitError::NoLease(_) => {
            StatusCode::CONFLICT
        }
        CommitError::NotBegun(_)
        | CommitError::Unavailable(_)
        | CommitError::Database(_)
        | CommitError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, &reason.to_string())
}

/// The store cannot be read.
pub(crate) fn unread(reason: SnapshotError) -> Answer {
    error(StatusCode::SERVICE_UNAVAILABLE, &reason.to_string())
}

/// The request cannot be served.
pub(super) fn faulty(fault: Fault) -> Answer {
    error(fault.status(), &fault.to_string())
}

/// An error.
pub(crate) fn error(status: StatusCode, message: &str) -> Answer {
    (status, json!({ "error": { "message": message, "code": status.as_u16() } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_say_a_thing_once() {
        let read = |query| parameters(Some(query)).unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            read("kind=main%2Cfork&a=b+c&d"),
            [pair("kind", "main,fork"), pair("a", "b c"), pair("d", "")]
        );
        assert_eq!(read("a=%zz%4"), [pair("a", "%zz%4")]);
        assert_eq!(parameters(None).unwrap(), []);
        assert_eq!(parameters(Some("a=1&%61=2")).unwrap_err().0, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn what_nobody_reads_is_refused_with_the_name_that_may_be_meant() {
        let known = ["episode_id", "group_id", "group_size", "status", "ttl_s"];
        let why = |body: &str| {
            let (status, told) = fields(body.as_bytes(), &known).unwrap_err();
            assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
            told["error"]["message"].as_str().unwrap().to_owned()
        };
        assert!(why(r#"{"group":"g"}"#).contains("`group` is not a field that is known here"));
        assert!(why(r#"{"group":"g"}"#).ends_with("did you mean `group_id`?"));
        assert!(why(r#"{"state":"failed"}"#).ends_with("did you mean `status`?"));
        assert!(why(r#"{"ttl":1}"#).ends_with("did you mean `ttl_s`?"));
        assert!(why(r#"{"attempt":1}"#).ends_with("?attempt=N"));
        assert!(why(r#"{"colour":1}"#).contains("there are `episode_id`, `group_id`"));
        assert!(why(r#"{"status":NaN}"#).contains("expected value at line 1 column 11"));
        assert_eq!(why("[1]"), "`[1]` is not a JSON object");
        assert_eq!(fields(b" ", &known).unwrap(), json!({}));
        assert_eq!(fields(br#"{"status":null}"#, &known).unwrap(), json!({ "status": null }));
        let asked = |text| query(Some(text), &["attempt"]).map_err(|(_, told)| told.to_string());
        assert_eq!(asked("attempt=2").unwrap(), [("attempt".to_owned(), "2".to_owned())]);
        assert!(asked("atempt=2").unwrap_err().contains("did you mean `attempt`?"));
    }

    #[test]
    fn words_are_as_far_apart_as_their_letters_differ() {
        let of = |one, other| distance(one, other);
        assert_eq!(
            [of("a", "a"), of("state", "status"), of("", "abc"), of("abc", "ca")],
            [0, 2, 3, 3]
        );
    }
}
