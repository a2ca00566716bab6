//! Beginnings of what an attempt was asked, said last, and failed with.
//!
//! They are read for the attempts of one page, from their first and last calls: the calls between
//! them cost nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use episode::Route;
use serde_json::Value;
use store::{CallRow, EpisodeSummary, Snapshot, SnapshotError, SpokenBody};

use crate::bounds::{BEGINNING_BYTES_MAX, BEGINNING_COPIES, BEGINNINGS_KEPT};
use crate::error::ViewError;
use crate::excerpt::{answered, prompted, shortened};

/// The states of an attempt that failed.
const FAILED: [&str; 2] = ["failed", episode::INFRASTRUCTURE_FAILED];

/// Beginnings of what was said in an attempt.
#[derive(Debug, Default)]
pub(crate) struct Beginnings {
    /// The first words of a user.
    pub(crate) first_prompt: Option<String>,
    /// The last answer.
    pub(crate) last_answer: Option<String>,
    /// The last error.
    pub(crate) last_error: Option<String>,
}

/// The words that are looked for in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BodyPart {
    Prompt,
    Answer,
    Error,
}

/// Beginnings that were read before, by the hashes of their bodies: a list that is shown again
/// costs what is new in it.
#[derive(Debug, Default)]
pub(crate) struct KeptBeginnings(Mutex<HashMap<BodyHash, Option<String>>>);

type BodyHash = (Vec<u8>, &'static str, BodyPart);

/// A reader of beginnings for one page.
pub(crate) struct BeginningReader<'a> {
    snapshot: &'a mut Snapshot,
    kept: &'a KeptBeginnings,
    bytes_max: u64,
}

impl<'a> BeginningReader<'a> {
    /// A reader with the memory for one body at a time, which is borrowed beside a recorder; `None`
    /// if there is none to borrow.
    pub(crate) async fn start(
        snapshot: &'a mut Snapshot,
        kept: &'a KeptBeginnings,
    ) -> Option<Self> {
        let bytes_max = BEGINNING_BYTES_MAX.min(snapshot.bytes_max() / BEGINNING_COPIES);
        let is_lent = snapshot.borrow_bytes(bytes_max * BEGINNING_COPIES).await;
        is_lent.then_some(Self { snapshot, kept, bytes_max })
    }

    /// The beginnings of an attempt.
    pub(crate) async fn read(&mut self, summary: &EpisodeSummary) -> Result<Beginnings, ViewError> {
        let key = summary.episode.key;
        if summary.generations == 0 {
            return Ok(Beginnings::default());
        }
        let request = self.snapshot.first_request(key).await?;
        let reply = self.snapshot.last_reply(key).await?;
        Ok(Beginnings {
            first_prompt: self.part(request, BodyPart::Prompt).await?,
            last_answer: self.part(reply, BodyPart::Answer).await?,
            last_error: self.last_error(summary).await?,
        })
    }

    /// The error of the last call, if it failed; of a failed attempt, of the last one that did.
    async fn last_error(&mut self, summary: &EpisodeSummary) -> Result<Option<String>, ViewError> {
        // No reply is missing.
        if summary.incomplete + summary.refused == 0 {
            return Ok(None);
        }
        let (key, status) = (summary.episode.key, summary.episode.status.as_deref());
        let is_fault = |row: &CallRow| row.outcome.as_deref() != Some("complete");
        let last = self.snapshot.last_call_row(key).await?.filter(is_fault);
        let row = match last {
            None if status.is_some_and(|status| FAILED.contains(&status)) => {
                self.snapshot.last_fault_row(key).await?
            }
            last => last,
        };

        let Some(row) = row else { return Ok(None) };
        let Some(outcome) = row.outcome.as_deref() else {
            let is_running = summary.episode.closed_at.is_none();
            return Ok((!is_running).then(|| "the last call has no end".to_owned()));
        };
        let told = match &row.error {
            Some(error) => Some(error.clone()),
            None => {
                let reply = self.snapshot.reply_of(&row).await?;
                self.part(reply, BodyPart::Error).await?
            }
        };
        Ok(Some(error_line(told, outcome, row.status)))
    }

    /// The words that are looked for in a body. One that does not decode has nothing: the list is
    /// not refused for it.
    async fn part(
        &mut self,
        body: Option<SpokenBody>,
        part: BodyPart,
    ) -> Result<Option<String>, ViewError> {
        let Some(body) = body else { return Ok(None) };
        let hash = body.hash.clone().map(|hash| (hash, body.route.as_str(), part));
        if let Some(known) = hash.as_ref().and_then(|hash| self.kept.get(hash)) {
            return Ok(known);
        }

        let found = match self.snapshot.body_alone(&body, self.bytes_max).await {
            Ok(bytes) => bytes.and_then(|bytes| part.of(body.route, &bytes)),
            Err(SnapshotError::Decode { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(hash) = hash {
            self.kept.put(hash, found.clone());
        }
        Ok(found)
    }
}

impl BodyPart {
    fn of(self, route: Route, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Prompt => prompted(&wire::conversation(route, bytes)?.messages),
            Self::Answer => answered(&wire::answers(route, bytes).first()?.message),
            Self::Error => told(bytes),
        }
    }
}

impl KeptBeginnings {
    fn get(&self, hash: &BodyHash) -> Option<Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(hash).cloned()
    }

    fn put(&self, hash: BodyHash, text: Option<String>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= BEGINNINGS_KEPT {
            kept.clear();
        }
        kept.insert(hash, text);
    }
}

/// The line of an error: what was told, else how the call ended.
fn error_line(told: Option<String>, outcome: &str, status: Option<u16>) -> String {
    match (told, status) {
        (Some(told), Some(status)) if status >= 400 => shortened(&format!("{status}: {told}")),
        (Some(told), _) => shortened(&told),
        (None, Some(status)) => format!("{outcome}, status {status}"),
        (None, None) => outcome.to_owned(),
    }
}

/// The message of a reply that is an error of a server.
fn told(reply: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(reply).ok()?;
    let error = body.get("error").unwrap_or(&body);
    let message = ["message", "detail"].into_iter().find_map(|name| error.get(name)?.as_str());
    message.or_else(|| error.as_str()).filter(|told| !told.trim().is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_error_is_found_in_its_reply() {
        for (reply, message) in [
            (r#"{"error":{"message":"too long","code":400}}"#, Some("too long")),
            (r#"{"error":"no model"}"#, Some("no model")),
            (r#"{"object":"error","message":"full"}"#, Some("full")),
            (r#"{"detail":"Not Found"}"#, Some("Not Found")),
            (r#"{"choices":[]}"#, None),
            ("<html>", None),
        ] {
            assert_eq!(told(reply.as_bytes()).as_deref(), message, "{reply}");
        }
    }
}
