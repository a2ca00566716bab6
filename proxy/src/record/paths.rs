//! The recorded paths of attempts: prompts and the ids that were sampled after them, by which a
//! later prompt can begin with the same ids.
//!
//! All of it is in the store, too: an attempt that is long unused is forgotten, and read again
//! when its next call comes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use episode::{AttemptId, Call, CallEnd, Choice};
use http::memory::{MemoryAccount, MemoryLease};
use store::{Selection, SnapshotError};
use template::continuation::{HistoryRule, ReplyMemory, TokenChain};

use crate::bounds::{PATH_BYTES_MAX, PATHS_WAITING_MAX};
use crate::config::continue_mode::ContinueMode;
use crate::reading_room::ReadBack;

/// The paths of all attempts.
#[derive(Debug)]
pub(crate) struct PathMemory {
    /// The mode of attempts without a wish of their own.
    default: ContinueMode,
    /// The modes of the others.
    modes: Mutex<HashMap<AttemptId, ContinueMode>>,
    account: Arc<MemoryAccount>,
    attempts: Mutex<HashMap<AttemptId, Slot>>,
    /// Bytes of all attempts, and the most that they may take.
    bytes: Arc<AtomicUsize>,
    bytes_max: usize,
}

#[derive(Debug)]
struct Slot {
    paths: Arc<AttemptPaths>,
    used_at: Instant,
}

/// The paths of one attempt.
#[derive(Debug)]
pub(crate) struct AttemptPaths {
    /// Those whose text is known.
    pub(crate) memory: ReplyMemory,
    /// Those whose text is looked for when the next call comes.
    waiting: Mutex<WaitingPaths>,
    /// Held while texts are looked for, so that no call passes by its parent.
    pub(crate) reading: tokio::sync::Mutex<()>,
    /// True once the calls in the store are among them.
    pub(crate) is_loaded: AtomicBool,
    /// True if the text of one of them could not be known.
    pub(crate) has_unknown_texts: AtomicBool,
    charge: Mutex<Charge>,
    /// The most bytes of paths that wait.
    bytes_max: usize,
}

/// Paths whose text is looked for, the oldest first, and their bytes.
#[derive(Debug, Default)]
struct WaitingPaths {
    paths: VecDeque<RecordedPath>,
    bytes: usize,
}

/// The bytes that the paths of an attempt are charged with.
#[derive(Debug)]
struct Charge {
    bytes: usize,
    all: Arc<AtomicUsize>,
    lease: MemoryLease,
}

/// A prompt, and what was sampled after it.
#[derive(Debug, Clone)]
pub(crate) struct RecordedPath {
    /// The model that the agent named, if any.
    pub(crate) model: Option<String>,
    pub(crate) prompt: PathPrompt,
    pub(crate) choice: Choice,
}

/// The prompt of a path.
#[derive(Debug, Clone)]
pub(crate) enum PathPrompt {
    /// With its text, and the byte at which the words that open the reply start.
    Text { text: Arc<str>, ids: TokenChain, opening_at: usize, is_respelled: bool },
    /// As the store has it.
    Ids(Arc<[u32]>),
}

/// The paths that a call may go on from.
#[derive(Debug, Clone)]
pub(crate) struct CallPaths {
    pub(crate) attempt: Arc<AttemptPaths>,
    id: AttemptId,
    read_back: ReadBack,
    /// True if the attempt was announced so.
    pub(crate) is_announced: bool,
}

impl CallPaths {
    /// Those of an attempt, if its prompts are sent as ids.
    pub(crate) fn of(memory: &PathMemory, id: &AttemptId, read_back: &ReadBack) -> Option<Self> {
        let is_announced = lock(&memory.modes).contains_key(id);
        let (attempt, read_back) = (memory.of(id)?, read_back.clone());
        Some(Self { attempt, id: id.clone(), read_back, is_announced })
    }

    /// Adds the calls of the attempt that are in the store, once: this process may not have seen
    /// them, or may have forgotten them.
    ///
    /// # Errors
    /// [`SnapshotError`] if the store cannot be read, or there is no memory for its calls.
    pub(crate) async fn load(&self) -> Result<(), SnapshotError> {
        if self.attempt.is_loaded.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut snapshot = self.read_back.open(ReadBack::until()).await?;
        let selection =
            Selection { episode: Some(self.id.episode.clone()), ..Selection::default() };
        let records = snapshot.episodes(&selection).await?;
        for record in records.iter().filter(|record| record.attempt == self.id.attempt) {
            self.attempt.add_recorded(snapshot.calls(record).await?);
            snapshot.give_back();
        }
        // Only now: the agent of a call may leave while it waits.
        self.attempt.is_loaded.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The look at the end of a call that tells whether the prompt was the one that was sent.
pub(crate) struct PromptCheck(Box<dyn FnOnce(&mut CallEnd) + Send + Sync>);

impl PromptCheck {
    pub(crate) fn new(check: impl FnOnce(&mut CallEnd) + Send + Sync + 'static) -> Self {
        Self(Box::new(check))
    }

    pub(super) fn look_at(self, end: &mut CallEnd) {
        (self.0)(end);
    }
}

impl fmt::Debug for PromptCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PromptCheck")
    }
}

