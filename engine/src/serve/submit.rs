//! The way into the engine thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{Semaphore, oneshot};

use super::adapters::Adapters;
use super::error::ApiError;
use super::prefix::{Manner, Memory};
use super::request::Ask;
use crate::Card;
use crate::control::{Board, COMMANDS, Command, Mail};
use crate::pace::{Pace, Place};
use crate::queue::Submission;
use crate::sample::mix;
use crate::sequence::{Outlet, Output, Request, StopRules};
use crate::stats::Stats;
use crate::update::Updates;

/// Outputs that wait for a slow caller before tokens are merged, beside one for each end.
const OUTPUTS: usize = 64;

/// Choices of one call, over all its prompts.
const MAX_CHOICES: usize = 4096;

/// Choices that wait, over all calls.
const MAX_WAITING_CHOICES: usize = 4 * MAX_CHOICES;

/// What every connection shares.
pub(super) struct State {
    pub(super) card: Card,
    pub(super) gate: Gate,
    pub(super) stats: Arc<Stats>,
    pub(super) updates: Arc<Updates>,
    /// What was sampled in chats, unless that is switched off.
    pub(super) memory: Option<Memory>,
    pub(super) adapters: Adapters,
}

impl State {
    pub(super) fn new(card: Card, gate: Gate, stats: Arc<Stats>, updates: Arc<Updates>) -> State {
        let ends = card.eos.iter().map(|id| card.tokenizer.decode(&[*id], false));
        let ends = ends.filter(|end| !end.is_empty()).collect();
        let manner = Manner { ends, tools: card.tool_format, thinks: card.thinks };
        let memory = card.prefix_exact_chat.then(|| Memory::new(manner));
        let adapters = Adapters::new(card.lora);
        State { card, gate, stats, updates, memory, adapters }
    }
}

/// The bounded queue in front of the engine.
pub(super) struct Gate {
    inbox: Sender<Mail>,
    places: Arc<Semaphore>,
    /// Places of single choices, so that a queue of large calls has a bound, too.
    choices: Arc<Semaphore>,
    /// Places of commands.
    commands: Arc<Semaphore>,
    max_queue: usize,
    pace: Arc<Pace>,
    calls: AtomicU64,
    running: Mutex<Running>,
    /// How the engine stands.
    pub(super) board: Arc<Board>,
}

/// The calls that can be aborted, by the ids of their replies.
#[derive(Default)]
struct Running {
    calls: HashMap<String, Weak<AtomicBool>>,
    /// Entries after which those that are over are swept out.
    sweep: usize,
}

impl Running {
    fn insert(&mut self, id: &str, aborted: &Arc<AtomicBool>) {
        if self.calls.len() >= self.sweep {
            self.calls.retain(|_, aborted| aborted.strong_count() > 0);
            self.sweep = 2 * self.calls.len() + OUTPUTS;
        }
        self.calls.insert(id.to_owned(), Arc::downgrade(aborted));
    }
}

/// Choices of a call for `prompts` prompts with `n` replies each, if they are not too many.
pub(super) fn choices(n: usize, prompts: usize) -> Result<usize, ApiError> {
    let count = n.saturating_mul(prompts);
    if count > MAX_CHOICES {
        let message = format!("asks for {count} choices in all, at most {MAX_CHOICES} are made");
        return Err(ApiError::bad("n", message));
    }
    Ok(count)
}

/// A prompt and when replies to it end.
pub(super) struct Prompt {
    pub(super) ids: Arc<[u32]>,
    pub(super) stops: Arc<StopRules>,
}

impl Gate {
    /// A gate before which at most `max_queue` calls wait, and its other side.
    pub(super) fn new(max_queue: usize, board: Arc<Board>) -> (Gate, Receiver<Mail>) {
        let max_queue = max_queue.min(Semaphore::MAX_PERMITS - COMMANDS);
        // All that is sent holds a place, so the channel is never full.
        let (inbox, outbox) = mpsc::channel(max_queue + COMMANDS);
        let gate = Gate {
            inbox,
            places: Arc::new(Semaphore::new(max_queue)),
            choices: Arc::new(Semaphore::new(MAX_WAITING_CHOICES)),
            commands: Arc::new(Semaphore::new(COMMANDS)),
            max_queue,
            pace: Arc::new(Pace::new(Instant::now())),
            calls: AtomicU64::new(0),
            running: Mutex::default(),
            board,
        };
        (gate, outbox)
    }

