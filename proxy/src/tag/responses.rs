//! Responses that rolltape stores in the server's place. A response that was translated from a chat
//! reply is in no server's store, and a later request may refer to it by its id.
//!
//! The newest are in memory, within a bound; others are read back from the recording of the
//! episode. A request that refers to a response of the server itself is not changed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use episode::{Call, CallEnd, CallStart, EpisodeId, Outcome, Route, TagSource};
use hyper::HeaderMap;
use store::{Selection, SnapshotError, Store};
use wire::Request;

use crate::bounds::{RESPONSE_CACHE_BYTES_MAX, RESPONSE_TURNS_MAX};
use crate::record::attempts::AttemptKey;
use crate::tag::owner::owner;

/// Bytes that a turn counts for, beside its request and reply.
const TURN_BYTES: usize = 256;
/// Responses by their ids, each linked to the one that it continues.
#[derive(Debug, Default)]
pub(crate) struct ResponseChains(Mutex<TurnCache>);

#[derive(Debug, Default)]
struct TurnCache {
    turns: HashMap<String, ResponseTurn>,
    oldest: VecDeque<String>,
    bytes: usize,
}

/// One response.
#[derive(Debug, Clone)]
struct ResponseTurn {
    /// Set if the call had no tag.
    untagged: Option<UntaggedEpisode>,
    /// `None` if the server that answered stores the response.
    content: Option<TurnContent>,
}

/// A request and its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TurnContent {
    request: Bytes,
    reply: Bytes,
}

/// The episode of an untagged call. Only calls with the same credentials may continue it.
#[derive(Debug, Clone)]
struct UntaggedEpisode {
    episode: EpisodeId,
    owner: String,
}

/// A call of the Responses route that has not ended.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    request: Bytes,
    untagged: Option<UntaggedEpisode>,
}

impl PendingResponse {
    /// The call that starts; `None` if it is not of the Responses route.
    pub(crate) fn of(start: &CallStart, headers: &HeaderMap) -> Option<Self> {
        if start.route != Route::Responses {
            return None;
        }
        let is_untagged = start.tag.source == TagSource::Auto;
        let untagged = is_untagged.then(|| UntaggedEpisode {
            episode: start.tag.episode.clone(),
            owner: owner(headers).to_owned(),
        });
        Some(Self { request: start.request.clone(), untagged })
    }
}

impl ResponseTurn {
    /// A response that the server stores.
    fn of_server() -> Self {
        Self { untagged: None, content: None }
    }

    fn bytes(&self) -> usize {
        TURN_BYTES + self.content.as_ref().map_or(0, |turn| turn.request.len() + turn.reply.len())
    }

    /// The id of the response that its request continues.
    fn previous_id(&self) -> Option<String> {
        wire::previous_response(Route::Responses, &self.content.as_ref()?.request)
    }
}

impl ResponseChains {
    /// Stores the response of a call that has ended.
    pub(crate) fn store_response(&self, pending: PendingResponse, end: &CallEnd) {
        if end.outcome != Outcome::Complete {
            return;
        }
        let content = match end.translated {
            None => None,
            Some(_) if wire::stores_reply(&pending.request) => {
                Some(TurnContent { request: pending.request, reply: end.reply.clone() })
            }
            // The agent asked that the response is not stored.
            Some(_) => return,
        };
        if let Some(id) = wire::response_id(Route::Responses, &end.reply) {
            self.cache().add(id, ResponseTurn { untagged: pending.untagged, content });
        }
    }

    /// The episode of the untagged response that a request of `owner` continues.
    pub(crate) fn episode(&self, owner: &str, request: &Request) -> Option<EpisodeId> {
        let id = wire::previous_response(Route::Responses, request.body())?;
        let cache = self.cache();
        let untagged = cache.turns.get(&id)?.untagged.as_ref()?;
        (untagged.owner == owner).then(|| untagged.episode.clone())
    }

    /// The request with the conversation that it continues before it. `None` if it continues none,
    /// or one that the server stores.
    pub(crate) async fn history(
        &self,
        store: &Store,
        attempt: &AttemptKey,
        route: Route,
        request: Option<&Request>,
    ) -> Option<Request> {
        let request = request?;
        let id = wire::previous_response(route, request.body())?;
        let turns = match self.turns_up_to(&id) {
            Some(turns) => turns,
            None => {
                self.reload(store, attempt, &id).await;
                self.turns_up_to(&id)?
            }
        };
        let turns: Vec<(&[u8], &[u8])> =
            turns.iter().map(|turn| (&*turn.request, &*turn.reply)).collect();
        Request::read(&wire::prepend_turns(request.body(), &turns)?.into())
    }

