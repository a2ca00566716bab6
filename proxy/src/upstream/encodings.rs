//! The encodings of prompts, as far as an upstream has told them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use episode::ContinueReason;
use hyper::HeaderMap;
use template::continuation::{EncodedText, LearnedTokens};
use wire::{PromptQuestion, ServerEncoding};

use crate::bounds::{PROMPT_SHAPES_MAX, TOKEN_MODELS_MAX, TOKEN_RUNS_MAX, TOKEN_TEXTS_LIFE};
use crate::upstream::declined::DeclinedQuestion;

/// The encodings of an upstream.
#[derive(Debug, Default)]
pub(crate) struct Encodings {
    /// The tokens of each model, all of whose versions have the same.
    models: Mutex<HashMap<String, ModelTokens>>,
    /// For shapes of requests, whether the upstream encoded one as it had said.
    shapes: Mutex<HashMap<u64, bool>>,
    /// Noted if it does not say how it encodes a prompt, or takes no ids.
    declined: DeclinedQuestion,
}

/// The tokens of a model.
#[derive(Debug, Default)]
pub(super) struct ModelTokens {
    pub(super) learned: LearnedTokens,
    /// Those that are a part of a character, if the upstream tells texts and no bytes.
    parts: HashSet<u32>,
    /// The texts of parts that stand together.
    runs: HashMap<Box<[u32]>, Box<str>>,
    /// Whether the upstream tells texts exactly, and since when that is known.
    exact: Option<(Instant, bool)>,
}

impl ModelTokens {
    /// True for a token that is a part of a character. Most are looked up in a list, and are none.
    fn is_part(&self, id: u32) -> bool {
        self.learned.token(id).is_none() && self.parts.contains(&id)
    }

    /// The ids of a prompt of which nothing is known yet.
    pub(super) fn unknown(&self, ids: &[u32]) -> BTreeSet<u32> {
        let is_known = |id: u32| self.learned.token(id).is_some() || self.parts.contains(&id);
        ids.iter().copied().filter(|id| !is_known(*id)).collect()
    }

    /// Notes a token that is a part of a character.
    pub(super) fn note_part(&mut self, id: u32) {
        self.parts.insert(id);
    }

    /// The parts of characters that stand together in a prompt and whose text is not known.
    pub(super) fn unknown_runs(&self, ids: &[u32]) -> HashSet<Vec<u32>> {
        let runs = ids.chunk_by(|a, b| self.is_part(*a) && self.is_part(*b));
        let unknown = runs.filter(|run| self.is_part(run[0]) && !self.runs.contains_key(*run));
        unknown.map(<[u32]>::to_vec).collect()
    }

    /// Notes the text of parts that stand together.
    pub(super) fn note_run(&mut self, run: Vec<u32>, text: String) {
        if self.runs.len() >= TOKEN_RUNS_MAX {
            self.runs.clear();
        }
        self.runs.insert(run.into(), text.into());
    }

    /// A prompt with its text. None if a part of it is not known.
    pub(super) fn encoded(&self, ids: Vec<u32>) -> Option<EncodedText> {
        let (mut text, mut ends) = (Vec::with_capacity(ids.len() * 4), Vec::new());
        for run in ids.chunk_by(|a, b| self.is_part(*a) && self.is_part(*b)) {
            let told = match self.is_part(run[0]) {
                true => self.runs.get(run)?.as_bytes(),
                false => self.learned.token(run[0])?,
            };
            text.extend_from_slice(told);
            // The place between two parts of a character is none where a prompt may be cut.
            ends.extend(run.iter().map(|_| text.len()));
        }
        EncodedText::new(ids, text, ends)
    }
}

impl Encodings {
    /// Learns the tokens of a prompt. None if it is no text, or what was learned before does not
    /// agree. That is forgotten then: the upstream has another tokenizer now.
    pub(super) fn read(&self, model: Option<&str>, prompt: ServerEncoding) -> Option<EncodedText> {
        let ServerEncoding { ids, text, ends } = prompt;
        let encoded = EncodedText::new(ids, text, ends)?;

        let learned = self.with_model(model, |tokens| tokens.learned.learn(&encoded));
        if learned.is_none() {
            lock(&self.models).remove(policy_of(model));
        }
        learned.map(|()| encoded)
    }

