//! Opening a store in either database.

use crate::database::connection::StoreConnection;
use crate::error::OpenError;
use crate::location::Location;
use crate::types::Durability;
use crate::writer::loss::finalize_marks;
use crate::writer::session::WriterSession;
use crate::{postgres, sqlite};

/// Opens a store to record into it, making it if it is not there.
pub(crate) async fn for_recording(
    at: &Location,
    durability: Durability,
) -> Result<(StoreConnection, WriterSession), OpenError> {
    let (mut connection, session) = match at {
        Location::File(path) => {
            let path = &sqlite::open::without_link(path);
            let (local, lock) = sqlite::open::for_recording(path, durability).await?;
            let session = WriterSession::of_file(path, durability, lock);
            (StoreConnection::Local(local), session)
        }
        Location::Server(options) => {
            let (connection, session) = postgres::for_recording(options, durability).await?;
            (connection, WriterSession::Postgres(session))
        }
    };

    // A writer of this number that died may have lost calls.
    finalize_marks(&mut connection, session.writer())
        .await
        .map_err(|error| OpenError::Database(at.to_string(), error))?;
    Ok((connection, session))
}

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
