//! The account of the memory that calls hold. Beyond its ceiling new calls are refused, and replies
//! are read no faster than memory is freed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::bounds::{
    MEMORY_ADMIT_SHARE, MEMORY_FREED_BYTES_MAX, MEMORY_PIECE_BYTES, MEMORY_POLL_WAIT,
    MEMORY_REPLY_SHARE, MEMORY_REPLY_WAIT,
};

/// Has the process's allocator give back the pages that nobody uses. There is one allocator.
static GIVE_BACK: OnceLock<fn()> = OnceLock::new();
/// Bytes that were freed since it last did.
static FREED: AtomicU64 = AtomicU64::new(0);

/// Sets how the process's allocator gives back the pages that nobody uses; without it they stay
/// resident. Only the first call counts.
pub fn give_back_with(give_back: fn()) {
    let _ = GIVE_BACK.set(give_back);
}

/// Notes that what held so many bytes of the account is freed. An allocator keeps the pages of
/// large blocks, which the account does not see: after `MEMORY_FREED_BYTES_MAX` they are given
/// back.
pub fn freed(bytes: u64) {
    let Some(give_back) = GIVE_BACK.get() else { return };
    if FREED.fetch_add(bytes, Ordering::Relaxed) + bytes >= MEMORY_FREED_BYTES_MAX {
        FREED.store(0, Ordering::Relaxed);
        give_back();
    }
}

/// The memory of all calls of a process, in bytes.
#[derive(Debug)]
pub struct MemoryAccount {
    bytes_max: u64,
    held: AtomicU64,
    shed: AtomicU64,
    /// True while a reply uses what is left to one of them.
    last_part_is_taken: AtomicBool,
}

/// The state of the account, for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryCounts {
    /// Bytes that are held.
    pub held: u64,
    /// Bytes that may be held.
    pub bytes_max: u64,
    /// Calls that were refused because the account was full.
    pub shed: u64,
}

/// The part of the account that one body or one reply holds. It is given back when this is dropped.
#[derive(Debug)]
pub struct MemoryLease {
    account: Arc<MemoryAccount>,
    /// Bytes on the account.
    charged: u64,
    /// True if it may use the last part of the account.
    has_last_part: bool,
}

/// The account has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryFull;

impl MemoryAccount {
    /// An account of at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        let (held, shed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { bytes_max, held, shed, last_part_is_taken: AtomicBool::new(false) }
    }

    /// An empty lease.
    pub fn lease(self: &Arc<Self>) -> MemoryLease {
        MemoryLease { account: Arc::clone(self), charged: 0, has_last_part: false }
    }

    /// Counts a call that was refused because the account was full.
    pub fn count_shed(&self) {
        self.shed.fetch_add(1, Ordering::Relaxed);
    }

    /// The state of the account.
    pub fn counts(&self) -> MemoryCounts {
        MemoryCounts {
            held: self.held.load(Ordering::Relaxed),
            bytes_max: self.bytes_max,
            shed: self.shed.load(Ordering::Relaxed),
        }
    }

    /// The bytes that a share of the account has.
    fn part(&self, (of, parts): (u64, u64)) -> u64 {
        self.bytes_max / parts * of
    }
}

impl MemoryLease {
    /// Notes that `bytes` are held in all. Small growth is not noted at once.
    pub fn hold(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if bytes > self.charged {
            self.charge(rounded(bytes));
        }
    }

    /// Notes that no more than `bytes` are held.
    pub fn shrink(&mut self, bytes: usize) {
        let kept = rounded(bytes as u64);
        if kept < self.charged {
            self.charge(kept);
        }
    }

    /// Notes that a new call will hold `bytes` in all.
    ///
    /// # Errors
    /// [`MemoryFull`] if the account has no room for it: some is left to the calls under way.
    pub fn admit(&mut self, bytes: usize) -> Result<(), MemoryFull> {
        let bytes = bytes as u64;
        if bytes <= self.charged && bytes > 0 {
            return Ok(());
        }
        let wanted = rounded(bytes);
        if !self.has_room(wanted) {
            self.account.count_shed();
            return Err(MemoryFull);
        }
        self.charge(wanted);
        Ok(())
    }

    /// Waits until a call under way may hold `bytes` in all, as a new one would have to.
    ///
    /// # Errors
    /// [`MemoryFull`] if the account has no room for it until then.
    pub async fn admit_until(&mut self, bytes: usize, until: Instant) -> Result<(), MemoryFull> {
        while !self.has_room(rounded(bytes as u64)) && Instant::now() < until {
            tokio::time::sleep(MEMORY_POLL_WAIT).await;
        }
        self.admit(bytes)
    }

    /// True if a new call may hold `bytes`.
    fn has_room(&self, bytes: u64) -> bool {
        let others = self.account.held.load(Ordering::Relaxed).saturating_sub(self.charged);
        others.saturating_add(bytes) <= self.account.part(MEMORY_ADMIT_SHARE)
    }

