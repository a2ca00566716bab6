//! A proxy: one upstream, one store, and what it knows of the agents.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use store::{Selection, SnapshotError, Store};
use thiserror::Error;
use tokio::sync::Semaphore;
use wire::{BadForce, Force};

use crate::admitted::{Admitted, Key};
use crate::chains::Chains;
use crate::config::Config;
use crate::connect::BadSetting;
use crate::conversations::Conversations;
use crate::feed::Feed;
use crate::forward::Forward;
use crate::key::Signer;
use crate::tag::Known;
use crate::watch::Watch;

/// A proxy: one upstream, one store.
#[derive(Debug)]
pub struct Proxy {
    config: Config,
    store: Store,
    pub(crate) forward: Arc<Forward>,
    /// Room for calls in flight.
    pub(crate) calls: Arc<Semaphore>,
    pub(crate) admitted: Admitted,
    pub(crate) known: Arc<Known>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) feed: Arc<Feed>,
    force: Arc<Force>,
    /// Sampling parameters of the episodes that have their own.
    forced: Mutex<HashMap<Key, Arc<Force>>>,
}

/// Why a proxy does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A setting cannot be used.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] SnapshotError),
    /// An episode's sampling parameters are not any.
    #[error(transparent)]
    Force(#[from] BadForce),
}

impl Proxy {
    /// A proxy that records into `store`.
    ///
    /// # Errors
    /// [`StartError`] when a setting cannot be used or the store cannot be read.
    pub async fn start(config: Config, store: Store) -> Result<Self, StartError> {
        let signer = Signer::new(store.signing_key().await?);
        let mut forced = HashMap::new();
        let mut snapshot = store.snapshot().await?;
        for episode in snapshot.episodes(&Selection::default()).await? {
            if let Some(force) = episode.force_sampling.filter(|_| episode.closed_at.is_none()) {
                forced.insert((episode.id, episode.attempt), Arc::new(force.parse()?));
            }
        }
        let watch = Watch::default();
        watch.versions.remember(snapshot.versions().await?);
        Ok(Self {
            forward: Arc::new(Forward::new(&config)?),
            calls: Arc::new(Semaphore::new(config.calls_max)),
            force: Arc::new(config.force.clone()),
            config,
            store,
            admitted: Admitted::default(),
            watch: Arc::new(watch),
            feed: Arc::default(),
            known: Arc::new(Known {
                signer,
                conversations: Conversations::default(),
                chains: Chains::default(),
            }),
            forced: Mutex::new(forced),
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Calls of agents that have begun and not ended.
    pub fn calls_in_flight(&self) -> usize {
        usize::try_from(self.watch.counts().1).unwrap_or(0)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The sampling parameters that the calls of an attempt get.
    pub(crate) fn force_of(&self, key: &Key) -> Arc<Force> {
        let own = self.forced.lock().ok().and_then(|forced| forced.get(key).cloned());
        own.unwrap_or_else(|| Arc::clone(&self.force))
    }

    /// Gives an attempt sampling parameters of its own.
    pub(crate) fn force_on(&self, key: Key, force: Force) {
        if let Ok(mut forced) = self.forced.lock() {
            forced.insert(key, Arc::new(force));
        }
    }

    /// Forgets what was known of an attempt that takes no more calls.
    pub(crate) fn forget(&self, key: &Key) {
        self.admitted.remove(key);
        if let Ok(mut forced) = self.forced.lock() {
            forced.remove(key);
        }
    }
}
