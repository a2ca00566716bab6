//! The calls of a recorded attempt, and which of them answers a request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use episode::{AttemptId, Call, CallEnd, CallId, Outcome, Replay, ReplayMode};
use http::memory::MemoryLease;
use store::{Selection, Snapshot, SnapshotError};
use tokio::sync::OnceCell;
use wire::{IgnoreRules, RequestPrint};

use crate::bounds::DECK_MESSAGES_MAX;
use crate::error::CallError;

/// The recording that answers the calls of an attempt.
#[derive(Debug)]
pub(crate) struct Deck {
    pub(crate) replay: Replay,
    pub(super) rules: IgnoreRules,
    calls: OnceCell<LoadedDeck>,
    given: Mutex<GivenCalls>,
    /// The words on the first call that the recording does not answer.
    refused: Mutex<Option<String>>,
}

/// The recorded calls that have answered.
#[derive(Debug, Default)]
struct GivenCalls {
    /// All of them, in the order in which they did.
    all: Vec<CallId>,
    /// Those whose agent left before it had the reply.
    unread: Vec<CallId>,
}

/// A reply that is given again. If it is dropped before its agent has it, an equal request gets it
/// once more.
#[derive(Debug)]
pub(super) struct ReplyOnItsWay(Option<(Arc<Deck>, CallId)>);

/// The calls of a recording, and the memory that they take.
#[derive(Debug)]
struct LoadedDeck {
    calls: Vec<DeckCall>,
    _memory: MemoryLease,
}

/// A recorded call with a reply.
#[derive(Debug)]
pub(super) struct DeckCall {
    pub(super) id: CallId,
    /// Its number among those with a reply, from 1.
    pub(super) number: usize,
    method: String,
    path: String,
    samples: bool,
    /// Turns that were whole before it began.
    turns_before: u32,
    is_turn: bool,
    print: RequestPrint,
}

/// A request that is to be answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeckRequest<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) body: &'a [u8],
    /// True if the client says that it sends the request again.
    pub(super) is_retry: bool,
}

