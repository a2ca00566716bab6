//! A proxy: its upstreams, one store, and its state in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use episode::{AttemptId, Micros, Replay, Route};
use http::clock::now;
use http::memory::MemoryAccount;
use http::server::activity::CallPermit;
use hyper::Request;
use hyper::http::request::Parts;
use store::{Budget, CommitError, Limits, Snapshot, SnapshotError, Store};
use thiserror::Error;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use wire::{ForcedSampling, ForcedSamplingError};

use crate::bounds::{ATTEMPT_BYTES_MIN, ATTEMPT_MEMORY_PART};
use crate::config::continue_mode::ContinueMode;
use crate::config::spec::{EngineSpec, InvalidEngine};
use crate::config::{Config, InvalidSetting};
use crate::error::CallError;
use crate::fleet::health;
use crate::fleet::members::{ChangeError, Fleet};
use crate::reading_room::{AccountRoom, ReadBack};
use crate::record::admission::Admission;
use crate::record::attempts::OpenAttempts;
use crate::record::experts::ExpertPrompts;
use crate::record::mask::KeyMask;
use crate::record::paths::PathMemory;
use crate::record::services::RecordingServices;
use crate::record::tracker::CallTracker;
use crate::replay::answer::ReplayServices;
use crate::replay::decks::Decks;
use crate::tag::api_key::KeySigner;
use crate::tag::responses::History;
use crate::tag::{self, RequestTag, TagContext};

/// A proxy: its upstreams, one store.
#[derive(Debug)]
pub struct Proxy {
    config: Config,
    pub(crate) store: Store,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) memory: Arc<MemoryAccount>,
    /// The memory of those who read the recording.
    pub(crate) reading_room: Arc<AccountRoom>,
    /// Reads back what calls go on from.
    pub(crate) read_back: ReadBack,
    /// Longest reply that is recorded, in bytes.
    reply_bytes_max: usize,
    /// Bounds the calls in flight.
    call_permits: Arc<Semaphore>,
    pub(crate) open_attempts: OpenAttempts,
    pub(crate) tags: Arc<TagContext>,
    pub(crate) tracker: Arc<CallTracker>,
    pub(crate) expert_prompts: Arc<ExpertPrompts>,
    pub(crate) paths: PathMemory,
    /// The recordings that answer calls.
    pub(crate) decks: Decks,
    pub(crate) mask: KeyMask,
    /// Counts the events after which an item of the feed may be ready, or an attempt may begin.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) admission: Admission,
    /// The end of the drain, once one has begun.
    pub(crate) drain_until: watch::Sender<Option<Instant>>,
    default_force: Arc<ForcedSampling>,
    /// Sampling parameters of the attempts that have their own.
    attempt_force: Mutex<HashMap<AttemptId, Arc<ForcedSampling>>>,
}

/// The reason for which a proxy does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A setting cannot be used.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The upstreams cannot be used together.
    #[error(transparent)]
    Engine(#[from] InvalidEngine),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] SnapshotError),
    /// The secrets that sign API keys cannot be read or kept.
    #[error("the secrets that sign API keys cannot be used: {0}")]
    SigningSecrets(#[source] std::io::Error),
    /// The store cannot be written.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The stored sampling parameters of an episode are not valid.
    #[error(transparent)]
    ForcedSampling(#[from] ForcedSamplingError),
}

impl From<ChangeError> for StartError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Setting(error) => error.into(),
            ChangeError::Invalid(error) => error.into(),
            // Nothing is removed at the start.
            ChangeError::Unknown(name) | ChangeError::Last(name) => {
                InvalidEngine::Twice(name).into()
            }
        }
    }
}

