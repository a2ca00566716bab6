//! The gates of the attempts in use. A gate is read when calls first need it, and read again after
//! every change over the control listener.

use std::collections::HashMap;

use episode::{AttemptId, CallStart, EpisodeId};

use crate::commit::episode_row::{NamedBy, upsert_episode};
use crate::commit::gate::Gate;
use crate::commit::part::end_part;
use crate::database::connection::StoreConnection;
use crate::error::CommitError;
use crate::types::Budget;

/// The gates that the writer knows.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    known: HashMap<AttemptId, KnownGate>,
    /// The budget of attempts that were announced without one.
    default_budget: Budget,
}

/// A gate with the key of its attempt.
#[derive(Debug)]
struct KnownGate {
    episode_key: i64,
    gate: Gate,
}

impl Gates {
    /// The same settings, without any gate.
    pub(crate) fn emptied(&self) -> Self {
        Self { default_budget: self.default_budget, ..Self::default() }
    }

    /// Sets the budget of attempts that were announced without one.
    pub(crate) fn set_default_budget(&mut self, budget: Budget) {
        *self = Self { default_budget: budget, ..Self::default() };
    }

    /// True if an attempt is known to need no check: it has neither a budget nor keys.
    pub(crate) fn is_open(&self, attempt: &AttemptId) -> bool {
        self.known.get(attempt).is_some_and(|known| known.gate.is_open())
    }

    /// Lets a call in, and counts it. Returns the key of its attempt, which is made if need be.
    ///
    /// # Errors
    /// [`CommitError`] where the gate keeps the call out. Then it leaves no trace.
    pub(crate) async fn enter(
        &mut self,
        connection: &mut StoreConnection,
        attempt: &AttemptId,
        begun: &CallStart,
        api_key: Option<&str>,
    ) -> Result<i64, CommitError> {
        if let Some(KnownGate { episode_key, gate }) = self.known.get_mut(attempt)
            && gate.knows(&begun.tag)
        {
            gate.enter(connection, *episode_key, begun, api_key).await?;
            return Ok(*episode_key);
        }

        // The known gate stays until the call is let in.
        connection.begin_part().await?;
        let entered = self.enter_anew(connection, begun, api_key).await;
        let known = end_part(connection, entered).await?;
        let key = known.episode_key;
        self.known.insert(attempt.clone(), known);
        Ok(key)
    }

    /// Admits a call whose group, task or labels the gate does not know yet.
    async fn enter_anew(
        &self,
        connection: &mut StoreConnection,
        begun: &CallStart,
        api_key: Option<&str>,
    ) -> Result<KnownGate, CommitError> {
        let named_by = NamedBy::Call { has_key: api_key.is_some() };
        let row = upsert_episode(connection, &begun.tag, begun.started_at, named_by).await?;
        let mut gate = Gate::read(connection, &begun.tag, &row, self.default_budget).await?;
        gate.enter(connection, row.key, begun, api_key).await?;
        Ok(KnownGate { episode_key: row.key, gate })
    }

    /// Counts the tokens of a call that has ended.
    pub(crate) fn add_tokens(&mut self, attempt: &AttemptId, api_key: Option<&str>, tokens: u64) {
        if let Some(known) = self.known.get_mut(attempt) {
            known.gate.add_tokens(api_key, tokens);
        }
    }

    /// Lets the gate of an attempt be read again.
    pub(crate) fn forget(&mut self, attempt: &AttemptId) {
        self.known.remove(attempt);
    }

    /// Lets the gates of all attempts of an episode be read again.
    pub(crate) fn forget_episode(&mut self, episode: &EpisodeId) {
        self.known.retain(|attempt, _| attempt.episode != *episode);
    }

    /// Forgets the gates of attempts that are not in use.
    pub(crate) fn retain(&mut self, is_used: impl Fn(&AttemptId) -> bool) {
        self.known.retain(|attempt, _| is_used(attempt));
        // An empty table is as large as it ever was.
        if self.known.capacity() > 4 * self.known.len() {
            self.known.shrink_to(2 * self.known.len());
        }
    }
}
