//! The memory of those who read a recording beside its recorder: a part of the account of calls.
//!
//! [`AccountRoom`] lends it to readers of the control listener, and [`ReadBack`] to calls that go
//! on from what was recorded.

use std::sync::Arc;

use http::memory::{self, MemoryAccount, MemoryLease};
use store::{Lending, Loan, NoRoom, ReadingRoom, Snapshot, SnapshotError, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::bounds::{READ_BACK_COPIES, READ_BACK_WAIT, READING_MEMORY_PART, READING_PIECE_BYTES};

/// Lends a part of the account. Calls have the rest at any time, so no reader waits for a call.
#[derive(Debug)]
pub(crate) struct AccountRoom {
    account: Arc<MemoryAccount>,
    /// Pieces of `READING_PIECE_BYTES` that are free.
    free: Arc<Semaphore>,
    bytes_max: u64,
}

/// Reads recorded calls back for a call that goes on from them, within the memory of readers. What
/// waits for it holds none of that memory, so no call waits for itself.
#[derive(Debug, Clone)]
pub(crate) struct ReadBack {
    store: Store,
    room: Arc<AccountRoom>,
}

/// The room of one call. It waits for readers and for the calls beside it, but not for ever.
#[derive(Debug)]
struct CallRoom {
    room: Arc<AccountRoom>,
    until: Instant,
}

impl AccountRoom {
    pub(crate) fn new(account: &Arc<MemoryAccount>) -> Self {
        let wanted = account.counts().bytes_max / READING_MEMORY_PART;
        let pieces = (wanted / READING_PIECE_BYTES).clamp(1, u64::from(u32::MAX));
        let free = Arc::new(Semaphore::new(pieces as usize));
        Self { account: Arc::clone(account), free, bytes_max: pieces * READING_PIECE_BYTES }
    }

    /// Waits for a part of the room.
    async fn part(&self, bytes: u64) -> Result<OwnedSemaphorePermit, NoRoom> {
        if bytes > self.bytes_max {
            return Err(NoRoom::TooLarge);
        }
        let pieces = bytes.div_ceil(READING_PIECE_BYTES) as u32;
        let permit = Arc::clone(&self.free).acquire_many_owned(pieces).await;
        // An error means that it is closed, which nobody does.
        permit.map_err(|_| NoRoom::Taken)
    }
}

/// A loan that ends: its pages go back to the system before another reader may have the bytes.
struct Returned(u64);

impl Drop for Returned {
    fn drop(&mut self) {
        memory::freed(self.0);
    }
}

impl ReadingRoom for AccountRoom {
    fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn lend(&self, bytes: u64) -> Lending<'_> {
        Box::pin(async move {
            let permit = self.part(bytes).await?;
            let mut lease = self.account.lease();
            lease.hold(length(bytes));
            Ok(Box::new((Returned(bytes), permit, lease)) as Loan)
        })
    }
}

impl ReadingRoom for CallRoom {
    fn bytes_max(&self) -> u64 {
        self.room.bytes_max
    }

    fn lend(&self, bytes: u64) -> Lending<'_> {
        Box::pin(async move {
            let part = timeout_at(self.until, self.room.part(bytes)).await;
            let permit = part.map_err(|_| NoRoom::Taken)??;
            let mut lease = self.room.account.lease();
            let admitted = lease.admit_until(length(bytes), self.until.into_std()).await;
            admitted.map_err(|_| NoRoom::Taken)?;
            Ok(Box::new((Returned(bytes), permit, lease)) as Loan)
        })
    }
}

impl ReadBack {
    pub(crate) fn new(store: &Store, room: &Arc<AccountRoom>) -> Self {
        Self { store: store.clone(), room: Arc::clone(room) }
    }

    /// The moment until which a call that begins to wait now waits for memory.
    pub(crate) fn until() -> Instant {
        Instant::now() + READ_BACK_WAIT
    }

    /// A view of what is on disk now. What it reads waits for memory until then.
    pub(crate) async fn open(&self, until: Instant) -> Result<Snapshot, SnapshotError> {
        Ok(self.within(self.store.snapshot().await?, until))
    }

    /// The same beside the recorder, where readers have a store of their own.
    pub(crate) async fn open_beside(&self, until: Instant) -> Result<Snapshot, SnapshotError> {
        Ok(self.within(self.store.reading().await?, until))
    }

    fn within(&self, snapshot: Snapshot, until: Instant) -> Snapshot {
        let room = CallRoom { room: Arc::clone(&self.room), until };
        let mut snapshot = snapshot.in_room(Arc::new(room));
        snapshot.copy_bodies(READ_BACK_COPIES);
        snapshot
    }

    /// An empty lease of the account, for what was read.
    pub(crate) fn lease(&self) -> MemoryLease {
        self.room.account.lease()
    }
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn call_room(room: &Arc<AccountRoom>, wait: Duration) -> CallRoom {
        CallRoom { room: Arc::clone(room), until: Instant::now() + wait }
    }

    #[tokio::test]
    async fn readers_have_a_part_of_the_account_and_wait_for_each_other() {
        let account = Arc::new(MemoryAccount::new(30 * MIB));
        let room = AccountRoom::new(&account);
        assert_eq!(room.bytes_max(), 10 * MIB);
        assert_eq!(room.lend(10 * MIB + 1).await.err(), Some(NoRoom::TooLarge));

        let first = room.lend(6 * MIB).await.ok();
        assert!(account.counts().held >= 6 * MIB);
        let second = room.lend(5 * MIB);
        let mut second = std::pin::pin!(second);
        let early = timeout(Duration::from_millis(20), &mut second).await;
        assert!(early.is_err(), "the first one has it");
        drop(first);
        assert!(second.await.is_ok());
        assert_eq!(account.counts().held, 0);
    }

    #[tokio::test]
    async fn a_call_waits_for_readers_but_not_for_ever() {
        let account = Arc::new(MemoryAccount::new(30 * MIB));
        let room = Arc::new(AccountRoom::new(&account));
        let reader = room.lend(6 * MIB).await.ok();
        let taken = call_room(&room, Duration::from_millis(20)).lend(5 * MIB).await;
        assert_eq!(taken.err(), Some(NoRoom::Taken));
        let patient = call_room(&room, Duration::from_secs(600));
        let (lent, ()) = tokio::join!(patient.lend(5 * MIB), async { drop(reader) });
        assert!(lent.is_ok() && account.counts().held >= 5 * MIB);
    }

    #[tokio::test]
    async fn a_call_reads_nothing_back_while_calls_have_the_account() {
        let account = Arc::new(MemoryAccount::new(30 * MIB));
        let room = Arc::new(AccountRoom::new(&account));
        let mut calls = account.lease();
        calls.hold(20 * MIB as usize);
        let taken = call_room(&room, Duration::from_millis(20)).lend(5 * MIB).await;
        assert_eq!(taken.err(), Some(NoRoom::Taken), "the calls may be its own");
        assert!(room.lend(5 * MIB).await.is_ok(), "readers wait for no call");
        let patient = call_room(&room, Duration::from_secs(600));
        let (lent, ()) = tokio::join!(patient.lend(5 * MIB), async { drop(calls) });
        assert!(lent.is_ok());
    }
}
