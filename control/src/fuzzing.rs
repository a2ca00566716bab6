//! Entrances for the fuzz targets in `tests/fuzz`: bodies and queries. They exist with the feature
//! `fuzzing` only.

use http::api::json::parse;
use http::api::query::Query;
use http::api::reply::JsonReply;
use http::api::schema::fields_of;
use serde::de::DeserializeOwned;

use crate::requests::{
    AckBody, AnnounceBody, CloseBody, KeyBody, NackBody, RenewBody, RewardBody, VersionBody,
};

/// A body that a route of the control listener takes.
#[derive(Debug)]
pub struct BodyKind {
    /// Names of its fields.
    pub fields: Vec<&'static str>,
    /// Reads a body. The error is the text of the refusal.
    pub read: fn(&[u8]) -> Result<(), String>,
}

/// The bodies that the routes of the control listener take.
pub fn body_kinds() -> Vec<BodyKind> {
    vec![
        kind::<AnnounceBody>(),
        kind::<KeyBody>(),
        kind::<RewardBody>(),
        kind::<CloseBody>(),
        kind::<AckBody>(),
        kind::<NackBody>(),
        kind::<RenewBody>(),
        kind::<VersionBody>(),
    ]
}

fn kind<T: DeserializeOwned>() -> BodyKind {
    let fields = fields_of::<T>().iter().map(|field| field.name).collect();
    BodyKind { fields, read: |bytes| parse::<T>(bytes).map(drop).map_err(text) }
}

/// Reads a query; its parameters as pairs of name and value.
///
/// # Errors
/// The text of the refusal, also of a name that is not among `known`.
pub fn read_query(query: &str, known: &[&str]) -> Result<Vec<(String, String)>, String> {
    let query = Query::parse(Some(query)).map_err(text)?;
    query.check_known(known).map_err(text)?;
    Ok(query.pairs().to_vec())
}

fn text(reply: JsonReply) -> String {
    reply.body.to_string()
}
