//! The responses that are kept, by their ids. They are in memory, within a bound; the oldest go
//! first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use episode::Route;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::bounds::{BACKGROUND_MAX, RESPONSE_TURNS_MAX, RESPONSES_BYTES_MAX};
use crate::serve::calls::ApiError;

/// A request and its reply: a document, or the events of a stream.
#[derive(Clone, Debug)]
pub(in crate::serve) struct StoredTurn {
    pub(in crate::serve) request: Bytes,
    pub(in crate::serve) reply: Bytes,
}

/// The responses that are kept, by their ids.
#[derive(Debug)]
pub(in crate::serve) struct ResponseStore {
    kept: Mutex<Kept>,
    /// Places of replies that are made in the background.
    background: Arc<Semaphore>,
}

impl Default for ResponseStore {
    fn default() -> Self {
        Self { kept: Mutex::default(), background: Arc::new(Semaphore::new(BACKGROUND_MAX)) }
    }
}

#[derive(Debug, Default)]
pub(in crate::serve) struct Kept {
    pub(in crate::serve) turns: HashMap<String, StoredTurn>,
    oldest: VecDeque<String>,
    bytes: usize,
    /// Replies that are made in the background.
    pub(in crate::serve) running: HashMap<String, AbortHandle>,
}

impl Kept {
    pub(in crate::serve) fn add(&mut self, id: String, turn: StoredTurn) {
        self.bytes += turn.request.len() + turn.reply.len();
        match self.turns.insert(id.clone(), turn) {
            Some(old) => self.bytes -= old.request.len() + old.reply.len(),
            None => self.oldest.push_back(id),
        }
        while self.bytes > RESPONSES_BYTES_MAX {
            let Some(oldest) = self.oldest.pop_front() else { return };
            if let Some(turn) = self.turns.remove(&oldest) {
                self.bytes -= turn.request.len() + turn.reply.len();
            }
        }
    }
}

impl ResponseStore {
    pub(in crate::serve) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a reply that is made in the background.
    ///
    /// # Errors
    /// 429 if as many are made as may be.
    pub(in crate::serve) fn background_place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let place = Arc::clone(&self.background).try_acquire_owned();
        place.map_err(|_| ApiError::background_full(BACKGROUND_MAX))
    }

    /// Ends the replies that are made in the background.
    pub(in crate::serve) fn stop(&self) {
        self.kept().running.drain().for_each(|(_, running)| running.abort());
    }

    /// Keeps a reply under its id, unless it has none.
    pub(in crate::serve) fn keep(&self, request: Bytes, reply: Bytes) {
        if let Some(id) = wire::response_id(Route::Responses, &reply) {
            self.kept().add(id, StoredTurn { request, reply });
        }
    }

    /// Returns the request with the conversation that it continues before it.
    ///
    /// # Errors
    /// 404 if a response of the conversation is not kept.
    pub(in crate::serve) fn continued(&self, request: &Bytes) -> Result<Bytes, ApiError> {
        let mut turns = VecDeque::new();
        let mut previous = wire::previous_response(Route::Responses, request);
        while let Some(id) = previous {
            let turn = self.kept().turns.get(&id).cloned();
            let turn = turn.filter(|_| turns.len() < RESPONSE_TURNS_MAX);
            let turn = turn.ok_or_else(|| not_kept(&id))?;
            previous = wire::previous_response(Route::Responses, &turn.request);
            turns.push_front(turn);
        }

        let pairs: Vec<(&[u8], &[u8])> =
            turns.iter().map(|turn| (&turn.request[..], &turn.reply[..])).collect();
        let whole = wire::prepend_turns(request, &pairs);
        Ok(whole.map_or_else(|| request.clone(), Bytes::from))
    }
}

/// The error for a response that is not kept.
pub(in crate::serve) fn not_kept(id: &str) -> ApiError {
    ApiError::not_found(format!("Response with id '{id}' not found."))
}
