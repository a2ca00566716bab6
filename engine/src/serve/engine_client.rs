//! The engine thread's client: a bounded queue of calls and commands.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{Semaphore, oneshot};

use super::calls::ApiError;
use super::generation::GenerationRequest;
use crate::bounds::COMMANDS_MAX;
use crate::bounds::{CHOICES_MAX, OUTPUTS_MAX, WAITING_CHOICES_MAX};
use crate::core::message::Command;
use crate::core::message::EngineMessage;
use crate::core::status::EngineStatus;
use crate::core::status::SharedStatus;
use crate::core::status::WeightState;
use crate::sample::mix;
use crate::schedule::pace::QueuePace;
use crate::schedule::pace::QueuePlace;
use crate::schedule::request::Output;
use crate::schedule::request::OutputSender;
use crate::schedule::request::Request;
use crate::schedule::request::StopRules;
use crate::schedule::request::Submission;

/// A prompt, and when replies to it end.
pub(super) struct Prompt {
    pub(super) ids: Arc<[u32]>,
    pub(super) stops: Arc<StopRules>,
}

/// Sends calls and commands to the engine thread, and bounds how many wait.
pub(super) struct EngineClient {
    inbox: Sender<EngineMessage>,
    /// Places of calls.
    places: Arc<Semaphore>,
    /// Places of single choices, so that a queue of large calls has a bound, too.
    choices: Arc<Semaphore>,
    /// Places of commands.
    commands: Arc<Semaphore>,
    max_queue: usize,
    /// The rate at which calls leave the queue.
    pace: Arc<QueuePace>,
    /// The seed of prompts whose request has none.
    seed: u64,
    /// Prompts that got such a seed.
    seeded: AtomicU64,
    abortable: Mutex<AbortableCalls>,
    status: Arc<SharedStatus>,
}

/// The calls that can be aborted, by the ids of their replies.
#[derive(Default)]
struct AbortableCalls {
    /// Callers may choose the ids, so an id may be that of several calls.
    flags: HashMap<String, Vec<Weak<AtomicBool>>>,
    /// Number of flags.
    count: usize,
    /// Number of flags at which those of ended calls are removed.
    sweep_at: usize,
}

impl AbortableCalls {
    fn insert(&mut self, id: &str, aborted: &Arc<AtomicBool>) {
        if self.count >= self.sweep_at {
            self.flags.retain(|_, flags| {
                flags.retain(|aborted| aborted.strong_count() > 0);
                !flags.is_empty()
            });
            self.count = self.flags.values().map(Vec::len).sum();
            self.sweep_at = 2 * self.count + OUTPUTS_MAX;
        }
        self.flags.entry(id.to_owned()).or_default().push(Arc::downgrade(aborted));
        self.count += 1;
    }

    /// Removes the calls of an id.
    fn remove(&mut self, id: &str) -> Vec<Weak<AtomicBool>> {
        let flags = self.flags.remove(id).unwrap_or_default();
        self.count = self.count.saturating_sub(flags.len());
        flags
    }
}

/// Returns the number of choices for `prompts` prompts with `n` replies each.
///
/// # Errors
/// 400 if they are too many for one call.
pub(super) fn count_choices(n: usize, prompts: usize) -> Result<usize, ApiError> {
    let count = n.saturating_mul(prompts);
    if count > CHOICES_MAX {
        let message = format!("asks for {count} choices in all, at most {CHOICES_MAX} are made");
        return Err(ApiError::bad_field("n", message));
    }
    Ok(count)
}

impl EngineClient {
    /// Makes a client whose queue holds at most `max_queue` calls, and the receiver for the engine
    /// thread. Prompts without a seed get one that is derived from `seed`.
    pub(super) fn new(
        max_queue: usize,
        seed: u64,
        status: Arc<SharedStatus>,
    ) -> (EngineClient, Receiver<EngineMessage>) {
        let max_queue = max_queue.min(Semaphore::MAX_PERMITS - COMMANDS_MAX);
        // Every message holds a place, so the channel is never full.
        let (inbox, receiver) = mpsc::channel(max_queue + COMMANDS_MAX);
        let client = EngineClient {
            inbox,
            places: Arc::new(Semaphore::new(max_queue)),
            choices: Arc::new(Semaphore::new(WAITING_CHOICES_MAX)),
            commands: Arc::new(Semaphore::new(COMMANDS_MAX)),
            max_queue,
            pace: Arc::new(QueuePace::new(Instant::now())),
            seed,
            seeded: AtomicU64::new(0),
            abortable: Mutex::default(),
            status,
        };
        (client, receiver)
    }

    /// True while the engine thread receives calls.
    pub(super) fn is_open(&self) -> bool {
        !self.inbox.is_closed()
    }

    /// Returns the engine's status as of its last step.
    pub(super) fn status(&self) -> EngineStatus {
        self.status.read()
    }

