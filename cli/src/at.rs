//! Which store a command is about.

use store::Location;

use crate::words;

/// `--store`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct At {
    /// The store: a file, or a database as postgres://USER@HOST/NAME
    #[arg(
        long,
        value_name = "STORE",
        default_value = "rolltape.db",
        env = "ROLLTAPE_STORE",
        value_parser = words::location,
        hide_env_values = true
    )]
    pub(crate) store: Location,
}
