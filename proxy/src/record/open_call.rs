//! A call between its start and its end. Dropping an [`OpenCall`] always records its end.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use episode::{AttemptId, CallEnd, CallId, CallStart, Micros, Outcome};
use http::body::cancel::CancelHandle;
use http::body::heartbeat::{Promise, Pulse};
use http::body::request_body::RequestBody;
use http::clock::now;
use http::memory::MemoryLease;
use http::path::target::redacted;
use http::server::activity::CallPermit;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use store::{Ack, CommitError, Store};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;
use wire::{AskedPrompt, ForcedSampling, KnownPrompts, LearnedPrompt, MissingIds, Request};

use crate::error::CallError;
use crate::record::attempts::OpenAttempts;
use crate::record::end_lookups::EndLookups;
use crate::record::engine_stamp::EnginePlace;
use crate::record::experts::ExpertPrompts;
use crate::record::mask::KeyMask;
use crate::record::paths::{CallPaths, PromptCheck};
use crate::record::recording::Recording;
use crate::record::services::RecordingServices;
use crate::record::tracker::{CallTracker, UnwrittenEnd, fill_from_stamps};
use crate::tag::conversations::ConversationTurn;
use crate::tag::responses::PendingResponse;
use crate::tag::{RequestTag, TagContext};

/// A request as it arrived, its tag removed.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a RequestBody,
    /// The body, if it is a JSON object.
    pub(crate) request: Option<&'a Request>,
    /// Sampling parameters of the attempt.
    pub(crate) force: &'a ForcedSampling,
    pub(crate) started_at: Micros,
}

impl Arrival<'_> {
    /// The heartbeats of the call's reply, if it may have any.
    fn pulse(&self, names_call: bool, start: &CallStart) -> Option<Pulse> {
        let request = self.request.filter(|_| start.route.generates())?;
        let pulse = self.head.extensions.get::<Pulse>()?;
        let id = names_call.then(|| start.call_id.to_string());
        pulse.expect(Promise {
            since: Some(Instant::now()),
            is_stream: request.streams(),
            call_id: id.and_then(|id| HeaderValue::try_from(id).ok()),
            ..Promise::default()
        });
        Some(pulse.clone())
    }

    /// The start record of the call.
    fn start(&self, tagged: RequestTag) -> CallStart {
        let request = self.request.filter(|_| tagged.route.generates());
        CallStart {
            call_id: CallId(Uuid::now_v7()),
            tag: tagged.tag,
            started_at: self.started_at,
            method: self.head.method.as_str().to_owned(),
            path: redacted(&tagged.path).into_owned(),
            route: tagged.route,
            model: request.and_then(Request::model),
            request: self.body.decoded.clone().into(),
            sampling: request.and_then(|request| self.force.sampling(request)),
            lineage: tagged.lineage,
        }
    }
}

/// A call that begins.
struct CallOpening<'a> {
    start: CallStart,
    /// The id of the API key that it came with.
    key: Option<String>,
    cancel: Option<&'a CancelHandle>,
    permit: CallPermit,
}

impl CallOpening<'_> {
    /// A call without a key that nothing cancels.
    #[cfg(test)]
    fn plain(start: CallStart) -> Self {
        Self { start, key: None, cancel: None, permit: None }
    }
}

/// The write of a call's end. It completes whether or not it is awaited.
pub(crate) type Commit = JoinHandle<Result<(), CommitError>>;

