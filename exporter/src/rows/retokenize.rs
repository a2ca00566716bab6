//! Retokenize: ids for what no server reported ids of, by the model's own template and tokenizer.
//!
//! Never called exact: a model may have sampled other ids for the same text. What was sampled is
//! found by rendering: a message is what its conversation grows by when it is added behind an
//! opened reply. A turn that the template renders otherwise once more follows (reasoning that is
//! left out of older turns) is not where it was, and is not trained.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use episode::{CallId, Outcome};
use serde_json::Value;
use template::{
    ChatInput, ChatTemplate, MessageError, RenderError, TemplateError, Tokenizer, TokenizerError,
};
use thiserror::Error;

use crate::graph::forest::Forest;
use crate::graph::node::Node;
use crate::graph::path::Merged;
use crate::graph::path::Retokenized;
use crate::notes::{Notes, Reason};
use crate::rows::messages::whole;

/// A model's template and tokenizer.
#[derive(Debug)]
pub struct Retokenizer {
    template: ChatTemplate,
    tokenizer: Tokenizer,
    fingerprint: String,
}

/// Why there are no ids.
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
    /// A message is none that a template can take.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The template refuses the conversation.
    #[error(transparent)]
    Render(#[from] RenderError),
}

/// Writes the paths without ids as ids, and says which of their tokens may be trained.
pub(crate) fn retokenize(forest: &Forest<'_>, merged: &mut Merged, by: &Retokenizer) -> Notes {
    let mut notes = Notes::default();
    for index in 0..merged.paths.len() {
        let path = &merged.paths[index];
        let leaf = &forest.nodes[path.leaf()];
        if leaf.has_ids {
            continue;
        }
        let talk = whole(leaf);
        let nodes = path.nodes.clone();
        let sampled: Vec<usize> = nodes.iter().map(|n| whole(&forest.nodes[*n]).asked).collect();
        match by.ids(&talk.messages, &talk.tools, &sampled) {
            Err(_) => notes.not_rendered += 1,
            Ok(found) => {
                for (node, span) in nodes.iter().zip(&found.spans) {
                    judge(merged, (*node, &forest.nodes[*node]), span.as_ref());
                }
                merged.written[index] = Some(found);
            }
        }
    }
    notes
}

