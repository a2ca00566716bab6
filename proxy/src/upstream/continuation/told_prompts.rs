//! Prompts of a server that tells their ids alone, as SGLang does: it is asked for the text of each
//! token once.

use bytes::Bytes;
use episode::ContinueReason;
use hyper::HeaderMap;
use template::continuation::EncodedText;
use wire::{Dialect, ServerQuestion, TemplateQuestion};

use super::texts::REPLACEMENT;
use crate::bounds::TOKEN_TEXTS_MAX;
use crate::upstream::lookups::Lookups;

/// A text on which decoders fail that trim spaces or put some between tokens.
const PROBE: &str = " a . , ! ? it 's n't  \n\n b";

/// Puts together ids that a server told and the texts of their tokens.
pub(super) struct ToldPrompts<'a> {
    pub(super) lookups: &'a Lookups,
    pub(super) model: Option<&'a str>,
    /// The credentials of the call that needs them.
    pub(super) agent: &'a HeaderMap,
    /// The body that asked for the ids.
    pub(super) asked: &'a Bytes,
}

impl ToldPrompts<'_> {
    /// The prompt of these ids with its text.
    ///
    /// # Errors
    /// The reason for which it is not known.
    pub(super) async fn of(&self, ids: Vec<u32>) -> Result<EncodedText, ContinueReason> {
        let encodings = &self.lookups.encodings;
        let is_exact = encodings.tells_exactly(self.model);
        if is_exact == Some(false) {
            return Err(ContinueReason::NotSupported);
        }
        self.learn_tokens(&ids).await?;
        self.learn_runs(&ids).await?;
        let encoded = encodings.with_model(self.model, |tokens| tokens.encoded(ids));
        let encoded = encoded.ok_or(ContinueReason::TextUnknown)?;

        if is_exact.is_none() {
            let holds = self.is_exact(&encoded).await? && self.is_by_template().await?;
            encodings.note_exact(self.model, holds);
            if !holds {
                tracing::warn!(
                    "the upstream's tokenizer or template is none that --continue can work with"
                );
                return Err(ContinueReason::NotSupported);
            }
        }
        Ok(encoded)
    }

    /// Learns the texts of tokens that are new. Some decoders leave out the space at the start of a
    /// text, so each is asked for behind the first token of the prompt.
    async fn learn_tokens(&self, ids: &[u32]) -> Result<(), ContinueReason> {
        let encodings = &self.lookups.encodings;
        let unknown = encodings.with_model(self.model, |tokens| tokens.unknown(ids));
        let unknown: Vec<u32> = unknown.into_iter().collect();
        for part in unknown.chunks(TOKEN_TEXTS_MAX) {
            let (_, texts) = self.texts(ids[0], part.iter().map(|id| vec![*id])).await?;
            let told = part.iter().zip(&texts).filter(|(_, text)| !text.is_empty());
            encodings.with_model(self.model, |tokens| {
                for (id, text) in told {
                    match text.contains(REPLACEMENT) {
                        true => tokens.note_part(*id),
                        // Too large ids stay unknown.
                        false => drop(tokens.learned.learn_token(*id, text.as_bytes())),
                    }
                }
            });
        }
        Ok(())
    }

    /// Learns the texts of characters that several tokens make.
    async fn learn_runs(&self, ids: &[u32]) -> Result<(), ContinueReason> {
        let encodings = &self.lookups.encodings;
        let runs = encodings.with_model(self.model, |tokens| tokens.unknown_runs(ids));
        let runs: Vec<Vec<u32>> = runs.into_iter().collect();
        for part in runs.chunks(TOKEN_TEXTS_MAX) {
            let (before, texts) = self.texts(ids[0], part.iter().cloned()).await?;
            for (run, text) in part.iter().zip(&texts) {
                // It may be the text itself that has this character.
                if text.contains(REPLACEMENT) {
                    let own = self.ids(&format!("{before}{text}")).await?;
                    let is_told = own.is_some_and(|own| own[1..] == **run);
                    is_told.then_some(()).ok_or(ContinueReason::TextUnknown)?;
                }
            }
            encodings.with_model(self.model, |tokens| {
                for (run, text) in part.iter().zip(texts) {
                    tokens.note_run(run.clone(), text);
                }
            });
        }
        Ok(())
    }

    /// The text of the token `first`, and the texts of lists of ids that stand behind it.
    async fn texts(
        &self,
        first: u32,
        lists: impl Iterator<Item = Vec<u32>>,
    ) -> Result<(String, Vec<String>), ContinueReason> {
        let behind = lists.map(|list| [&[first], &*list].concat());
        let asked: Vec<Vec<u32>> = [vec![first]].into_iter().chain(behind).collect();
        let answer = self.ask(wire::texts_question(self.model, &asked)).await?;
        let told = wire::texts_answer(&answer, asked.len()).ok_or(ContinueReason::NotSupported)?;

        let mut told = told.into_iter();
        let skipped = told.next().unwrap_or_default();
        let texts = told.map(|text| text.strip_prefix(&*skipped).map(str::to_owned));
        let texts = texts.collect::<Option<Vec<_>>>().ok_or(ContinueReason::TextUnknown)?;
        Ok((skipped, texts))
    }

    /// True if the upstream decodes exactly: the prompt as a whole is its tokens one by one, and a
    /// text that it encodes comes back.
    async fn is_exact(&self, encoded: &EncodedText) -> Result<bool, ContinueReason> {
        if self.text(&encoded.ids).await?.as_deref() != Some(&encoded.text) {
            return Ok(false);
        }
        let Some(special) = self.text(&encoded.ids[..1]).await? else { return Ok(false) };
        let probe = format!("{special}{PROBE}{special}{PROBE}");
        let Some(ids) = self.ids(&probe).await? else { return Ok(false) };
        Ok(self.text(&ids).await? == Some(probe))
    }

    /// True if the template alone makes the prompt of a chat.
    async fn is_by_template(&self) -> Result<bool, ContinueReason> {
        for asked in TemplateQuestion::all(self.asked) {
            if self.lookups.ask(asked.question, self.agent).await?.is_some() != asked.is_taken {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn text(&self, ids: &[u32]) -> Result<Option<String>, ContinueReason> {
        let question = wire::text_question(Dialect::Sglang, self.model, ids);
        Ok(wire::text_answer(&self.ask(question).await?))
    }

    async fn ids(&self, text: &str) -> Result<Option<Vec<u32>>, ContinueReason> {
        let question = wire::ids_question(self.model, text);
        Ok(wire::ids_answer(&self.ask(question).await?))
    }

    async fn ask(&self, question: ServerQuestion) -> Result<Bytes, ContinueReason> {
        self.lookups.ask(question, self.agent).await?.ok_or(ContinueReason::NotSupported)
    }
}
