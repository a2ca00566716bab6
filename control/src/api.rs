//! HTTP for listeners of JSON: who asks, bodies and queries, replies, suggestions.

pub(crate) mod body;
pub(crate) mod door;
pub(crate) mod reply;
pub(crate) mod schema;
pub(crate) mod suggest;
