//! One engine: its client, its state, and the calls that are there.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::fence::Fence;
use super::pick::hash;
use super::stall::CallSigns;
use crate::config::spec::EngineSpec;
use crate::record::engine_stamp::{EnginePlace, EngineStamp};
use crate::upstream::server::InferenceServer;

/// An engine.
#[derive(Debug)]
pub(crate) struct Engine {
    /// The number of this engine in this process. One that is removed and added again has another.
    pub(super) id: u64,
    pub(super) name_hash: u64,
    pub(crate) spec: EngineSpec,
    /// The one of the host's addresses that this engine is.
    pub(super) address: Option<IpAddr>,
    pub(crate) server: Arc<InferenceServer>,
    in_flight: AtomicUsize,
    is_draining: AtomicBool,
    /// True while one control request at a time goes round, and it is this engine's turn.
    is_held: AtomicBool,
    health: Mutex<Health>,
    is_down: AtomicBool,
    /// The newest push of weights that this engine acknowledged.
    acked: AtomicU64,
    /// True if it missed a part of the push that is under way.
    missed_part: AtomicBool,
    /// True while it is not known which weights sample there.
    is_changing: AtomicBool,
    /// The label of its weights, if it is known.
    label: Mutex<Option<String>>,
    pub(crate) counts: EngineCounts,
    pub(super) failures: Streak,
    pub(super) signs: Arc<CallSigns>,
    /// True once the log says that it is stalled.
    is_said_stalled: AtomicBool,
    /// Told when this engine is to be looked at.
    look: Arc<Notify>,
}

/// Numbers of calls since the engine was added.
#[derive(Debug, Default)]
pub(crate) struct EngineCounts {
    pub(crate) begun: AtomicU64,
    /// Calls of threads that were on another engine.
    pub(crate) moved: AtomicU64,
    /// Failures of connections, of replies and of looks.
    pub(crate) failed: AtomicU64,
    /// Answers 429 and 503 that no agent saw.
    pub(crate) absorbed: AtomicU64,
}

#[derive(Debug, Default)]
struct Health {
    /// The reason why it gets no calls; `None` while it is well.
    reason: Option<&'static str>,
    /// True if it was seen not to answer, rather than suspected because one call failed.
    was_lost: bool,
}

/// The word for the state of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineState {
    /// It takes calls.
    Up,
    /// It takes no new calls, as somebody asked.
    Draining,
    /// It answers its looks, and calls of several episodes failed or get no answer. It gets no new
    /// threads while others are up.
    Stalled,
    /// It does not answer, or took no connection a moment ago.
    Lost,
    /// It has older weights than those that were acknowledged last.
    Fenced,
    /// It is being updated, one engine after another.
    Updating,
}

impl EngineState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Up, Self::Stalled, Self::Draining, Self::Lost, Self::Fenced, Self::Updating];

    /// The word in documents and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Stalled => "stalled",
            Self::Draining => "draining",
            Self::Lost => "lost",
            Self::Fenced => "fenced",
            Self::Updating => "updating",
        }
    }
}

impl Engine {
    pub(super) fn new(
        id: u64,
        spec: EngineSpec,
        address: Option<IpAddr>,
        server: InferenceServer,
        look: &Arc<Notify>,
    ) -> Self {
        Self {
            id,
            name_hash: hash(&[spec.name.as_bytes()]),
            spec,
            address,
            server: Arc::new(server),

            in_flight: AtomicUsize::default(),
            is_draining: AtomicBool::default(),
            is_held: AtomicBool::default(),
            health: Mutex::default(),
            is_down: AtomicBool::default(),
            acked: AtomicU64::default(),
            missed_part: AtomicBool::default(),
            is_changing: AtomicBool::default(),
            label: Mutex::default(),
            counts: EngineCounts::default(),
            failures: Streak::default(),
            signs: Arc::default(),
            is_said_stalled: AtomicBool::default(),
            look: Arc::clone(look),
        }
    }

    /// The same engine with another weight or limit.
    pub(super) fn with_spec(&self, spec: EngineSpec) -> Self {
        let copy = |flag: &AtomicBool| AtomicBool::new(flag.load(Ordering::SeqCst));

        Self {
            id: self.id,
            name_hash: self.name_hash,
            spec,
            address: self.address,
            server: Arc::clone(&self.server),
            in_flight: AtomicUsize::default(),
            is_draining: copy(&self.is_draining),
            is_held: copy(&self.is_held),
            health: Mutex::default(),
            is_down: copy(&self.is_down),
            acked: AtomicU64::new(self.acked.load(Ordering::SeqCst)),
            missed_part: copy(&self.missed_part),
            is_changing: copy(&self.is_changing),
            label: Mutex::new(self.label()),
            counts: EngineCounts::default(),
            failures: Streak::default(),
            signs: Arc::default(),
            is_said_stalled: AtomicBool::default(),
            look: Arc::clone(&self.look),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// The state, which decides whether it gets new calls. One that is stalled is up.
    pub(super) fn state(&self, fence: &Fence) -> EngineState {
        if self.is_draining.load(Ordering::Relaxed) {
            EngineState::Draining
        } else if self.is_down.load(Ordering::SeqCst) {
            EngineState::Lost
        } else if self.is_behind(fence) {
            EngineState::Fenced
        } else if self.is_held.load(Ordering::SeqCst) {
            EngineState::Updating
        } else {
            EngineState::Up
        }
    }

    /// Calls in flight.
    pub(crate) fn calls(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Keeps new calls away while the engine is updated.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::SeqCst);
    }

    // Health.

    /// Notes that a call of an attempt failed that may have begun. A look is to say at once whether
    /// the engine did.
    pub(super) fn note_failed_call(&self, attempt: u64) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        self.signs.note_failure(attempt, Instant::now());
        self.look.notify_one();
    }