/// A call that began and has not ended. Dropping it ends it as `client_gone`, or as `complete` if
/// the agent had received the whole answer: hyper drops a call only because its agent left.
#[derive(Debug)]
pub(crate) struct OpenCall {
    store: Store,
    tags: Arc<TagContext>,
    tracker: Arc<CallTracker>,
    mask: KeyMask,
    /// The write of the start record, until it is awaited.
    start: Option<Ack>,
    /// The reason for which there is no start record, until it is told.
    unstarted: Option<CommitError>,
    /// `None` once the call has ended.
    recording: Option<Recording>,
    attempt: AttemptId,
    /// Held until the end is on disk, so that the episode is not handed out before.
    unwritten_end: Option<UnwrittenEnd>,
    /// The hash of the key, group, task and labels.
    words: u64,
    /// The version that was declared current when the call began.
    start_stamp: Option<String>,
    _permit: CallPermit,
    /// The conversation that the answer continues.
    conversation: Option<ConversationTurn>,
    /// The response that a later call may continue by its id.
    pending_response: Option<PendingResponse>,
    /// The questions to the upstream beside the call.
    lookups: Option<EndLookups>,
    /// The prompt, if experts are recorded.
    asked_prompt: Option<AskedPrompt>,
    expert_prompts: Arc<ExpertPrompts>,
    /// The paths that it may go on from, if prompts are sent as ids.
    paths: Option<CallPaths>,
    /// The check that holds the reply against the prompt that was sent.
    prompt_check: Option<PromptCheck>,
    /// The place on the engine that has the call.
    place: Option<Box<dyn EnginePlace>>,
}

impl OpenCall {
    /// Begins a call of an agent. The call keeps `permit` until it has ended.
    pub(crate) async fn begin(
        services: RecordingServices<'_>,
        arrival: Arrival<'_>,
        mut tagged: RequestTag,
        permit: CallPermit,
    ) -> Self {
        let (conversation, key) = (tagged.conversation.take(), tagged.key_id.take());
        let start = arrival.start(tagged);
        let pending_response = PendingResponse::of(&start, &arrival.head.headers);
        let cancel = arrival.head.extensions.get::<CancelHandle>();
        let pulse = arrival.pulse(services.names_call, &start);
        let mut call = Self::queue(services, CallOpening { start, key, cancel, permit }).await;
        call.conversation = conversation;
        call.pending_response = pending_response;
        if let Some(pulse) = pulse {
            call.recording().set_pulse(pulse);
        }
        call
    }

    /// Queues the start record, which rides with the commit under way.
    async fn queue(services: RecordingServices<'_>, opening: CallOpening<'_>) -> Self {
        let CallOpening { mut start, key, cancel, permit } = opening;
        let (attempt, cancel) = (AttemptId::from(&start.tag), cancel.and_then(CancelHandle::take));
        services.tracker.count_start();
        services.mask.hide_in_start(&mut start);
        let recording = Recording::new(start.call_id, start.route, services.reply_bytes_max);
        let paths = match start.route.generates() {
            true => CallPaths::of(services.paths, &attempt, services.read_back),
            false => None,
        };

        // If the agent leaves while the queue is full, the drop of this value ends the call.
        let mut call = Self {
            store: services.store.clone(),
            tags: Arc::clone(services.tags),
            tracker: Arc::clone(services.tracker),
            mask: services.mask.clone(),
            start: None,
            unstarted: None,
            unwritten_end: Some(services.tracker.expect_end(
                start.call_id,
                attempt.clone(),
                cancel,
            )),
            attempt,
            words: words_of(&start, key.as_deref()),
            recording: Some(recording.charged_to(services.memory.lease())),
            start_stamp: services.tracker.versions.declared(),
            _permit: permit,
            conversation: None,
            pending_response: None,
            lookups: None,
            asked_prompt: None,
            expert_prompts: Arc::clone(services.expert_prompts),
            paths,
            prompt_check: None,
            place: None,
        };
        call.start = Some(call.store.begin_with_key(start, key).await);
        call
    }

    /// Notes the engine that gets the call. The call keeps its place there until it has ended.
    pub(crate) fn put_on(&mut self, place: impl EnginePlace + 'static) {
        if let Some(stamp) = place.stamp() {
            let label = stamp.label.or_else(|| self.tracker.versions.declared());
            self.start_stamp = label.filter(|_| !stamp.is_changing);
        }
        self.place = Some(Box::new(place));
    }

    /// Gives the place back. The call is to be sent again.
    pub(crate) fn leave(&mut self) {
        self.place = None;
    }

    /// Sets what the upstream is asked beside the call.
    pub(crate) fn set_lookups(&mut self, lookups: EndLookups) {
        self.lookups = Some(lookups);
    }

    /// The prompts of the attempt whose experts are recorded.
    pub(crate) fn known_prompts(&self) -> KnownPrompts {
        self.expert_prompts.of(&self.attempt)
    }

