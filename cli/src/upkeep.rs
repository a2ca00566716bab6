//! The subcommands that keep a store in order: `verify`, `prune`, `backup`.

pub(crate) mod backup;
pub(crate) mod prune;
pub(crate) mod verify;
