//! Requests of agents, read whole within bounds of size and time.
//!
//! - `gate`: the requests that are served at all. `upgrade`: requests for other protocols.

pub(crate) mod gate;
pub(crate) mod upgrade;

use std::sync::Arc;

use http::body::read::{self, BodyRules};
use http::body::request_body::RequestBody;
use http::memory::MemoryAccount;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request};

use crate::config::Config;
use crate::error::CallError;
use crate::tag;
use crate::upstream::trailers;

/// Reads a request of an agent, whole or up to the bound of what is kept.
///
/// # Errors
/// [`CallError`] if the announced length exceeds its bound, there is no memory for the body, it
/// breaks off or comes too slowly, or that of a generating route cannot be decoded.
pub(crate) async fn read(
    request: Request<Incoming>,
    config: &Config,
    memory: &Arc<MemoryAccount>,
) -> Result<(Parts, RequestBody), CallError> {
    let rules = BodyRules {
        limits: config.request_limits(),
        wait: config.body_wait,
        is_required: tag::route_of(request.method(), request.uri().path()).generates(),
        clean_trailers: trailers::clean,
    };
    Ok(read::read(request, rules, memory).await?)
}

/// Encodings of text in which JSON has the bytes of UTF-8, but for the letters within its texts.
const ASCII_ENCODINGS: [&str; 7] =
    ["utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252"];

/// The body of a request, if it is a JSON object. The beginning of a longer body is none, though it
/// may look like one: what is sent on is not what was read.
///
/// # Errors
/// [`CallError`] if it is one beyond the bounds of JSON, or in another encoding than UTF-8. That
/// holds on every route: a body that is not read keeps its place in the upstream's queue.
pub(crate) fn json(head: &Parts, body: &RequestBody) -> Result<Option<wire::Request>, CallError> {
    if body.rest.is_some() {
        return Ok(None);
    }
    let read = wire::Request::read(&body.decoded);
    if read.is_none() && wire::Request::is_beyond_bounds(&body.decoded) {
        return Err(CallError::TooComplex);
    }

    // Servers guess the encoding by the first bytes, or go by what the head says of it.
    let is_foreign = read.is_none() && wire::Request::is_in_another_encoding(&body.decoded);
    let takes_json = || {
        let path = tag::path_of(head.uri.path());
        read.is_some() || wire::takes_json(head.method.as_str(), path)
    };
    if is_foreign || names_another_encoding(&head.headers) && takes_json() {
        return Err(CallError::NotUtf8);
    }
    Ok(read)
}

/// True if a content type names an encoding in which JSON has other bytes than in UTF-8.
fn names_another_encoding(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    types.any(|value| {
        let parameters = value.as_bytes().split(|byte| *byte == b';').skip(1);
        parameters.filter_map(charset).any(|named| {
            !ASCII_ENCODINGS.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(named))
        })
    })
}

/// The encoding that a parameter of a content type names.
fn charset(parameter: &[u8]) -> Option<&[u8]> {
    let equals = parameter.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (parameter[..equals].trim_ascii(), parameter[equals + 1..].trim_ascii());
    let value = value.strip_prefix(b"\"").unwrap_or(value);
    let value = value.strip_suffix(b"\"").unwrap_or(value);
    name.eq_ignore_ascii_case(b"charset").then_some(value)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn head(path: &str, content_type: &str) -> Parts {
        let head = Request::post(path).header(CONTENT_TYPE, content_type);
        head.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_body_beyond_the_bounds_of_json_is_refused_on_every_route() {
        let head = head("/v1/embeddings", "application/json");
        let fields: Vec<String> = (0..5000).map(|n| format!("\"f{n}\":1")).collect();
        let many = Bytes::from(format!("{{{}}}", fields.join(",")));
        for is_required in [true, false] {
            let body = RequestBody { decoded: many.clone(), is_required, ..RequestBody::default() };
            assert!(matches!(json(&head, &body), Err(CallError::TooComplex)), "{is_required}");
        }
        let text = RequestBody { decoded: Bytes::from_static(b"text"), ..RequestBody::default() };
        assert!(matches!(json(&head, &text), Ok(None)));
    }

    fn read(
        path: &str,
        content_type: &str,
        body: &'static [u8],
    ) -> Result<Option<wire::Request>, CallError> {
        let decoded = Bytes::from_static(body);
        json(&head(path, content_type), &RequestBody { decoded, ..RequestBody::default() })
    }

    #[test]
    fn json_in_another_encoding_is_refused_on_every_route() {
        for body in [&b"\xef\xbb\xbf{}"[..], b"{\0}\0", b"\0{\0}", b"\xff\xfe{\0}\0"] {
            for path in ["/e/a/v1/chat/completions", "/v1/files"] {
                let refused = read(path, "application/json", body);
                assert!(matches!(refused, Err(CallError::NotUtf8)), "{path} {body:?}");
            }
        }
    }

    #[test]
    fn no_content_type_names_another_encoding() {
        let chat = "/e/a/v1/chat/completions";
        for named in ["utf-16", "UTF-7", "\"cp037\"", "shift_jis"] {
            let content_type = format!("application/json; Charset={named}");
            for body in [&b"{}"[..], b"+AHs-"] {
                let refused = read(chat, &content_type, body);
                assert!(matches!(refused, Err(CallError::NotUtf8)), "{named} {body:?}");
            }
        }
        for named in ["utf-8", "\"UTF8\"", "us-ascii"] {
            let content_type = format!("application/json;charset={named}");
            assert!(matches!(read(chat, &content_type, b"{}"), Ok(Some(_))), "{named}");
        }
    }

    #[test]
    fn what_is_no_json_goes_on() {
        let broken = read("/v1/completions", "application/json", b"{\"a\": \"\xff\xfe");
        assert!(matches!(broken, Ok(None)));
        let form = "multipart/form-data; boundary=b; charset=utf-16";
        assert!(matches!(read("/v1/files", form, b"--b\r\n{"), Ok(None)));
    }
}
