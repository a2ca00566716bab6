//! Responses that rolltape stores in the server's place. A response that was translated from a chat
//! reply is in no server's store, and a later request may refer to it by its id.
//!
//! The newest are in memory, within a bound; others are read back from the recording of the
//! episode. A request that refers to a response of the server itself is not changed. A response is
//! known within its own attempt only: no agent can go on from another's conversation, whoever
//! stores it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use episode::{AttemptId, Call, CallEnd, CallStart, EpisodeId, Outcome, Route, TagSource};
use http::memory::MemoryLease;
use hyper::HeaderMap;
use store::{AttemptRecord, Selection, Snapshot, SnapshotError};
use tokio::time::Instant;
use wire::{NamedState, Request};

use crate::bounds::{
    HISTORY_COPIES, RESPONSE_CACHE_BYTES_MAX, RESPONSE_ID_BYTES_MAX, RESPONSE_TURNS_MAX,
};
use crate::error::CallError;
use crate::reading_room::ReadBack;
use crate::tag::own_ids::OwnIds;
use crate::tag::owner::owner;

/// Bytes that a turn counts for, beside its content, its ids and its agent's credentials: its
/// entries in tables that may be half empty, and what the allocator adds.
const TURN_BYTES: usize = 1024;

/// Responses by their ids, each linked to the one that it continues.
#[derive(Debug, Default)]
pub(crate) struct ResponseChains {
    cache: Mutex<TurnCache>,
    own_ids: Mutex<OwnIds>,
    /// Held while a recording is read back, so that one at a time is in memory.
    reading: tokio::sync::Mutex<()>,
}

/// The attempt of a response, and its id.
type TurnKey = (AttemptId, String);

#[derive(Debug, Default)]
struct TurnCache {
    turns: HashMap<TurnKey, ResponseTurn>,
    /// The responses whose calls had no tag, by their ids and those of what they hold.
    untagged: HashMap<String, TurnKey>,
    oldest: VecDeque<TurnKey>,
    /// Attempts whose recording was read back, and whose turns are all here since.
    whole: HashSet<AttemptId>,
    bytes: usize,
}

/// One response, or what an untagged one holds.
#[derive(Debug, Clone)]
struct ResponseTurn {
    /// `None` if the server that answered stores the response.
    content: Option<TurnContent>,
    /// `None` if its call had a tag.
    untagged: Option<UntaggedEpisode>,
}

/// A request and its reply, in memory of their own: the bytes of a call are a part of the buffer
/// of its connection, which may be many times longer.
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

/// A call that has not ended, whose reply may give ids of kept state.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    attempt: AttemptId,
    route: Route,
    request: Bytes,
    untagged: Option<UntaggedEpisode>,
}

/// A request with the conversation that it continues before it, and the memory of both.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) request: Request,
    _memory: MemoryLease,
}

impl PendingResponse {
    /// The call that starts; `None` if its route gives no such ids.
    pub(crate) fn of(start: &CallStart, headers: &HeaderMap) -> Option<Self> {
        if !wire::tells_state(&start.path) {
            return None;
        }
        let is_untagged = start.tag.source == TagSource::Auto;
        let untagged = is_untagged.then(|| UntaggedEpisode {
            episode: start.tag.episode.clone(),
            owner: owner(headers).to_owned(),
        });
        Some(Self {
            attempt: AttemptId::from(&start.tag),
            route: start.route,
            request: start.request.read(),
            untagged,
        })
    }

    /// The call of a recording.
    fn recorded(attempt: &AttemptId, call: &Call) -> Option<Self> {
        wire::tells_state(&call.begun.path).then(|| Self {
            attempt: attempt.clone(),
            route: call.begun.route,
            request: call.begun.request.read(),
            untagged: None,
        })
    }
}

impl TurnContent {
    fn copied(request: &[u8], reply: &[u8]) -> Self {
        let [request, reply] = [request, reply].map(Bytes::copy_from_slice);
        Self { request, reply }
    }
}

impl ResponseTurn {
    /// A response that the server stores.
    fn of_server() -> Self {
        Self { content: None, untagged: None }
    }

    /// The memory that it occupies under `id`, roughly, in bytes.
    fn bytes(&self, id: &str) -> usize {
        let content = self.content.as_ref().map_or(0, |turn| turn.request.len() + turn.reply.len());
        let owner = self.untagged.as_ref().map_or(0, |untagged| untagged.owner.len());
        TURN_BYTES + content + 3 * id.len() + owner
    }