/// The recorded call for a request.
#[derive(Debug)]
pub(super) enum Match<'a> {
    /// Its reply is given again.
    Given(&'a DeckCall),
    /// The request goes to the upstream: the turns of the recording are over.
    Live,
    /// The request differs from the nearest call that has not answered yet.
    Differs(&'a DeckCall),
    /// The request is that of a call that has answered already.
    Again(&'a DeckCall),
    /// Every call has answered, or there was none of this kind.
    Over,
}

/// The progress of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayState {
    /// The recording.
    pub replay: Replay,
    /// Number of its calls that may answer.
    pub calls: usize,
    /// Number of those that have.
    pub given: usize,
    /// The words on the first call that it does not answer.
    pub refused: Option<String>,
}

impl Deck {
    pub(super) fn new(replay: Replay) -> Self {
        // They were checked when the attempt was announced.
        let rules = IgnoreRules::read(&replay.ignore).unwrap_or_default();
        let (calls, given, refused) = (OnceCell::new(), Mutex::default(), Mutex::default());
        Self { replay, rules, calls, given, refused }
    }

    /// Reads the recorded calls, once, and those that have answered calls of `attempt` already.
    ///
    /// # Errors
    /// [`CallError`] if they cannot be read.
    pub(super) async fn load(
        &self,
        snapshot: &mut Snapshot,
        attempt: &AttemptId,
        mut memory: MemoryLease,
    ) -> Result<&[DeckCall], CallError> {
        let source = &self.replay.source;
        let load = async {
            let recorded = calls_of(snapshot, source).await?;
            if recorded.is_empty() {
                let told = format!("the store has no calls of the recording `{source}`");
                return Err(CallError::Replayed(told));
            }
            let calls = deck_of(&recorded, &self.rules);
            let cut = cut_replies(&recorded);
            // A reader that holds memory and waits for more may wait for itself.
            drop(recorded);
            snapshot.give_back();
            let messages: usize = calls.iter().map(|call| call.print.messages()).sum();
            if messages > DECK_MESSAGES_MAX {
                return Err(CallError::Replayed(format!(
                    "the recording `{source}` is too long to be replayed: its requests have more \
                     than {DECK_MESSAGES_MAX} messages"
                )));
            }

            memory.hold(messages * size_of::<u64>() + size_of_val(calls.as_slice()));

            // This process may have been restarted since.
            let own = calls_of(snapshot, attempt).await?;
            lock(&self.given).add_recorded(&own, &cut);
            drop(own);
            snapshot.give_back();
            Ok(LoadedDeck { calls, _memory: memory })
        };
        self.calls.get_or_try_init(|| load).await.map(|deck| deck.calls.as_slice())
    }

    /// Finds the recorded call for a request, and notes that it answers.
    pub(super) fn take<'a>(&self, calls: &'a [DeckCall], request: DeckRequest<'_>) -> Match<'a> {
        let print = RequestPrint::of(request.body, &self.rules);
        let mut given = lock(&self.given);
        let found = self.find(calls, request, &print, &given);
        if let Match::Given(call) = &found {
            given.take(call.id);
        }
        found
    }

    /// Watches over a reply until its agent has it.
    pub(super) fn send_off(self: &Arc<Self>, id: CallId) -> ReplyOnItsWay {
        ReplyOnItsWay(Some((Arc::clone(self), id)))
    }

    /// Takes back that a recorded call answers: its reply could not be read.
    pub(super) fn put_back(&self, id: CallId) {
        lock(&self.given).all.retain(|given| *given != id);
    }

    fn find<'a>(
        &self,
        calls: &'a [DeckCall],
        request: DeckRequest<'_>,
        print: &RequestPrint,
        given: &GivenCalls,
    ) -> Match<'a> {
        let is_alike =
            |call: &&DeckCall| call.method == request.method && call.path == request.path;
        let is_left = |call: &&DeckCall| !given.all.contains(&call.id);
        let is_within = |call: &&DeckCall| self.is_within(call);
        let alike = || calls.iter().filter(is_alike);
        let equal = || alike().filter(|call| call.print == *print);
        if let Some(call) = equal().filter(is_within).find(is_left) {
            return Match::Given(call);
        }

        // Its agent may not have had the reply.
        let may_lack = |call: &&DeckCall| request.is_retry || given.unread.contains(&call.id);
        let answered =
            equal().filter(may_lack).filter_map(|call| Some((given.place(call.id)?, call)));
        if let Some((_, call)) = answered.max_by_key(|(place, _)| *place) {
            return Match::Given(call);
        }

        // What samples nothing may be asked as often as one likes.
        if let Some(call) = equal().find(|call| !call.samples) {
            return Match::Given(call);
        }
        let is_over = !calls.iter().filter(is_within).filter(is_left).any(|call| call.is_turn);
        let is_later = equal().any(|call| !is_within(&call));
        if self.replay.until.is_some() && (is_over || is_later || alike().next().is_none()) {
            return Match::Live;
        }
        if let (ReplayMode::Strict, Some(call)) = (self.replay.mode, equal().find(is_within)) {
            return Match::Again(call);
        }
        let near = |call: &&DeckCall| {
            let lengths = call.print.messages().abs_diff(print.messages());
            (std::cmp::Reverse(call.print.shared(print)), lengths, call.number)
        };
        match (alike().filter(is_within).filter(is_left).min_by_key(near), self.replay.mode) {
            (Some(nearest), ReplayMode::Loose) => Match::Given(nearest),
            (Some(nearest), ReplayMode::Strict) => Match::Differs(nearest),
            (None, _) => Match::Over,
        }
    }

    /// True for a call that the recording may answer.
    fn is_within(&self, call: &DeckCall) -> bool {
        self.replay.until.is_none_or(|until| call.turns_before < until)
    }

    /// Notes what was told of a call that the recording does not answer.
    pub(super) fn note_refused(&self, told: &str) {
        lock(&self.refused).get_or_insert_with(|| told.to_owned());
    }

    pub(super) fn state(&self) -> ReplayState {
        let calls = self.calls.get().map_or(&[][..], |deck| deck.calls.as_slice());
        ReplayState {
            replay: self.replay.clone(),
            calls: calls.iter().filter(|call| self.is_within(call)).count(),
            given: lock(&self.given).all.len(),
            refused: lock(&self.refused).clone(),
        }
    }
}

impl GivenCalls {
    /// Notes that a call answers, perhaps not for the first time.
    fn take(&mut self, id: CallId) {
        for list in [&mut self.all, &mut self.unread] {
            list.retain(|given| *given != id);
        }
        self.all.push(id);
    }

    /// The place of a call in the order in which they answered.
    fn place(&self, id: CallId) -> Option<usize> {
        self.all.iter().position(|given| *given == id)
    }

