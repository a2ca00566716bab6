//! What the proxy needs to know of a request body, read without changing it.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use episode::Route;
use serde_json::{Map, Value, json};

use crate::json::{Edits, cuts, elements, members, root};

/// The fields that decide how tokens are drawn, as the agent sent them.
pub(crate) const SAMPLING: [&str; 49] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "response_format",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "dry_multiplier",
    "mirostat",
    "dynatemp_range",
    "adaptive_target",
    "repeat_penalty",
    "bad_words",
    "allowed_token_ids",
    "min_new_tokens",
    "structured_outputs",
    "structural_tag",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "regex",
    "ebnf",
    "grammar",
    "json_schema",
    "output_format",
    "output_config",
    "text",
    "thinking_token_budget",
    "tool_choice",
];
/// Of longer values the summary tells the length; the request itself keeps them.
const SAMPLING_VALUE_BYTES_MAX: usize = 4096;

/// A request body and the places of its top-level fields.
#[derive(Debug, Clone)]
pub struct Request {
    body: Bytes,
    object: Range<usize>,
    fields: Vec<(String, Range<usize>)>,
}

impl Request {
    /// Reads `body`; `None` when it is not a JSON object, and so nothing to add to.
    pub fn read(body: &Bytes) -> Option<Self> {
        let object = root(body).ok()?;
        let fields = members(body, &object)
            .ok()?
            .into_iter()
            .map(|m| (m.key(body).into_owned(), m.value))
            .collect();
        Some(Self { body: body.clone(), object, fields })
    }

    /// The raw value of a top-level field; of duplicates the last, as most servers read them.
    pub(crate) fn raw(&self, key: &str) -> Option<&[u8]> {
        let (_, place) = self.fields.iter().rev().find(|(name, _)| name == key)?;
        Some(&self.body[place.clone()])
    }

    fn value(&self, key: &str) -> Option<Value> {
        serde_json::from_slice(self.raw(key)?).ok()
    }

    /// The model that the agent named.
    pub fn model(&self) -> Option<String> {
        self.value("model")?.as_str().map(str::to_owned)
    }

    /// Whether the agent asked for a stream.
    pub fn streams(&self) -> bool {
        self.raw("stream") == Some(b"true")
    }

    /// Whether the agent asked vLLM for the tokens of a response, which its own route alone tells.
    pub fn asks_response_messages(&self) -> bool {
        self.raw("enable_response_messages") == Some(b"true")
    }

    /// Whether the agent offers tools.
    pub fn has_tools(&self) -> bool {
        !matches!(self.raw("tools"), None | Some(b"null" | b"[]"))
    }

    /// How many choices were asked for each prompt, in each server's words.
    pub fn choices(&self) -> u32 {
        let nested = || self.value("sampling_params").and_then(|params| params.get("n").cloned());
        let n = self.value("n").or_else(|| self.value("n_cmpl")).or_else(nested);
        n.and_then(|n| n.as_u64()).map_or(1, |n| u32::try_from(n).unwrap_or(1).max(1))
    }

    /// Whether alternatives to the sampled tokens were asked for.
    pub(crate) fn alternatives(&self, route: Route) -> bool {
        let key = if route == Route::Completions { "logprobs" } else { "top_logprobs" };
        self.value(key).and_then(|n| n.as_i64()).is_some_and(|n| n != 0)
    }

    /// The sampling parameters that were sent, as a JSON object; `None` when there are none.
    pub fn sampling(&self) -> Option<String> {
        let value = |key: &str| match self.raw(key)?.len() {
            bytes if bytes > SAMPLING_VALUE_BYTES_MAX => Some(json!({"omitted_bytes": bytes})),
            _ => self.value(key).filter(|value| !value.is_null()),
        };
        let sent: Map<String, Value> =
            SAMPLING.iter().filter_map(|key| Some(((*key).to_owned(), value(key)?))).collect();
        (!sent.is_empty()).then(|| Value::Object(sent).to_string())
    }