    /// Tells the log once that the engine is stalled, or that it is not any more.
    pub(super) fn say_stalled(&self, reason: Option<&'static str>) {
        if self.is_said_stalled.swap(reason.is_some(), Ordering::Relaxed) == reason.is_some() {
            return;
        }
        match reason {
            Some(reason) => {
                tracing::warn!(upstream = self.name(), reason, "an upstream gets no new threads");
            }
            None => tracing::info!(upstream = self.name(), "an upstream gets new threads again"),
        }
    }

    /// Notes that it takes no connection: no new calls until a look succeeds.
    pub(crate) fn suspect(&self, reason: &'static str) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        drop(self.set_down(reason));
        self.look.notify_one();
    }

    fn set_down(&self, reason: &'static str) -> MutexGuard<'_, Health> {
        let mut health = self.health();
        if health.reason.replace(reason).is_none() {
            tracing::warn!(upstream = self.name(), reason, "an upstream gets no calls for now");
        }
        self.is_down.store(true, Ordering::SeqCst);
        health
    }

    /// Notes that a look failed, so that the engine may have been restarted when it is back.
    pub(super) fn lose(&self, reason: &'static str) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        self.set_down(reason).was_lost = true;
    }

    /// Notes that a look succeeded.
    pub(super) fn recover(&self) {
        let mut health = self.health();
        if health.reason.is_some() {
            tracing::info!(upstream = self.name(), "an upstream is well again");
        }
        *health = Health::default();
        self.is_down.store(false, Ordering::SeqCst);
    }

    /// True if it gets no calls because it failed.
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::SeqCst)
    }

    /// True if it was seen not to answer since it was last well.
    pub(super) fn was_lost(&self) -> bool {
        self.health().was_lost
    }

    /// The reason why it gets no calls; `None` if it is well.
    pub(crate) fn down_because(&self) -> Option<&'static str> {
        self.health().reason
    }

    // Weights.

    /// True if it has older weights than those that were acknowledged last.
    pub(crate) fn is_behind(&self, fence: &Fence) -> bool {
        fence.holds(self.acked.load(Ordering::SeqCst))
    }

    /// Notes that it acknowledged a push of weights.
    pub(crate) fn acknowledge(&self, push: u64, label: Option<String>) {
        if label.is_some() {
            *self.label_guard() = label;
        }
        self.acked.store(push, Ordering::SeqCst);
    }

    /// Notes that its weights may be any.
    pub(super) fn doubt(&self) {
        *self.label_guard() = None;
        self.acked.store(0, Ordering::SeqCst);
    }

    /// Sets whether it missed a part of the push that is under way.
    pub(crate) fn set_missed_part(&self, missed: bool) {
        self.missed_part.store(missed, Ordering::Relaxed);
    }

    pub(crate) fn missed_part(&self) -> bool {
        self.missed_part.load(Ordering::Relaxed)
    }

    /// Sets whether weights are being pushed to it, so that either those or the ones before sample.
    pub(crate) fn set_changing(&self, is_changing: bool) {
        self.is_changing.store(is_changing, Ordering::SeqCst);
    }

    pub(crate) fn is_changing(&self) -> bool {
        self.is_changing.load(Ordering::SeqCst)
    }

    /// The label of its weights, if it is known.
    pub(crate) fn label(&self) -> Option<String> {
        self.label_guard().clone()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn label_guard(&self) -> MutexGuard<'_, Option<String>> {
        self.label.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call on an engine, from its choice until its reply has ended.
#[derive(Debug)]
pub(crate) struct EngineCall {
    pub(super) engine: Arc<Engine>,
    /// The number of the call's attempt.
    attempt: u64,
    /// How the call came here; `None` if there is one upstream only.
    routed: Option<String>,
    /// Told when there is room again.
    room: Arc<Notify>,
}

impl EngineCall {
    /// Takes a place; `None` if the engine has no room.
    pub(super) fn begin(
        engine: &Arc<Engine>,
        attempt: u64,
        routed: Option<String>,
        room: &Arc<Notify>,
    ) -> Option<Self> {
        let before = engine.in_flight.fetch_add(1, Ordering::SeqCst);
        if engine.spec.calls_max.is_some_and(|max| before >= max) {
            engine.in_flight.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        engine.counts.begun.fetch_add(1, Ordering::Relaxed);
        Some(Self { engine: Arc::clone(engine), attempt, routed, room: Arc::clone(room) })
    }
}

impl EnginePlace for EngineCall {
    fn stamp(&self) -> Option<EngineStamp> {
        let routed = self.routed.clone()?;
        let label = self.engine.label();
        // Read last: a push that began meanwhile makes the label doubtful.
        let is_changing = self.engine.is_changing();
        Some(EngineStamp { engine: self.engine.name().to_owned(), routed, label, is_changing })
    }

    fn note_broken_reply(&self) {
        self.engine.note_failed_call(self.attempt);
    }

    fn note_whole_reply(&self) {
        self.engine.signs.note_whole();
    }
}

impl Drop for EngineCall {
    fn drop(&mut self) {
        self.engine.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.room.notify_one();
    }
}

/// A number that counts failures in a row.
#[derive(Debug, Default)]
pub(super) struct Streak(AtomicU32);

impl Streak {
    /// Counts one more, and returns how many there are.
    pub(super) fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