    /// Whether the engine thread still takes calls.
    pub(super) fn is_open(&self) -> bool {
        !self.inbox.is_closed()
    }

    /// Queues `ask.n` choices for each prompt, prompt by prompt. Dropping what is returned cancels
    /// them.
    pub(super) fn submit(
        &self,
        seed: u64,
        ask: &Ask,
        prompts: &[Prompt],
    ) -> Result<Receiver<Output>, ApiError> {
        let count = choices(ask.n, prompts.len())?;
        if let Some(reason) = self.board.read().refusal() {
            return Err(ApiError::unavailable(reason));
        }
        let place = self.place(count)?;
        let (sender, outputs) = mpsc::channel(count + OUTPUTS);
        let mut choices = Vec::with_capacity(count);
        let aborted = Arc::new(AtomicBool::new(false));
        for prompt in prompts {
            let base = ask.seed.unwrap_or_else(|| self.seed(seed));
            for child in 0..ask.n {
                let mut params = ask.params.clone();
                params.seed = base.wrapping_add(child as u64);
                let request = Request {
                    index: choices.len(),
                    prompt: Arc::clone(&prompt.ids),
                    params,
                    stops: Arc::clone(&prompt.stops),
                    priority: ask.priority,
                    cache_salt: ask.cache_salt.clone(),
                    // All choices have the same prompt, so one of them is enough for a reply in
                    // one piece.
                    prompt_logprobs: ask.prompt_logprobs.filter(|_| child == 0 || ask.show.stream),
                    aborted: Arc::clone(&aborted),
                    adapter: ask.adapter.clone(),
                };
                let last = sender.clone().try_reserve_owned();
                let last = last.map_err(|_| ApiError::internal())?;
                choices.push((request, Outlet { sender: sender.clone(), last }));
            }
        }
        let submission = Submission { choices, place: Arc::new(place) };
        if !ask.id.is_empty() {
            self.running().insert(&ask.id, &aborted);
        }
        self.inbox.try_send(Mail::Call(submission)).map_err(|_| ApiError::internal())?;
        Ok(outputs)
    }

    /// Tells the engine thread something, between two of its steps, and waits for its answer.
    pub(super) async fn tell<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(&self.commands).acquire_owned().await;
        let permit = permit.map_err(|_| ApiError::internal())?;
        let (done, answer) = oneshot::channel();
        let mail = Mail::Command(command(done), permit);
        self.inbox.try_send(mail).map_err(|_| ApiError::internal())?;
        answer.await.map_err(|_| ApiError::internal())
    }

    /// Tells the call whose reply has this id to end as it is; a call that is over stays so.
    /// Says whether there was one.
    pub(super) fn abort(&self, id: &str) -> bool {
        let aborted = self.running().calls.remove(id).and_then(|aborted| aborted.upgrade());
        aborted.is_some_and(|aborted| !aborted.swap(true, Ordering::Relaxed))
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // An entry is whole or absent whatever happens.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a call of `count` choices.
    fn place(&self, count: usize) -> Result<Place, ApiError> {
        let now = Instant::now();
        if self.places.available_permits() == self.max_queue {
            self.pace.idle(now);
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let call = Arc::clone(&self.places).try_acquire_owned();
        let choices = Arc::clone(&self.choices).try_acquire_many_owned(count);
        match (call, choices) {
            (Ok(call), Ok(choices)) => Ok(Place::new(Arc::clone(&self.pace), [call, choices])),
            _ => {
                let waiting = self.max_queue - self.places.available_permits();
                self.sweep();
                Err(ApiError::busy(waiting, self.pace.refuse(now)))
            }
        }
    }

    /// Has the places of callers that left freed, while no step does so.
    fn sweep(&self) {
        let idle = self.board.read().paused.is_some();
        let Some(permit) =
            idle.then(|| Arc::clone(&self.commands).try_acquire_owned().ok()).flatten()
        else {
            return;
        };
        // Nobody waits for the answer: who was refused comes again.
        let (done, _) = oneshot::channel();
        self.inbox.try_send(Mail::Command(Command::DropAbandoned { done }, permit)).ok();
    }

    /// A seed for a prompt of a call that gave none.
    fn seed(&self, engine: u64) -> u64 {
        mix(engine ^ mix(self.calls.fetch_add(1, Ordering::Relaxed)))
    }
}