    /// The body with every field of `fields` set (replaced where it stands, else added at the
    /// end), and with every value of `appended` added to the end of the list under its key. Every
    /// other byte stays.
    pub(crate) fn edited(
        &self,
        fields: &[(&str, Cow<'static, str>)],
        appended: &[(&str, &'static str)],
    ) -> Bytes {
        if fields.is_empty() && appended.is_empty() {
            return self.body.clone();
        }
        let mut edits = Edits::default();
        let close = self.object.end - 1;
        let mut first = self.fields.is_empty();
        for (key, value) in fields {
            let mut there = self.fields.iter().filter(|(name, _)| name == key).peekable();
            if there.peek().is_none() {
                let comma = if std::mem::take(&mut first) { "" } else { "," };
                edits.put(close..close, format!("{comma}\"{key}\":{value}"));
            }
            there.for_each(|(_, place)| edits.put(place.clone(), value.clone()));
        }
        for (key, value) in appended {
            let Some((_, list)) = self.fields.iter().rev().find(|(name, _)| name == key) else {
                continue;
            };
            let empty = elements(&self.body, list).is_ok_and(|items| items.is_empty());
            let comma = if empty { "" } else { "," };
            edits.put(list.end - 1..list.end - 1, format!("{comma}{value}"));
        }
        Bytes::from(edits.apply(&self.body))
    }

    /// The body without its fields of these names.
    pub(crate) fn without(&self, names: &[&str]) -> Bytes {
        let all = members(&self.body, &self.object).unwrap_or_default();
        let gone: Vec<bool> =
            all.iter().map(|m| names.contains(&m.key(&self.body).as_ref())).collect();
        let mut edits = Edits::default();
        cuts(&all, &gone).into_iter().for_each(|cut| edits.put(cut, ""));
        Bytes::from(edits.apply(&self.body))
    }

    /// The last element of the list under `key`.
    pub(crate) fn last_of(&self, key: &str) -> Option<&[u8]> {
        let (_, place) = self.fields.iter().rev().find(|(name, _)| name == key)?;
        let last = elements(&self.body, place).ok()?.pop()?;
        Some(&self.body[last])
    }

    /// The whole body, parsed.
    pub(crate) fn parsed(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The body as it was read.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The number of prompts in a text completion: a batch has several.
    pub fn prompts(&self) -> usize {
        let batch = || {
            let named = |key: &&str| self.fields.iter().rev().find(|(name, _)| name == key);
            let place = ["prompt", "text", "input_ids"].iter().find_map(named)?.1.clone();
            let items = elements(&self.body, &place).ok()?;
            let first = self.body[items.first()?.clone()].first()?;
            matches!(first, b'"' | b'[').then_some(items.len())
        };
        batch().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &'static str) -> Request {
        Request::read(&Bytes::from_static(body.as_bytes())).unwrap()
    }

    #[test]
    fn fields_are_added_and_replaced_in_place() {
        let edited =
            |body, fields| String::from_utf8(read(body).edited(fields, &[]).to_vec()).unwrap();
        let ask: &[(&str, Cow<'static, str>)] = &[("logprobs", "true".into()), ("ids", "1".into())];
        assert_eq!(edited("{}", ask), r#"{"logprobs":true,"ids":1}"#);
        assert_eq!(
            edited("{ \"b\": 1e5,\n \"logprobs\" : false , \"é\":\"\\u00e9\" } \n", ask),
            "{ \"b\": 1e5,\n \"logprobs\" : true , \"é\":\"\\u00e9\" ,\"ids\":1} \n"
        );
        assert_eq!(
            edited(r#"{"logprobs":null,"logprobs":false,"ids":2}"#, ask),
            r#"{"logprobs":true,"logprobs":true,"ids":1}"#
        );
    }

    #[test]
    fn lists_grow_and_fields_leave() {
        let grown = |body| read(body).edited(&[], &[("include", "\"x\"")]);
        assert_eq!(grown(r#"{"include":[ ]}"#), r#"{"include":[ "x"]}"#);
        assert_eq!(grown(r#"{"include":["a"],"b":1}"#), r#"{"include":["a","x"],"b":1}"#);
        assert_eq!(grown("{}"), "{}");
        assert_eq!(read(r#"{"a":1, "b":2}"#).without(&["b", "c"]), r#"{"a":1}"#);
    }

    #[test]
    fn what_is_not_an_object_is_left_alone() {
        for body in ["", "[]", "not json", "{\"a\":", "{} {}"] {
            assert!(Request::read(&Bytes::from_static(body.as_bytes())).is_none(), "{body}");
        }
    }

    #[test]
    fn the_view_reads_what_was_sent() {
        let request = read(
            r#"{"model":"m","stream":true,"n":3,"temperature":0.7,"top_p":null,"messages":[]}"#,
        );
        assert_eq!(request.model().as_deref(), Some("m"));
        assert!(request.streams());
        assert_eq!(request.choices(), 3);
        assert_eq!(request.sampling().as_deref(), Some(r#"{"temperature":0.7,"n":3}"#));
        assert_eq!(request.prompts(), 1);
        assert_eq!(read(r#"{"prompt":["a","b"]}"#).prompts(), 2);
        assert_eq!(read(r#"{"prompt":[[1,2],[3]]}"#).prompts(), 2);
        assert_eq!(read(r#"{"prompt":[1,2,3]}"#).prompts(), 1);
    }

    #[test]
    fn masks_are_in_the_summary_and_of_long_ones_the_length() {
        let ids = format!("[{}1]", "1,".repeat(3000));
        let body = format!(
            r#"{{"bad_words":["x"],"guided_json":{{"type":"object"}},"allowed_token_ids":{ids}}}"#
        );
        let sampling = Request::read(&Bytes::from(body)).unwrap().sampling().unwrap();
        let sampling: Value = serde_json::from_str(&sampling).unwrap();
        let allowed = json!({ "omitted_bytes": ids.len() });
        let guided = json!({ "type": "object" });
        let all = json!({
            "bad_words": ["x"], "guided_json": guided, "allowed_token_ids": allowed
        });
        assert_eq!(sampling, all);
    }
}
