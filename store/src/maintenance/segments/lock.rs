//! The lock of a store whose attempts leave it for segments: one process at a time.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::OpenError;
use crate::location::Location;
use crate::maintenance::segments::SegmentError;
use crate::sqlite::private::open_or_make;

/// Keeps another process from sealing the same file until it is dropped.
pub(super) fn lock_file(path: &Path) -> Result<File, SegmentError> {
    if !path.exists() {
        return Err(OpenError::Missing(path.display().to_string()).into());
    }
    let of_store = PathBuf::from(format!("{}-sealing", path.display()));
    let file = open_or_make(&of_store).map_err(SegmentError::io(&of_store))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(SegmentError::InUse(path.display().to_string())),
        Err(TryLockError::Error(error)) => Err(SegmentError::io(&of_store)(error)),
    }
}

/// The same for a database, until its connection is closed.
pub(super) async fn lock_server(
    at: &Location,
    connection: &mut StoreConnection,
) -> Result<(), SegmentError> {
    let free = query("SELECT pg_try_advisory_lock(1383034988, -3)");
    match free.scalar::<bool>(connection).await? {
        true => Ok(()),
        false => Err(SegmentError::InUse(at.to_string())),
    }
}
