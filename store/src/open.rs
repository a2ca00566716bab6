//! Opening a store in either database.

use crate::database::connection::StoreConnection;
use crate::error::OpenError;
use crate::location::Location;
use crate::{postgres, sqlite};

/// Opens a store beside its recorders, to write single records.
pub(crate) async fn for_editing(at: &Location) -> Result<StoreConnection, OpenError> {
    match at {
        Location::File(path) => sqlite::open::for_editing(path).await.map(StoreConnection::Sqlite),
        Location::Server(options) => postgres::for_editing(options).await,
    }
}

/// Opens a store for reading only.
pub(crate) async fn for_reading(at: &Location) -> Result<StoreConnection, OpenError> {
    match at {
        Location::File(path) => sqlite::open::for_reading(path).await.map(StoreConnection::Sqlite),
        Location::Server(options) => postgres::for_reading(options).await,
    }
}

/// Opens a store for reading only. A file is read in the caller's own thread.
pub(crate) async fn for_local_reading(at: &Location) -> Result<StoreConnection, OpenError> {
    match at {
        Location::File(path) => {
            sqlite::open::for_local_reading(path).await.map(StoreConnection::Local)
        }
        Location::Server(_) => for_reading(at).await,
    }
}
