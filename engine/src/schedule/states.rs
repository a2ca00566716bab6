//! The slots of recurrent states, in a hybrid.
//!
//! A slot is *held* by the sequences that read or write it, and *kept* if it has the state at the
//! end of a published page, so that a sequence which takes the page can begin there. A kept slot
//! that nobody holds is reused when no other is free; the least recently used goes first.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
struct SlotState {
    /// Sequences that hold the slot.
    holders: u32,
    /// The published page at whose end the slot has the state.
    page: Option<u32>,
    /// The moment at which it was released, while it is kept and nobody holds it.
    since: u64,
}

/// All slots of an engine.
#[derive(Debug, Default)]
pub(crate) struct StatePool {
    slots: Vec<SlotState>,
    blank: Vec<u32>,
    /// Kept slots that nobody holds, by the moment of their release, oldest first.
    idle: BTreeMap<u64, u32>,
    moments: u64,
}

impl StatePool {
    /// A pool of `count` blank slots; none for a model without such states.
    pub(crate) fn new(count: usize) -> StatePool {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        StatePool {
            slots: vec![SlotState::default(); count as usize],
            blank: (0..count).rev().collect(),
            idle: BTreeMap::new(),
            moments: 0,
        }
    }

    /// All slots.
    pub(crate) fn total(&self) -> usize {
        self.slots.len()
    }

    /// Slots that no sequence holds.
    #[cfg(test)]
    pub(crate) fn available(&self) -> usize {
        self.blank.len() + self.idle.len()
    }

    /// Kept slots that no sequence holds.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Takes a slot for new contents, held once: a blank one, or the kept one that was released
    /// first. Also returns the page that loses its state.
    pub(crate) fn take(&mut self) -> Option<(u32, Option<u32>)> {
        let slot = match self.blank.pop() {
            Some(slot) => slot,
            None => self.idle.pop_first()?.1,
        };
        let state = &mut self.slots[slot as usize];
        state.holders = 1;
        Some((slot, state.page.take()))
    }

    /// Holds a slot once more.
    pub(crate) fn hold(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        if state.holders == 0 {
            self.idle.remove(&state.since);
        }
        state.holders += 1;
    }

    /// Gives one hold of a slot back.
    pub(crate) fn release(&mut self, slot: u32) {
        self.moments += 1;
        let state = &mut self.slots[slot as usize];
        state.holders = state.holders.saturating_sub(1);
        match (state.holders, state.page) {
            (0, Some(_)) => {
                state.since = self.moments;
                self.idle.insert(self.moments, slot);
            }
            (0, None) => self.blank.push(slot),
            _ => {}
        }
    }

    /// Keeps a held slot for the end of a page.
    pub(crate) fn keep(&mut self, slot: u32, page: u32) {
        self.slots[slot as usize].page = Some(page);
    }

    /// No longer keeps a slot: its page is gone, or its state is of no use.
    pub(crate) fn forget(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        if state.page.take().is_some() && state.holders == 0 {
            self.idle.remove(&state.since);
            self.blank.push(slot);
        }
    }
}
