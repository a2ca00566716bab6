//! The attempts of episodes that used contents.
//!
//! Whoever records episodes knows when an attempt is closed: it takes no further call. Contents
//! that only its sequences used are then given away before all others, which are of attempts that
//! are open, of several, or of nobody that is known. They are found as before until then.

use std::sync::Arc;

use super::{KeptRank, PagePool};

/// The users of contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Users {
    /// One attempt, which is open.
    Open(Arc<str>),
    /// One attempt, which is closed.
    Closed,
    /// Several, or such as are not known.
    Any,
}

impl Users {
    /// The users of contents that a sequence of an attempt has computed.
    pub(super) fn of(attempt: Option<&Arc<str>>) -> Users {
        attempt.map_or(Users::Any, |attempt| Users::Open(Arc::clone(attempt)))
    }

    /// Adds a sequence. Returns true if that changes anything.
    pub(super) fn add(&mut self, attempt: Option<&Arc<str>>) -> bool {
        let is_known = match (&*self, attempt) {
            (Users::Any, _) => true,
            (Users::Open(one), Some(attempt)) => one == attempt,
            _ => false,
        };
        if !is_known {
            *self = Users::Any;
        }
        !is_known
    }

    /// Notes that an attempt is closed. Returns true if it was the only one.
    pub(super) fn close(&mut self, attempt: &str) -> bool {
        let is_only = matches!(self, Users::Open(one) if **one == *attempt);
        if is_only {
            *self = Users::Closed;
        }
        is_only
    }

    /// The rank of contents that are kept since a moment.
    pub(super) fn rank(&self, since: u64) -> KeptRank {
        KeptRank { may_return: *self != Users::Closed, since }
    }
}

impl PagePool {
    /// Notes that a sequence uses the contents of a page.
    pub(super) fn note_user(&mut self, page: u32, attempt: Option<&Arc<str>>) {
        let Some(published) = &mut self.pages[page as usize].published else { return };
        if published.users.add(attempt) {
            self.host.note_user(&published.key, attempt);
        }
    }

    /// Gives the contents that only this attempt used away before all others.
    pub(crate) fn close_attempt(&mut self, attempt: &str) {
        for index in 0..self.pages.len() {
            let page = &mut self.pages[index];
            let Some(published) = &mut page.published else { continue };
            if published.users.close(attempt) && page.holders == 0 {
                self.kept.remove(&page.rank);
                page.rank = published.users.rank(page.rank.since);
                self.kept.insert(page.rank, index as u32);
            }
        }
        self.host.close_attempt(attempt);
    }
}