    /// Queues `request.n` choices for each prompt, prompt by prompt. Dropping the receiver cancels
    /// them.
    ///
    /// # Errors
    /// 400 for too many choices, 429 for a full queue, 503 while the engine takes no calls.
    pub(super) fn submit(
        &self,
        request: &GenerationRequest,
        prompts: &[Prompt],
    ) -> Result<Receiver<Output>, ApiError> {
        let count = count_choices(request.n, prompts.len())?;
        if let Some(reason) = self.status().refusal() {
            return Err(ApiError::unavailable(reason));
        }
        // The place is given back when the last choice runs, or when this function fails.
        let place = self.reserve_place(count)?;
        let (sender, outputs) = mpsc::channel(count + OUTPUTS_MAX);
        let aborted = Arc::new(AtomicBool::new(false));

        let mut choices = Vec::with_capacity(count);
        for prompt in prompts {
            let seed = request.seed.unwrap_or_else(|| self.next_seed());
            for _ in 0..request.n {
                let choice = choice_of(request, prompt, choices.len(), seed, Arc::clone(&aborted));
                // The end of a choice has a place of its own, and is never lost.
                let last = sender.clone().try_reserve_owned().map_err(|_| ApiError::internal())?;
                choices.push((choice, OutputSender { sender: sender.clone(), last }));
            }
        }

        // The call can be aborted before the engine thread has seen it.
        if !request.id.is_empty() {
            self.abortable().insert(&request.id, &aborted);
        }
        let submission = Submission { choices, place: Arc::new(place) };
        self.inbox.try_send(EngineMessage::Call(submission)).map_err(|_| ApiError::internal())?;
        Ok(outputs)
    }

    /// Has the engine thread handle a command between two of its steps, and waits for the answer.
    pub(super) async fn send<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ApiError> {
        let permit =
            Arc::clone(&self.commands).acquire_owned().await.map_err(|_| ApiError::internal())?;
        let (done, answer) = oneshot::channel();
        let message = EngineMessage::Command(command(done), permit);
        self.inbox.try_send(message).map_err(|_| ApiError::internal())?;
        answer.await.map_err(|_| ApiError::internal())
    }

    /// Ends the call whose reply has this id. The tokens that it has stay in its reply. Returns
    /// false if no such call is under way.
    ///
    /// The engine notices with its next step. While generation is paused there is none, so callers
    /// send [`Command::DropAbandoned`] afterwards.
    pub(super) fn abort(&self, id: &str) -> bool {
        let flags = self.abortable().remove(id);
        let running = flags.iter().filter_map(Weak::upgrade);
        running.filter(|aborted| !aborted.swap(true, Ordering::Relaxed)).count() > 0
    }

    /// Removes the calls that were aborted, or that their callers left, without waiting for a step.
    pub(super) async fn drop_abandoned(&self) -> Result<(), ApiError> {
        self.send(|done| Command::DropAbandoned { done }).await
    }

    /// Ends all calls, and returns the number of replies.
    pub(super) async fn abort_all(&self) -> Result<usize, ApiError> {
        self.send(|done| Command::AbortAll { done }).await
    }

    fn abortable(&self) -> MutexGuard<'_, AbortableCalls> {
        // A panic leaves the flags whole, and at most a count that is off.
        self.abortable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place for a call of `count` choices.
    fn reserve_place(&self, count: usize) -> Result<QueuePlace, ApiError> {
        let now = Instant::now();
        if self.places.available_permits() == self.max_queue {
            self.pace.idle(now);
        }

        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let call = Arc::clone(&self.places).try_acquire_owned();
        let choices = Arc::clone(&self.choices).try_acquire_many_owned(count);
        match (call, choices) {
            (Ok(call), Ok(choices)) => Ok(QueuePlace::new(Arc::clone(&self.pace), [call, choices])),
            _ => {
                let waiting = self.max_queue - self.places.available_permits();
                self.request_sweep();
                Err(ApiError::queue_full(waiting, self.pace.refuse(now)))
            }
        }
    }

    /// Has the places of callers that left freed, if the engine is paused and no step does that.
    fn request_sweep(&self) {
        let status = self.status();
        if status.paused.is_none() && status.weights != WeightState::Changing {
            return;
        }
        let Ok(permit) = Arc::clone(&self.commands).try_acquire_owned() else { return };
        // Nobody waits for the answer: the caller that was refused tries again.
        let (done, _) = oneshot::channel();
        self.inbox.try_send(EngineMessage::Command(Command::DropAbandoned { done }, permit)).ok();
    }

    /// Returns a seed for a prompt whose request has none.
    fn next_seed(&self) -> u64 {
        mix(self.seed ^ mix(self.seeded.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Makes the choice at `index` of a call, whose prompt has the seed `seed`.
fn choice_of(
    request: &GenerationRequest,
    prompt: &Prompt,
    index: usize,
    seed: u64,
    aborted: Arc<AtomicBool>,
) -> Request {
    let child = index % request.n;
    let mut params = request.params.clone();
    params.seed = seed.wrapping_add(child as u64);
    // All choices share their prompt, so in a reply in one piece the first alone has its scores.
    let has_scores = child == 0 || request.options.stream;
    Request {
        index,
        prompt: Arc::clone(&prompt.ids),
        params,
        stops: Arc::clone(&prompt.stops),
        priority: request.priority,
        cache_salt: request.cache_salt.clone(),
        attempt: request.attempt.clone(),
        prompt_logprobs: request.prompt_logprobs.filter(|_| has_scores),
        scored_from: request.scored_from,
        routed_experts: request.options.routed_experts,
        aborted,
        adapter: request.adapter.clone(),
    }
}
