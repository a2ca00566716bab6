//! A call without secrets.

use std::ops::Range;

use episode::{Body, Call, CallEnd, CallStart, Choice, TokenColumn};
use serde_json::{Value, json};

use super::body::SecretEditor;
use super::ids::IdReader;
use crate::exit::Failure;
use crate::upkeep::secrets::{IDS_AGAIN, SecretSpan};

/// Columns with an array for each token, of which those of a secret tell about it.
const TELLING: [&str; 2] = ["top_logprobs", "sampling_mask"];

/// A call, and whether it differs from the one that was recorded.
pub(super) struct RedactedCall {
    pub(super) call: Call,
    pub(super) is_changed: bool,
}

/// Makes calls without secrets.
pub(super) struct CallEditor<'a> {
    pub(super) editor: SecretEditor<'a>,
    /// True where no ids are kept.
    pub(super) drops_ids: bool,
    is_changed: bool,
}

impl<'a> CallEditor<'a> {
    pub(super) fn new(editor: SecretEditor<'a>, drops_ids: bool) -> Self {
        Self { editor, drops_ids, is_changed: false }
    }

    /// The call without secrets. Tokens of a secret are not trained: they have no logprobs, and the
    /// column `redacted` says where they are.
    ///
    /// # Errors
    /// [`Failure`] when a secret would be left.
    pub(super) fn redact(&mut self, call: &Call) -> Result<RedactedCall, Failure> {
        self.is_changed = false;
        let begun = self.begun(&call.begun)?;
        let ended = call.ended.as_ref().map(|ended| self.ended(ended)).transpose()?;
        Ok(RedactedCall { call: Call { begun, ended }, is_changed: self.is_changed })
    }

    fn begun(&mut self, begun: &CallStart) -> Result<CallStart, Failure> {
        let mut new = begun.clone();
        new.request = self.body(&begun.request)?;
        new.path = self.text(&begun.path);
        new.model = self.optional(&begun.model);
        new.sampling = self.optional(&begun.sampling);
        let lineage = &mut new.lineage;
        for name in
            [&mut lineage.client, &mut lineage.session, &mut lineage.agent, &mut lineage.parent]
        {
            *name = self.optional(name);
        }
        new.tag.labels.iter_mut().for_each(|(_, value)| *value = self.text(value));
        Ok(new)
    }

    fn ended(&mut self, ended: &CallEnd) -> Result<CallEnd, Failure> {
        let mut new = ended.clone();
        new.reply = self.body(&ended.reply)?;
        new.error = self.optional(&ended.error);
        new.model = self.optional(&ended.model);
        new.sampled_with = self.optional(&ended.sampled_with);
        for choice in &mut new.choices {
            choice.stop_reason = self.optional(&choice.stop_reason);
            for column in &mut choice.token_columns {
                column.json = self.text(&column.json);
            }
        }

        if self.drops_ids {
            new.prompts.clear();
            new.choices.iter_mut().for_each(drop_ids);
            return Ok(new);
        }
        let Some(reader) = self.editor.ids else { return Ok(new) };
        self.redact_ids(reader, &mut new)?;
        Ok(new)
    }

    fn redact_ids(&mut self, reader: &IdReader, ended: &mut CallEnd) -> Result<(), Failure> {
        let finder = self.editor.finder;
        let prompts: Vec<Vec<SecretSpan>> =
            ended.prompts.iter().map(|ids| reader.spans(finder, &[], ids)).collect();

        for choice in &mut ended.choices {
            let at = choice.prompt_index as usize;
            let prompt = ended.prompts.get(at).map_or(&[][..], Vec::as_slice);
            let before = &prompt[prompt.len().saturating_sub(IDS_AGAIN)..];
            let sampled = choice.token_ids.as_deref().unwrap_or_default();
            let spans = reader.spans(finder, before, sampled);
            let of_prompt = prompts.get(at).map_or(&[][..], Vec::as_slice);
            if !spans.is_empty() || !of_prompt.is_empty() {
                mark_tokens(choice, of_prompt, &spans);
            }
            if let Some(ids) = &mut choice.token_ids {
                fill(ids, &spans, reader.filler());
            }
            self.is_changed |= !spans.is_empty();
        }
        for (ids, spans) in ended.prompts.iter_mut().zip(&prompts) {
            fill(ids, spans, reader.filler());
            self.is_changed |= !spans.is_empty();
        }

        let sampled = ended.choices.iter().filter_map(|choice| choice.token_ids.as_ref());
        let mut all = ended.prompts.iter().chain(sampled);
        let left = all.any(|ids| !reader.spans(finder, &[], ids).is_empty());
        if left { Err(left_over()) } else { Ok(()) }
    }

