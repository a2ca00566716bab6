//! A limit on the size of all work of one kind that is done at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The limit of work of one kind. Work beyond it waits, first come, first served.
#[derive(Debug)]
pub(crate) struct WorkLimit {
    /// The size of all work at once.
    size: usize,
    queue: Mutex<WorkQueue>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct WorkQueue {
    /// The size of the work under way.
    used: usize,
    /// The number of the next piece of work to come.
    next: u64,
    /// The number of the piece whose turn it is.
    turn: u64,
}

/// Leave to do one piece of work, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct WorkPermit<'a> {
    limit: &'a WorkLimit,
    size: usize,
}

impl WorkLimit {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, queue: Mutex::default(), moved: Condvar::new() }
    }

    /// Waits until a piece of work of this size may begin. Blocks. One that is larger than the
    /// limit is done alone.
    pub(crate) fn acquire(&self, size: usize) -> WorkPermit<'_> {
        let size = size.min(self.size);
        let mut queue = self.lock();
        let number = queue.next;
        queue.next += 1;

        let must_wait =
            |queue: &mut WorkQueue| queue.turn != number || queue.used + size > self.size;
        let waited = self.moved.wait_while(queue, must_wait);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
        queue.turn += 1;
        queue.used += size;
        drop(queue);
        self.moved.notify_all();
        WorkPermit { limit: self, size }
    }

    fn lock(&self) -> MutexGuard<'_, WorkQueue> {
        // Numbers are whole after a panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WorkPermit<'_> {
    fn drop(&mut self) {
        self.limit.lock().used -= self.size;
        self.limit.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SIZE: usize = 1000;

    #[test]
    fn work_beyond_the_limit_waits_and_all_is_done() {
        let (limit, inside, most) =
            (WorkLimit::new(SIZE), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for index in 0..32_usize {
                let (limit, inside, most) = (&limit, &inside, &most);
                scope.spawn(move || {
                    let size = if index % 2 == 0 { 3 * SIZE } else { index };
                    let _permit = limit.acquire(size);
                    let held = size.min(SIZE);
                    most.fetch_max(
                        inside.fetch_add(held, Ordering::SeqCst) + held,
                        Ordering::SeqCst,
                    );
                    std::thread::yield_now();
                    inside.fetch_sub(held, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), SIZE);
        assert_eq!(limit.lock().used, 0);
    }
}