    /// The paths that the call may go on from, if prompts are sent as ids.
    pub(crate) fn paths(&self) -> Option<CallPaths> {
        self.paths.clone()
    }

    /// Sets the check that holds the reply against the prompt that was sent.
    pub(crate) fn set_prompt_check(&mut self, check: Option<PromptCheck>) {
        self.prompt_check = check;
    }

    /// Sets the prompt of a call whose experts are recorded.
    pub(crate) fn set_asked_prompt(&mut self, prompt: Option<AskedPrompt>) {
        self.asked_prompt = prompt;
    }

    /// Waits until the start record is on disk. No byte of the reply may leave before.
    pub(crate) async fn wait_for_start(&mut self) -> Result<(), CommitError> {
        self.settle_start().await;
        self.check_start()
    }

    /// Fails if it is known that there is no start record.
    pub(crate) fn check_start(&mut self) -> Result<(), CommitError> {
        match self.unstarted.take() {
            None => Ok(()),
            Some(error) => {
                // There is no row that an end could be written to.
                self.recording = None;
                Err(error)
            }
        }
    }

    /// Waits for `exchange`, and beside it for the start record, after which heartbeats may leave.
    pub(crate) async fn beside_start<T>(&mut self, exchange: impl Future<Output = T>) -> T {
        let Some(pulse) = self.recording().pulse() else { return exchange.await };
        let begun = async {
            self.settle_start().await;
            if self.unstarted.is_none() {
                pulse.begin();
            }
        };
        tokio::join!(exchange, begun).0
    }

    async fn settle_start(&mut self) {
        if let Some(start) = self.start.take() {
            self.unstarted = start.done().await.err();
        }
    }

    /// Waits for the start record if this process does not know the attempt to be open.
    pub(crate) async fn admit(
        &mut self,
        open_attempts: &OpenAttempts,
        attempt: &AttemptId,
    ) -> Result<(), CommitError> {
        if !open_attempts.contains(attempt, self.words) {
            self.wait_for_start().await?;
            open_attempts.insert(attempt.clone(), self.words);
        }
        Ok(())
    }

    /// The recording, to add to.
    pub(crate) fn recording(&mut self) -> &mut Recording {
        self.recording.as_mut().expect("a call that ended is not kept")
    }

    /// The outcome of the call if its agent leaves now.
    pub(crate) fn outcome_if_left(&self) -> Outcome {
        self.recording.as_ref().map_or(Outcome::ClientGone, Recording::outcome_if_left)
    }

    /// Ends the call.
    pub(crate) fn end(mut self, outcome: Outcome) -> Commit {
        self.write_end(outcome, None).expect("only `end` and `wait_for_start` take the recording")
    }

    /// Ends a call because of `error`; returns the error that the agent should receive.
    pub(crate) async fn fail(mut self, error: CallError) -> CallError {
        if let Err(unrecorded) = self.wait_for_start().await {
            return unrecorded.into();
        }
        let Some(commit) = self.write_end(Outcome::UpstreamFailed, Some(&error)) else {
            return error;
        };
        match committed(commit).await {
            Ok(()) => error,
            Err(unrecorded) => unrecorded,
        }
    }

