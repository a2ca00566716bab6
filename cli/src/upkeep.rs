//! The subcommands that keep a store in order: `verify`, `prune`, `backup`, `scan`.

pub(crate) mod backup;
pub(crate) mod prune;
pub(crate) mod scan;
pub(crate) mod verify;
