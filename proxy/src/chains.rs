//! Conversations that rolltape keeps in the server's place: a response that was made of a chat
//! reply is in no server's store, and a request may go on from it by its id.
//!
//! The newest are held in memory within a bound; what is not held is read back from the recording
//! of the episode. A request that goes on from a response of the server's own stays as it is.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use episode::{Begun, Call, Ended, EpisodeId, Outcome, Route, TagSource};
use hyper::HeaderMap;
use store::{Selection, SnapshotError, Store};
use wire::Request;

use crate::admitted::Key;
use crate::tag;

/// Bytes of requests and replies that are held; the oldest are let go of first.
const HELD_BYTES_MAX: usize = 64 << 20;
/// What a turn weighs beside its bytes.
const TURN_BYTES: usize = 256;
/// Turns that are put in front of a request.
const TURNS_MAX: usize = 10_000;

/// Responses by their ids.
#[derive(Debug, Default)]
pub(crate) struct Chains(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    turns: HashMap<String, Turn>,
    oldest: VecDeque<String>,
    bytes: usize,
}

/// A response.
#[derive(Debug, Clone)]
struct Turn {
    /// The episode of a call that nobody tagged, and whose it was.
    place: Option<(EpisodeId, String)>,
    /// The request and the reply; none where the server that answered has them.
    said: Option<(Bytes, Bytes)>,
}

/// A call of the Responses route, until it has ended.
#[derive(Debug)]
pub(crate) struct Asked {
    request: Bytes,
    place: Option<(EpisodeId, String)>,
}

impl Asked {
    /// The call that has begun, if it is of the Responses route.
    pub(crate) fn of(begun: &Begun, headers: &HeaderMap) -> Option<Self> {
        let untagged = begun.tag.source == TagSource::Auto;
        let place = || (begun.tag.episode.clone(), tag::holder(headers).to_owned());
        let request = begun.request.clone();
        (begun.route == Route::Responses).then(|| Self { request, place: untagged.then(place) })
    }
}

impl Turn {
    fn bytes(&self) -> usize {
        TURN_BYTES + self.said.as_ref().map_or(0, |(asked, told)| asked.len() + told.len())
    }

    /// The response that its request goes on from.
    fn before(&self) -> Option<String> {
        wire::previous_response(Route::Responses, &self.said.as_ref()?.0)
    }
}

impl Chains {
    /// Remembers the response to a call that has ended.
    pub(crate) fn ended(&self, asked: Asked, ended: &Ended) {
        let kept = kept(&asked.request, ended);
        if let Some(id) =
            wire::response_id(Route::Responses, &ended.reply).filter(|_| kept.is_some())
        {
            self.held().add(id, Turn { place: asked.place, said: kept.flatten() });
        }
    }

    /// The episode of the untagged response that a request of this holder goes on from.
    pub(crate) fn episode(&self, holder: &str, request: &Request) -> Option<EpisodeId> {
        let id = wire::previous_response(Route::Responses, request.body())?;
        let held = self.held();
        let (episode, whose) = held.turns.get(&id)?.place.as_ref()?;
        (whose == holder).then(|| episode.clone())
    }

    /// A request behind the conversation that it goes on from; `None` where it goes on from none,
    /// or from one that was not kept here.
    pub(crate) async fn whole(
        &self,
        store: &Store,
        key: &Key,
        (route, sent): (Route, Option<&Request>),
    ) -> Option<Request> {
        let sent = sent?;
        let id = wire::previous_response(route, sent.body())?;
        let turns = match self.turns(&id) {
            Some(turns) => turns,
            None => {
                self.recall(store, key, &id).await;
                self.turns(&id)?
            }
        };
        let turns: Vec<(&[u8], &[u8])> =
            turns.iter().map(|(asked, told)| (&**asked, &**told)).collect();
        Request::read(&wire::behind(sent.body(), &turns)?.into())
    }