    /// Starts the write of the end, in a task of its own because the agent may leave meanwhile.
    fn write_end(&mut self, outcome: Outcome, error: Option<&CallError>) -> Option<Commit> {
        let mut recording = self.recording.take()?;
        if self.unstarted.is_some() {
            return None;
        }
        let memory = recording.take_memory();
        if let Some(turn) = self.conversation.take().filter(|_| error.is_none())
            && let Some(answer) = recording.answer()
        {
            self.tags.conversations.add_answer(&turn, &answer);
        }

        // From here on nothing may wait: this also runs when the call is dropped.
        let (mut end, owed) = recording.finish(outcome, now());
        if let Some(error) = error {
            error.mark(&mut end);
        }
        if let Some(pending) = self.pending_response.take() {
            self.tags.responses.store_response(pending, &end);
        }
        if let Some(check) = self.prompt_check.take() {
            check.look_at(&mut end);
        }
        let prompt = self.asked_prompt.take();
        let learned = prompt.and_then(|asked| asked.settle(&end.prompts, &mut end.choices));
        self.mask.hide_in_end(&mut end);
        self.tracker.count_end(&mut end, self.start_stamp.take());
        let is_stamped = self.note_engine(&mut end, error.is_none()) || end.replayed.is_some();
        if let Some(unwritten) = &self.unwritten_end {
            unwritten.set_ended();
        }

        // The task owns what it needs, because the call itself may be dropped meanwhile.
        let write = EndWrite {
            start: self.start.take(),
            end,
            owed,
            store: self.store.clone(),
            tracker: Arc::clone(&self.tracker),
            mask: self.mask.clone(),
            is_stamped,
            learned,
            expert_prompts: Arc::clone(&self.expert_prompts),
            attempt: self.attempt.clone(),
            lookups: self.lookups.take(),
            _memory: memory,
            _unwritten_end: self.unwritten_end.take(),
        };
        Some(tokio::spawn(write.run()))
    }
}

impl OpenCall {
    /// Notes the engine in the end of the call, and in the engine how its reply ended.
    /// Returns whether the stamps are those of the engine. While weights are pushed to it, there is
    /// none: the old ones or the new ones may have sampled.
    fn note_engine(&self, end: &mut CallEnd, has_reply: bool) -> bool {
        let Some(place) = &self.place else { return false };
        let Some(stamp) = place.stamp() else { return false };
        match end.outcome {
            Outcome::UpstreamFailed if has_reply && end.status == Some(200) => {
                place.note_broken_reply();
            }
            Outcome::Complete => place.note_whole_reply(),
            _ => {}
        }

        end.engine = Some(stamp.engine);
        end.routed = Some(stamp.routed);
        if stamp.is_changing {
            end.stamps.end = None;
            return true;
        }
        let is_known = stamp.label.is_some();
        if is_known {
            end.stamps.end = stamp.label;
        }
        is_known
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.write_end(self.outcome_if_left(), None);
        self.tracker.count_exit();
    }
}

/// The hash of what decides whether an attempt takes a call.
fn words_of(start: &CallStart, key: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, &start.tag.group, &start.tag.task, &start.tag.labels).hash(&mut hasher);
    hasher.finish()
}

/// The write of a call's end, once the lookups of the call are done.
struct EndWrite {
    /// The write of the start record, unless it was awaited.
    start: Option<Ack>,
    end: CallEnd,
    owed: MissingIds,
    store: Store,
    tracker: Arc<CallTracker>,
    mask: KeyMask,
    /// True if the versions are those of the engine that had the call.
    is_stamped: bool,
    /// The prompt as the reply told it, which counts once the call is on disk.
    learned: Option<LearnedPrompt>,
    expert_prompts: Arc<ExpertPrompts>,
    attempt: AttemptId,
    lookups: Option<EndLookups>,
    /// Held until the reply is on disk.
    _memory: Option<MemoryLease>,
    _unwritten_end: Option<UnwrittenEnd>,
}

impl EndWrite {
    async fn run(mut self) -> Result<(), CommitError> {
        if let Some(lookups) = self.lookups.take() {
            self.end = lookups.fill(self.end, self.owed).await;
        }
        self.mask.hide_in_lookups(&mut self.end);
        match self.is_stamped {
            true => fill_from_stamps(&mut self.end),
            false => self.tracker.fill_versions(&self.store, &mut self.end).await,
        }

        let ended = self.store.end(self.end).await.done().await;
        // Only now: a start that nobody waits for is written with its end.
        let written = match self.start {
            // Without a start there is no row that the end could be written to.
            Some(start) => start.done().await.and(ended),
            None => ended,
        };
        if let Some(learned) = self.learned.filter(|_| written.is_ok()) {
            self.expert_prompts.learn(self.attempt, learned);
        }
        written
    }
}

