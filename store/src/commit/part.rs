//! Parts of a transaction, each kept or undone by itself.

use crate::database::connection::StoreConnection;
use crate::error::CommitError;

/// Ends a part of the transaction. What the store's rules refused is undone.
pub(super) async fn end_part<T>(
    connection: &mut StoreConnection,
    written: Result<T, CommitError>,
) -> Result<T, CommitError> {
    match written {
        Ok(_) => connection.keep_part().await?,
        // Then the transaction is lost anyway.
        Err(CommitError::Database(_)) => {}
        Err(_) => connection.undo_part().await?,
    }
    written
}