impl PathMemory {
    /// An empty memory, of at most a quarter of the account.
    pub(crate) fn new(default: ContinueMode, account: &Arc<MemoryAccount>) -> Self {
        let quarter = usize::try_from(account.counts().bytes_max / 4).unwrap_or(usize::MAX);
        Self {
            default,
            modes: Mutex::default(),
            account: Arc::clone(account),
            attempts: Mutex::default(),
            bytes: Arc::default(),
            bytes_max: quarter.min(PATH_BYTES_MAX),
        }
    }

    /// Sets the mode of an attempt. Its paths are read again under the new rule.
    pub(crate) fn set_mode(&self, attempt: AttemptId, mode: ContinueMode) {
        lock(&self.attempts).remove(&attempt);
        lock(&self.modes).insert(attempt, mode);
    }

    /// The paths of an attempt, if its prompts are sent as ids.
    fn of(&self, attempt: &AttemptId) -> Option<Arc<AttemptPaths>> {
        let own = lock(&self.modes).get(attempt).copied();
        let rule = own.unwrap_or(self.default).rule()?;
        let mut attempts = lock(&self.attempts);
        if self.bytes.load(Ordering::Relaxed) > self.bytes_max {
            forget_oldest(&mut attempts);
        }
        let slot = attempts.entry(attempt.clone()).or_insert_with(|| Slot {
            paths: Arc::new(AttemptPaths::new(
                rule,
                self.bytes_max,
                &self.bytes,
                self.account.lease(),
            )),
            used_at: Instant::now(),
        });
        slot.used_at = Instant::now();
        Some(Arc::clone(&slot.paths))
    }

