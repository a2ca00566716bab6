//! Errors of opening, writing and reading a store.

use std::error::Error as StdError;

use episode::{AttemptId, CallId, EpisodeId};
use thiserror::Error;

use crate::unavailable::{StoreUnavailable, database_cause};

/// The reasons for which a store cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no such file.
    #[error("there is no store at `{0}`")]
    Missing(String),
    /// The file is something else.
    #[error("`{0}` is not a rolltape store")]
    NotAStore(String),
    /// There is a link that leads to no store. A new store is not made at its end: whoever may
    /// write to the folder of the link could otherwise choose the place.
    #[error("`{0}` is a link, and there is no store at its end")]
    Link(String),
    /// The file cannot be made.
    #[error("cannot create `{0}`")]
    Create(String, #[source] std::io::Error),
    /// The file was written by a newer rolltape.
    #[error("`{0}` was written by a newer rolltape (format {1}); upgrade this one to read it")]
    Newer(String, i64),
    /// The file is of the last format of the earlier history.
    #[error(
        "`{0}` is of an earlier format; `rolltape backup --store {0} --to NEW.db` makes a copy \
         that this version opens"
    )]
    Former(String),
    /// The store was written by an early rolltape.
    #[error(
        "`{0}` was written by an early rolltape (format {1}), which commit ada9c43 upgrades; open \
         it once with that one, then copy it with `rolltape backup`"
    )]
    TooOld(String, i64),
    /// Another process records into the file.
    #[error("`{0}` is being recorded to by another rolltape (process {1})")]
    InUse(String, String),
    /// Another process deletes episodes from the file.
    #[error("`{0}` is being pruned by another rolltape (process {1})")]
    Pruned(String, String),
    /// The lock file that keeps out a second recorder cannot be used.
    #[error("cannot create or lock the lock file of `{0}`")]
    Lock(String, #[source] std::io::Error),
    /// The database needs a migration while an older version records to it.
    #[error("`{0}` needs a migration, and an older rolltape records to it; stop that one first")]
    OlderWriter(String),
    /// The server's database cannot hold a store.
    #[error("`{0}` cannot hold a store: {1}")]
    Unfit(String, String),
    /// All connections that readers of this process share were in use for some seconds.
    #[error("all {1} connections of readers to `{0}` are in use; ask again")]
    Busy(String, usize),
    /// The file of a segment is in a bucket that cannot be read: the file, and the bucket's URL.
    #[error("`{0}` is away in {1}, and could not be brought back")]
    Away(String, String, #[source] Box<dyn StdError + Send + Sync>),
    /// The database refused.
    #[error("cannot open the store at `{0}`")]
    Database(String, #[source] sqlx::Error),
}

/// The reasons for which a record is not on disk.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The episode was closed; a re-run uses a new attempt.
    #[error("episode `{}` attempt {} is closed", .0.episode, .0.attempt)]
    Closed(AttemptId),
    /// The attempt takes only calls with a key.
    #[error("episode `{0}` takes only calls that carry its API key")]
    NeedsKey(EpisodeId),
    /// The key was revoked, or is not on record here.
    #[error("the API key was revoked")]
    Revoked,
    /// The kind of word and the word, which control did not announce.
    #[error("the {0} `{1}` is not one that the control listener announced for this episode")]
    Announced(&'static str, String),
    /// The attempt has no room for a further label.
    #[error("an episode has at most {0} labels")]
    TooManyLabels(i64),
    /// The limit that is reached, and its unit.
    #[error("the budget of {0} {1} is spent")]
    Spent(u64, &'static str),
    /// The attempt has no room for the request; the most that it may hold, in bytes.
    #[error(
        "the attempt holds about {} MiB that are new in its calls, the most under this \
         `--memory-max`", .0 >> 20
    )]
    Full(u64),
    /// There is no such key.
    #[error("the episode has no key `{0}`")]
    UnknownKey(String),
    /// No call of this episode was recorded.
    #[error("no episode `{}` attempt {}", .0.episode, .0.attempt)]
    Unknown(AttemptId),
    /// The episode has no such call.
    #[error("the episode has no call `{0}`")]
    UnknownCall(CallId),
    /// The call may be in a segment, and was not looked for there, or the segment cannot be read.
    #[error(
        "call `{0}` was sealed, and its segment cannot be read: is the folder of segments there?"
    )]
    Sealed(CallId),
    /// The store cannot be written at the moment; nothing of the record was kept.
    #[error("cannot write to the store: {0}")]
    Unavailable(#[from] StoreUnavailable),
    /// Another reader leased one of the items first.
    #[error("another reader has leased one of the items")]
    Taken,
    /// The lease holds nothing.
    #[error("lease `{0}` holds nothing: it does not exist, or its items were handed out again")]
    NoLease(String),
    /// The call that ends has no begun record.
    #[error("call `{0}` was not begun")]
    NotBegun(CallId),
    /// The database refused the record; nothing of it was kept.
    #[error("cannot write to the store")]
    Database(#[from] sqlx::Error),
    /// The writer has stopped.
    #[error("the store is closed")]
    Stopped,
}

impl CommitError {
    /// True if the record is lost that should have been kept. The store's rules refuse others.
    pub(crate) fn is_loss(&self) -> bool {
        !matches!(
            self,
            Self::Closed(..)
                | Self::NeedsKey(_)
                | Self::Revoked
                | Self::Announced(..)
                | Self::TooManyLabels(_)
                | Self::Spent(..)
                | Self::Full(_)
        )
    }
}

/// The result of committing one record.
pub(crate) type CommitResult = Result<(), CommitError>;

/// The reasons for which a store cannot be read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database refused.
    #[error("cannot read the store")]
    Database(#[from] sqlx::Error),
    /// A stored value does not decode.
    #[error("{what} does not decode")]
    Decode {
        /// A call or an episode.
        what: String,
        /// The defect of the stored value.
        #[source]
        source: DecodeError,
    },
    /// A stored word is not one that this version writes.
    #[error("`{0}` is not a known {1}")]
    Word(String, &'static str),
    /// The calls of an attempt take more memory than a reader may have.
    #[error(
        "its calls take about {} MiB, and readers of a recorder have {} MiB: give it more \
         `--memory-max`, or read the store with `rolltape export`", bytes >> 20, bytes_max >> 20
    )]
    TooLarge {
        /// Bytes that they take.
        bytes: u64,
        /// The most that one reader may have, in bytes.
        bytes_max: u64,
    },
    /// The segment of an attempt does not hold it any more.
    #[error(
        "episode `{0}` attempt {1} was removed from its segment; the next `rolltape seal` removes \
         it from the store"
    )]
    NotInSegment(String, i64),
    /// Others have the memory that the calls of an attempt take, and the reader waits no longer.
    #[error("too much memory is in use; try again in a second")]
    RoomTaken,
    /// The database does not take a question in SQL.
    #[error("the store does not take this question: {0}")]
    Question(String),
}