/// Waits until the end of a call is on disk.
pub(crate) async fn committed(commit: Commit) -> Result<(), CallError> {
    commit.await.unwrap_or(Err(CommitError::Stopped)).map_err(CallError::from)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use bytes::Bytes;
    use episode::{CallId, Lineage, Route, Tag, TagSource};
    use http::memory::MemoryAccount;
    use store::{Durability, Selection, Writer};
    use tokio::task::unconstrained;
    use uuid::Uuid;

    use super::*;
    use crate::config::continue_mode::ContinueMode;
    use crate::config::episode_prefix::EpisodePrefix;
    use crate::reading_room::{AccountRoom, ReadBack};
    use crate::record::paths::PathMemory;
    use crate::tag::api_key::KeySigner;

    /// More than any queue takes.
    const RECORDS_MAX: usize = 100_000;

    fn start() -> CallStart {
        let tag = Tag {
            episode: "e".parse().unwrap(),
            attempt: 0,
            group: None,
            task: None,
            labels: Vec::new(),
            source: TagSource::Path,
        };
        CallStart {
            call_id: CallId(Uuid::now_v7()),
            tag,
            started_at: 1,
            method: "POST".into(),
            path: "/v1/chat/completions".into(),
            route: Route::Chat,
            model: None,
            request: Bytes::new().into(),
            sampling: None,
            lineage: Lineage::default(),
        }
    }

    /// The services of a recording into `store`, without an account of memory that could be full.
    struct Services {
        store: Store,
        read_back: ReadBack,
        tags: Arc<TagContext>,
        tracker: Arc<CallTracker>,
        expert_prompts: Arc<ExpertPrompts>,
        paths: PathMemory,
        mask: KeyMask,
        memory: Arc<MemoryAccount>,
    }

    impl Services {
        async fn open(folder: &tempfile::TempDir) -> (Self, Writer) {
            let at = folder.path().join("test.db");
            let (store, writer) = Store::open(at.as_path(), Durability::Process).await.unwrap();
            let memory = Arc::new(MemoryAccount::new(u64::MAX));
            let signer = KeySigner::open(None, None).unwrap();
            let room = Arc::new(AccountRoom::new(&memory));
            let services = Self {
                read_back: ReadBack::new(&store, &room),
                store,
                tags: Arc::new(TagContext::new(signer, EpisodePrefix::default())),
                tracker: Arc::default(),
                expert_prompts: Arc::default(),
                paths: PathMemory::new(ContinueMode::Off, &memory),
                mask: KeyMask::new(None),
                memory,
            };
            (services, writer)
        }

        fn borrowed(&self) -> RecordingServices<'_> {
            let Self { store, read_back, tags, tracker, expert_prompts, paths, mask, memory } =
                self;
            let (reply_bytes_max, names_call) = (1 << 20, false);
            RecordingServices {
                store,
                read_back,
                tags,
                tracker,
                expert_prompts,
                paths,
                mask,
                memory,
                reply_bytes_max,
                names_call,
            }
        }
    }

    /// What `future` comes to at once, if anything. Nothing else runs meanwhile.
    fn at_once<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(unconstrained(future)).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_failed_call_ends_though_its_agent_leaves_early() {
        let folder = tempfile::tempdir().unwrap();
        let (services, writer) = Services::open(&folder).await;
        let started = start();
        let call_id = started.call_id;
        let mut open = OpenCall::queue(services.borrowed(), CallOpening::plain(started)).await;
        open.wait_for_start().await.unwrap();
        let filled = (0..RECORDS_MAX).find(|_| at_once(services.store.begin(start())).is_pending());
        assert!(filled.is_some(), "the queue has a bound");
        let detail = "u".to_owned();
        let fault = CallError::Unreachable { reason: "refused", detail, is_unsent: true };
        assert!(at_once(open.fail(fault)).is_pending(), "there is no room");
        let ended = async {
            loop {
                let mut snapshot = services.store.snapshot().await.unwrap();
                let episodes = snapshot.episodes(&Selection::default()).await.unwrap();
                let calls = snapshot.calls(&episodes[0]).await.unwrap();
                let call = calls.into_iter().find(|call| call.begun.call_id == call_id).unwrap();
                if let Some(ended) = call.ended {
                    return ended;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("an end");
        assert_eq!((ended.outcome, ended.status), (Outcome::UpstreamFailed, Some(502)));
        drop(services);
        writer.finish().await;
    }
}
