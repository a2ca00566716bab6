//! Room for work that is bounded in size: whoever comes when it is full waits for its turn.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The room for work of one kind, first come, first served.
#[derive(Debug)]
pub(crate) struct Room {
    /// The size of the room.
    size: usize,
    line: Mutex<Line>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    /// The part of the room that is taken.
    used: usize,
    /// The number of the next piece of work to come.
    next: u64,
    /// The number of the piece whose turn it is.
    turn: u64,
}

/// The share of one piece of work, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    room: &'a Room,
    share: usize,
}

impl Room {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, line: Mutex::default(), moved: Condvar::new() }
    }

    /// Waits until there is room for a piece of work of this size. Blocks. One that is larger than
    /// the whole room has it for itself.
    pub(crate) fn enter(&self, share: usize) -> Place<'_> {
        let share = share.min(self.size);
        let mut line = self.lock();
        let number = line.next;
        line.next += 1;

        let must_wait = |line: &mut Line| line.turn != number || line.used + share > self.size;
        let waited = self.moved.wait_while(line, must_wait);
        let mut line = waited.unwrap_or_else(PoisonError::into_inner);
        line.turn += 1;
        line.used += share;
        drop(line);
        self.moved.notify_all();
        Place { room: self, share }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        // Numbers are whole after a panic.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.room.lock().used -= self.share;
        self.room.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SIZE: usize = 1000;

    #[test]
    fn what_fills_the_room_waits_for_its_turn_and_all_get_one() {
        let (room, inside, most) = (Room::new(SIZE), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for index in 0..32_usize {
                let (room, inside, most) = (&room, &inside, &most);
                scope.spawn(move || {
                    let share = if index % 2 == 0 { 3 * SIZE } else { index };
                    let _place = room.enter(share);
                    let held = share.min(SIZE);
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
        assert_eq!(room.lock().used, 0);
    }
}