    /// The turns up to the response `id`, the first one first; `None` where one of them is not
    /// known. Empty where the server has them.
    fn turns(&self, id: &str) -> Option<Vec<(Bytes, Bytes)>> {
        let held = self.held();
        let mut turns = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            let turn = held.turns.get(&id)?;
            let Some(said) = turn.said.clone().filter(|_| turns.len() < TURNS_MAX) else {
                return Some(Vec::new());
            };
            next = turn.before();
            turns.push(said);
        }
        turns.reverse();
        Some(turns)
    }

    /// Reads the responses of an episode back. One that is not among them is another's to know.
    async fn recall(&self, store: &Store, key: &Key, id: &str) {
        match recorded(store, key).await {
            Ok(calls) => {
                for call in calls {
                    if let Some(ended) = call.ended.filter(|_| call.begun.route == Route::Responses)
                    {
                        self.ended(Asked { request: call.begun.request, place: None }, &ended);
                    }
                }
                let mut held = self.held();
                if !held.turns.contains_key(id) {
                    held.add(id.to_owned(), Turn { place: None, said: None });
                }
            }
            Err(error) => tracing::warn!(%error, "what a response goes on from cannot be read"),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn add(&mut self, id: String, turn: Turn) {
        self.bytes += turn.bytes();
        match self.turns.insert(id.clone(), turn) {
            Some(old) => self.bytes -= old.bytes(),
            None => self.oldest.push_back(id),
        }
        while self.bytes > HELD_BYTES_MAX {
            let Some(oldest) = self.oldest.pop_front() else { return };
            self.bytes -= self.turns.remove(&oldest).map_or(0, |turn| turn.bytes());
        }
    }
}

/// What is kept of a call: nothing where there is no response to go on from, no bytes where the
/// server has it.
fn kept(request: &Bytes, ended: &Ended) -> Option<Option<(Bytes, Bytes)>> {
    if ended.outcome != Outcome::Complete {
        return None;
    }
    if ended.translated.is_none() {
        return Some(None);
    }
    wire::is_to_be_kept(request).then(|| Some((request.clone(), ended.reply.clone())))
}

/// The calls of an attempt, in the order in which they began.
async fn recorded(store: &Store, (id, attempt): &Key) -> Result<Vec<Call>, SnapshotError> {
    let mut snapshot = store.snapshot().await?;
    let only = Selection { episode: Some(id.clone()), ..Selection::default() };
    let episodes = snapshot.episodes(&only).await?;
    match episodes.iter().find(|episode| episode.attempt == *attempt) {
        Some(episode) => snapshot.calls(episode).await,
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(before: Option<&str>, bytes: usize) -> Turn {
        let before = before.map(|id| format!(r#","previous_response_id":"{id}""#));
        let asked = format!(r#"{{"input":"{}"{}}}"#, "a".repeat(bytes), before.unwrap_or_default());
        Turn { place: None, said: Some((asked.into(), Bytes::new())) }
    }

    #[test]
    fn a_chain_is_whole_or_not_known() {
        let chains = Chains::default();
        chains.held().add("1".to_owned(), turn(None, 1));
        chains.held().add("2".to_owned(), turn(Some("1"), 2));
        chains.held().add("4".to_owned(), turn(Some("3"), 3));
        chains.held().add("native".to_owned(), Turn { place: None, said: None });
        assert_eq!(chains.turns("2").unwrap().len(), 2);
        assert!(chains.turns("2").unwrap()[0].0.starts_with(br#"{"input":"a"}"#));
        assert_eq!(chains.turns("native"), Some(Vec::new()));
        assert_eq!((chains.turns("3"), chains.turns("4")), (None, None));
        // A circle, which no server makes, ends.
        chains.held().add("5".to_owned(), turn(Some("5"), 1));
        assert_eq!(chains.turns("5"), Some(Vec::new()));
    }

    #[test]
    fn the_oldest_turns_are_let_go_of() {
        let mut held = Held::default();
        for n in 0..100 {
            held.add(n.to_string(), turn(None, 1 << 20));
        }
        assert!(held.bytes <= HELD_BYTES_MAX && held.turns.len() == held.oldest.len());
        assert!(!held.turns.contains_key("0") && held.turns.contains_key("99"));
        held.add("99".to_owned(), turn(None, 1));
        let counted: usize = held.turns.values().map(Turn::bytes).sum();
        assert_eq!(held.bytes, counted);
    }
}
