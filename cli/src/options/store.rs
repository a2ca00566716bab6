//! `--store`.

use store::Location;

use super::{defaults, parse};

/// The store that a command reads or writes.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// The recording: a file or a database
    ///
    /// A database is named as postgres://USER@HOST/NAME.
    #[arg(
        long = "store",
        value_name = "STORE",
        default_value = defaults::STORE,
        env = "ROLLTAPE_STORE",
        value_parser = parse::location,
        hide_env_values = true
    )]
    pub(crate) location: Location,
}
