//! Makes ids from text where no server reported any, by the model's own template and tokenizer.
//!
//! Such ids are never called exact: a model may have sampled other ids for the same text. Sampled
//! tokens are found by rendering: a message is what its conversation grows by when it is added
//! behind an opened reply. Some templates render a turn otherwise once more turns follow (they
//! leave out old reasoning). Such a turn has no span and is not trained.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use episode::{CallId, Outcome};
use serde_json::Value;
use template::{
    ChatInput, ChatTemplate, MessageError, RenderError, TemplateError, Tokenizer, TokenizerError,
};
use thiserror::Error;

use crate::graph::assessment::Assessment;
use crate::graph::derive::Derived;
use crate::graph::node::{Node, NodeId};
use crate::graph::paths::Retokenized;
use crate::notes::{Notes, Reason};
use crate::rows::messages::{answer, full_conversation};

/// A model's template and tokenizer.
#[derive(Debug)]
pub struct Retokenizer {
    template: ChatTemplate,
    tokenizer: Arc<Tokenizer>,
    fingerprint: String,
}

/// Reason why there are no ids.
#[derive(Debug, Error)]
pub enum RetokenizeError {
    /// The folder has no chat template.
    #[error(
        "`{0}` has no chat template: neither chat_template.jinja nor one in tokenizer_config.json"
    )]
    NoTemplate(PathBuf),
    /// The folder cannot be read.
    #[error("cannot read `{0}`")]
    Read(PathBuf, #[source] io::Error),
    /// The chat template cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer cannot be used, or not for this text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A message has a form that no template takes.
    #[error(transparent)]
    RowMessage(#[from] MessageError),
    /// The template refuses the conversation.
    #[error(transparent)]
    Render(#[from] RenderError),
}

/// Makes ids for the paths without any, and assesses which of their tokens may be trained.
pub(crate) fn retokenize(derived: &mut Derived<'_>, retokenizer: &Retokenizer) -> Notes {
    let Derived { forest, paths, .. } = derived;
    let mut notes = Notes::default();
    for id in paths.ids() {
        let nodes: Vec<NodeId> = paths[id].nodes.clone();
        let leaf = &forest.nodes[paths[id].leaf()];
        if leaf.has_ids {
            continue;
        }

        let conversation = full_conversation(leaf);
        let sampled: Vec<usize> =
            nodes.iter().map(|node| full_conversation(&forest.nodes[*node]).sent).collect();
        // A template may refuse a conversation; its row stays without ids.
        match retokenizer.ids(&conversation.messages, &conversation.tools, &sampled) {
            Err(_) => notes.not_rendered += 1,
            Ok(made) => {
                for (node, span) in nodes.iter().zip(&made.spans) {
                    let is_complete = forest.nodes[*node].ended.outcome == Outcome::Complete;
                    reassess(&mut paths.nodes[*node].assessment, is_complete, span.as_ref());
                }
                paths[id].retokenized = Some(made);
            }
        }
    }
    notes
}

/// Updates the assessment of a choice that now has ids in `span`; none where it is not rendered.
fn reassess(assessment: &mut Assessment, is_complete: bool, span: Option<&Range<usize>>) {
    assessment.reasons.remove(&Reason::NoTokenIds);
    assessment.reasons.insert(Reason::Retokenized);
    match span {
        None => {
            assessment.reasons.insert(Reason::TurnNotRendered);
        }
        Some(span) => {
            assessment.trainable = is_complete;
            assessment.tokens = if is_complete { span.len() } else { 0 };
        }
    }
}

/// A rendered conversation up to one message, and the bytes of that message in it.
struct RenderedMessage {
    text: String,
    message: Range<usize>,
}

/// A token id and the bytes of the text that it stands for.
type TokenSpan = (u32, Range<usize>);

impl Retokenizer {
    /// Reads the template and the tokenizer of a model folder.
    ///
    /// # Errors
    /// [`RetokenizeError`] when one of them is not there or cannot be used.
    pub fn load(folder: &Path) -> Result<Self, RetokenizeError> {
        Ok(Self {
            template: ChatTemplate::load(folder)?
                .ok_or_else(|| RetokenizeError::NoTemplate(folder.to_owned()))?,
            tokenizer: Arc::new(Tokenizer::load(folder)?),
            fingerprint: template::fingerprint(folder)
                .map_err(|error| RetokenizeError::Read(folder.to_owned(), error))?,
        })
    }

    /// Returns the identity of the tokenizer, made of its files.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub(crate) fn tokenizer(&self) -> Arc<Tokenizer> {
        Arc::clone(&self.tokenizer)
    }

    /// Finds a call that shows that its ids are another tokenizer's.
    ///
    /// That is a call with an id that this tokenizer does not have, or, where the ids of no call of
    /// the episode decode to its text, the first call with text. (The ids of some calls may decode
    /// to less, since servers' parsers lose ids.)
    pub(crate) fn foreign_call<'n, 'a: 'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n Node<'a>>,
    ) -> Option<CallId> {
        let size = self.tokenizer.size();
        let mut first_with_text = None;
        let mut any_decodes = false;
        for node in nodes.into_iter().filter(|node| node.has_ids) {
            if node.prompt.iter().chain(node.sampled).any(|id| *id as usize >= size) {
                return Some(node.call_id());
            }
            if let Some(decodes) = self.decodes_to_text(node) {
                first_with_text.get_or_insert(node.call_id());
                any_decodes |= decodes;
            }
        }
        first_with_text.filter(|_| !any_decodes)
    }

    /// Returns true where a choice's ids decode to its text; none where it has no text.
    fn decodes_to_text(&self, node: &Node<'_>) -> Option<bool> {
        let content = wire::content_text(answer(node)?.get("content"))?;
        let text = Some(content.trim()).filter(|text| !text.is_empty())?;
        Some(self.tokenizer.decode(node.sampled, false).contains(text))
    }

    /// Makes the ids of a conversation, and finds the ids of the messages at the positions
    /// `sampled`.
    pub(crate) fn ids(
        &self,
        messages: &[Value],
        tools: &[Value],
        sampled: &[usize],
    ) -> Result<Retokenized, RetokenizeError> {
        let keeps_parts = self.template.reads_parts(!tools.is_empty());
        let prepared = template::prepare(messages, keeps_parts)?;
        let whole = self.render(&prepared, tools, false)?;
        let tokens = self.tokenizer.encode_spans(&whole)?;

        let mut spans = Vec::with_capacity(sampled.len());
        for at in sampled {
            // A message that the whole conversation renders otherwise is not where it was sampled.
            let rendered = self
                .rendered_message(&prepared, tools, *at)?
                .filter(|rendered| whole.starts_with(&rendered.text));
            spans.push(rendered.and_then(|rendered| tokens_within(&tokens, &rendered.message)));
        }

        let ids = tokens.into_iter().map(|(id, _)| id).collect();
        Ok(Retokenized { ids, spans, fingerprint: self.fingerprint.clone() })
    }

    /// Renders the conversation up to message `at`. Gives none where there is no such message, or
    /// where it does not begin with the opened reply.
    fn rendered_message(
        &self,
        messages: &[Value],
        tools: &[Value],
        at: usize,
    ) -> Result<Option<RenderedMessage>, RetokenizeError> {
        let Some(until) = messages.get(..=at) else { return Ok(None) };
        let opened = self.render(&messages[..at], tools, true)?;
        let text = self.render(until, tools, false)?;
        if !text.starts_with(&opened) {
            return Ok(None);
        }
        // The model samples the end of the turn; the template adds the line break behind it.
        let end = text.trim_end_matches('\n').len().max(opened.len());
        Ok(Some(RenderedMessage { text, message: opened.len()..end }))
    }

    fn render(
        &self,
        messages: &[Value],
        tools: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String, RenderError> {
        let tools = (!tools.is_empty()).then_some(tools);
        let input = ChatInput { messages, tools, add_generation_prompt, ..ChatInput::default() };
        self.template.render(&input)
    }
}

/// Returns the tokens that lie within a range of the text; none where there are none.
fn tokens_within(tokens: &[TokenSpan], text: &Range<usize>) -> Option<Range<usize>> {
    let start = tokens.partition_point(|(_, span)| span.start < text.start);
    let end = tokens.partition_point(|(_, span)| span.end <= text.end);
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::graph::derive::derive;
    use crate::graph::scan::choice_nodes;
    use crate::rows::builder::{RowExtras, rows};
    use crate::rows::row::Row;
    use crate::tests::fixture::{call, episode, reply, text_call, with_bodies};
    use crate::weigh::{PathFilter, weigh};

    fn tiny() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/models/tiny")
    }

    /// The tiny model's tokenizer with another template.
    fn with_template(template: &str) -> Retokenizer {
        let template = ChatTemplate::new(template, serde_json::Map::new()).unwrap();
        Retokenizer { template, ..Retokenizer::load(&tiny()).unwrap() }
    }

    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";
    /// Leaves reasoning out of all but the last answer.
    const FORGETFUL: &str = "{% for m in messages %}<{{ m.role }}>\
        {% if m.reasoning and loop.last %}({{ m.reasoning }}){% endif %}{{ m.content }}<end>\n\
        {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

    fn talk() -> Vec<Value> {
        vec![
            json!({ "role": "user", "content": "one" }),
            json!({ "role": "assistant", "content": "two", "reasoning": "hm" }),
            json!({ "role": "user", "content": "three" }),
            json!({ "role": "assistant", "content": "four", "reasoning": "hm" }),
        ]
    }

    fn texts(by: &Retokenizer, found: &Retokenized) -> Vec<Option<String>> {
        let text = |span: &Range<usize>| by.tokenizer.decode(&found.ids[span.clone()], false);
        found.spans.iter().map(|span| span.as_ref().map(text)).collect()
    }

    #[test]
    fn what_was_sampled_is_what_an_opened_reply_grows_by() {
        let by = with_template(PLAIN);
        let found = by.ids(&talk(), &[], &[1, 3]).unwrap();
        let whole = "<user>one<end>\n<assistant>two<end>\n<user>three<end>\n<assistant>four<end>\n";
        assert_eq!(by.tokenizer.decode(&found.ids, false), whole);
        let expected = ["two<end>", "four<end>"].map(|text| Some(text.to_owned()));
        assert_eq!(texts(&by, &found), expected);
    }

    #[test]
    fn a_turn_that_renders_otherwise_later_is_not_trained() {
        let by = with_template(FORGETFUL);
        let found = by.ids(&talk(), &[], &[1, 3, 9]).unwrap();
        assert_eq!(texts(&by, &found), [None, Some("(hm)four<end>".to_owned()), None]);
    }

    #[test]
    fn the_model_s_own_template_is_used() {
        let by = Retokenizer::load(&tiny()).unwrap();
        let tools = [json!({ "type": "function", "function": { "name": "f" } })];
        let found = by.ids(&talk()[..2], &tools, &[1]).unwrap();
        let text = texts(&by, &found)[0].clone().unwrap();
        assert!(text.contains("two"), "{text}");
        assert!(!found.fingerprint.is_empty());
        assert!(by.ids(&[json!({ "role": 1 })], &[], &[]).is_err());
    }

    /// Two turns of which a server reported no ids.
    fn in_words(outcome: Outcome) -> Vec<episode::Call> {
        let talk = talk();
        let mut first = text_call(1, &talk[..1], "two");
        reply(&mut first).outcome = outcome;
        vec![first, text_call(2, &talk[..3], "four")]
    }

    fn rows_by(by: &Retokenizer, calls: Vec<episode::Call>) -> Vec<Row> {
        let episode = episode(calls);
        let mut derived = derive(&episode.calls);
        retokenize(&mut derived, by);
        let (shares, _) = weigh(&derived, &PathFilter::default());
        rows(&episode, &derived, &shares, RowExtras::default()).collect()
    }

    fn trained(by: &Retokenizer, row: &Row) -> String {
        let ids = row.tokens.input_ids.iter().zip(&row.tokens.loss_mask);
        let ids = ids.filter(|(_, mask)| **mask == 1).map(|(id, _)| *id as u32);
        by.tokenizer.decode(&ids.collect::<Vec<_>>(), false)
    }

    #[test]
    fn a_row_of_words_becomes_one_of_ids_and_says_so() {
        let by = with_template(PLAIN);
        let rows = rows_by(&by, in_words(Outcome::Complete));
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!(trained(&by, row), "two<end>four<end>");
        assert_eq!(
            (row.fidelity, row.verdict, row.row_weight),
            (Some("retokenized"), "usable", 1.0)
        );
        let reasons: Vec<_> = row.reasons.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(reasons, ["retokenized"]);
        let text = |range: Range<usize>| {
            let ids: Vec<u32> = row.tokens.input_ids[range].iter().map(|id| *id as u32).collect();
            by.tokenizer.decode(&ids, false)
        };
        let turns = row.turns.iter().map(|turn| text(turn.start as usize..turn.end as usize));
        assert_eq!(turns.collect::<Vec<_>>(), ["two<end>", "four<end>"]);
        assert_eq!(text(0..row.prompt_len as usize), "<user>one<end>\n<assistant>");
        assert!(row.tokens.logprobs.iter().all(|logprob| *logprob == 0.0));
    }

    #[test]
    fn a_cut_or_differently_rendered_turn_is_not_trained() {
        let by = with_template(PLAIN);
        let rows = rows_by(&by, in_words(Outcome::ClientGone));
        assert_eq!(trained(&by, &rows[0]), "four<end>");
        let by =
            with_template("{% for m in messages %}{{ loop.length }}{{ m.content }}{% endfor %}");
        let rows = rows_by(&by, in_words(Outcome::Complete));
        assert!(rows[0].reasons.contains(&Reason::TurnNotRendered));
        let refuses = with_template("{{ raise_exception('no') }}");
        let rows = rows_by(&refuses, in_words(Outcome::Complete));
        assert!(rows[0].tokens.input_ids.is_empty() && rows[0].fidelity.is_none());
    }

    #[test]
    fn ids_of_another_tokenizer_are_told() {
        let by = with_template(PLAIN);
        let ids = by.tokenizer.encode("two", false).unwrap();
        let spoken = |ids: &[u32]| {
            let talk = [json!({ "role": "user", "content": "one" })];
            [with_bodies(call(1, &[1], &[ids]), &talk, "two")]
        };
        let strange =
            |calls: &[episode::Call]| by.foreign_call(choice_nodes(calls).0.iter()).is_some();
        assert!(!strange(&spoken(&ids)));
        assert!(strange(&spoken(&[0, 0])), "other words");
        assert!(strange(&spoken(&[1 << 20])), "an id that it does not have");
        assert!(!strange(&in_words(Outcome::Complete)), "nothing to compare");
    }

    #[test]
    fn a_folder_without_a_template_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = Retokenizer::load(folder.path()).unwrap_err();
        assert!(error.to_string().contains("no chat template"), "{error}");
    }
}
