//! The calls that have begun and not ended, as the writer knows them.

use std::collections::{HashMap, HashSet};

use episode::{AttemptId, CallId};

/// Calls without an end that the writer knows without asking the database.
const OPEN_CALLS_MAX: usize = 1 << 16;

/// The calls that have not ended. Further ones than the bound are found in the database.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(HashMap<CallId, OpenCall>);

/// A call that has not ended.
#[derive(Debug, Clone)]
pub(crate) struct OpenCall {
    pub(crate) key: i64,
    pub(crate) attempt: AttemptId,
    /// The id of the API key that it came with.
    pub(crate) api_key: Option<String>,
}

impl OpenCalls {
    /// Notes a call. Returns false where there is no room for it.
    pub(crate) fn add(&mut self, id: CallId, call: OpenCall) -> bool {
        let has_room = self.0.len() < OPEN_CALLS_MAX;
        if has_room {
            self.0.insert(id, call);
        }
        has_room
    }

    /// The call of an id, if it is known.
    pub(crate) fn get(&self, id: CallId) -> Option<&OpenCall> {
        self.0.get(&id)
    }

    /// Forgets a call.
    pub(crate) fn remove(&mut self, id: CallId) {
        self.0.remove(&id);
    }

    /// The attempts of all of them.
    pub(crate) fn attempts(&self) -> HashSet<&AttemptId> {
        self.0.values().map(|call| &call.attempt).collect()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
