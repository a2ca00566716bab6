//! A call as its handler receives it: head, query, path parameter and whole body.

use bytes::Bytes;
use http::api::query::Query;
use http::api::route::{BodyFields, Route};
use http::api::schema::Field;
use http::body::read::read_whole;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Request};

use super::error::ApiError;
use super::fields::Fields;
use super::json_room::{JsonLease, JsonRoom};
use crate::bounds::{BODY_IDLE_WAIT, JSON_BYTES_MAX, REQUEST_ID_BYTES_MAX, WEIGHT_BYTES_MAX};

/// The header by which a proxy says with whom a caller may share prefixes.
const CACHE_SCOPE: &str = "x-rolltape-cache-scope";

/// The content type of a body that is a file of weights.
pub(crate) const WEIGHTS_TYPE: &str = "application/octet-stream";

/// A call whose body was read.
pub(crate) struct HttpCall {
    head: Parts,
    /// The bytes of the body; empty for a GET, whose body is not read.
    pub(crate) body: Bytes,
    /// The part of the path that the route leaves open, such as the name of a model.
    pub(crate) parameter: String,
    /// The fields that the route declares.
    declared: &'static [&'static [Field]],
    /// The memory that the values of the body may take.
    lease: JsonLease,
}

impl HttpCall {
    /// Reads the body of a request to `route`.
    ///
    /// # Errors
    /// 413 for a body over the limit, 400 for one that ends early, 408 for one that stands still.
    pub(crate) async fn read<H>(
        request: Request<Incoming>,
        parameter: String,
        route: &'static Route<H>,
        room: &JsonRoom,
    ) -> Result<HttpCall, ApiError> {
        let declared = match route.body {
            Some(BodyFields::Groups(groups)) => groups,
            _ => &[],
        };
        let has_weights = route.other_body.is_some() && is_binary(request.headers());
        let limit = if has_weights { WEIGHT_BYTES_MAX } else { JSON_BYTES_MAX };

        let (head, body) = match *request.method() {
            Method::GET => (request.into_parts().0, Bytes::new()),
            _ => read_whole(request, limit, BODY_IDLE_WAIT).await?,
        };
        let lease = if has_weights { JsonLease::default() } else { room.reserve(&body).await? };
        Ok(HttpCall { head, body, parameter, declared, lease })
    }

    /// Parses the query string, in which each name may stand once.
    pub(crate) fn query(&self) -> Result<Query, ApiError> {
        self.query_with_lists(&[])
    }

    /// Parses the query string, in which only the names `lists` may be repeated.
    pub(crate) fn query_with_lists(&self, lists: &[&str]) -> Result<Query, ApiError> {
        Ok(Query::with_lists(self.head.uri.query(), lists)?)
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

    /// Returns the scope of prefixes that the caller's proxy names, perhaps with an attempt.
    pub(crate) fn cache_scope(&self) -> Option<&str> {
        self.head.headers.get(CACHE_SCOPE)?.to_str().ok().filter(|scope| !scope.is_empty())
    }

    /// Parses the body, which must be a JSON object, and drops it.
    pub(crate) fn fields(self) -> Result<Fields, ApiError> {
        let fields = Fields::parse(&self.body)?.declared_as(self.declared)?;
        Ok(fields.with_cache_scope(self.cache_scope()).holding(self.lease))
    }

    /// Parses the body, where an empty body stands for `{}`.
    pub(crate) fn fields_or_empty(self) -> Result<Fields, ApiError> {
        match self.body.iter().all(u8::is_ascii_whitespace) {
            true => Fields::default().declared_as(self.declared),
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
    content_type.is_some_and(|value| value.starts_with(WEIGHTS_TYPE))
}
