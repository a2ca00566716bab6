//! Chats whose prompts begin with what was sampled: `--continue exact`.
//!
//! The upstream says how it encodes the messages. The longest recorded path whose text that text
//! starts with gives its ids, and the upstream's own ids are taken from there on. So the model
//! reads the text of the upstream's own template, and what was sampled keeps its ids. A reply must
//! report the ids that were sent. What cannot be shown to be right is left to the upstream.

mod texts;
mod told_prompts;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use episode::{CallEnd, ContinueReason, Continued};
use hyper::HeaderMap;
use store::SnapshotError;
use template::ToolFormat;
use template::continuation::{
    EncodedText, PrefixMatch, PrefixReason, RememberedPrompt, ReplySyntax, TokenChain,
};
use tokio::time::{Instant, timeout};
use wire::{Dialect, PromptField, PromptQuestion, Request, ServerEncoding, ServerQuestion};

use crate::bounds::ENCODE_WAIT;
use crate::record::paths::{CallPaths, PathPrompt, PromptCheck, RecordedPath, choices_of};
use crate::upstream::declined;
use crate::upstream::encodings::policy_of;
use crate::upstream::keys::credentials_of;
use crate::upstream::lookups::Lookups;
use crate::upstream::rewrite::Rewrite;
use texts::Texts;
use told_prompts::ToldPrompts;

/// The prompt of a call, as it is to be sent.
#[derive(Debug)]
pub(crate) struct ContinuedPrompt {
    /// The prompt as ids; `None` if the upstream encodes the messages itself.
    pub(crate) field: Option<Arc<PromptField>>,
    report: Continued,
    /// The prompt as the upstream encodes it; `None` if that is not known.
    encoded: Option<SentPrompt>,
}

/// A prompt with all that its reply is held against.
#[derive(Debug)]
struct SentPrompt {
    model: Option<String>,
    shape: u64,
    text: Arc<str>,
    opening_at: usize,
    /// The upstream's own ids.
    own: Vec<u32>,
    /// The ids that are sent, or are the same as the upstream's own.
    chain: TokenChain,
    is_respelled: bool,
}

impl ContinuedPrompt {
    fn left(reason: ContinueReason) -> Self {
        Self { field: None, report: Continued::none(reason), encoded: None }
    }
}

/// The search for what the prompt of a call can begin with.
#[derive(Debug)]
pub(crate) struct PathSearch {
    lookups: Arc<Lookups>,
    dialect: Dialect,
    paths: CallPaths,
    /// The agent's credentials.
    agent: HeaderMap,
}

impl PathSearch {
    /// A search among `paths`, for a call with these headers to an upstream of this dialect.
    pub(crate) fn new(
        lookups: &Arc<Lookups>,
        dialect: Dialect,
        paths: CallPaths,
        headers: &HeaderMap,
    ) -> Self {
        Self { lookups: Arc::clone(lookups), dialect, paths, agent: credentials_of(headers) }
    }

    /// The prompt to send for a chat.
    pub(crate) async fn prompt(&self, chat: Option<&Request>) -> ContinuedPrompt {
        let dialect = self.dialect;
        let encodings = &self.lookups.encodings;
        let question = match chat {
            Some(chat) if !encodings.is_declined(&self.agent) => PromptQuestion::new(dialect, chat),
            _ => Err(ContinueReason::NotSupported),
        };
        let question = match question {
            Ok(question) => question,
            Err(reason) => return ContinuedPrompt::left(reason),
        };
        let model = chat.and_then(Request::model);
        let encoded = match self.encoded(&question, model.as_deref()).await {
            Ok(encoded) => encoded,
            Err(reason) => return ContinuedPrompt::left(reason),
        };

        let found = match encodings.doubt(&question) {
            Some(doubt) => Err(doubt),
            None if !question.has_answers => Err(ContinueReason::NoParent),
            None => self.recall(&encoded, model.as_deref()).await,
        };
        prompt_of(dialect, encoded, found, (model, question.shape))
    }

