//! The encodings of prompts, as far as an upstream has told them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use episode::ContinueReason;
use hyper::HeaderMap;
use template::continuation::{EncodedText, LearnedTokens};
use wire::{PromptQuestion, ServerEncoding};

use crate::bounds::{PROMPT_SHAPES_MAX, TOKEN_MODELS_MAX};
use crate::upstream::declined::DeclinedQuestion;

/// The encodings of an upstream.
#[derive(Debug, Default)]
pub(crate) struct Encodings {
    /// The tokens of each model, all of whose versions have the same.
    models: Mutex<HashMap<String, LearnedTokens>>,
    /// For shapes of requests, whether the upstream encoded one as it had said.
    shapes: Mutex<HashMap<u64, bool>>,
    /// Noted if it does not say how it encodes a prompt, or takes no ids.
    declined: DeclinedQuestion,
}

impl Encodings {
    /// Learns the tokens of a prompt. None if it is no text, or what was learned before does not
    /// agree. That is forgotten then: the upstream has another tokenizer now.
    pub(super) fn read(&self, model: Option<&str>, prompt: ServerEncoding) -> Option<EncodedText> {
        let ServerEncoding { ids, text, ends } = prompt;
        let encoded = EncodedText::new(ids, text, ends)?;

        let mut models = lock(&self.models);
        let model = policy_of(model);
        if models.len() >= TOKEN_MODELS_MAX && !models.contains_key(model) {
            models.clear();
        }
        let learned = models.entry(model.to_owned()).or_default().learn(&encoded);
        if learned.is_none() {
            models.remove(model);
        }
        learned.map(|()| encoded)
    }

    /// Calls `take` with the tokens of a model.
    pub(super) fn with_tokens<T>(
        &self,
        model: Option<&str>,
        take: impl FnOnce(&LearnedTokens) -> T,
    ) -> T {
        let models = lock(&self.models);
        match models.get(policy_of(model)) {
            Some(tokens) => take(tokens),
            None => take(&LearnedTokens::default()),
        }
    }

    /// The reason for which the upstream's answer may not hold for the chat route.
    pub(super) fn doubt(&self, question: &PromptQuestion) -> Option<ContinueReason> {
        match lock(&self.shapes).get(&question.shape) {
            Some(true) => None,
            Some(false) => Some(ContinueReason::TemplateDiffers),
            None => (!question.is_known).then_some(ContinueReason::NotProven),
        }
    }

    /// Notes whether the upstream encoded a request of this shape as it had said.
    pub(super) fn note(&self, shape: u64, holds: bool) {
        let mut shapes = lock(&self.shapes);
        if shapes.len() >= PROMPT_SHAPES_MAX && !shapes.contains_key(&shape) {
            shapes.clear();
        }
        // Once wrong is wrong: a template may read the clock.
        let known = shapes.entry(shape).or_insert(holds);
        *known &= holds;
    }

    /// Notes that the upstream cannot be asked, or takes no ids.
    pub(super) fn decline(&self, agent: &HeaderMap) {
        self.declined.note(agent);
    }

    /// True if that was noted a short time ago.
    pub(super) fn is_declined(&self, agent: &HeaderMap) -> bool {
        self.declined.is_recent(agent)
    }
}

/// The model without the number at its end, which may be a version.
pub(super) fn policy_of(model: Option<&str>) -> &str {
    let model = model.unwrap_or_default();
    let policy = model.trim_end_matches(|c: char| c.is_ascii_digit());
    if policy.is_empty() { model } else { policy }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
