//! Interfaces of JSON: a table of routes, and who may call them.
//!
//! - `route`: the table, from which dispatch, the replies 404 and 405, and the documents are made.
//! - `openapi`: the table as an OpenAPI document. `schema` reads the fields of a body off its type.
//! - `auth`: the names, the web pages and the tokens that are let in.
//! - `query`, `json`: parameters and bodies. A name that is unknown is refused with a suggestion.
//! - `reply`: documents as replies.

pub mod auth;
pub mod json;
pub mod openapi;
pub mod query;
pub mod reply;
pub mod route;
pub mod schema;
pub mod suggest;

use thiserror::Error;

/// A request that its sender must change: a sentence that says how.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct BadRequest(pub String);
