//! The owner of a call, which keeps the conversations of agents apart.

use http::headers;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// Anthropic's header for an API key.
const API_KEY: &str = "x-api-key";

/// The credentials of a call; empty if it has none.
pub(crate) fn owner(headers: &HeaderMap) -> &str {
    let credentials = headers.get(AUTHORIZATION).or_else(|| headers.get(API_KEY));
    credentials.and_then(headers::text).unwrap_or("")
}
