//! `--store`.

use std::path::PathBuf;
use std::sync::Arc;

use store::{GatheredStore, Location};

use super::{defaults, parse};
use crate::options::secret_file;

/// The store that a command reads or writes.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// The recording: a file or a database
    ///
    /// A database is named as postgres://USER@HOST/NAME. A folder of segments can be read.
    #[arg(
        long = "store",
        value_name = "STORE",
        default_value = defaults::STORE,
        env = "ROLLTAPE_STORE",
        value_parser = parse::location,
        hide_env_values = true
    )]
    pub(crate) location: Location,
    /// The store of the segments that are in the folder of that name.
    #[arg(skip)]
    pub(super) gathered: Option<Arc<GatheredStore>>,
}
/// The place of the index of a store's texts. `None` where there is no folder for it.
pub(crate) fn text_index(store: &Location) -> Option<PathBuf> {
    beside(store, "text")
}

/// The place of a store's kept audit. `None` where there is no folder for it.
pub(crate) fn kept_audit(store: &Location) -> Option<PathBuf> {
    beside(store, "audit")
}

/// The place of a file of this kind, beside a store or in the user's folder of states.
fn beside(store: &Location, kind: &str) -> Option<PathBuf> {
    let hash = blake3::hash(store.to_string().as_bytes()).to_hex();
    let of_user = format!("rolltape/{kind}-{}", &hash[..16]);
    let variable = |name: &str| std::env::var_os(name);
    secret_file::of_store(store, &format!("-{kind}"), &of_user, &variable)
}