impl Proxy {
    /// A proxy that records into `store`. Upstreams that are called with a key of our own are asked
    /// what they are, for at most two seconds.
    ///
    /// # Errors
    /// [`StartError`] if a setting cannot be used or the store cannot be read.
    pub async fn start(config: Config, store: Store) -> Result<Self, StartError> {
        let signer = open_signer(&config, &store).await?;
        let mut snapshot = store.snapshot().await?;
        let wishes = stored_wishes(&mut snapshot).await?;
        let open_attempts = OpenAttempts::default();
        for attempt in snapshot.budgeted_attempts().await? {
            open_attempts.count(attempt);
        }
        if config.budget != Budget::default() {
            open_attempts.count_all();
        }
        let tracker = CallTracker::default();
        tracker.versions.load(snapshot.versions().await?);
        let admission = Admission::new(snapshot.admission_rule().await?);
        // No transaction stays open while the upstreams are waited for.
        drop(snapshot);
        let fleet = Fleet::start(&config).await?;
        fleet.probe_early().await;

        let memory = Arc::new(MemoryAccount::new(config.memory_bytes_max));
        let reading_room = Arc::new(AccountRoom::new(&memory));
        let bytes_max = (config.memory_bytes_max / ATTEMPT_MEMORY_PART).max(ATTEMPT_BYTES_MIN);
        let attempt_bytes_max = Some(bytes_max);
        store.set_limits(Limits { budget: config.budget, attempt_bytes_max }).await?;
        // A longer reply would be read by nobody, and its record is copied while it is written.
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let reply_bytes_max = config.reply_bytes_max.min(bytes_max);
        let paths = PathMemory::new(config.continues, &memory);
        for (attempt, mode) in wishes.continues {
            paths.set_mode(attempt, mode);
        }
        let decks = Decks::new(config.replay.clone());
        for (attempt, replay) in wishes.replays {
            decks.set(attempt, replay);
        }
        Ok(Self {
            fleet: Arc::new(fleet),
            reply_bytes_max,
            call_permits: Arc::new(Semaphore::new(config.calls_at_once())),
            memory,
            read_back: ReadBack::new(&store, &reading_room),
            reading_room,
            default_force: Arc::new(config.force.clone()),
            paths,
            decks,
            mask: KeyMask::new(config.upstream_key.as_deref()),
            tags: Arc::new(TagContext::new(signer, config.episode_prefix.clone())),
            config,
            store,
            open_attempts,
            tracker: Arc::new(tracker),
            expert_prompts: Arc::default(),
            changes: watch::Sender::new(0),
            admission,
            drain_until: watch::Sender::new(None),
            attempt_force: Mutex::new(wishes.force),
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Number of agents' calls that have begun and not ended.
    pub fn calls_in_flight(&self) -> usize {
        usize::try_from(self.tracker.counts().in_flight).unwrap_or(0)
    }

    /// Sets the upstreams: those that options name, and those of the watched file.
    ///
    /// # Errors
    /// A sentence that says why they stay as they were.
    pub async fn set_upstreams(
        &self,
        named: Vec<EngineSpec>,
        filed: Vec<EngineSpec>,
    ) -> Result<(), String> {
        self.fleet.set_all(named, filed).await.map_err(|error| error.to_string())
    }

    /// Replaces the upstreams that the watched file names.
    ///
    /// # Errors
    /// A sentence that says why they stay as they were.
    pub async fn set_filed_upstreams(&self, engines: Vec<EngineSpec>) -> Result<(), String> {
        self.fleet.set_filed(engines).await.map_err(|error| error.to_string())
    }

    /// A place among the calls in flight. Taken when a request was read as far as it is kept: an
    /// agent that sends its body slowly holds none before, and the rest of a longer body has the
    /// times of [`PacedBody`](http::body::pace::PacedBody).
    pub(crate) async fn call_permit(&self) -> CallPermit {
        // The semaphore is never closed.
        Arc::clone(&self.call_permits).acquire_owned().await.ok()
    }

    /// Refuses a request without a signed key if keys are required.
    ///
    /// # Errors
    /// [`CallError`] if the key is missing, invalid or expired.
    pub(crate) fn check_key<B>(&self, request: &Request<B>) -> Result<(), CallError> {
        match self.config.require_key {
            true => tag::require_key(&self.tags, request.headers(), request.uri(), now()),
            false => Ok(()),
        }
    }

    /// Reads the tag of a request.
    ///
    /// # Errors
    /// [`CallError`] if a tag is malformed, two tags disagree, or an id holds the upstream's key.
    pub(crate) fn tag(
        &self,
        head: &mut Parts,
        request: Option<&wire::Request>,
        at: Micros,
    ) -> Result<RequestTag, CallError> {
        let tagged = tag::tag(&self.tags, head, request, at)?;
        self.mask.check_ids(&tagged.tag)?;
        Ok(tagged)
    }

    /// Waits until the attempt of a call may begin, if a rule of admission holds it back. Returns
    /// the time at which the call begins.
    ///
    /// # Errors
    /// [`CallError::NotAdmitted`] if it may not begin in time.
    pub(crate) async fn admit(&self, tagged: &RequestTag, at: Micros) -> Result<Micros, CallError> {
        let changes = self.changes.subscribe();
        let passed = self.admission.pass(&self.store, changes, tagged.route, &tagged.tag).await;
        passed.map(|has_waited| if has_waited { now() } else { at })
    }

    /// Checks that an attempt got here what its request names of the state that the upstream keeps,
    /// unless agents may bring their own.
    ///
    /// # Errors
    /// [`CallError::ForeignState`] if it did not.
    pub(crate) async fn check_named(
        &self,
        attempt: &AttemptId,
        path: &str,
        request: Option<&wire::Request>,
    ) -> Result<(), CallError> {
        let is_open = self.config.allow_foreign_state || !wire::names_state(path);
        match request.filter(|_| !is_open) {
            Some(request) => {
                self.tags.responses.check_named(&self.read_back, attempt, request).await
            }
            None => Ok(()),
        }
    }

    /// The request with the conversation that it continues before it, if the upstream lacks that.
    ///
    /// # Errors
    /// [`CallError`] if the conversation cannot be read back.
    pub(crate) async fn history(
        &self,
        attempt: &AttemptId,
        route: Route,
        request: Option<&wire::Request>,
    ) -> Result<Option<History>, CallError> {
        let Some(request) = request else { return Ok(None) };
        self.tags.responses.history(&self.read_back, attempt, route, request).await
    }

    /// Begins the drain: readers of the feed and first calls that wait are sent away, and calls in
    /// flight have until the instant that is returned. Later calls return the same instant.
    pub(crate) fn begin_drain(&self) -> Instant {
        let mut until = Instant::now() + self.config.drain_wait;
        self.drain_until.send_if_modified(|begun| {
            let is_first = begun.is_none();
            until = *begun.get_or_insert(until);
            is_first
        });
        self.admission.stop();
        until
    }

    /// The parts of this proxy that the recording of a call uses.
    pub(crate) fn recording(&self) -> RecordingServices<'_> {
        RecordingServices {
            store: &self.store,
            read_back: &self.read_back,
            tags: &self.tags,
            tracker: &self.tracker,
            expert_prompts: &self.expert_prompts,
            paths: &self.paths,
            mask: &self.mask,
            memory: &self.memory,
            reply_bytes_max: self.reply_bytes_max,
            names_call: self.config.call_id_header,
        }
    }

    /// The parts of this proxy that answer from a recording.
    pub(crate) fn replaying(&self) -> ReplayServices<'_> {
        ReplayServices {
            decks: &self.decks,
            read_back: &self.read_back,
            has_upstream: self.config.has_upstream,
        }
    }

    /// Sampling parameters for the calls of an attempt.
    pub(crate) fn force_of(&self, attempt: &AttemptId) -> Arc<ForcedSampling> {
        let of_attempt = self.attempt_force.lock().ok().and_then(|all| all.get(attempt).cloned());
        of_attempt.unwrap_or_else(|| Arc::clone(&self.default_force))
    }

    /// Gives an attempt sampling parameters of its own.
    pub(crate) fn set_force(&self, attempt: AttemptId, force: ForcedSampling) {
        if let Ok(mut all) = self.attempt_force.lock() {
            all.insert(attempt, Arc::new(force));
        }
    }

    /// Drops the state of an attempt that takes no more calls.
    pub(crate) fn forget(&self, attempt: &AttemptId) {
        self.open_attempts.remove(attempt);
        self.fleet.forget(attempt);
        self.admission.forget(attempt);
        self.expert_prompts.forget(attempt);
        self.paths.forget(attempt);
        self.decks.forget(attempt);
        if let Ok(mut all) = self.attempt_force.lock() {
            all.remove(attempt);
        }
    }
}

/// Looks for the upstream at the start, and again and again while it is lost, until `shutdown`. So
/// its absence and its return are noted even if nobody calls. Several upstreams are all looked at,
/// again and again, and their names are looked up again.
pub async fn watch_upstream(proxy: Arc<Proxy>, shutdown: impl Future<Output = ()>) {
    match proxy.config.has_upstream {
        true => health::watch(&proxy.fleet, shutdown).await,
        false => shutdown.await,
    }
}

/// The signer of API keys. A secret that an earlier version kept in the store is moved out of it.
async fn open_signer(config: &Config, store: &Store) -> Result<KeySigner, StartError> {
    let old = store.old_signing_key().await?;
    let has_place = config.signing_secrets.is_some();
    let place = config.signing_secrets.clone();
    let signer = KeySigner::open(place, old.clone()).map_err(StartError::SigningSecrets)?;
    if old.is_some() && has_place {
        store.erase_signing_key().await?;
        tracing::info!("the secret that signs API keys was moved out of the store");
    }
    Ok(signer)
}

/// The wishes of the open attempts in the store, as they were announced.
#[derive(Default)]
struct StoredWishes {
    force: HashMap<AttemptId, Arc<ForcedSampling>>,
    continues: HashMap<AttemptId, ContinueMode>,
    replays: Vec<(AttemptId, Replay)>,
}

async fn stored_wishes(snapshot: &mut Snapshot) -> Result<StoredWishes, StartError> {
    let mut stored = StoredWishes::default();
    for record in snapshot.wishing_attempts().await? {
        let id = AttemptId { episode: record.id, attempt: record.attempt };
        if let Some(force) = record.force_sampling {
            stored.force.insert(id.clone(), Arc::new(force.parse()?));
        }
        // A word of a later version is left to the default.
        if let Some(mode) = record.continues.and_then(|word| word.parse().ok()) {
            stored.continues.insert(id, mode);
        }
    }
    for record in snapshot.replaying_attempts().await? {
        let id = AttemptId { episode: record.id, attempt: record.attempt };
        stored.replays.extend(record.replay.map(|replay| (id, replay)));
    }
    Ok(stored)
}