    /// The id of the response that its request continues.
    fn previous_id(&self) -> Option<String> {
        wire::previous_response(Route::Responses, &self.content.as_ref()?.request)
    }
}

impl ResponseChains {
    /// Stores the response of a call that has ended, and the ids that its reply gives. The agent
    /// has them even if the reply broke off.
    pub(crate) fn store_response(&self, pending: PendingResponse, end: &CallEnd) {
        let ids: Vec<String> =
            wire::told_ids(&end.reply.read()).into_iter().filter(|id| is_short(id)).collect();
        {
            let mut own_ids = self.own_ids();
            own_ids.add_call(end.call_id);
            ids.iter().for_each(|id| own_ids.add(&pending.attempt, id));
        }

        // A later request may name an item alone, and is of the same episode.
        if pending.untagged.is_some() {
            for id in ids {
                let turn = ResponseTurn { content: None, untagged: pending.untagged.clone() };
                self.cache().add((pending.attempt.clone(), id), turn);
            }
        }
        // It is kept in the server's place, unless the agent asked that it is not stored.
        let is_ours = end.outcome == Outcome::Complete && end.translated.is_some();
        let is_kept = is_ours && wire::stores_reply(&pending.request);
        let content = is_kept.then(|| TurnContent::copied(&pending.request, &end.reply.read()));
        if let Some(id) =
            wire::response_id(pending.route, &end.reply.read()).filter(|id| is_short(id))
        {
            let turn = ResponseTurn { content, untagged: pending.untagged };
            self.cache().add((pending.attempt, id), turn);
        }
    }

    /// The episode of the untagged response that a request of `owner` continues.
    pub(crate) fn episode(&self, owner: &str, request: &Request) -> Option<EpisodeId> {
        let named = wire::named_state(request);
        let cache = self.cache();
        named.iter().find_map(|state| {
            let turn = cache.turns.get(cache.untagged.get(&state.id)?)?;
            let untagged = turn.untagged.as_ref()?;
            (untagged.owner == owner).then(|| untagged.episode.clone())
        })
    }

    /// Checks that an attempt got in a reply what its request names of the state that a server
    /// keeps.
    ///
    /// # Errors
    /// [`CallError`] if it did not, or if that cannot be read.
    pub(crate) async fn check_named(
        &self,
        read_back: &ReadBack,
        attempt: &AttemptId,
        request: &Request,
    ) -> Result<(), CallError> {
        let named = wire::named_state(request);
        let unknown = |state: &&NamedState| !self.own_ids().contains(attempt, &state.id);
        if named.iter().find(unknown).is_none() {
            return Ok(());
        }

        let read = self.reload(read_back, attempt, ReadBack::until()).await;
        match (named.iter().find(unknown), read) {
            (None, _) => Ok(()),
            (Some(_), Err(error)) => Err(CallError::unread(&error)),
            (Some(foreign), Ok(())) => Err(CallError::ForeignState(foreign.place)),
        }
    }

    /// The request with the conversation that it continues before it. `None` if it continues none,
    /// or one that the server stores.
    ///
    /// # Errors
    /// [`CallError`] if it cannot be read back: the server may not have it.
    pub(crate) async fn history(
        &self,
        read_back: &ReadBack,
        attempt: &AttemptId,
        route: Route,
        request: &Request,
    ) -> Result<Option<History>, CallError> {
        let named = wire::previous_response(route, request.body());
        let Some(id) = named.filter(|id| is_short(id)) else { return Ok(None) };
        let until = ReadBack::until();
        let known = match self.turns_up_to(attempt, &id) {
            None => {
                let read = self.reload(read_back, attempt, until).await;
                read.map_err(|error| CallError::unread(&error))?;
                self.leave_to_server(attempt, &id);
                self.turns_up_to(attempt, &id)
            }
            known => known,
        };
        let turns = known.unwrap_or_default();
        let bytes: usize = turns.iter().map(|turn| turn.request.len() + turn.reply.len()).sum();
        let mut memory = read_back.lease();
        let admitted = memory.admit_until(bytes * HISTORY_COPIES, until.into_std()).await;
        admitted.map_err(|_| CallError::NoRoomToRead)?;

        let turns: Vec<(&[u8], &[u8])> =
            turns.iter().map(|turn| (&*turn.request, &*turn.reply)).collect();
        let whole = wire::prepend_turns(request.body(), &turns);
        let request = whole.and_then(|whole| Request::read(&whole.into()));
        Ok(request.map(|request| History { request, _memory: memory }))
    }

