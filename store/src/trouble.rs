//! What keeps the whole store from being written, told from what is wrong with one record.

use sqlx::postgres::PgDatabaseError;
use thiserror::Error;

/// Why nothing can be written at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Trouble {
    /// No space, or a quota is used up.
    #[error("the disk that holds the store is full")]
    Full,
    /// The file or its file system takes no writes.
    #[error("the store's file is read-only")]
    ReadOnly,
    /// Reading or writing failed.
    #[error("the disk that holds the store fails")]
    Disk,
    /// Somebody else writes for longer than a commit waits.
    #[error("another process holds the store's write lock")]
    Busy,
    /// What is read is not what was written.
    #[error("the store's file is damaged; `rolltape verify` says where")]
    Damaged,
    /// What would be written, nobody would find.
    #[error("the store's files were moved or deleted; put them back, or restart rolltape")]
    Moved,
    /// The server does not answer, or takes no more connections.
    #[error("the database server cannot be reached")]
    Gone,
}

impl Trouble {
    /// The trouble behind an error of the database; `None` where it is the record's own.
    pub(crate) fn of(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Database(error) => match error.try_downcast_ref::<PgDatabaseError>() {
                Some(error) => Self::of_state(error.code()),
                None => Self::of_code(error.code()?.parse().ok()?),
            },
            // What is between a server and us broke. An error of the protocol is none: a statement
            // that the client will not send is one, too.
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) => Some(Self::Gone),
            // The database's thread is gone; it is started again by the next commit.
            sqlx::Error::WorkerCrashed => Some(Self::Disk),
            _ => None,
        }
    }

    /// By SQLite's result codes.
    fn of_code(code: i32) -> Option<Self> {
        Some(match code & 0xff {
            5 | 6 => Self::Busy,
            8 => Self::ReadOnly,
            10 | 14 | 15 => Self::Disk,
            11 | 26 => Self::Damaged,
            13 => Self::Full,
            _ => return None,
        })
    }

    /// By PostgreSQL's SQLSTATE. A deadlock is none: of its records, each alone gets through.
    fn of_state(state: &str) -> Option<Self> {
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

    /// Whether another record of the group may fare better: a smaller one, one elsewhere.
    pub(crate) fn may_spare_others(self) -> bool {
        matches!(self, Self::Full | Self::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_will_not_send_is_one_records_own_trouble() {
        let too_wide = sqlx::Error::Protocol("too many arguments".into());
        assert_eq!(Trouble::of(&too_wide), None);
        let cut = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert_eq!(Trouble::of(&cut), Some(Trouble::Gone));
    }
}