    /// The upstream's own encoding of the messages.
    async fn encoded(
        &self,
        question: &PromptQuestion,
        model: Option<&str>,
    ) -> Result<EncodedText, ContinueReason> {
        let asked = self.lookups.client.post(question.path, question.body.clone(), &self.agent);
        let (status, answer) = match timeout(ENCODE_WAIT, asked).await {
            Ok(Ok(answered)) => answered,
            _ => return Err(ContinueReason::NotAnswered),
        };
        if !status.is_success() {
            // Another refusal, such as a 400, is about this request.
            if matches!(status.as_u16(), 401 | 403 | 404 | 405) {
                self.lookups.encodings.decline(&self.agent);
            }
            return Err(match declined::is_lasting(status) {
                true => ContinueReason::NotSupported,
                false => ContinueReason::NotAnswered,
            });
        }

        if self.dialect == Dialect::Sglang {
            let ids = wire::ids_answer(&answer).ok_or(ContinueReason::NotSupported)?;
            let (lookups, agent) = (&self.lookups, &self.agent);
            let told = ToldPrompts { lookups, model, agent, asked: &question.body };
            return told.of(ids).await;
        }
        let read = ServerEncoding::read(&answer).ok_or(ContinueReason::NotSupported)?;
        self.lookups.encodings.read(model, read).ok_or(ContinueReason::TextUnknown)
    }

    /// Finds the texts of the paths that wait for it, for as long as the upstream may take for one
    /// answer. What is left is for a later call. Fails if the recorded paths cannot be read back.
    async fn find_texts(&self, model: Option<&str>) -> Result<(), SnapshotError> {
        let attempt = &self.paths.attempt;
        let _reading = attempt.reading.lock().await;
        let loaded = self.paths.load().await;
        if let Err(error) = &loaded {
            tracing::warn!(%error, "the recorded calls of an episode cannot be read");
        }

        let until = Instant::now() + ENCODE_WAIT;
        while let Some(path) = attempt.first_waiting().filter(|_| Instant::now() < until) {
            // Of a model that goes by its version, the older name may be gone.
            let is_same = policy_of(path.model.as_deref()) == policy_of(model);
            let named = path.model.clone();
            let model = if is_same { model } else { named.as_deref() };
            let (lookups, agent) = (&self.lookups, &self.agent);
            let texts = Texts { lookups, dialect: self.dialect, model, agent };
            if texts.remember(&attempt.memory, path).await.is_none() {
                attempt.has_unknown_texts.store(true, Ordering::Relaxed);
            }
            attempt.settle_first();
        }
        attempt.count_bytes();
        loaded
    }

    /// Finds the longest recorded path that the text goes on from.
    async fn recall(
        &self,
        encoded: &EncodedText,
        model: Option<&str>,
    ) -> Result<PrefixMatch, ContinueReason> {
        let loaded = self.find_texts(model).await;
        let attempt = &self.paths.attempt;
        let syntax = ReplySyntax {
            turn_ends: Vec::new(),
            tools: ToolFormat::detect(&encoded.text),
            has_reasoning: true,
        };
        let salt = policy_of(model);
        let found = attempt
            .memory
            .recall(&syntax, Some(salt), &encoded.text, |at| encoded.ids_from(at).is_some());

        if found.start.is_none() && found.is_cut_off {
            return Err(ContinueReason::SeamInToken);
        }
        if found.start.is_none() && found.report.reason.is_none() {
            return Err(match attempt.memory.bytes() {
                _ if loaded.is_err() => ContinueReason::NotRead,
                _ if attempt.has_unknown_texts.load(Ordering::Relaxed) => {
                    ContinueReason::TextUnknown
                }
                0 => ContinueReason::NoParent,
                _ => ContinueReason::HistoryEdited,
            });
        }
        Ok(found)
    }

    /// The check that holds the reply to `rewrite` against the prompt.
    pub(crate) fn check(self, prompt: ContinuedPrompt, rewrite: &Rewrite) -> PromptCheck {
        let is_refused = prompt.field.is_some() && !rewrite.has_prompt;
        let is_own = !rewrite.has_prompt;
        PromptCheck::new(move |end| {
            let report = match is_refused {
                true => Continued::none(ContinueReason::NotSupported),
                false => prompt.report,
            };
            end.continued = Some(match prompt.encoded {
                Some(sent) => self.settle(sent, end, report, is_own),
                None => report,
            });
        })
    }

