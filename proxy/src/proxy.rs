//! A proxy: one upstream, one store, and its state in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use store::{Selection, Snapshot, SnapshotError, Store};
use thiserror::Error;
use tokio::sync::Semaphore;
use wire::{ForcedSampling, ForcedSamplingError};

use crate::config::Config;
use crate::feed::Feed;
use crate::record::attempts::{AttemptKey, OpenAttempts};
use crate::record::tracker::CallTracker;
use crate::tag::TagContext;
use crate::tag::api_key::KeySigner;
use crate::upstream::connect::InvalidSetting;
use crate::upstream::forward::Forward;

/// A proxy: one upstream, one store.
#[derive(Debug)]
pub struct Proxy {
    config: Config,
    store: Store,
    pub(crate) forward: Arc<Forward>,
    /// Bounds the calls in flight.
    pub(crate) call_permits: Arc<Semaphore>,
    pub(crate) open_attempts: OpenAttempts,
    pub(crate) tags: Arc<TagContext>,
    pub(crate) tracker: Arc<CallTracker>,
    pub(crate) feed: Arc<Feed>,
    default_force: Arc<ForcedSampling>,
    /// Sampling parameters of the attempts that have their own.
    attempt_force: Mutex<HashMap<AttemptKey, Arc<ForcedSampling>>>,
}

/// The reason for which a proxy does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A setting cannot be used.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] SnapshotError),
    /// The stored sampling parameters of an episode are not valid.
    #[error(transparent)]
    ForcedSampling(#[from] ForcedSamplingError),
}

impl Proxy {
    /// A proxy that records into `store`.
    ///
    /// # Errors
    /// [`StartError`] if a setting cannot be used or the store cannot be read.
    pub async fn start(config: Config, store: Store) -> Result<Self, StartError> {
        let signer = KeySigner::new(store.signing_key().await?);
        let mut snapshot = store.snapshot().await?;
        let attempt_force = stored_force(&mut snapshot).await?;
        let tracker = CallTracker::default();
        tracker.versions.load(snapshot.versions().await?);

        Ok(Self {
            forward: Arc::new(Forward::new(&config)?),
            call_permits: Arc::new(Semaphore::new(config.calls_max)),
            default_force: Arc::new(config.force.clone()),
            config,
            store,
            open_attempts: OpenAttempts::default(),
            tracker: Arc::new(tracker),
            feed: Arc::default(),
            tags: Arc::new(TagContext::new(signer)),
            attempt_force: Mutex::new(attempt_force),
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Number of agents' calls that have begun and not ended.
    pub fn calls_in_flight(&self) -> usize {
        usize::try_from(self.tracker.counts().in_flight).unwrap_or(0)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Sampling parameters for the calls of an attempt.
    pub(crate) fn force_of(&self, attempt: &AttemptKey) -> Arc<ForcedSampling> {
        let of_attempt = self.attempt_force.lock().ok().and_then(|all| all.get(attempt).cloned());
        of_attempt.unwrap_or_else(|| Arc::clone(&self.default_force))
    }

    /// Gives an attempt sampling parameters of its own.
    pub(crate) fn set_force(&self, attempt: AttemptKey, force: ForcedSampling) {
        if let Ok(mut all) = self.attempt_force.lock() {
            all.insert(attempt, Arc::new(force));
        }
    }

    /// Drops the state of an attempt that takes no more calls.
    pub(crate) fn forget(&self, attempt: &AttemptKey) {
        self.open_attempts.remove(attempt);
        if let Ok(mut all) = self.attempt_force.lock() {
            all.remove(attempt);
        }
    }
}

/// Sampling parameters of the open attempts in the store.
async fn stored_force(
    snapshot: &mut Snapshot,
) -> Result<HashMap<AttemptKey, Arc<ForcedSampling>>, StartError> {
    let mut stored = HashMap::new();
    for episode in snapshot.episodes(&Selection::default()).await? {
        if let Some(force) = episode.force_sampling.filter(|_| episode.closed_at.is_none()) {
            stored.insert((episode.id, episode.attempt), Arc::new(force.parse()?));
        }
    }
    Ok(stored)
}
