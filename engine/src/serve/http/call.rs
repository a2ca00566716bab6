//! A call as its handler receives it: head, query, path parameter and whole body.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Request};

use super::error::ApiError;
use super::fields::{Field, Fields};
use super::json_room::{JsonLease, JsonRoom};
use super::query::Query;
use crate::bounds::{BODY_IDLE_WAIT, JSON_BYTES_MAX, REQUEST_ID_BYTES_MAX, WEIGHT_BYTES_MAX};

/// The header by which a proxy says with whom a caller may share prefixes.
const CACHE_SCOPE: &str = "x-rolltape-cache-scope";

/// The bodies that a route takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodySpec {
    /// The fields of a JSON object, in groups that routes share.
    pub(crate) fields: &'static [&'static [Field]],
    /// True if the body may be a file of weights instead.
    pub(crate) takes_weights: bool,
}

/// A call whose body was read.
pub(crate) struct HttpCall {
    head: Parts,
    /// The bytes of the body; empty for a GET, whose body is not read.
    pub(crate) body: Bytes,
    /// The part of the path that the route leaves open, such as the name of a model.
    pub(crate) parameter: String,
    spec: &'static BodySpec,
    /// The memory that the values of the body may take.
    lease: JsonLease,
}

impl HttpCall {
    /// Reads the body of `request`.
    ///
    /// # Errors
    /// 413 for a body over the limit, 400 for one that ends early, 408 for one that stands still.
    pub(crate) async fn read(
        request: Request<Incoming>,
        parameter: String,
        spec: &'static BodySpec,
        room: &JsonRoom,
    ) -> Result<HttpCall, ApiError> {
        let (head, incoming) = request.into_parts();
        let has_weights = spec.takes_weights && is_binary(&head.headers);
        let limit = if has_weights { WEIGHT_BYTES_MAX } else { JSON_BYTES_MAX };
        let body = match head.method {
            Method::GET => Bytes::new(),
            _ => read_body(incoming, limit, BODY_IDLE_WAIT).await?,
        };
        let lease = if has_weights { JsonLease::default() } else { room.reserve(&body).await? };

        Ok(HttpCall { head, body, parameter, spec, lease })
    }

    /// Parses the query string.
    pub(crate) fn query(&self) -> Query {
        Query::parse(self.head.uri.query().unwrap_or_default())
    }

    /// True if the body is a file of weights rather than JSON.
    pub(crate) fn is_binary(&self) -> bool {
        is_binary(&self.head.headers)
    }

    /// Returns the header `x-request-id`, unless it is empty or too long.
    pub(crate) fn request_id(&self) -> Option<&str> {
        let id = self.head.headers.get("x-request-id")?.to_str().ok()?;
        is_usable_id(id).then_some(id)
    }

    /// Returns the scope of prefixes that the caller's proxy names.
    pub(crate) fn cache_scope(&self) -> Option<&str> {
        self.head.headers.get(CACHE_SCOPE)?.to_str().ok().filter(|scope| !scope.is_empty())
    }

    /// Parses the body, which must be a JSON object, and drops it.
    pub(crate) fn fields(self) -> Result<Fields, ApiError> {
        let fields = Fields::parse(&self.body)?.declared_as(self.spec.fields);
        Ok(fields.with_cache_scope(self.cache_scope()).holding(self.lease))
    }

    /// Parses the body, where an empty body stands for `{}`.
    pub(crate) fn fields_or_empty(self) -> Result<Fields, ApiError> {
        match self.body.iter().all(u8::is_ascii_whitespace) {
            true => Ok(Fields::default().declared_as(self.spec.fields)),
            false => self.fields(),
        }
    }

    /// Parses the body of a call that is answered under an id, which starts with `prefix`.
    pub(crate) fn fields_with_reply_id(self, prefix: &str) -> Result<Fields, ApiError> {
        let id = self.request_id().map(str::to_owned);
        with_reply_id(self.fields()?, id.as_deref(), prefix)
    }
}

/// Names the reply to `fields`: by the header's id, else the field's, else a new one.
pub(crate) fn with_reply_id(
    fields: Fields,
    header: Option<&str>,
    prefix: &str,
) -> Result<Fields, ApiError> {
    let field = fields.text("request_id")?.filter(|id| is_usable_id(id));
    let id = match header.or(field) {
        Some(id) => format!("{prefix}{id}"),
        None => format!("{prefix}{}", uuid::Uuid::new_v4().simple()),
    };

    Ok(fields.with_reply_id(id))
}

fn is_usable_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= REQUEST_ID_BYTES_MAX
}

fn is_binary(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.starts_with("application/octet-stream"))
}

/// Reads a body of at most `limit` bytes, between whose parts no more than `idle_wait` passes.
async fn read_body(body: Incoming, limit: usize, idle_wait: Duration) -> Result<Bytes, ApiError> {
    let mut body = Limited::new(body, limit);
    let mut whole = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(idle_wait, body.frame()).await;
        match frame.map_err(|_| ApiError::too_slow("the body stands still"))? {
            None => return Ok(whole.freeze()),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    whole.extend_from_slice(data);
                }
            }
            Some(Err(error)) if error.is::<LengthLimitError>() => {
                return Err(ApiError::too_large(limit));
            }
            Some(Err(_)) => return Err(ApiError::bad_request("the body ended early")),
        }
    }
}