    /// The turns of an attempt up to the response `id`, first to last. `None` if one of them is not
    /// known; empty if the server stores them, or gave one id to two responses.
    fn turns_up_to(&self, attempt: &AttemptId, id: &str) -> Option<Vec<TurnContent>> {
        let cache = self.cache();
        let (mut turns, mut seen) = (Vec::new(), HashSet::new());
        let mut next_id = Some(id.to_owned());
        while let Some(id) = next_id {
            // A chain that comes back to a response has no beginning.
            if !seen.insert(id.clone()) {
                return Some(Vec::new());
            }
            let turn = cache.turns.get(&(attempt.clone(), id))?;
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

    /// Notes that the server stores the response `id`, unless it is known.
    fn leave_to_server(&self, attempt: &AttemptId, id: &str) {
        let mut cache = self.cache();
        let key = (attempt.clone(), id.to_owned());
        if !cache.turns.contains_key(&key) {
            cache.add(key, ResponseTurn::of_server());
        }
    }

    /// Reads the responses of an attempt back from its recording: all of them, or those that
    /// another process recorded since.
    async fn reload(
        &self,
        read_back: &ReadBack,
        attempt: &AttemptId,
        until: Instant,
    ) -> Result<(), SnapshotError> {
        let _alone = self.reading.lock().await;
        let is_whole = self.cache().whole.contains(attempt);
        let read = match read_back.open(until).await {
            Ok(snapshot) if is_whole => self.read_new(snapshot, attempt).await,
            Ok(snapshot) => self.read_all(snapshot, attempt).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &read {
            tracing::warn!(%error, "the responses that a request continues cannot be read");
        }
        read
    }

    async fn read_all(
        &self,
        mut snapshot: Snapshot,
        attempt: &AttemptId,
    ) -> Result<(), SnapshotError> {
        // First: a turn that is dropped meanwhile takes this back.
        self.cache().whole.insert(attempt.clone());
        let calls = match recorded_calls(&mut snapshot, attempt).await {
            Ok(calls) => calls,
            Err(error) => {
                self.cache().whole.remove(attempt);
                return Err(error);
            }
        };
        // The memory of the calls is the snapshot's, which outlives them.
        calls.into_iter().for_each(|call| self.store_recorded(attempt, call));
        Ok(())
    }

    /// Reads the calls that have ended and were not looked at here.
    async fn read_new(
        &self,
        mut snapshot: Snapshot,
        attempt: &AttemptId,
    ) -> Result<(), SnapshotError> {
        let Some(known) = recorded_attempt(&mut snapshot, attempt).await? else { return Ok(()) };
        for (call, path) in snapshot.ended_calls(&known).await? {
            if !wire::tells_state(&path) || self.own_ids().has_call(call) {
                continue;
            }
            if let Some(call) = snapshot.call(call).await? {
                self.store_recorded(attempt, call);
            }
            // A reader that holds memory and waits for more may wait for itself.
            snapshot.give_back();
        }
        Ok(())
    }

    fn store_recorded(&self, attempt: &AttemptId, call: Call) {
        if let Some(pending) = PendingResponse::recorded(attempt, &call)
            && let Some(end) = call.ended
        {
            self.store_response(pending, &end);
        }
    }

    fn own_ids(&self) -> MutexGuard<'_, OwnIds> {
        self.own_ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache(&self) -> MutexGuard<'_, TurnCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TurnCache {
    fn add(&mut self, key: TurnKey, turn: ResponseTurn) {
        self.bytes += turn.bytes(&key.1);
        if turn.untagged.is_some() {
            self.untagged.insert(key.1.clone(), key.clone());
        }
        match self.turns.insert(key.clone(), turn) {
            Some(replaced) => self.bytes -= replaced.bytes(&key.1),
            None => self.oldest.push_back(key),
        }
        while self.bytes > RESPONSE_CACHE_BYTES_MAX {
            let Some(oldest) = self.oldest.pop_front() else { return };
            self.bytes -= self.turns.remove(&oldest).map_or(0, |turn| turn.bytes(&oldest.1));
            self.whole.remove(&oldest.0);
            if self.untagged.get(&oldest.1) == Some(&oldest) {
                self.untagged.remove(&oldest.1);
            }
        }
    }
}

/// True for the id of a response. A longer text is no server's, and is not kept.
fn is_short(id: &str) -> bool {
    id.len() <= RESPONSE_ID_BYTES_MAX
}

/// The calls of an attempt, in the order in which they began.
async fn recorded_calls(
    snapshot: &mut Snapshot,
    attempt: &AttemptId,
) -> Result<Vec<Call>, SnapshotError> {
    match recorded_attempt(snapshot, attempt).await? {
        Some(known) => snapshot.calls(&known).await,
        None => Ok(Vec::new()),
    }
}

async fn recorded_attempt(
    snapshot: &mut Snapshot,
    attempt: &AttemptId,
) -> Result<Option<AttemptRecord>, SnapshotError> {
    let selection = Selection { episode: Some(attempt.episode.clone()), ..Selection::default() };
    let attempts = snapshot.episodes(&selection).await?;
    Ok(attempts.into_iter().find(|known| known.attempt == attempt.attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(before: Option<&str>, bytes: usize) -> ResponseTurn {
        let before = before.map(|id| format!(r#","previous_response_id":"{id}""#));
        let asked = format!(r#"{{"input":"{}"{}}}"#, "a".repeat(bytes), before.unwrap_or_default());
        let content = TurnContent { request: asked.into(), reply: Bytes::new() };
        ResponseTurn { content: Some(content), untagged: None }
    }

    fn of(episode: &str, id: &str) -> TurnKey {
        (AttemptId { episode: episode.parse().unwrap(), attempt: 0 }, id.to_owned())
    }

    #[test]
    fn a_chain_is_whole_or_not_known() {
        let chains = ResponseChains::default();
        chains.cache().add(of("e", "1"), turn(None, 1));
        chains.cache().add(of("e", "2"), turn(Some("1"), 2));
        chains.cache().add(of("e", "4"), turn(Some("3"), 3));
        let turns_up_to = |id: &str| chains.turns_up_to(&of("e", "").0, id);
        chains.cache().add(of("e", "native"), ResponseTurn::of_server());
        chains.cache().add(of("e", "5"), turn(Some("6"), 1));
        chains.cache().add(of("e", "6"), turn(Some("5"), 1));
        assert!(turns_up_to("5").unwrap().is_empty(), "it comes back to itself");
        assert_eq!(turns_up_to("2").unwrap().len(), 2);
        assert!(turns_up_to("2").unwrap()[0].request.starts_with(br#"{"input":"a"}"#));
        assert_eq!(turns_up_to("native"), Some(Vec::new()));
        assert_eq!((turns_up_to("3"), turns_up_to("4")), (None, None));
        assert_eq!(chains.turns_up_to(&of("other", "").0, "2"), None, "of its own attempt only");
        // A circle, which no server makes, ends.
        chains.cache().add(of("e", "5"), turn(Some("5"), 1));
        assert_eq!(turns_up_to("5"), Some(Vec::new()));
    }

    #[test]
    fn a_turn_does_not_hold_the_buffer_that_its_bytes_came_in() {
        let buffer = Bytes::from(vec![b'a'; 1 << 16]);
        let (request, reply) = (buffer.slice(..10), buffer.slice(10..20));
        let turn = TurnContent::copied(&request, &reply);
        drop((request, reply));
        assert_eq!((turn.request.len(), turn.reply.len()), (10, 10));
        assert!(buffer.is_unique());
    }

    #[test]
    fn the_oldest_turns_are_let_go_of() {
        let mut cache = TurnCache::default();
        for n in 0..100 {
            cache.add(of("e", &n.to_string()), turn(None, 1 << 20));
        }
        assert!(cache.bytes <= RESPONSE_CACHE_BYTES_MAX && cache.turns.len() == cache.oldest.len());
        assert!(
            !cache.turns.contains_key(&of("e", "0")) && cache.turns.contains_key(&of("e", "99"))
        );
        cache.add(of("e", "99"), turn(None, 1));
        let counted: usize = cache.turns.iter().map(|((_, id), turn)| turn.bytes(id)).sum();
        assert_eq!(cache.bytes, counted);
    }

    #[test]
    fn ids_and_credentials_count_and_what_was_dropped_is_read_again() {
        let mut cache = TurnCache::default();
        let attempt = of("e", "").0;
        cache.whole.insert(attempt.clone());
        let owner = "k".repeat(8000);
        for n in 0..20_000 {
            let untagged =
                UntaggedEpisode { episode: attempt.episode.clone(), owner: owner.clone() };
            let turn = ResponseTurn { content: None, untagged: Some(untagged) };
            cache.add(of("e", &n.to_string()), turn);
        }
        assert!(cache.turns.len() * owner.len() <= RESPONSE_CACHE_BYTES_MAX);
        assert_eq!(cache.untagged.len(), cache.turns.len());
        assert!(!cache.whole.contains(&attempt));
        assert!(!is_short(&"r".repeat(10_000)));
    }
}
