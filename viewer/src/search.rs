//! A text in what was said.
//!
//! A search reads attempts, the newest first, until its time is over. Where there is an index of
//! texts, those that do not hold the text are not read, and those that are read are indexed.

use std::collections::HashSet;
use std::time::Instant;

use episode::Call;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{
    AttemptRecord, AttemptState, EpisodeFilter, OpenedKey, Snapshot, SnapshotError, TextIndex,
};

use crate::bounds::{HIT_CHARS, HITS, PAGE_MAX, SEARCH_BYTES_MAX, SEARCH_ROWS, SEARCH_WAIT};
use crate::error::ViewError;
use crate::parameters::{Parameters, place_of};
use crate::time::seconds;

/// A part of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// The messages that have the text.
    pub hits: Vec<Hit>,
    /// Attempts that were searched so far, those of earlier parts included.
    pub searched: u64,
    /// Attempts of this part that are too large to be read.
    #[serde(default)]
    pub unread: u64,
    /// Attempts that the filters take.
    pub total: u64,
    /// True if there are more than these.
    #[serde(default)]
    pub total_is_least: bool,
    /// The `cursor` of the next part; `None` at the end.
    pub next: Option<String>,
}

/// One message with the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// The episode.
    pub episode_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The call that said it first.
    pub call_id: String,
    /// The number of that call.
    pub number: u32,
    /// The choice that said it; `None` if it was sent.
    pub choice: Option<u32>,
    /// The role of who said it.
    pub role: String,
    /// The text before.
    pub before: String,
    /// The text that was searched for, as it was said.
    #[serde(rename = "match")]
    pub matched: String,
    /// The text after.
    pub after: String,
    /// The start of the call.
    pub started_at: f64,
}

/// Searches for a text.
pub(crate) async fn search(
    snapshot: &mut Snapshot,
    mut parameters: Parameters,
    index: Option<&TextIndex>,
) -> Result<SearchResult, ViewError> {
    let wanted = parameters.text("q").filter(|q| q.len() <= SEARCH_BYTES_MAX);
    let Some(wanted) = wanted else {
        let message = format!("`q` is a text of 1 to {SEARCH_BYTES_MAX} bytes");
        return Err(ViewError::Parameter(message));
    };
    let limit = parameters.number("limit", 1, PAGE_MAX)?.unwrap_or(HITS) as usize;
    let cursor = parameters.text("cursor");
    let filter = parameters.filter()?;
    parameters.end()?;
    let mut place = match &cursor {
        None => SearchPlace::default(),
        Some(cursor) => SearchPlace::of(cursor).ok_or_else(|| {
            ViewError::Parameter(format!("`cursor` is not that of an earlier part: {cursor}"))
        })?,
    };

    let needle = wanted.to_lowercase();
    let until = Instant::now() + SEARCH_WAIT;
    let total = snapshot.count(&filter).await?;
    let (mut hits, mut unread, mut is_over) = (Vec::new(), 0, false);
    'search: while !is_over {
        let attempts = snapshot.states(&filter, place.after, SEARCH_ROWS).await?;
        is_over = attempts.len() < SEARCH_ROWS as usize;
        let without = without_text(index, &attempts, &needle)?;
        for state in &attempts {
            if hits.len() >= limit || Instant::now() >= until {
                is_over = false;
                break 'search;
            }
            place = SearchPlace { searched: place.searched + 1, after: Some(state.place()) };
            if without.contains(&state.key) {
                continue;
            }
            match read(snapshot, state, index).await {
                Ok((attempt, calls)) => hits.extend(hits_of(&attempt, &calls, &needle)),
                Err(SnapshotError::TooLarge { .. }) => unread += 1,
                Err(error) => return Err(error.into()),
            }
            snapshot.give_back();
        }
    }
    let next = (!is_over).then(|| place.cursor());
    let SearchPlace { searched, .. } = place;
    let (total, total_is_least) = (total.count, total.is_least);
    Ok(SearchResult { hits, searched, unread, total, total_is_least, next })
}

/// The place that a search has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SearchPlace {
    /// Attempts that were searched.
    searched: u64,
    /// The last one of them.
    after: Option<OpenedKey>,
}

impl SearchPlace {
    fn of(cursor: &str) -> Option<Self> {
        let (searched, after) = cursor.split_once('.')?;
        Some(Self { searched: searched.parse().ok()?, after: Some(place_of(after)?) })
    }

    fn cursor(self) -> String {
        let after = self.after.map(|OpenedKey { opened_at, key }| format!("{opened_at}.{key}"));
        format!("{}.{}", self.searched, after.unwrap_or_default())
    }
}

/// The attempts that do not hold a text, as far as an index says so.
fn without_text(
    index: Option<&TextIndex>,
    attempts: &[AttemptState],
    needle: &str,
) -> Result<HashSet<i64>, SnapshotError> {
    let Some(index) = index else { return Ok(HashSet::new()) };
    let Some(holders) = index.holders(needle, attempts)? else { return Ok(HashSet::new()) };
    Ok(index.known(attempts)?.difference(&holders).copied().collect())
}

