//! The way into the engine thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::error::ApiError;
use super::request::Ask;
use crate::Card;
use crate::sample::mix;
use crate::schedule::Submission;
use crate::sequence::{Outlet, Output, Request, StopRules};

/// Outputs that wait for a slow caller before tokens are merged, beside one for each end.
const OUTPUTS: usize = 64;

/// Choices of one call, over all its prompts.
const MAX_CHOICES: usize = 4096;

/// What every connection shares.
pub(super) struct State {
    pub(super) card: Card,
    pub(super) gate: Gate,
}

/// The bounded queue in front of the engine.
pub(super) struct Gate {
    inbox: Sender<Submission>,
    places: Arc<Semaphore>,
    max_queue: usize,
    calls: AtomicU64,
}

/// A prompt and when replies to it end.
pub(super) struct Prompt {
    pub(super) ids: Arc<[u32]>,
    pub(super) stops: Arc<StopRules>,
}

impl Gate {
    /// A gate before which at most `max_queue` calls wait, and its other side.
    pub(super) fn new(max_queue: usize) -> (Gate, Receiver<Submission>) {
        let max_queue = max_queue.min(Semaphore::MAX_PERMITS);
        // Every submission holds a place, so the channel is never full.
        let (inbox, outbox) = mpsc::channel(max_queue);
        let places = Arc::new(Semaphore::new(max_queue));
        (Gate { inbox, places, max_queue, calls: AtomicU64::new(0) }, outbox)
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
        let count = ask.n.saturating_mul(prompts.len());
        if count > MAX_CHOICES {
            let message =
                format!("asks for {count} choices in all, at most {MAX_CHOICES} are made");
            return Err(ApiError::bad("n", message));
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| ApiError::busy(self.max_queue))?;
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
                    // All choices have the same prompt, so one of them is enough.
                    prompt_logprobs: ask.prompt_logprobs.filter(|_| child == 0),
                    aborted: Arc::clone(&aborted),
                };
                let last = sender.clone().try_reserve_owned();
                let last = last.map_err(|_| ApiError::internal())?;
                choices.push((request, Outlet { sender: sender.clone(), last }));
            }
        }
        let submission = Submission { choices, place: Arc::new(place) };
        self.inbox.try_send(submission).map_err(|_| ApiError::internal())?;
        Ok(outputs)
    }

    /// A seed for a prompt of a call that gave none.
    fn seed(&self, engine: u64) -> u64 {
        mix(engine ^ mix(self.calls.fetch_add(1, Ordering::Relaxed)))
    }
}