    /// True if the account has no room for this reply, which then waits for at most
    /// `MEMORY_REPLY_WAIT`. One reply at a time may use the last part, so that it ends and frees
    /// what it holds.
    pub fn is_full(&mut self) -> bool {
        let held = self.account.held.load(Ordering::Relaxed);
        if held < self.account.part(MEMORY_REPLY_SHARE) {
            return false;
        }
        let is_taken = &self.account.last_part_is_taken;
        self.has_last_part = self.has_last_part || !is_taken.swap(true, Ordering::Relaxed);
        !self.has_last_part || held >= self.account.bytes_max
    }

    /// True if this lease takes most of the account, so that waiting for others is of no use.
    pub fn is_most(&self) -> bool {
        self.charged > self.account.bytes_max / 2
    }

    /// Waits until the account has room.
    ///
    /// # Errors
    /// [`MemoryFull`] after `MEMORY_REPLY_WAIT`.
    pub async fn room(&mut self) -> Result<(), MemoryFull> {
        let mut wait = RoomWait::default();
        while self.is_full() {
            match wait.next_pause().filter(|_| !self.is_most()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(MemoryFull),
            }
        }
        Ok(())
    }

    /// A further, empty lease of the same account.
    pub fn sibling(&self) -> Self {
        self.account.lease()
    }

    fn charge(&mut self, bytes: u64) {
        match bytes.checked_sub(self.charged) {
            Some(more) => self.account.held.fetch_add(more, Ordering::Relaxed),
            None => self.account.held.fetch_sub(self.charged - bytes, Ordering::Relaxed),
        };
        self.charged = bytes;
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.charge(0);
        if self.has_last_part {
            self.account.last_part_is_taken.store(false, Ordering::Relaxed);
        }
    }
}

/// The time that a reply has waited for room.
#[derive(Debug, Default)]
pub struct RoomWait(Option<Instant>);

impl RoomWait {
    /// The pause before the next look; `None` if the reply has waited long enough.
    pub fn next_pause(&mut self) -> Option<Duration> {
        let since = *self.0.get_or_insert_with(Instant::now);
        (since.elapsed() < MEMORY_REPLY_WAIT).then_some(MEMORY_POLL_WAIT)
    }
}

/// The charge for `bytes`: an eighth more, so that a reply that grows is charged seldom.
fn rounded(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        _ => (bytes + bytes / 8).next_multiple_of(MEMORY_PIECE_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_leased_is_given_back() {
        let account = Arc::new(MemoryAccount::new(1 << 20));
        let (mut one, mut two) = (account.lease(), account.lease());
        one.hold(1000);
        let charged = account.counts().held;
        assert!((1000..=8192).contains(&charged), "{charged}");
        one.hold(1100);
        assert_eq!(account.counts().held, charged, "small growth costs nothing");
        two.hold(500_000);
        assert!(account.counts().held >= 501_000);
        two.shrink(10);
        assert!(account.counts().held < 20_000);
        drop((one, two));
        assert_eq!(account.counts().held, 0);
    }

    #[test]
    fn new_calls_leave_room_to_the_calls_under_way() {
        let account = Arc::new(MemoryAccount::new(1 << 20));
        let (mut running, mut new) = (account.lease(), account.lease());
        running.hold(700_000);
        assert_eq!(new.admit(1), Err(MemoryFull));
        assert!(!running.is_full());
        running.hold(1_000_000);
        assert!(running.is_full());
        running.shrink(0);
        assert_eq!(new.admit(100_000), Ok(()));
        assert_eq!(account.counts().shed, 1);
    }

    #[test]
    fn one_reply_at_a_time_has_the_last_part() {
        let account = Arc::new(MemoryAccount::new(1 << 20));
        let (mut one, mut two) = (account.lease(), account.lease());
        one.hold(400_000);
        two.hold(360_000);
        assert!(!one.is_full() && two.is_full(), "the first to ask");
        drop(one);
        two.hold(740_000);
        assert!(!two.is_full());
        two.hold(1_000_000);
        assert!(two.is_full(), "the ceiling holds for it, too");
    }

    #[tokio::test]
    async fn a_reply_waits_for_room_but_not_for_ever() {
        let account = Arc::new(MemoryAccount::new(10_000));
        let mut lease = account.lease();
        assert_eq!(lease.room().await, Ok(()));
        lease.hold(20_000);
        assert_eq!(lease.room().await, Err(MemoryFull), "it has nobody to wait for");
        lease.hold(20_000);
        let mut waiting = lease.sibling();
        let freed = async {
            tokio::time::sleep(MEMORY_POLL_WAIT * 2).await;
            lease.shrink(0);
        };
        assert_eq!(tokio::join!(waiting.room(), freed).0, Ok(()));
    }
}
