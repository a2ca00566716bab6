//! The subcommands that keep a store in order: `verify`, `prune`, `backup`, `scan`,
//! `redact`, `publish`, `index`, `seal`.

pub(crate) mod backup;
pub(crate) mod index;
pub(crate) mod prune;
pub(crate) mod publish;
pub(crate) mod redact;
pub(crate) mod scan;
pub(crate) mod seal;
mod secrets;
pub(crate) mod verify;