/// The defects of stored bytes.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// Written in a way this build does not know.
    #[error("encoding {0} is not known to this version")]
    Encoding(i64),
    /// The compressed frame is damaged.
    #[error("the compressed frame is damaged")]
    Frame,
    /// It refers to something that is not in its episode's log.
    #[error("it refers to something that is not in the log")]
    Log,
    /// Other bytes than were written.
    #[error("it is not what was written: the hash differs")]
    Hash,
    /// Fewer or more bytes than were written.
    #[error("{found} bytes where {expected} were written")]
    Length {
        /// Bytes written.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
}

/// The reasons for which a body or token ids cannot be read back.
#[derive(Debug, Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl ReadError {
    /// The same error, naming the call or episode that was read.
    pub(crate) fn while_reading(self, what: String) -> SnapshotError {
        match self {
            Self::Database(error) => error.into(),
            Self::Decode(source) => SnapshotError::Decode { what, source },
        }
    }

    /// The same error, naming the call that was read.
    pub(crate) fn of_call(self, call: CallId) -> SnapshotError {
        self.while_reading(format!("call `{call}`"))
    }
}

/// An error and its causes, on one line. An error of the database is one sentence.
pub(crate) fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut texts = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let database = database_cause(error);
        next = error.source().filter(|_| database.is_none());
        texts.push(database.unwrap_or_else(|| error.to_string()));
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_database_have_no_words_of_drivers() {
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        let full = rusqlite::Error::SqliteFailure(full, Some("database or disk is full".into()));
        let error =
            OpenError::Database("a.db".to_owned(), sqlx::Error::AnyDriverError(full.into()));
        let told = "cannot open the store at `a.db`: the disk that holds the store is full";
        assert_eq!(with_causes(&error), told);
        let other = sqlx::Error::AnyDriverError("no such table: call".into());
        assert_eq!(with_causes(&other), "no such table: call");
    }
}
