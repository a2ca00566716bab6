//! Opening a store, wherever it is.

use thiserror::Error;

use crate::link::Link;
use crate::location::Location;
use crate::seat::Seat;
use crate::{file, relaxed, server};

/// What a commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Loss of power: every commit is synced to the disk.
    #[default]
    Power,
    /// The death of the process, but not of the machine.
    Process,
    /// Nothing is waited for: what is queued when the process dies is lost, and each episode that
    /// may lack a call is marked.
    Relaxed,
}

/// Why a store could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no such file.
    #[error("there is no store at `{0}`")]
    Missing(String),
    /// The file is something else.
    #[error("`{0}` is not a rolltape store")]
    NotAStore(String),
    /// The file was written by a newer rolltape.
    #[error("`{0}` was written by a newer rolltape (format {1}); upgrade this one to read it")]
    Newer(String, i64),
    /// Somebody records into the file.
    #[error("`{0}` is being recorded to by another rolltape (process {1})")]
    InUse(String, String),
    /// Whether somebody records into the file cannot be known.
    #[error("cannot make or lock the file beside `{0}` that keeps a second recorder out")]
    Lock(String, #[source] std::io::Error),
    /// A database whose tables must change is recorded to.
    #[error(
        "`{0}` must be brought up to date, and an older rolltape records to it; stop that first"
    )]
    OlderWriter(String),
    /// The server's database cannot hold a store.
    #[error("`{0}` cannot hold a store: {1}")]
    Unfit(String, String),
    /// The database refused.
    #[error("cannot open the store at `{0}`")]
    Database(String, #[source] sqlx::Error),
}

/// Opens a store to record into it, making it if it is not there.
pub(crate) async fn for_recording(
    at: &Location,
    durability: Durability,
) -> Result<(Link, Seat), OpenError> {
    let (mut link, seat) = match at {
        Location::File(path) => {
            let (sqlite, lock) = file::for_recording(path, durability).await?;
            (Link::File(sqlite), Seat::at_file(path, durability, lock))
        }
        Location::Server(options) => {
            let (link, slot) = server::for_recording(options, durability).await?;
            (link, Seat::Server(slot))
        }
    };
    let adopted = relaxed::adopt(&mut link, seat.writer()).await;
    adopted.map_err(|error| OpenError::Database(at.to_string(), error))?;
    Ok((link, seat))
}

/// Opens a store beside whoever records into it, for statements of few words.
pub(crate) async fn for_amending(at: &Location) -> Result<Link, OpenError> {
    match at {
        Location::File(path) => file::for_amending(path).await.map(Link::File),
        Location::Server(options) => server::for_amending(options).await,
    }
}

/// Opens a store for reading only.
pub(crate) async fn for_reading(at: &Location) -> Result<Link, OpenError> {
    match at {
        Location::File(path) => file::for_reading(path).await.map(Link::File),
        Location::Server(options) => server::for_reading(options).await,
    }
}

/// The same, in the thread that asks where the store is a file.
pub(crate) async fn for_reading_here(at: &Location) -> Result<Link, OpenError> {
    match at {
        Location::File(path) => file::for_reading_here(path).await.map(Link::Near),
        Location::Server(_) => for_reading(at).await,
    }
}
