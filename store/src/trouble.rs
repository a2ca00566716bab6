//! What keeps the whole store from being written, told from what is wrong with one record.

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
    #[error("the store's file is damaged; `PRAGMA integrity_check` says where")]
    Damaged,
    /// What would be written, nobody would find.
    #[error("the store's files were moved or deleted; put them back, or restart rolltape")]
    Moved,
}

impl Trouble {
    /// The trouble behind an error of the database; `None` where it is the record's own.
    /// The numbers are SQLite's result codes.
    pub(crate) fn of(error: &sqlx::Error) -> Option<Self> {
        let code = match error {
            sqlx::Error::Database(error) => error.code()?.parse::<i32>().ok()?,
            // The database's thread is gone; it is started again by the next commit.
            sqlx::Error::WorkerCrashed => return Some(Self::Disk),
            _ => return None,
        };
        Some(match code & 0xff {
            5 | 6 => Self::Busy,
            8 => Self::ReadOnly,
            10 | 14 | 15 => Self::Disk,
            11 | 26 => Self::Damaged,
            13 => Self::Full,
            _ => return None,
        })
    }

    /// Whether another record of the group may fare better: a smaller one, one elsewhere.
    pub(crate) fn may_spare_others(self) -> bool {
        matches!(self, Self::Full | Self::Damaged)
    }
}
