//! Requests of agents, read whole within bounds of size and time.
//!
//! - `gate`: the requests that are served at all. `upgrade`: requests for other protocols.

pub(crate) mod gate;
pub(crate) mod upgrade;

use std::sync::Arc;

use http::body::read::{self, BodyRules};
use http::body::request_body::RequestBody;
use http::memory::MemoryAccount;
use hyper::Request;
use hyper::body::Incoming;
use hyper::http::request::Parts;

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

/// The body of a request, if it is a JSON object. The beginning of a longer body is none, though it
/// may look like one: what is sent on is not what was read.
///
/// # Errors
/// [`CallError::TooComplex`] if it is one beyond the bounds of JSON. That holds on every route: a
/// body that is not read keeps its place in the upstream's queue.
pub(crate) fn json(body: &RequestBody) -> Result<Option<wire::Request>, CallError> {
    if body.rest.is_some() {
        return Ok(None);
    }
    let read = wire::Request::read(&body.decoded);
    if read.is_none() && wire::Request::is_beyond_bounds(&body.decoded) {
        return Err(CallError::TooComplex);
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_body_beyond_the_bounds_of_json_is_refused_on_every_route() {
        let fields: Vec<String> = (0..5000).map(|n| format!("\"f{n}\":1")).collect();
        let many = Bytes::from(format!("{{{}}}", fields.join(",")));
        for is_required in [true, false] {
            let body = RequestBody { decoded: many.clone(), is_required, ..RequestBody::default() };
            assert!(matches!(json(&body), Err(CallError::TooComplex)), "{is_required}");
        }
        let text = RequestBody { decoded: Bytes::from_static(b"text"), ..RequestBody::default() };
        assert!(matches!(json(&text), Ok(None)));
    }
}
