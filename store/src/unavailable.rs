//! Faults that keep the whole store from being written, as against faults of a single record.

use std::error::Error as StdError;

use sqlx::postgres::PgDatabaseError;
use thiserror::Error;

/// The reasons for which no record can be written at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StoreUnavailable {
    /// No space is left, or a quota is used up.
    #[error("the disk that holds the store is full")]
    Full,
    /// The file or its file system takes no writes.
    #[error("the store's file is read-only")]
    ReadOnly,
    /// Reading or writing failed.
    #[error("the disk that holds the store fails")]
    Disk,
    /// Another process writes for longer than a commit waits.
    #[error("another process holds the store's write lock")]
    Busy,
    /// The file does not hold what was written.
    #[error("the store's file is damaged; `rolltape verify` says where")]
    Damaged,
    /// The open files are no longer at their path, so nobody would find new records.
    #[error("the store's files were moved or deleted; put them back, or restart rolltape")]
    Moved,
    /// The server does not answer, or takes no more connections.
    #[error("the database server cannot be reached")]
    Gone,
}

/// The text of a cause of a failure that is an error of a store's database: one sentence, without
/// the words of drivers. `None` where the cause is another error.
#[must_use]
pub fn database_cause(cause: &(dyn StdError + 'static)) -> Option<String> {
    use StoreUnavailable::{Busy, Full, ReadOnly};

    let error = cause.downcast_ref::<sqlx::Error>()?;
    // Of the other reasons the driver knows more.
    match StoreUnavailable::of(error) {
        Some(reason @ (Busy | Full | ReadOnly)) => Some(reason.to_string()),
        _ => Some(match error {
            sqlx::Error::AnyDriverError(inner) => inner.to_string(),
            sqlx::Error::Database(inner) => inner.message().to_owned(),
            other => other.to_string(),
        }),
    }
}

impl StoreUnavailable {
    /// Classifies an error of the database; `None` where the record itself is at fault.
    pub(crate) fn of(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Database(error) => {
                Self::of_sqlstate(error.try_downcast_ref::<PgDatabaseError>()?.code())
            }
            sqlx::Error::AnyDriverError(error) => {
                let code = error.downcast_ref::<rusqlite::Error>()?.sqlite_error()?.extended_code;
                Self::of_result_code(code)
            }
            // The connection broke. `Error::Protocol` is not listed: sqlx uses it for statements
            // that it refuses to send, and those are the record's own fault.
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) => Some(Self::Gone),
            _ => None,
        }
    }

    /// By SQLite's result code (<https://sqlite.org/rescode.html>); the low byte is the primary
    /// code.
    fn of_result_code(code: i32) -> Option<Self> {
        Some(match code & 0xff {
            5 | 6 => Self::Busy,
            8 => Self::ReadOnly,
            10 | 14 | 15 => Self::Disk,
            11 | 26 => Self::Damaged,
            13 => Self::Full,
            _ => return None,
        })
    }

    /// By PostgreSQL's SQLSTATE. Deadlocks are left out: each record of the group succeeds alone.
    fn of_sqlstate(state: &str) -> Option<Self> {
        Some(match state {
            "53100" => Self::Full,
            "25006" => Self::ReadOnly,
            "58030" => Self::Disk,
            "55P03" | "57014" => Self::Busy,
            "XX001" | "XX002" => Self::Damaged,
            // Connections, resources, a server that stops, crashes or starts.
            _ if ["08", "53", "57P"].iter().any(|class| state.starts_with(class)) => Self::Gone,
            _ => return None,
        })
    }

    /// True where another record of the same group may succeed: a smaller one, or one whose pages
    /// are sound.
    pub(crate) fn may_spare_others(self) -> bool {
        matches!(self, Self::Full | Self::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_the_client_refuses_is_one_records_own_fault() {
        let too_wide = sqlx::Error::Protocol("too many arguments".into());
        assert_eq!(StoreUnavailable::of(&too_wide), None);
        let cut = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert_eq!(StoreUnavailable::of(&cut), Some(StoreUnavailable::Gone));
    }
}