    /// Adds what has answered calls of an attempt. The replies of `cut` never come to their end.
    fn add_recorded(&mut self, own: &[Call], cut: &[CallId]) {
        for ended in own.iter().filter_map(|call| call.ended.as_ref()) {
            let Some(id) = ended.replayed else { continue };
            self.take(id);
            if ended.outcome == Outcome::ClientGone && !cut.contains(&id) {
                self.unread.push(id);
            }
        }
    }
}

impl ReplyOnItsWay {
    /// Notes that the agent has the reply.
    pub(super) fn arrived(mut self) {
        self.0 = None;
    }
}

impl Drop for ReplyOnItsWay {
    fn drop(&mut self) {
        if let Some((deck, id)) = self.0.take() {
            lock(&deck.given).unread.push(id);
        }
    }
}

/// The calls whose agent left, or whose transfer broke off.
fn cut_replies(calls: &[Call]) -> Vec<CallId> {
    let ended = calls.iter().filter_map(|call| call.ended.as_ref());
    let is_cut = |ended: &&CallEnd| ended.outcome != Outcome::Complete;
    ended.filter(is_cut).map(|ended| ended.call_id).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn calls_of(snapshot: &mut Snapshot, attempt: &AttemptId) -> Result<Vec<Call>, CallError> {
    let selection = Selection { episode: Some(attempt.episode.clone()), ..Selection::default() };
    let unread = |error: SnapshotError| match error {
        SnapshotError::RoomTaken => CallError::NoRoomToRead,
        error => CallError::Replayed(format!("the recording `{attempt}` cannot be read: {error}")),
    };
    let records = snapshot.episodes(&selection).await.map_err(unread)?;
    match records.iter().find(|record| record.attempt == attempt.attempt) {
        Some(record) => snapshot.calls(record).await.map_err(unread),
        None => Ok(Vec::new()),
    }
}

/// The calls that have a reply, in the order in which they began.
fn deck_of(calls: &[Call], rules: &IgnoreRules) -> Vec<DeckCall> {
    let mut turns = 0;
    let answered = calls.iter().filter_map(|call| Some((&call.begun, call.ended.as_ref()?)));
    let answered = answered.filter(|(_, ended)| ended.status.is_some()).enumerate();

    answered
        .map(|(at, (begun, ended))| {
            let is_turn = begun.route.generates() && ended.outcome == Outcome::Complete;
            let turns_before = turns;
            turns += u32::from(is_turn);
            DeckCall {
                id: begun.call_id,
                number: at + 1,
                method: begun.method.clone(),
                path: begun.path.clone(),
                samples: begun.route.generates(),
                turns_before,
                is_turn,
                print: RequestPrint::of(&begun.request.read(), rules),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use episode::{CallEnd, CallStart, Lineage, Route, Tag, TagSource};
    use uuid::Uuid;

    use super::*;

    const CHAT: &str = "/v1/chat/completions";

    fn chat(messages: &[&str]) -> String {
        let messages: Vec<String> = messages
            .iter()
            .map(|text| format!(r#"{{"role":"user","content":"{text}"}}"#))
            .collect();
        format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","))
    }

    fn call(number: u128, path: &str, body: &str, outcome: Outcome) -> Call {
        let call_id = CallId(Uuid::from_u128(number));
        let tag = Tag {
            episode: "e".parse().unwrap(),
            attempt: 0,
            group: None,
            task: None,
            labels: Vec::new(),
            source: TagSource::Path,
        };
        let begun = CallStart {
            call_id,
            tag,
            started_at: number as i64,
            method: if body.is_empty() { "GET" } else { "POST" }.to_owned(),
            path: path.to_owned(),
            route: if path == CHAT { Route::Chat } else { Route::Models },
            model: None,
            request: body.to_owned().into(),
            sampling: None,
            lineage: Lineage::default(),
        };
        let ended = CallEnd { status: Some(200), ..CallEnd::without_reply(call_id, 1, outcome) };
        Call { begun, ended: Some(ended) }
    }

    fn deck(until: Option<u32>, mode: ReplayMode) -> Deck {
        let source = "e/0".parse().unwrap();
        Deck::new(Replay { source, until, mode, ignore: Vec::new(), keeps_time: false })
    }

    fn recorded() -> Vec<DeckCall> {
        let calls = [
            call(1, "/v1/models", "", Outcome::Complete),
            call(2, CHAT, &chat(&["a"]), Outcome::UpstreamFailed),
            call(3, CHAT, &chat(&["a"]), Outcome::Complete),
            call(4, CHAT, &chat(&["a", "b"]), Outcome::Complete),
            call(5, CHAT, &chat(&["a", "b", "c"]), Outcome::Complete),
        ];
        deck_of(&calls, &IgnoreRules::default())
    }

    /// The number of the call that answers, or a word for why none does.
    fn taken(deck: &Deck, calls: &[DeckCall], path: &str, body: &str) -> String {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let is_retry = false;
        match deck.take(calls, DeckRequest { method, path, body: body.as_bytes(), is_retry }) {
            Match::Given(call) => call.number.to_string(),
            Match::Live => "live".to_owned(),
            Match::Differs(call) => format!("differs {}", call.number),
            Match::Again(call) => format!("again {}", call.number),
            Match::Over => "over".to_owned(),
        }
    }

    #[test]
    fn each_recorded_call_answers_once_and_in_its_turn() {
        let (calls, deck) = (recorded(), deck(None, ReplayMode::Strict));
        let chat = |messages: &[&str]| taken(&deck, &calls, CHAT, &chat(messages));
        assert_eq!([chat(&["a"]), chat(&["a"])], ["2", "3"], "the retry gets the second reply");
        assert_eq!(chat(&["a"]), "again 2");
        assert_eq!(chat(&["a", "x"]), "differs 4");
        assert_eq!(chat(&["a", "b", "c"]), "5", "calls at once come in any order");
        for _ in 0..2 {
            assert_eq!(taken(&deck, &calls, "/v1/models", ""), "1");
        }
        assert_eq!(chat(&["a", "b"]), "4");
        assert_eq!(chat(&["a", "b", "d"]), "over");
        assert_eq!(taken(&deck, &calls, "/v1/embeddings", "{}"), "over");
    }

    #[test]
    fn a_reply_that_did_not_arrive_is_given_again() {
        let (calls, deck) = (recorded(), Arc::new(deck(Some(2), ReplayMode::Strict)));
        let chat = |messages: &[&str]| taken(&deck, &calls, CHAT, &chat(messages));
        assert_eq!([chat(&["a"]), chat(&["a"]), chat(&["a", "b"])], ["2", "3", "4"]);
        drop(deck.send_off(calls[2].id));
        assert_eq!(chat(&["a"]), "3", "the branch is behind its turns");
        assert_eq!(chat(&["a"]), "live", "it has arrived now");
        deck.send_off(calls[2].id).arrived();
        assert_eq!((chat(&["a"]), deck.state().given), ("live".to_owned(), 3));
    }

    #[test]
    fn a_client_that_says_that_it_asks_again_gets_the_reply() {
        let (calls, deck) = (recorded(), deck(Some(2), ReplayMode::Strict));
        let ask = |messages: &[&str], is_retry| {
            let body = chat(messages);
            let body = body.as_bytes();
            match deck.take(&calls, DeckRequest { method: "POST", path: CHAT, body, is_retry }) {
                Match::Given(call) => call.number,
                _ => 0,
            }
        };
        assert_eq!([ask(&["a"], false), ask(&["a"], true)], [2, 3], "a retry was recorded");
        assert_eq!([ask(&["a"], true), ask(&["a"], true), ask(&["a"], false)], [3, 3, 0]);
        assert_eq!(ask(&["a", "b", "c"], true), 0, "a later turn was not answered");
    }

    #[test]
    fn behind_its_turns_calls_are_live() {
        let (calls, deck) = (recorded(), deck(Some(2), ReplayMode::Strict));
        let chat = |messages: &[&str]| taken(&deck, &calls, CHAT, &chat(messages));
        assert_eq!([chat(&["a"]), chat(&["a"])], ["2", "3"]);
        assert_eq!(chat(&["a", "x"]), "differs 4", "a turn of the recording is left");
        assert_eq!(chat(&["a", "b", "c"]), "live", "it is a later turn");
        assert_eq!([chat(&["a", "b"]), chat(&["a", "b", "d"])], ["4", "live"]);
        assert_eq!(taken(&deck, &calls, "/v1/embeddings", "{}"), "live");
    }

    #[test]
    fn a_loose_replay_gives_the_nearest() {
        let (calls, deck) = (recorded(), deck(None, ReplayMode::Loose));
        let chat = |messages: &[&str]| taken(&deck, &calls, CHAT, &chat(messages));
        assert_eq!(chat(&["a", "b", "x"]), "5");
        assert_eq!(chat(&["a", "b", "y"]), "4");
        assert_eq!([chat(&["z"]), chat(&["z"]), chat(&["z"])], ["2", "3", "over"]);
    }
}