    /// Compares the ids that the reply reports with those that were sent, and remembers what was
    /// sampled after them. `is_own` tells whether the upstream encoded the messages itself.
    fn settle(
        &self,
        sent: SentPrompt,
        end: &mut CallEnd,
        report: Continued,
        is_own: bool,
    ) -> Continued {
        let Some(reported) = end.prompts.first() else { return report };
        let encodings = &self.lookups.encodings;
        let is_as_told = *reported == sent.own;
        if is_own {
            encodings.note(sent.shape, is_as_told);
        }
        let (ids, is_respelled, report) = match is_own {
            true if is_as_told && report.tokens > 0 => (sent.chain, sent.is_respelled, report),
            true if is_as_told => (TokenChain::new(&sent.own), false, report),
            false if *reported == sent.chain.to_vec() => (sent.chain, sent.is_respelled, report),
            false if is_as_told => {
                tracing::warn!(
                    "the upstream takes no prompt as ids: --continue does nothing there"
                );
                encodings.decline(&self.agent);
                let report = Continued::none(ContinueReason::NotSupported);
                (TokenChain::new(&sent.own), false, report)
            }
            _ => return Continued::none(ContinueReason::TemplateDiffers),
        };

        let SentPrompt { model, text, opening_at, .. } = sent;
        let prompt = PathPrompt::Text { text, ids, opening_at, is_respelled };
        self.paths.attempt.add(choices_of(end).map(|(_, choice)| RecordedPath {
            model: model.clone(),
            prompt: prompt.clone(),
            choice,
        }));
        report
    }
}

/// The prompt to send, from what was found.
fn prompt_of(
    dialect: Dialect,
    encoded: EncodedText,
    found: Result<PrefixMatch, ContinueReason>,
    (model, shape): (Option<String>, u64),
) -> ContinuedPrompt {
    let spliced = found.and_then(|found| splice(&encoded, found));
    let (chain, is_respelled, report) = match spliced {
        Ok(spliced) => spliced,
        Err(reason) => (TokenChain::new(&encoded.ids), false, Continued::none(reason)),
    };
    let ids = (report.tokens > 0).then(|| chain.to_vec()).filter(|ids| *ids != encoded.ids);
    let field = ids.and_then(|ids| PromptField::new(dialect, &ids));

    let opening_at = encoded.opening_at();
    ContinuedPrompt {
        field: field.map(Arc::new),
        report,
        encoded: Some(SentPrompt {
            model,
            shape,
            text: encoded.text.into(),
            opening_at,
            own: encoded.ids,
            chain,
            is_respelled,
        }),
    }
}

/// The recorded ids with the upstream's own ids behind them.
fn splice(
    encoded: &EncodedText,
    found: PrefixMatch,
) -> Result<(TokenChain, bool, Continued), ContinueReason> {
    let reason = found.report.reason.map(|reason| reason_of(reason, found.is_respelled));
    let start = found.start.ok_or(reason.unwrap_or(ContinueReason::HistoryEdited))?;
    let rest = encoded.ids_from(start.text_bytes).ok_or(ContinueReason::SeamInToken)?;
    // The first prompt of a path was encoded by the upstream: another tokenizer has other ids.
    if start.ids.first() != encoded.ids.first().copied() {
        return Err(ContinueReason::TemplateDiffers);
    }
    // A longer path ends within a token.
    let reason = reason.or(found.is_cut_off.then_some(ContinueReason::SeamInToken));
    let tokens = u32::try_from(start.ids.len()).unwrap_or(u32::MAX);
    Ok((start.ids.append(rest), found.is_respelled, Continued { tokens, reason }))
}

fn reason_of(reason: PrefixReason, is_respelled: bool) -> ContinueReason {
    match reason {
        _ if is_respelled => ContinueReason::AsSampled,
        PrefixReason::Respelled => ContinueReason::Respelled,
        PrefixReason::ReasoningDropped => ContinueReason::ThoughtsStripped,
        PrefixReason::OpeningRewritten => ContinueReason::OpeningRewritten,
        PrefixReason::CallsDropped => ContinueReason::CallsDropped,
        PrefixReason::StopCut => ContinueReason::StopCut,
    }
}

/// The remembered form of a prompt.
fn remembered(
    policy: &str,
    text: Arc<str>,
    ids: TokenChain,
    is_respelled: bool,
) -> RememberedPrompt {
    RememberedPrompt { salt: Some(policy.into()), text, ids, is_respelled }
}

impl Lookups {
    /// The upstream's answer to a question; `None` if it refuses it.
    ///
    /// # Errors
    /// [`ContinueReason::NotAnswered`] if there is no answer for now.
    async fn ask(
        &self,
        (path, body): ServerQuestion,
        agent: &HeaderMap,
    ) -> Result<Option<Bytes>, ContinueReason> {
        match timeout(ENCODE_WAIT, self.client.post(path, body, agent)).await {
            Ok(Ok((status, answer))) if status.is_success() => Ok(Some(answer)),
            Ok(Ok((status, _))) if declined::is_lasting(status) => Ok(None),
            _ => Err(ContinueReason::NotAnswered),
        }
    }
}