/// Reads an attempt, and indexes it if nothing of it is under way.
async fn read(
    snapshot: &mut Snapshot,
    state: &AttemptState,
    index: Option<&TextIndex>,
) -> Result<(AttemptRecord, Vec<Call>), SnapshotError> {
    let attempt = snapshot.attempt_of_key(state.key).await?;
    let calls = snapshot.calls(&attempt).await?;
    // An index that another process writes to is left for the next time.
    if let Some(index) = index.filter(|_| !state.is_running) {
        let _ = index.put(*state, &text_of_all(&calls));
    }
    Ok((attempt, calls))
}

/// Indexes all attempts that are not indexed as they are; `step` is called with how many are done,
/// and how many there are. Returns the number of those that were not.
///
/// # Errors
/// [`ViewError`] when the store cannot be read, or the index not be written.
pub async fn index_texts(
    snapshot: &mut Snapshot,
    index: &TextIndex,
    mut step: impl FnMut(u64, u64),
) -> Result<u64, ViewError> {
    let all = EpisodeFilter::default();
    let (mut new, mut after) = (Vec::new(), None);
    loop {
        let attempts = snapshot.states(&all, after, SEARCH_ROWS).await?;
        let known = index.known(&attempts)?;
        let is_new = |state: &&AttemptState| !state.is_running && !known.contains(&state.key);
        new.extend(attempts.iter().filter(is_new).copied());
        after = match attempts.last() {
            Some(last) => Some(last.place()),
            None => break,
        };
    }

    for (state, done) in new.iter().zip(1..) {
        let attempt = snapshot.attempt_of_key(state.key).await?;
        let calls = snapshot.calls(&attempt).await?;
        index.put(*state, &text_of_all(&calls))?;
        step(done, new.len() as u64);
    }
    Ok(new.len() as u64)
}

/// All that was said in the calls, once, in lower case.
fn text_of_all(calls: &[Call]) -> String {
    let mut seen: HashSet<String> = HashSet::new();
    let mut all = String::new();
    for (_, message) in calls.iter().flat_map(messages) {
        let text = text_of(&message).to_lowercase();
        if !seen.contains(&text) {
            all.push_str(&text);
            all.push('\n');
            seen.insert(text);
        }
    }
    all
}

/// The messages that a call sent, then its answers with the numbers of their choices.
fn messages(call: &Call) -> impl Iterator<Item = (Option<u32>, Value)> {
    let route = call.begun.route;
    let sent = wire::conversation(route, &call.begun.request.read()).unwrap_or_default().messages;
    let answers =
        call.ended.iter().flat_map(move |ended| wire::answers(route, &ended.reply.read()));
    let answered = answers.map(|answer| (Some(answer.index), answer.message));
    sent.into_iter().map(|message| (None, message)).chain(answered)
}

/// The messages of an attempt that have the text, each where it was said first.
fn hits_of(attempt: &AttemptRecord, calls: &[Call], needle: &str) -> Vec<Hit> {
    let mut seen: HashSet<String> = HashSet::new();
    let mut hits = Vec::new();
    for (call, number) in calls.iter().zip(1..) {
        for (choice, message) in messages(call) {
            let text = text_of(&message);
            let Some((before, matched, after)) = find(&text, needle) else { continue };
            if !seen.insert(wire::canonical(&message)) {
                continue;
            }

            hits.push(Hit {
                episode_id: attempt.id.to_string(),
                attempt: attempt.attempt,
                call_id: call.begun.call_id.to_string(),
                number,
                choice,
                role: message.get("role").and_then(Value::as_str).unwrap_or("").to_owned(),
                before,
                matched,
                after,
                started_at: seconds(call.begun.started_at),
            });
        }
    }
    hits
}

/// The text of a message: its content, its reasoning, and its tool calls.
fn text_of(message: &Value) -> String {
    let content = wire::content_text(message.get("content")).unwrap_or_default();
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let functions = calls.filter_map(|call| call.get("function")).flat_map(|function| {
        ["name", "arguments"].map(|key| match function.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        })
    });
    let reasoning = wire::reasoning(message).map(str::to_owned);
    [content].into_iter().chain(reasoning).chain(functions).collect::<Vec<_>>().join("\n")
}

/// Finds a text in lower case, and returns what is around it.
fn find(text: &str, needle: &str) -> Option<(String, String, String)> {
    let lower = text.to_lowercase();
    let at = lower.find(needle)?;
    let end = at + needle.len();
    // Few letters have another length in lower case; then the lower case is shown.
    let is_same = lower.len() == text.len() && text.is_char_boundary(at);
    let shown = if is_same && text.is_char_boundary(end) { text } else { lower.as_str() };

    let before: Vec<char> = shown[..at].chars().rev().take(HIT_CHARS).collect();
    let after = shown[end..].chars().take(HIT_CHARS).collect();
    Some((before.into_iter().rev().collect(), shown[at..end].to_owned(), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_regardless_of_case_with_what_is_around_it() {
        let found = find("The ANSWER is 42.", "answer").unwrap();
        assert_eq!(found, ("The ".into(), "ANSWER".into(), " is 42.".into()));
        assert_eq!(find("nothing", "answer"), None);
        let (before, matched, after) = find("İİ grün GRÜN", "grün g").unwrap();
        assert_eq!((matched.as_str(), after.as_str()), ("grün g", "rün"), "{before}");
        let long = format!("{}x{}", "é".repeat(500), "ß".repeat(500));
        let (before, _, after) = find(&long, "x").unwrap();
        assert_eq!((before.chars().count(), after.chars().count()), (HIT_CHARS, HIT_CHARS));
    }
}