    fn body(&mut self, body: &Body) -> Result<Body, Failure> {
        let bytes = body.read();
        let new = match self.editor.body(&bytes) {
            None => body.clone(),
            Some(new) if self.editor.body(&new).is_some() => return Err(left_over()),
            Some(new) => {
                self.is_changed = true;
                new.into()
            }
        };
        match self.editor.finder.holds_value(&new.read()) {
            true => Err(left_over()),
            false => Ok(new),
        }
    }

    fn text(&mut self, text: &str) -> String {
        match self.editor.text(text) {
            None => text.to_owned(),
            Some(new) => {
                self.is_changed = true;
                new
            }
        }
    }

    fn optional(&mut self, text: &Option<String>) -> Option<String> {
        text.as_ref().map(|text| self.text(text))
    }
}

fn left_over() -> Failure {
    Failure::new("a secret would be left, so nothing is written").hint(
        "a rule may match the mark that takes a secret's place, `[redacted KIND]`, or the `*` that \
         takes that of its tokens: make it narrower",
    )
}

fn drop_ids(choice: &mut Choice) {
    choice.token_ids = None;
    choice.logprobs.clear();
    choice.token_columns.clear();
}

fn fill(ids: &mut [u32], spans: &[SecretSpan], filler: u32) {
    spans.iter().for_each(|span| ids[span.range.clone()].fill(filler));
}

/// Takes what is said of the tokens of secrets from a choice, and says where they are.
fn mark_tokens(choice: &mut Choice, prompt: &[SecretSpan], sampled: &[SecretSpan]) {
    for span in sampled {
        let count = choice.logprobs.len();
        let range = span.range.start.min(count)..span.range.end.min(count);
        choice.logprobs[range].fill(f32::NAN);
    }
    let spans: Vec<&Range<usize>> = sampled.iter().map(|span| &span.range).collect();
    let telling = |column: &TokenColumn| TELLING.contains(&column.name.as_str());
    for column in choice.token_columns.iter_mut().filter(|column| telling(column)) {
        column.json = without_elements(&column.json, &spans);
    }

    let places = |spans: &[SecretSpan]| -> Vec<[usize; 2]> {
        spans.iter().map(|span| [span.range.start, span.range.end]).collect()
    };
    let json = json!({ "prompt": places(prompt), "sampled": places(sampled) }).to_string();
    choice.token_columns.retain(|column| column.name != Choice::REDACTED);
    choice.token_columns.push(TokenColumn { name: Choice::REDACTED.to_owned(), json });
}

/// An array with empty elements for the tokens in `spans`; empty if it is no array.
fn without_elements(json: &str, spans: &[&Range<usize>]) -> String {
    let Ok(Value::Array(mut elements)) = serde_json::from_str(json) else { return "[]".to_owned() };
    for span in spans {
        let count = elements.len();
        let inside = span.start.min(count)..span.end.min(count);
        elements[inside].fill(Value::Array(Vec::new()));
    }
    Value::Array(elements).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_secret_goes_and_the_rest_stays() {
        let mut choice = Choice {
            token_ids: Some(vec![1, 2, 3]),
            logprobs: vec![-0.1, -0.2, -0.3],
            token_columns: vec![TokenColumn {
                name: "top_logprobs".to_owned(),
                json: "[[1],[2],[3]]".to_owned(),
            }],
            ..Choice::default()
        };
        let span = |range| SecretSpan { kind: "key".to_owned(), range };
        mark_tokens(&mut choice, &[span(4..6)], &[span(1..2)]);
        assert!(choice.logprobs[1].is_nan());
        assert_eq!((choice.logprobs[0], choice.logprobs[2]), (-0.1, -0.3));
        assert_eq!(choice.token_columns[0].json, "[[1],[],[3]]");
        let expected = r#"{"prompt":[[4,6]],"sampled":[[1,2]]}"#;
        assert_eq!(choice.token_columns[1].json, expected);
    }

    #[test]
    fn an_array_of_another_form_is_not_kept() {
        assert_eq!(without_elements("{\"a\":1}", &[&(0..1)]), "[]");
        assert_eq!(without_elements("[[1]]", &[&(0..9)]), "[[]]");
    }
}
