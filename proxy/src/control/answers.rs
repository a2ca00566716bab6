//! What requests to the control listener say, and how they are answered.

use std::fmt::Display;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use store::{CommitError, SnapshotError};

use crate::fault::{Fault, whole};
use crate::tee::ReplyBody;

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

/// The fields of a body; an empty one has none.
pub(super) fn fields(body: &[u8]) -> Result<Value, Answer> {
    if body.trim_ascii().is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_slice::<Value>(body)
        .ok()
        .filter(Value::is_object)
        .ok_or_else(|| bad(&"the body is not a JSON object"))
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
        | CommitError::Trouble(_)
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
}
