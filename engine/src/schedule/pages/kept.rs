//! The recurrent states at ends of pages, in a hybrid: which are kept, and where sequences begin.
//!
//! A state is kept at three places: at the last full page of a prompt, where replies to the same
//! prompt begin; where two prompts part, once the second of them is computed; and at the last full
//! page of what a sequence has computed so far, where its next turn begins, or it itself after a
//! preemption. The last one moves on with the sequence. All are kept only while slots are free of
//! sequences that run, and only as long as their page.

use kernels::{PAGE, StateMark};

use super::PagePool;
use crate::model::cache::{SequenceCache, SequenceState};

impl PagePool {
    /// Gives a sequence with a prompt of so many tokens a slot of its own, if the model has states.
    /// Returns false if all are held.
    pub(crate) fn begin(&mut self, cache: &mut SequenceCache, prompt: usize) -> bool {
        if self.is_hybrid() {
            cache.state.own = self.take_slot();
            cache.state.prompt_page = prompt.saturating_sub(1) / PAGE * PAGE;
        }
        cache.state.own.is_some() || !self.is_hybrid()
    }

    /// Chooses the slots that the next step writes, which computes `count` positions of `cache`.
    pub(crate) fn plan_states(&mut self, cache: &mut SequenceCache, count: usize) {
        let Some(own) = cache.state.own else { return };
        // A step that was planned before and did not run.
        self.release_marks(&mut cache.state);
        let (start, end) = (cache.len, cache.len + count);
        let mut wanted = vec![cache.state.prompt_page, end / PAGE * PAGE];
        wanted.extend(cache.state.branch);
        wanted.retain(|position| *position > start && *position <= end);
        wanted.sort_unstable();
        wanted.dedup();
        // What is not published is of no use to others.
        if cache.link.is_none() || !self.sharing {
            wanted.clear();
        }

        for position in wanted {
            let Some(slot) = self.take_slot() else { break };
            cache.state.marks.push(StateMark { rows: position - start, slot });
        }
        if cache.state.marks.last().is_none_or(|mark| mark.rows < count) {
            cache.state.marks.push(StateMark { rows: count, slot: own });
        }
    }

    /// Keeps the states that steps have written, at the ends of the published pages of `cache`. Of
    /// the positions, `known` have a token that the host knows; a page that ends behind them may
    /// still be published.
    pub(super) fn keep_states(&mut self, cache: &mut SequenceCache, known: usize) {
        for (position, slot) in std::mem::take(&mut cache.state.written) {
            if position > known && cache.link.is_some() && self.sharing {
                cache.state.written.push((position, slot));
                continue;
            }

            let index = position / PAGE - 1;
            if index < cache.published {
                let page = cache.pages[index];
                let is_kept = self.keep_state(page, slot);
                let state = &cache.state;
                let stays = position == state.prompt_page || Some(position) == state.branch;
                let rolling = (is_kept && !stays).then_some((page, slot));
                let before = std::mem::replace(&mut cache.state.rolling, rolling);
                before.into_iter().for_each(|(page, slot)| self.forget_state(page, slot));
            }
            if Some(slot) != cache.state.from {
                self.states.release(slot);
            }
        }

        let left = cache.state.left.take();
        left.into_iter().for_each(|slot| self.states.release(slot));
    }

    /// The slot with the state at the end of a page, if it is kept.
    pub(super) fn state_of(&self, page: u32) -> Option<u32> {
        self.pages[page as usize].published.as_ref()?.state
    }

    /// Has a sequence begin with the state of a kept slot.
    pub(super) fn begin_at(&mut self, cache: &mut SequenceCache, slot: u32) {
        self.states.hold(slot);
        let before = cache.state.from.replace(slot);
        let before = before.filter(|before| Some(*before) != cache.state.own);
        before.into_iter().for_each(|slot| self.states.release(slot));
    }

    /// Gives all slots of a sequence back.
    pub(super) fn release_states(&mut self, state: &mut SequenceState) {
        self.release_marks(state);
        let written = std::mem::take(&mut state.written);
        let from = state.from.take().filter(|from| {
            Some(*from) != state.own && written.iter().all(|(_, slot)| slot != from)
        });
        let held = written.into_iter().map(|(_, slot)| slot).chain(from);
        for slot in held.chain(state.left.take()).chain(state.own.take()) {
            self.states.release(slot);
        }
    }

    fn release_marks(&mut self, state: &mut SequenceState) {
        for mark in state.marks.drain(..).filter(|mark| Some(mark.slot) != state.own) {
            self.states.release(mark.slot);
        }
    }

    /// Takes a slot for new contents, from a page if need be.
    fn take_slot(&mut self) -> Option<u32> {
        let (slot, page) = self.states.take()?;
        let published = page.and_then(|page| self.pages[page as usize].published.as_mut());
        published.into_iter().for_each(|published| published.state = None);
        Some(slot)
    }

    /// Keeps a held slot for the end of a page that has none. Returns false if it has one.
    fn keep_state(&mut self, page: u32, slot: u32) -> bool {
        let Some(published) = &mut self.pages[page as usize].published else { return false };
        if published.state.is_some() {
            return false;
        }
        published.state = Some(slot);
        self.states.keep(slot, page);
        true
    }

    /// No longer keeps the state at the end of a page, if it is still that of `slot`.
    fn forget_state(&mut self, page: u32, slot: u32) {
        let Some(published) = &mut self.pages[page as usize].published else { return };
        if published.state == Some(slot) {
            published.state = None;
            self.states.forget(slot);
        }
    }
}
