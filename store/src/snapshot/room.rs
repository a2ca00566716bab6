//! The memory that calls take once they are read. Beside a recorder it is borrowed, so that no
//! reader takes what the calls of agents need.

use std::any::Any;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use crate::database::query::query;
use crate::error::SnapshotError;
use crate::log::reader::HELD_BYTES_MAX;
use crate::snapshot::Snapshot;
use crate::snapshot::sealed::CallsHolder;

/// Memory that is borrowed. It is given back when this is dropped.
pub type Loan = Box<dyn Any + Send>;

/// Lends memory to those who read attempts beside a recorder.
pub trait ReadingRoom: Debug + Send + Sync {
    /// The most that one reader may have, in bytes.
    fn bytes_max(&self) -> u64;

    /// Waits until so many bytes are free.
    ///
    /// # Errors
    /// [`NoRoom`] if they are not lent.
    fn lend(&self, bytes: u64) -> Lending<'_>;
}

/// A loan that is waited for.
pub type Lending<'a> = Pin<Box<dyn Future<Output = Result<Loan, NoRoom>> + Send + 'a>>;

/// The reason for which memory is not lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// It is more than one reader may have.
    TooLarge,
    /// Others have it, and the reader waits no longer.
    Taken,
}

/// The sizes of what is stored of an attempt: bytes of its logs, decoded; ids of its prompts and
/// choices; bytes of the arrays beside them; and its bodies.
const SIZES: &str = "SELECT \
    (SELECT CAST(coalesce(sum(s.length), 0) AS BIGINT) FROM segment s JOIN reel r \
     USING (reel_key) WHERE r.episode_key = $1) AS logs, \
    (SELECT CAST(coalesce(sum(p.tokens), 0) AS BIGINT) FROM prompt p JOIN call c \
     USING (call_key) WHERE c.episode_key = $1) AS prompts, \
    (SELECT CAST(coalesce(sum(k.tokens), 0) AS BIGINT) FROM choice k JOIN call c \
     USING (call_key) WHERE c.episode_key = $1) AS choices, \
    (SELECT CAST(coalesce(sum(s.length), 0) AS BIGINT) FROM side s JOIN call c \
     USING (call_key) WHERE c.episode_key = $1) AS sides, \
    count(*) AS bodies, CAST(coalesce(max(b.length), 0) AS BIGINT) AS longest, \
    CAST(coalesce(sum(b.length), 0) AS BIGINT) AS bytes \
    FROM (SELECT request_body AS body_key FROM call WHERE episode_key = $1 UNION ALL \
     SELECT reply_body FROM call WHERE episode_key = $1) AS own JOIN body b USING (body_key)";

/// Bytes that a body takes beside those of the logs: its row, its extents, its call.
const BODY_BYTES: u64 = 4096;
/// Copies of the longest body while it is read, unless a reader makes fewer: its bytes, those of
/// the two before it, its values, the message of a row, the row as it is written, and what these
/// grow by.
pub(super) const COPIES: u64 = 8;
/// The part of all bodies that the numbers of their messages take, and the most of it.
const NUMBERS_PART: u64 = 8;
const NUMBERS_BYTES_MAX: u64 = 64 << 20;

impl Snapshot {
    /// Borrows the memory of what is read from here on.
    #[must_use]
    pub fn in_room(mut self, room: Arc<dyn ReadingRoom>) -> Self {
        self.room = Some(room);
        self
    }

    /// The most memory that this reader may have, in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.room.as_ref().map_or(u64::MAX, |room| room.bytes_max())
    }

    /// Gives back the memory of the attempts that were read. Their calls must be gone.
    pub fn give_back(&mut self) {
        self.loans.clear();
    }

    /// Borrows memory for so many copies of what is new in an attempt whenever its calls are read,
    /// for a document that has all of it. It is one loan: a reader that waits for a second one may
    /// wait for itself.
    pub fn copy_logs(&mut self, copies: u64) {
        self.log_copies = copies;
    }

    /// Borrows memory for so many copies of the longest body of an attempt whenever its calls are
    /// read, for a reader that makes no rows of it. They hold its bytes and those of the two before
    /// it.
    pub fn copy_bodies(&mut self, copies: u64) {
        self.body_copies = copies;
    }

    /// Borrows so many bytes; false if they are more than this reader may have.
    pub async fn borrow_bytes(&mut self, bytes: u64) -> bool {
        let Some(room) = self.room.clone() else { return true };
        let loan = room.lend(bytes).await;
        let is_lent = loan.is_ok();
        self.loans.extend(loan);
        is_lent
    }

    /// Borrows the memory that the calls of an attempt take.
    pub(super) async fn borrow_room(&mut self, episode_key: i64) -> Result<(), SnapshotError> {
        let Some(room) = self.room.clone() else { return Ok(()) };
        let bytes = self.reading_bytes(episode_key).await?;
        let bytes_max = room.bytes_max();
        let loan = room.lend(bytes).await.map_err(|reason| match reason {
            NoRoom::TooLarge => SnapshotError::TooLarge { bytes, bytes_max },
            NoRoom::Taken => SnapshotError::RoomTaken,
        })?;
        self.loans.push(loan);
        Ok(())
    }

    /// The memory that the calls of an attempt, and rows of them, take at most, estimated from what
    /// the store says of their lengths.
    async fn reading_bytes(&mut self, episode_key: i64) -> Result<u64, SnapshotError> {
        let CallsHolder { part, key, .. } = self.holder(episode_key).await?;
        let row = query(SIZES).bind(key).fetch_one(&mut part.connection).await?;
        let size = |name| Ok::<_, SnapshotError>(row.try_get::<i64>(name)?.unsigned_abs());

        // Logs are decoded from their compressed bytes. The first bodies are held. Tokens are in
        // the calls and in a row.
        let (logs, bytes) = (size("logs")?, size("bytes")?);
        let numbers = (bytes / NUMBERS_PART).min(NUMBERS_BYTES_MAX);
        let tokens = size("prompts")? * 8 + size("choices")? * 32 + size("sides")? * 2;
        let bodies = size("bodies")? * BODY_BYTES + bytes.min(HELD_BYTES_MAX as u64);
        let copies = logs * self.log_copies;
        Ok(logs
            + logs / 4
            + copies
            + bodies
            + tokens
            + numbers
            + size("longest")? * self.body_copies)
    }
}