    /// Forgets an attempt that takes no more calls.
    pub(crate) fn forget(&self, attempt: &AttemptId) {
        lock(&self.attempts).remove(attempt);
        lock(&self.modes).remove(attempt);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets the half of the attempts that was not used for longest.
fn forget_oldest(attempts: &mut HashMap<AttemptId, Slot>) {
    let mut times: Vec<Instant> = attempts.values().map(|slot| slot.used_at).collect();
    times.sort_unstable();
    // Calls under way hold paths that are forgotten already, so there may be none.
    let Some(median) = times.get(times.len() / 2) else { return };
    attempts.retain(|_, slot| slot.used_at > *median);
}

impl AttemptPaths {
    fn new(
        rule: HistoryRule,
        bytes_max: usize,
        all: &Arc<AtomicUsize>,
        lease: MemoryLease,
    ) -> Self {
        Self {
            memory: ReplyMemory::new(rule, bytes_max),
            waiting: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            is_loaded: AtomicBool::new(false),
            has_unknown_texts: AtomicBool::new(false),
            charge: Mutex::new(Charge { bytes: 0, all: Arc::clone(all), lease }),
            bytes_max,
        }
    }

    /// Adds paths whose text is to be looked for.
    pub(crate) fn add(&self, paths: impl IntoIterator<Item = RecordedPath>) {
        let mut waiting = lock(&self.waiting);
        for path in paths {
            waiting.push(path);
            while waiting.paths.len() > PATHS_WAITING_MAX || waiting.bytes > self.bytes_max {
                waiting.pop();
            }
        }
        drop(waiting);
        self.count_bytes();
    }

    /// Adds the recorded calls of the attempt.
    fn add_recorded(&self, calls: Vec<Call>) {
        for call in calls {
            let Some(end) = call.ended else { continue };
            let model = call.begun.model;
            self.add(choices_of(&end).filter_map(|(at, choice)| {
                let ids = end.prompts.get(at).filter(|ids| !ids.is_empty())?;
                let prompt = PathPrompt::Ids(ids.as_slice().into());
                Some(RecordedPath { model: model.clone(), prompt, choice })
            }));
        }
    }

    /// The oldest path whose text is to be looked for. It stays until [`Self::settle_first`], so
    /// that it is not lost with a call whose agent leaves.
    pub(crate) fn first_waiting(&self) -> Option<RecordedPath> {
        lock(&self.waiting).paths.front().cloned()
    }

    /// Drops the oldest path, whose text was looked for.
    pub(crate) fn settle_first(&self) {
        lock(&self.waiting).pop();
    }

    /// Counts what the paths take now.
    pub(crate) fn count_bytes(&self) {
        let waiting = lock(&self.waiting).bytes;
        let mut charge = lock(&self.charge);
        let bytes = self.memory.bytes() + waiting;
        charge.all.fetch_add(bytes, Ordering::Relaxed);
        charge.all.fetch_sub(charge.bytes, Ordering::Relaxed);
        charge.bytes = bytes;
        charge.lease.hold(bytes);
        charge.lease.shrink(bytes);
    }
}

impl WaitingPaths {
    fn push(&mut self, path: RecordedPath) {
        self.bytes += path.bytes();
        self.paths.push_back(path);
    }

    /// Drops the oldest path.
    fn pop(&mut self) {
        self.bytes -= self.paths.pop_front().map_or(0, |path| path.bytes());
    }
}

impl RecordedPath {
    /// The memory that it takes, roughly, in bytes.
    fn bytes(&self) -> usize {
        let (text, ids) = match &self.prompt {
            PathPrompt::Text { text, ids, .. } => (text.len(), ids.len()),
            PathPrompt::Ids(ids) => (0, ids.len()),
        };
        let sampled = self.choice.token_ids.as_ref().map_or(0, Vec::len);
        size_of::<Self>() + text + (ids + sampled) * size_of::<u32>()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The choices of a reply that sampled something, with the index of their prompt.
pub(crate) fn choices_of(end: &CallEnd) -> impl Iterator<Item = (usize, Choice)> {
    let sampled = |choice: &&Choice| choice.token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
    end.choices.iter().filter(sampled).map(|choice| {
        // Logprobs and columns are not needed to go on.
        let kept = Choice {
            index: choice.index,
            prompt_index: choice.prompt_index,
            token_ids: choice.token_ids.clone(),
            finish_reason: choice.finish_reason.clone(),
            stop_reason: choice.stop_reason.clone(),
            ..Choice::default()
        };
        (usize::try_from(choice.prompt_index).unwrap_or(usize::MAX), kept)
    })
}

#[cfg(test)]
mod tests {
    use template::continuation::{RememberedPrompt, ReplyText};

    use super::*;

    fn attempt(name: &str) -> AttemptId {
        AttemptId { episode: name.parse().unwrap(), attempt: 0 }
    }

    /// Gives an attempt some 400 KiB of paths.
    fn fill(paths: &AttemptPaths) {
        let prompt = RememberedPrompt {
            salt: None,
            text: "a".repeat(400 << 10).into(),
            ids: TokenChain::new(&[1]),
            is_respelled: false,
        };
        let reply = ReplyText { ids: [2].into(), ..ReplyText::default() };
        paths.memory.remember(&prompt, prompt.text.len(), [reply]);
        paths.count_bytes();
    }

    #[test]
    fn what_is_not_used_goes_and_calls_under_way_keep_theirs() {
        // A quarter of it is 1 MiB.
        let account = Arc::new(MemoryAccount::new(4 << 20));
        let memory = PathMemory::new(ContinueMode::Exact, &account);
        let held: Vec<_> =
            ["a", "b", "c"].map(|name| memory.of(&attempt(name)).unwrap()).into_iter().collect();
        held.iter().for_each(|paths| fill(paths));
        assert!(account.counts().held > 1 << 20);

        let again = memory.of(&attempt("c")).unwrap();
        assert!(Arc::ptr_eq(&again, &held[2]), "the newest stays");
        assert!(!Arc::ptr_eq(&memory.of(&attempt("a")).unwrap(), &held[0]));
        for name in ["a", "b", "c"] {
            memory.forget(&attempt(name));
        }
        assert!(memory.of(&attempt("d")).is_some(), "all that is held is forgotten already");
        drop((held, again));
        assert!(account.counts().held < 1 << 20);
    }

    #[test]
    fn a_path_stays_until_its_text_was_looked_for() {
        let account = Arc::new(MemoryAccount::new(4 << 20));
        let memory = PathMemory::new(ContinueMode::Exact, &account);
        let paths = memory.of(&attempt("a")).unwrap();
        let path = |id: u32| RecordedPath {
            model: None,
            prompt: PathPrompt::Ids([id].into()),
            choice: Choice::default(),
        };
        paths.add([path(1), path(2)]);
        let first = |paths: &AttemptPaths| match paths.first_waiting()?.prompt {
            PathPrompt::Ids(ids) => Some(ids[0]),
            PathPrompt::Text { .. } => None,
        };
        assert_eq!([first(&paths), first(&paths)], [Some(1), Some(1)]);
        paths.settle_first();
        assert_eq!(first(&paths), Some(2));
        paths.settle_first();
        assert_eq!(first(&paths), None);
    }

    #[test]
    fn an_attempt_has_a_mode_of_its_own() {
        let memory = PathMemory::new(ContinueMode::Off, &Arc::new(MemoryAccount::new(4 << 20)));
        assert!(memory.of(&attempt("a")).is_none());
        memory.set_mode(attempt("a"), ContinueMode::Exact);
        let exact = memory.of(&attempt("a")).unwrap();
        memory.set_mode(attempt("a"), ContinueMode::AsSampled);
        assert!(!Arc::ptr_eq(&memory.of(&attempt("a")).unwrap(), &exact), "under another rule");
        memory.forget(&attempt("a"));
        assert!(memory.of(&attempt("a")).is_none());
    }
}