    /// The turns up to the response `id`, first to last. `None` if one of them is not known; empty
    /// if the server stores them.
    fn turns_up_to(&self, id: &str) -> Option<Vec<TurnContent>> {
        let cache = self.cache();
        let mut turns = Vec::new();
        let mut next_id = Some(id.to_owned());
        while let Some(id) = next_id {
            let turn = cache.turns.get(&id)?;
            let Some(content) = turn.content.clone().filter(|_| turns.len() < RESPONSE_TURNS_MAX)
            else {
                return Some(Vec::new());
            };
            next_id = turn.previous_id();
            turns.push(content);
        }
        turns.reverse();
        Some(turns)
    }

    /// Reads the responses of an attempt back from its recording. If `id` is not among them, the
    /// server stores it.
    async fn reload(&self, store: &Store, attempt: &AttemptKey, id: &str) {
        let calls = match recorded_calls(store, attempt).await {
            Ok(calls) => calls,
            Err(error) => {
                tracing::warn!(%error, "the response that a request continues cannot be read");
                return;
            }
        };
        for call in calls.into_iter().filter(|call| call.begun.route == Route::Responses) {
            if let Some(end) = call.ended {
                let pending = PendingResponse { request: call.begun.request, untagged: None };
                self.store_response(pending, &end);
            }
        }

        let mut cache = self.cache();
        if !cache.turns.contains_key(id) {
            cache.add(id.to_owned(), ResponseTurn::of_server());
        }
    }

    fn cache(&self) -> MutexGuard<'_, TurnCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TurnCache {
    fn add(&mut self, id: String, turn: ResponseTurn) {
        self.bytes += turn.bytes();
        match self.turns.insert(id.clone(), turn) {
            Some(replaced) => self.bytes -= replaced.bytes(),
            None => self.oldest.push_back(id),
        }
        while self.bytes > RESPONSE_CACHE_BYTES_MAX {
            let Some(oldest) = self.oldest.pop_front() else { return };
            self.bytes -= self.turns.remove(&oldest).map_or(0, |turn| turn.bytes());
        }
    }
}

/// The calls of an attempt, in the order in which they began.
async fn recorded_calls(
    store: &Store,
    (id, attempt): &AttemptKey,
) -> Result<Vec<Call>, SnapshotError> {
    let mut snapshot = store.snapshot().await?;
    let selection = Selection { episode: Some(id.clone()), ..Selection::default() };
    let episodes = snapshot.episodes(&selection).await?;
    match episodes.iter().find(|episode| episode.attempt == *attempt) {
        Some(episode) => snapshot.calls(episode).await,
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(before: Option<&str>, bytes: usize) -> ResponseTurn {
        let before = before.map(|id| format!(r#","previous_response_id":"{id}""#));
        let asked = format!(r#"{{"input":"{}"{}}}"#, "a".repeat(bytes), before.unwrap_or_default());
        let content = TurnContent { request: asked.into(), reply: Bytes::new() };
        ResponseTurn { untagged: None, content: Some(content) }
    }

    #[test]
    fn a_chain_is_whole_or_not_known() {
        let chains = ResponseChains::default();
        chains.cache().add("1".to_owned(), turn(None, 1));
        chains.cache().add("2".to_owned(), turn(Some("1"), 2));
        chains.cache().add("4".to_owned(), turn(Some("3"), 3));
        chains.cache().add("native".to_owned(), ResponseTurn::of_server());
        assert_eq!(chains.turns_up_to("2").unwrap().len(), 2);
        assert!(chains.turns_up_to("2").unwrap()[0].request.starts_with(br#"{"input":"a"}"#));
        assert_eq!(chains.turns_up_to("native"), Some(Vec::new()));
        assert_eq!((chains.turns_up_to("3"), chains.turns_up_to("4")), (None, None));
        // A circle, which no server makes, ends.
        chains.cache().add("5".to_owned(), turn(Some("5"), 1));
        assert_eq!(chains.turns_up_to("5"), Some(Vec::new()));
    }

    #[test]
    fn the_oldest_turns_are_let_go_of() {
        let mut cache = TurnCache::default();
        for n in 0..100 {
            cache.add(n.to_string(), turn(None, 1 << 20));
        }
        assert!(cache.bytes <= RESPONSE_CACHE_BYTES_MAX && cache.turns.len() == cache.oldest.len());
        assert!(!cache.turns.contains_key("0") && cache.turns.contains_key("99"));
        cache.add("99".to_owned(), turn(None, 1));
        let counted: usize = cache.turns.values().map(ResponseTurn::bytes).sum();
        assert_eq!(cache.bytes, counted);
    }
}
