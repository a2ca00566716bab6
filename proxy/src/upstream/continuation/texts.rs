//! The texts of recorded ids: from the tokens that are known, else as the upstream says.

use std::sync::Arc;

use episode::Choice;
use hyper::HeaderMap;
use template::continuation::{ReplyMemory, ReplyText, TokenChain};
use wire::Dialect;

use super::remembered;
use crate::record::paths::{PathPrompt, RecordedPath};
use crate::upstream::encodings::policy_of;
use crate::upstream::lookups::Lookups;

/// The character that stands for bytes that are not text.
pub(super) const REPLACEMENT: char = '\u{FFFD}';

/// Finds texts for the recorded calls of an agent.
pub(super) struct Texts<'a> {
    pub(super) lookups: &'a Lookups,
    pub(super) dialect: Dialect,
    /// The model of these calls.
    pub(super) model: Option<&'a str>,
    /// The credentials of the call that needs them.
    pub(super) agent: &'a HeaderMap,
}

/// The prompt of a path with its text.
struct PromptText {
    text: Arc<str>,
    ids: TokenChain,
    opening_at: usize,
    is_respelled: bool,
    last: Option<u32>,
}

impl Texts<'_> {
    /// Remembers a path; none if its texts cannot be known.
    pub(super) async fn remember(&self, memory: &ReplyMemory, path: RecordedPath) -> Option<()> {
        let prompt = self.prompt(path.prompt).await?;
        let replies = self.replies(&path.choice, prompt.last).await;
        let is_known = !replies.is_empty();
        let policy = policy_of(self.model);
        let known = remembered(policy, prompt.text, prompt.ids, prompt.is_respelled);
        memory.remember(&known, prompt.opening_at, replies);
        is_known.then_some(())
    }

    async fn prompt(&self, prompt: PathPrompt) -> Option<PromptText> {
        match prompt {
            PathPrompt::Text { text, ids, opening_at, is_respelled } => {
                let last = ids.last();
                Some(PromptText { text, ids, opening_at, is_respelled, last })
            }
            PathPrompt::Ids(ids) => {
                let text = self.text(&ids, None).await?;
                let opening_at = self.lookups.encodings.with_tokens(self.model, |known| {
                    known.opening_at(&ids).filter(|at| text.is_char_boundary(*at))
                });
                Some(PromptText {
                    opening_at: opening_at.unwrap_or(text.len()),
                    text: text.into(),
                    last: ids.last().copied(),
                    ids: TokenChain::new(&ids),
                    is_respelled: false,
                })
            }
        }
    }

    /// The reply in the forms in which a conversation may go on from it: with the token that ended
    /// it, and without.
    async fn replies(&self, choice: &Choice, before: Option<u32>) -> Vec<ReplyText> {
        let ids = choice.token_ids.as_deref().unwrap_or_default();
        let is_ended = !matches!(choice.finish_reason.as_deref(), None | Some("length" | "abort"));
        if !is_ended {
            let text = self.text(ids, before).await;
            return text.map(|text| reply(ids, ids.len(), &text, None)).into_iter().collect();
        }

        match choice.stop_reason.as_deref() {
            Some(stop) if !is_id(stop, ids.last()) => {
                self.cut_at(ids, before, stop).await.into_iter().collect()
            }
            _ => self.ended(ids, before).await.unwrap_or_default(),
        }
    }

    /// The two forms of a reply that its last token ended.
    async fn ended(&self, ids: &[u32], before: Option<u32>) -> Option<Vec<ReplyText>> {
        let (last, body) = ids.split_last()?;
        let end = self.text(&[*last], body.last().copied().or(before)).await?;
        let text = self.text(body, before).await?;

        let short = reply(body, ids.len(), &text, None);
        let mut forms = vec![reply(ids, ids.len(), &text, Some(end.into()))];
        forms.extend((!body.is_empty()).then_some(short));
        Some(forms)
    }

    /// The tokens before the text that ended a reply. None if it has no such text.
    async fn cut_at(&self, ids: &[u32], before: Option<u32>, stop: &str) -> Option<ReplyText> {
        let at = self.text(ids, before).await?.rfind(stop)?;
        // The text ends within the last few tokens.
        for kept in (1..ids.len()).rev() {
            let text = self.text(&ids[..kept], before).await?;
            if text.len() <= at && !text.ends_with(REPLACEMENT) {
                return Some(reply(&ids[..kept], ids.len(), &text, None));
            }
        }
        None
    }

    /// The text of ids behind the token `before`; without the part of a character at its end. The
    /// upstream says it where not all tokens are known.
    async fn text(&self, ids: &[u32], before: Option<u32>) -> Option<String> {
        if ids.is_empty() {
            return Some(String::new());
        }
        let encodings = &self.lookups.encodings;
        if let Some(bytes) = encodings.with_tokens(self.model, |known| known.text_of(ids)) {
            let text = String::from_utf8_lossy(&bytes);
            let whole = text.trim_end_matches(REPLACEMENT);
            return (!whole.contains(REPLACEMENT)).then(|| text.into_owned());
        }

        // Some tokenizers leave out the space at the start of a text, so there is a token before.
        let anchor = before.and_then(|id| {
            let text = encodings.with_tokens(self.model, |known| known.text_of(&[id]))?;
            Some((id, String::from_utf8(text).ok()?))
        });
        let (asked, skipped) = match anchor {
            Some((id, text)) => ([&[id], ids].concat(), text),
            None => (ids.to_vec(), String::new()),
        };
        let question = wire::text_question(self.dialect, self.model, &asked);
        let answer = self.lookups.ask(question, self.agent).await.ok()??;
        let text = wire::text_answer(&answer)?;
        let text = text.strip_prefix(&skipped)?;
        let whole = text.trim_end_matches(REPLACEMENT);
        (!whole.contains(REPLACEMENT)).then(|| text.to_owned())
    }
}

/// True if a reply ended at its last id, which the reason names.
fn is_id(stop: &str, last: Option<&u32>) -> bool {
    stop.parse().ok().as_ref() == last
}

/// A reply of these ids. A part of a character at the end of its text is left out.
fn reply(ids: &[u32], sampled: usize, text: &str, end: Option<Box<str>>) -> ReplyText {
    let whole = text.trim_end_matches(REPLACEMENT);
    ReplyText {
        ids: ids.into(),
        sampled,
        text: whole.into(),
        received: None,
        end,
        has_partial_character: whole.len() < text.len(),
    }
}
