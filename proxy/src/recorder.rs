//! The handle of a running recorder, for whoever stands above it.
//!
//! An agent writes calls and nothing else. Whatever else changes a recorder goes through the handle
//! in this file, which nothing in this crate holds.

mod fan_out;
mod upstreams;
mod weights;

use std::io;
use std::sync::Arc;

use episode::{AttemptId, CallId, EpisodeId, InvalidId, Micros, Reward};
use http::clock::now;
use http::memory::MemoryCounts;
use store::{
    AdmissionRule, Announcement, ApiKeyRecord, Budget, CommitError, PruneError, PruneFilter,
    PruneReport, ReadingRoom, SnapshotError, Store, VersionRecord,
};
use tokio::sync::watch;
use tokio::time::Instant;
use wire::ForcedSampling;

use crate::bounds::{CUT_PAUSE, CUT_WAIT};
use crate::config::continue_mode::ContinueMode;
use crate::proxy::Proxy;
use crate::record::admission::AdmissionStatus;
use crate::record::tracker::CallCounts;
use crate::replay::decks::ReplayState;

pub use fan_out::EngineAnswer;
pub use upstreams::{UpstreamStatus, Upstreams};

/// A running recorder.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Proxy>);

/// An API key that names an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedKey {
    /// The key, which is not kept.
    pub key: String,
    /// Its id, by which it is revoked.
    pub id: String,
    /// The time from which it is refused.
    pub expires_at: Micros,
}

impl Recorder {
    /// The handle of a proxy.
    pub fn new(proxy: Arc<Proxy>) -> Self {
        Self(proxy)
    }

