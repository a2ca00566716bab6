//! Opening a store in either database.

use std::path::Path;

use crate::database::connection::StoreConnection;
use crate::database::local::LocalConnection;
use crate::database::offloaded::{OffloadedConnection, offload};
use crate::error::OpenError;
use crate::location::Location;
use crate::{postgres, sqlite};

/// Opens a store beside its recorders, to write single records.
pub(crate) async fn for_editing(at: &Location) -> Result<StoreConnection, OpenError> {
    match at {
        Location::File(path) => open_file(path, sqlite::open::for_editing).await,
        Location::Server(server) => postgres::for_editing(server).await,
    }
}

/// Opens a store for reading only.
pub(crate) async fn for_reading(at: &Location) -> Result<StoreConnection, OpenError> {
    match at {
        Location::File(path) => open_file(path, sqlite::open::for_reading).await,
        Location::Server(server) => postgres::for_reading(server).await,
    }
}

/// Opens a store for reading only. A file is read in the caller's own thread.
pub(crate) async fn for_local_reading(at: &Location) -> Result<StoreConnection, OpenError> {
    match at {
        Location::File(path) => sqlite::open::for_reading(path).map(StoreConnection::Local),
        Location::Server(_) => for_reading(at).await,
    }
}

/// Opens a segment that is at hand, in the caller's own thread where it says so.
pub(crate) async fn for_segment(path: &Path, here: bool) -> Result<StoreConnection, OpenError> {
    match here {
        true => sqlite::open::for_segment(path).map(StoreConnection::Local),
        false => open_file(path, sqlite::open::for_segment).await,
    }
}

async fn open_file(
    path: &Path,
    open: fn(&Path) -> Result<LocalConnection, OpenError>,
) -> Result<StoreConnection, OpenError> {
    let local = beside(path, open).await?;
    Ok(StoreConnection::Offloaded(OffloadedConnection::new(local)))
}

/// Opens a file on a thread for work that blocks.
pub(crate) async fn beside<T: Send + 'static>(
    path: &Path,
    open: impl FnOnce(&Path) -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    let owned = path.to_owned();
    offload(move || open(&owned))
        .await
        .map_err(|error| OpenError::Database(path.display().to_string(), error))?
}
