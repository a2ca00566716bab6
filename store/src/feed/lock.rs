//! The lock of the feed: of all processes that write to a database, one at a time changes it.

use crate::database::connection::StoreConnection;
use crate::database::query::query;

/// The lock. Numbers above -1 are those of writers and of the schema.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1383034988, -1)";

/// Waits for the changes of the feed by other processes, until the end of the transaction.
pub(crate) async fn lock(connection: &mut StoreConnection) -> Result<(), sqlx::Error> {
    match connection {
        StoreConnection::Postgres(_) => query(LOCK).execute(connection).await,
        // A file has one writer, and one transaction at a time.
        StoreConnection::Local(_) | StoreConnection::Offloaded(_) => Ok(()),
    }
}