fn judge(merged: &mut Merged, (index, node): (usize, &Node<'_>), span: Option<&Range<usize>>) {
    let judged = &mut merged.judged[index];
    judged.reasons.remove(&Reason::NoTokenIds);
    judged.reasons.insert(Reason::Retokenized);
    match span {
        None => {
            judged.reasons.insert(Reason::TurnNotRendered);
        }
        Some(span) => {
            judged.trainable = node.ended.outcome == Outcome::Complete;
            judged.tokens = if judged.trainable { span.len() } else { 0 };
        }
    }
}

impl Retokenizer {
    /// Reads the template and the tokenizer of a model folder.
    ///
    /// # Errors
    /// [`RetokenizeError`] when one of them is not there or cannot be used.
    pub fn load(folder: &Path) -> Result<Self, RetokenizeError> {
        let template = ChatTemplate::load(folder)?;
        let template = template.ok_or_else(|| RetokenizeError::NoTemplate(folder.to_owned()))?;
        let tokenizer = Tokenizer::load(folder)?;
        let fingerprint = template::fingerprint(folder);
        let fingerprint = fingerprint.map_err(|e| RetokenizeError::Read(folder.to_owned(), e))?;
        Ok(Self { template, tokenizer, fingerprint })
    }

    /// What it is, by its files.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// A call whose ids are not this tokenizer's: it does not have one of them, or of no call of
    /// the episode do the ids stand for what the server says in words. (Of some they may not: a
    /// server's parsers lose ids.)
    pub(crate) fn stranger(&self, nodes: &[Node<'_>]) -> Option<CallId> {
        let size = self.tokenizer.size();
        let mut spoken = Vec::new();
        for node in nodes.iter().filter(|node| node.has_ids) {
            let call = node.call.begun.call_id;
            if node.prompt.iter().chain(node.sampled).any(|id| *id as usize >= size) {
                return Some(call);
            }
            spoken.extend(self.says(node).map(|says| (call, says)));
        }
        let none = !spoken.iter().any(|(_, says)| *says);
        spoken.first().filter(|_| none).map(|(call, _)| *call)
    }

    /// Whether a choice's ids stand for its words; none where it says none.
    fn says(&self, node: &Node<'_>) -> Option<bool> {
        let answers = wire::answers(node.call.begun.route, &node.ended.reply);
        let answer = answers.into_iter().find(|answer| answer.index == node.index)?;
        let text = wire::content_text(answer.message.get("content"))?;
        let text = Some(text.trim()).filter(|text| !text.is_empty())?;
        Some(self.tokenizer.decode(node.sampled, false).contains(text))
    }

    /// The ids of a conversation, and where in them the messages are that stand at `sampled`.
    pub(crate) fn ids(
        &self,
        messages: &[Value],
        tools: &[Value],
        sampled: &[usize],
    ) -> Result<Retokenized, RetokenizeError> {
        let messages = template::prepare(messages)?;
        let whole = self.render(&messages, tools, false)?;
        let tokens = self.tokenizer.encode_spans(&whole)?;
        let mut spans = Vec::with_capacity(sampled.len());
        for at in sampled {
            let text = self.place(&messages, tools, *at)?;
            // Only what is rendered as it was when it was sampled is where it was.
            let text = text.filter(|(until, _)| whole.starts_with(until.as_str()));
            spans.push(text.and_then(|(_, range)| within(&tokens, &range)));
        }
        let ids = tokens.into_iter().map(|(id, _)| id).collect();
        Ok(Retokenized { ids, spans, fingerprint: self.fingerprint.clone() })
    }

    /// The text up to the end of message `at`, and the bytes of it that the message is.
    fn place(
        &self,
        messages: &[Value],
        tools: &[Value],
        at: usize,
    ) -> Result<Option<(String, Range<usize>)>, RetokenizeError> {
        let Some(until) = messages.get(..=at) else { return Ok(None) };
        let opened = self.render(&messages[..at], tools, true)?;
        let closed = self.render(until, tools, false)?;
        if !closed.starts_with(&opened) {
            return Ok(None);
        }
        // The end of the turn is sampled; the line break behind it is the template's.
        let end = closed.trim_end_matches('\n').len().max(opened.len());
        Ok(Some((closed, opened.len()..end)))
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

/// The tokens that lie within a range of the text; none where there is none.
fn within(tokens: &[(u32, Range<usize>)], text: &Range<usize>) -> Option<Range<usize>> {
    let start = tokens.partition_point(|(_, span)| span.start < text.start);
    let end = tokens.partition_point(|(_, span)| span.end <= text.end);
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{call, episode, reply, text_call, with_bodies};
    use crate::graph::merge::merge;
    use crate::graph::scan::nodes;
    use crate::graph::thread::thread;
    use crate::rows::{Beside, Row, rows};
    use crate::weigh::staleness::versions;
    use crate::weigh::{Wanted, weigh};

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
    fn a_turn_that_the_template_shows_otherwise_later_is_not_trained() {
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
        let (forest, _) = thread(nodes(&episode.calls).0);
        let (mut merged, _) = merge(&forest);
        retokenize(&forest, &mut merged, by);
        let versions = versions(&forest, &merged);
        let (shares, _) = weigh(&merged, versions, &Wanted::default());
        rows(&episode, &forest, &merged, &shares, Beside::default()).collect()
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
    fn what_did_not_end_well_and_what_is_shown_otherwise_is_not_trained() {
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
        let strange = |calls: &[episode::Call]| by.stranger(&nodes(calls).0).is_some();
        assert!(!strange(&spoken(&ids)));
        assert!(strange(&spoken(&[0, 0])), "other words");
        assert!(strange(&spoken(&[1 << 30])), "an id that it does not have");
        assert!(!strange(&in_words(Outcome::Complete)), "nothing to compare");
    }

    #[test]
    fn a_folder_without_a_template_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = Retokenizer::load(folder.path()).unwrap_err();
        assert!(error.to_string().contains("no chat template"), "{error}");
    }
}