    /// The store that is recorded into.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The upstreams.
    pub fn upstreams(&self) -> Upstreams<'_> {
        Upstreams::new(&self.0)
    }

    // Episodes.

    /// The name by which an episode is recorded that a client names so.
    ///
    /// # Errors
    /// [`InvalidId`] if it is too long with the prefix of this recorder.
    pub fn prefixed(&self, episode: EpisodeId) -> Result<EpisodeId, InvalidId> {
        self.0.config().episode_prefix.before(episode)
    }

    /// Announces an attempt, with the sampling parameters that its calls get, and whether their
    /// prompts are sent as ids; the announcement has both as text.
    ///
    /// # Errors
    /// [`CommitError`] if it is not on disk.
    pub async fn announce(
        &self,
        announcement: Announcement,
        force: Option<ForcedSampling>,
        continues: Option<ContinueMode>,
    ) -> Result<(), CommitError> {
        let (attempt, budget) = (AttemptId::from(&announcement.tag), announcement.budget);
        let replay = announcement.replay.clone();
        self.0.store.announce(announcement).await?;

        if budget != Budget::default() {
            self.0.open_attempts.count(attempt.clone());
        }
        if let Some(replay) = replay {
            self.0.decks.set(attempt.clone(), replay);
        }
        // Calls that say something else must not pass as those before.
        self.0.open_attempts.forget(&attempt.episode);
        if let Some(continues) = continues {
            self.0.paths.set_mode(attempt.clone(), continues);
        }
        if let Some(force) = force {
            self.0.set_force(attempt, force);
        }
        Ok(())
    }

    /// The progress of the replay of an attempt, if a recording answers its calls.
    pub fn replay_of(&self, attempt: &AttemptId) -> Option<ReplayState> {
        self.0.decks.state(attempt)
    }

    /// Closes an attempt: its calls end, and later ones are refused.
    ///
    /// # Errors
    /// [`CommitError`] if it is unknown, or stays open.
    pub async fn close(
        &self,
        attempt: AttemptId,
        status: Option<String>,
    ) -> Result<(), CommitError> {
        // Calls wait for the store from here on. The rest of what is known of the attempt stays
        // until it is closed: it goes on if the store cannot be written.
        self.0.open_attempts.forget(&attempt.episode);
        self.0.store.close(attempt.clone(), now(), status).await?;

        self.0.forget(&attempt);
        self.end_calls(&attempt);
        self.note_change();
        // An engine answers between two of its steps; nobody waits for that.
        let proxy = Arc::clone(&self.0);
        tokio::spawn(async move { fan_out::tell_closed(&proxy, &attempt).await });
        Ok(())
    }

    /// Ends the calls of a closed attempt. Those whose agents do not read are ended in the store.
    fn end_calls(&self, attempt: &AttemptId) {
        let running = self.0.tracker.cancel(attempt);
        if running.is_empty() {
            return;
        }

        let (tracker, changes) = (Arc::clone(&self.0.tracker), self.0.changes.clone());
        let store = self.0.store.clone();
        tokio::spawn(async move {
            let deadline = Instant::now() + CUT_WAIT;
            let mut left = running;
            while !left.is_empty() && Instant::now() < deadline {
                tokio::time::sleep(CUT_PAUSE).await;
                left = tracker.still_running(&left);
            }

            if !left.is_empty()
                && let Err(error) = store.cut(left, now()).await
            {
                tracing::error!(%error, "calls of a closed episode could not be ended");
            }
            changes.send_modify(|count| *count += 1);
        });
    }

    /// Appends a reward.
    ///
    /// # Errors
    /// [`CommitError`] if the attempt is unknown, or the reward is not on disk.
    pub async fn reward(&self, attempt: AttemptId, reward: Reward) -> Result<(), CommitError> {
        self.0.store.reward(attempt, reward).await?;
        self.note_change();
        Ok(())
    }

    /// Deletes episodes between the calls that are recorded. Those that are open or leased are
    /// kept. Dropping the future ends it after whole attempts.
    ///
    /// # Errors
    /// [`PruneError`] if the store cannot be read or written. What was deleted before is gone.
    pub async fn prune(&self, filter: &PruneFilter) -> Result<PruneReport, PruneError> {
        // A call under the name of one that is gone waits for the store, which begins it anew.
        let gone = |attempt: &AttemptId| {
            self.0.open_attempts.forget(&attempt.episode);
            self.0.forget(attempt);
        };
        let report = self.0.store.prune(filter, gone).await;
        self.note_change();
        report
    }

    // Keys.

    /// Signs an API key for an attempt, whose episode takes only calls with a key from then on.
    /// `life` is in microseconds.
    ///
    /// # Errors
    /// [`CommitError`] if the key is not on disk.
    pub async fn sign_key(
        &self,
        attempt: AttemptId,
        life: Micros,
        budget: Budget,
    ) -> Result<SignedKey, CommitError> {
        let made_at = now();
        let expires_at = made_at + life;
        let (signed, id) = self.0.tags.signer.sign(&attempt, expires_at);
        let key = attempt.clone();
        let record = ApiKeyRecord { id: id.clone(), attempt, made_at, expires_at, budget };
        self.0.store.add_key(record).await?;

        // Calls without a key must not pass as those before.
        self.0.open_attempts.forget(&key.episode);
        if budget != Budget::default() {
            self.0.open_attempts.count(key);
        }
        Ok(SignedKey { key: signed, id, expires_at })
    }

    /// Revokes a key of an attempt, or all of them.
    ///
    /// # Errors
    /// [`CommitError`] if there is none, or it still holds.
    pub async fn revoke_keys(
        &self,
        attempt: AttemptId,
        key_id: Option<String>,
    ) -> Result<(), CommitError> {
        self.0.store.revoke_keys(attempt.clone(), key_id, now()).await?;
        self.0.open_attempts.forget(&attempt.episode);
        Ok(())
    }

    /// Signs keys with a new secret from now on. Keys of the earlier ones hold for `old_keys_life`
    /// at most, in microseconds.
    ///
    /// # Errors
    /// An error if the new secret cannot be kept.
    pub fn rotate_secrets(&self, old_keys_life: Micros) -> io::Result<()> {
        let at = now();
        self.0.tags.signer.rotate(at, at + old_keys_life)
    }

    // Versions.

    /// Declares the version that samples from now on.
    ///
    /// # Errors
    /// [`CommitError`] if it is not on disk.
    pub async fn declare_version(
        &self,
        label: String,
        checksum: Option<String>,
    ) -> Result<(), CommitError> {
        let at = now();
        let version = VersionRecord {
            label: label.clone(),
            checksum,
            source: "control".to_owned(),
            first_seen: at,
            said_at: Some(at),
            served_at: None,
        };
        self.0.store.version(version).await?;
        // Calls are stamped with it only once it is on disk.
        self.0.tracker.versions.declare(label, at);
        self.note_change();
        Ok(())
    }

    /// The label of the newest version, declared, reported or served.
    pub fn newest_version(&self) -> Option<String> {
        self.0.tracker.versions.newest()
    }

    /// Writes down the versions that replies report, and reads those that other processes declare,
    /// until it is dropped.
    pub async fn follow_versions(&self) {
        tokio::join!(weights::record_versions(&self.0), weights::read_declared(&self.0));
    }

    // Admission by version.

    /// Sets the rule by which attempts may begin, or lifts it.
    ///
    /// # Errors
    /// [`CommitError`] if that is not on disk.
    pub async fn set_admission(&self, rule: Option<AdmissionRule>) -> Result<(), CommitError> {
        self.0.store.set_admission(rule.clone()).await?;
        self.0.admission.set_rule(rule);
        Ok(())
    }

    /// The rule of admission and its numbers; `None` without a rule.
    ///
    /// # Errors
    /// [`SnapshotError`] if the store cannot be read.
    pub async fn admission(&self) -> Result<Option<AdmissionStatus>, SnapshotError> {
        self.0.admission.status(&self.0.store).await
    }

    // What is under way.

    /// Calls whose ends this process has yet to write.
    pub fn unwritten_calls(&self) -> Vec<CallId> {
        self.0.tracker.unwritten_calls()
    }

    /// Notes that an item of the feed may be ready, or was settled.
    pub fn note_change(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// Tells of each change after which an item of the feed may be ready.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Begins the drain: whoever waits is sent away, and calls in flight have until the instant
    /// that is returned. Later calls return the same instant.
    pub fn begin_drain(&self) -> Instant {
        self.0.begin_drain()
    }

    /// The end of the drain, once one has begun.
    pub fn drain(&self) -> watch::Receiver<Option<Instant>> {
        self.0.drain_until.subscribe()
    }

    /// Numbers of calls since the process began.
    pub fn call_counts(&self) -> CallCounts {
        self.0.tracker.counts()
    }

    /// The memory of those who read the recording.
    pub fn reading_room(&self) -> Arc<dyn ReadingRoom> {
        Arc::clone(&self.0.reading_room) as Arc<dyn ReadingRoom>
    }

    /// The memory of requests and replies.
    pub fn memory_counts(&self) -> MemoryCounts {
        self.0.memory.counts()
    }
}

#[cfg(test)]
mod tests {
    use store::Durability;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn an_attempt_that_stays_open_keeps_its_budget_and_its_sampling() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("test.db");
        let (store, writer) = Store::open(at.as_path(), Durability::Process).await.unwrap();
        let config = Config::new("http://127.0.0.1:9".parse().unwrap());
        let proxy = Arc::new(Proxy::start(config, store).await.unwrap());
        let attempt = AttemptId { episode: "a".parse().unwrap(), attempt: 0 };
        proxy.open_attempts.count(attempt.clone());
        proxy.set_force(attempt.clone(), "temperature=1".parse().unwrap());

        // The store has no such episode: the close is not written.
        let recorder = Recorder::new(Arc::clone(&proxy));
        assert!(recorder.close(attempt.clone(), None).await.is_err());
        proxy.open_attempts.insert(attempt.clone(), 1);
        assert!(!proxy.open_attempts.contains(&attempt, 1), "its calls are counted");
        assert!(!proxy.force_of(&attempt).is_empty(), "its sampling is forced");
        drop((recorder, proxy));
        writer.finish().await;
    }
}
