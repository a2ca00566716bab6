//! Retokenize: ids for what no server reported ids of, by the model's own template and tokenizer.
//!
//! Never called exact: a model may have sampled other ids for the same text. What was sampled is
//! found by rendering: a message is what its conversation grows by when it is added behind an
//! opened reply. A turn that the template renders otherwise once more follows (reasoning that is
//! left out of older turns) is not where it was, and is not trained.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use template::{
    ChatInput, ChatTemplate, MessageError, RenderError, TemplateError, Tokenizer, TokenizerError,
};
use thiserror::Error;

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

/// A conversation as ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Retokenized {
    pub(crate) ids: Vec<u32>,
    /// For each message that was asked for its ids; none where the template shows it otherwise.
    pub(crate) spans: Vec<Option<Range<usize>>>,
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

    /// The name of the tokenizer.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
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
        Ok(Retokenized { ids: tokens.into_iter().map(|(id, _)| id).collect(), spans })
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
        self.template.render(&ChatInput { messages, tools, add_generation_prompt, variables: None })
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
        assert!(!by.fingerprint().is_empty());
        assert!(by.ids(&[json!({ "role": 1 })], &[], &[]).is_err());
    }

    #[test]
    fn a_folder_without_a_template_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = Retokenizer::load(folder.path()).unwrap_err();
        assert!(error.to_string().contains("no chat template"), "{error}");
    }
}