    /// Calls `change` with what is known of a model.
    pub(super) fn with_model<T>(
        &self,
        model: Option<&str>,
        change: impl FnOnce(&mut ModelTokens) -> T,
    ) -> T {
        let mut models = lock(&self.models);
        let model = policy_of(model);
        if models.len() >= TOKEN_MODELS_MAX && !models.contains_key(model) {
            models.clear();
        }
        change(models.entry(model.to_owned()).or_default())
    }

    /// True if the upstream is known to tell the texts of a model's tokens exactly, false if not;
    /// `None` if that is to be found out.
    pub(super) fn tells_exactly(&self, model: Option<&str>) -> Option<bool> {
        let (at, holds) = lock(&self.models).get(policy_of(model))?.exact?;
        (at.elapsed() < TOKEN_TEXTS_LIFE).then_some(holds)
    }

    /// Notes whether the upstream tells the texts of a model's tokens exactly. What it told is
    /// forgotten if it does not.
    pub(super) fn note_exact(&self, model: Option<&str>, holds: bool) {
        self.with_model(model, |tokens| {
            if !holds {
                *tokens = ModelTokens::default();
            }
            tokens.exact = Some((Instant::now(), holds));
        });
    }

    /// Calls `take` with the tokens of a model.
    pub(super) fn with_tokens<T>(
        &self,
        model: Option<&str>,
        take: impl FnOnce(&LearnedTokens) -> T,
    ) -> T {
        let models = lock(&self.models);
        match models.get(policy_of(model)) {
            Some(tokens) => take(&tokens.learned),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_character_are_one_place_of_a_text() {
        let mut tokens = ModelTokens::default();
        let ids = vec![1, 2, 3, 4, 1, 3, 4];
        assert_eq!(tokens.unknown(&ids), BTreeSet::from([1, 2, 3, 4]));
        tokens.learned.learn_token(1, b"<s>").unwrap();
        tokens.learned.learn_token(2, b"a").unwrap();
        tokens.note_part(3);
        tokens.note_part(4);
        assert_eq!(tokens.unknown(&ids), BTreeSet::new());
        assert_eq!(tokens.unknown_runs(&ids), HashSet::from([vec![3, 4]]));
        assert!(tokens.encoded(ids.clone()).is_none());

        tokens.note_run(vec![3, 4], "é".to_owned());
        assert!(tokens.unknown_runs(&ids).is_empty());
        let read = tokens.encoded(ids).unwrap();
        assert_eq!(read.text, "<s>aé<s>é");
        assert_eq!(read.ids_from("<s>".len()), Some(&[2, 3, 4, 1, 3, 4][..]));
        assert_eq!(read.ids_from("<s>aé".len()), Some(&[1, 3, 4][..]));
        assert_eq!(read.ids_from("<s>aé<s>".len()), Some(&[3, 4][..]), "none of a run is lost");
        assert_eq!(read.ids_from("<s>a".len()), None, "beside no special token");
    }

    #[test]
    fn a_server_that_tells_otherwise_is_forgotten() {
        let encodings = Encodings::default();
        assert_eq!(encodings.tells_exactly(Some("m")), None);
        let learn = |tokens: &mut ModelTokens| tokens.learned.learn_token(1, b"a");
        encodings.with_model(Some("m"), learn).unwrap();
        encodings.note_exact(Some("m"), true);
        assert_eq!(encodings.tells_exactly(Some("m7")), Some(true), "a version of it");
        encodings.note_exact(Some("m"), false);
        assert_eq!(encodings.tells_exactly(Some("m")), Some(false));
        assert!(encodings.with_tokens(Some("m"), |known| known.token(1).is_none()));
    }
}
