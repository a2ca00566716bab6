//! The memory of those who read a recording beside its recorder: a part of the account of calls.

use std::pin::Pin;
use std::sync::Arc;

use http::memory::{self, MemoryAccount};
use store::{Loan, ReadingRoom};
use tokio::sync::Semaphore;

use crate::bounds::{READING_MEMORY_PART, READING_PIECE_BYTES};

/// Lends a part of the account. Calls have the rest at any time, so neither side waits for the
/// other.
#[derive(Debug)]
pub(crate) struct AccountRoom {
    account: Arc<MemoryAccount>,
    /// Pieces of `READING_PIECE_BYTES` that are free.
    free: Arc<Semaphore>,
    bytes_max: u64,
}

impl AccountRoom {
    pub(crate) fn new(account: &Arc<MemoryAccount>) -> Self {
        let wanted = account.counts().bytes_max / READING_MEMORY_PART;
        let pieces = (wanted / READING_PIECE_BYTES).clamp(1, u64::from(u32::MAX));
        let free = Arc::new(Semaphore::new(pieces as usize));
        Self { account: Arc::clone(account), free, bytes_max: pieces * READING_PIECE_BYTES }
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

    fn lend(&self, bytes: u64) -> Pin<Box<dyn Future<Output = Option<Loan>> + Send + '_>> {
        Box::pin(async move {
            if bytes > self.bytes_max {
                return None;
            }
            let pieces = bytes.div_ceil(READING_PIECE_BYTES) as u32;
            // An error means that it is closed, which nobody does.
            let permit = Arc::clone(&self.free).acquire_many_owned(pieces).await.ok()?;
            let mut lease = self.account.lease();
            lease.hold(usize::try_from(bytes).unwrap_or(usize::MAX));
            Some(Box::new((Returned(bytes), permit, lease)) as Loan)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_have_a_part_of_the_account_and_wait_for_each_other() {
        let account = Arc::new(MemoryAccount::new(30 << 20));
        let room = AccountRoom::new(&account);
        assert_eq!(room.bytes_max(), 10 << 20);
        assert!(room.lend((10 << 20) + 1).await.is_none());

        let first = room.lend(6 << 20).await.unwrap();
        assert!(account.counts().held >= 6 << 20);
        let second = room.lend(5 << 20);
        let mut second = std::pin::pin!(second);
        let early = tokio::time::timeout(std::time::Duration::from_millis(20), &mut second).await;
        assert!(early.is_err(), "the first one has it");
        drop(first);
        drop(second.await.unwrap());
        assert_eq!(account.counts().held, 0);
    }
}
