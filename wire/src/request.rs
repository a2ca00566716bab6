//! A request body, read and edited in place.

mod difference;
mod ignore;

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use episode::Route;
use serde_json::{Map, Value, json};

use crate::bounds::{MODEL_BYTES_MAX, VALUE_BYTES_MAX};
use crate::json::{
    Brackets, Edits, cuts, each_element, first_elements, is_beyond_bounds, is_object_elsewhere,
    members, root, tree, truth_of,
};
use crate::parameters;

pub use difference::{RequestDifference, RequestPrint, request_differences};
pub use ignore::{IgnoreRules, InvalidIgnoreRule};

/// The summary tells only the length of longer values; the request itself keeps them.
const SAMPLING_VALUE_BYTES_MAX: usize = 4096;

/// Fields that say in their depth how tokens are drawn.
const NESTED: [&str; 7] =
    ["tools", "tool_choice", "text", "output_config", "response_format", "bad_words", "logit_bias"];

/// A request body and the places of its top-level fields.
#[derive(Debug, Clone)]
pub struct Request {
    body: Bytes,
    object: Range<usize>,
    fields: Vec<(String, Range<usize>)>,
}

impl Request {
    /// Reads `body`; `None` if it is not a JSON object, or beyond the bounds of one.
    pub fn read(body: &Bytes) -> Option<Self> {
        let brackets = Brackets::of(body).ok()?;
        let document = brackets.outline(body);
        let object = root(&document).ok()?;
        let fields = members(&document, &object)
            .ok()?
            .into_iter()
            .map(|member| (member.key(body).into_owned(), member.value))
            .collect();
        Some(Self { body: body.clone(), object, fields })
    }

    /// True if `body` is an object that is nested too deeply or has too many fields to be read.
    pub fn is_beyond_bounds(body: &[u8]) -> bool {
        is_beyond_bounds(body)
    }

    /// True if `body` is an object in another encoding than UTF-8, or behind a byte order mark.
    /// Servers in Python read it.
    pub fn is_in_another_encoding(body: &[u8]) -> bool {
        is_object_elsewhere(body)
    }

    /// The place of a top-level field's value; of duplicates the last, as most servers read them.
    fn place(&self, key: &str) -> Option<&Range<usize>> {
        self.fields.iter().rev().find(|(name, _)| name == key).map(|(_, place)| place)
    }

    /// The raw value of a top-level field.
    pub(crate) fn raw(&self, key: &str) -> Option<&[u8]> {
        Some(&self.body[self.place(key)?.clone()])
    }

    /// The names of the top-level fields with their raw values, duplicates included.
    pub(crate) fn raw_fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|(name, place)| (name.as_str(), &self.body[place.clone()]))
    }

    /// The value of a top-level field, unless it is too long to be a parameter.
    fn value(&self, key: &str) -> Option<Value> {
        let raw = self.raw(key).filter(|raw| raw.len() <= VALUE_BYTES_MAX)?;
        serde_json::from_slice(raw).ok()
    }

    /// The top-level fields without the conversation: a value that is too long is `true`, but for
    /// those that say how tokens are drawn.
    pub(crate) fn short_fields(&self) -> Value {
        let short = |(name, place): &(String, Range<usize>)| {
            let raw = &self.body[place.clone()];
            let is_nested = matches!(raw.first(), Some(b'{' | b'['));
            let is_read = raw.len() <= SAMPLING_VALUE_BYTES_MAX
                || is_nested && NESTED.contains(&name.as_str());
            let value = if is_read { tree(raw) } else { None };
            (name.clone(), value.unwrap_or(Value::Bool(true)))
        };
        Value::Object(self.fields.iter().map(short).collect())
    }

    /// The model that the agent named.
    pub fn model(&self) -> Option<String> {
        let raw = self.raw("model").filter(|raw| raw.len() <= MODEL_BYTES_MAX)?;
        serde_json::from_slice(raw).ok()
    }

    /// Returns true if the agent asked for a stream.
    pub fn streams(&self) -> bool {
        self.truth("stream") == Some(true)
    }

    /// Returns true if the agent asked for a reply that is fetched later, or a server might think
    /// so: every value counts that is not plainly false.
    pub fn asks_for_later(&self) -> bool {
        let mut given = self.raw_fields().filter(|(name, _)| *name == "background");
        given.any(|(_, value)| truth_of(value) != Some(false))
    }

    /// The truth of a field, as servers in Python read it. `None` if it has none; a field that is
    /// absent is false.
    pub(crate) fn truth(&self, key: &str) -> Option<bool> {
        self.raw(key).map_or(Some(false), truth_of)
    }

    /// Returns true if the agent asked vLLM for the tokens of a response, which only vLLM's own
    /// route reports.
    pub fn asks_response_messages(&self) -> bool {
        self.raw("enable_response_messages") == Some(b"true")
    }

    /// Returns true if the agent offers tools.
    pub fn has_tools(&self) -> bool {
        !matches!(self.raw("tools"), None | Some(b"null" | b"[]"))
    }

    /// Number of choices for each prompt, at least 1. Each server has its own field for it.
    pub fn choices(&self) -> u32 {
        let native = || match self.raw("sampling_params").and_then(tree)? {
            // One object for each prompt.
            Value::Array(list) => list.iter().filter_map(|params| params.get("n")?.as_u64()).max(),
            params => params.get("n")?.as_u64(),
        };
        let of = |key| self.value(key).map(|n| n.as_u64());
        of("n")
            .or_else(|| of("n_cmpl"))
            .or_else(|| Some(native()))
            .flatten()
            .map_or(1, |n| u32::try_from(n).unwrap_or(1).max(1))
    }

    /// Returns true if the agent asked for alternatives to the sampled tokens.
    pub(crate) fn asks_alternatives(&self, route: Route) -> bool {
        let key = if route == Route::Completions { "logprobs" } else { "top_logprobs" };
        self.value(key).and_then(|n| n.as_i64()).is_some_and(|n| n != 0)
    }

    /// The sampling parameters of the request, as a JSON object; `None` if there are none.
    pub fn sampling(&self) -> Option<String> {
        let summary = |key: &str| match self.raw(key)?.len() {
            bytes if bytes > SAMPLING_VALUE_BYTES_MAX => Some(json!({"omitted_bytes": bytes})),
            _ => self.value(key).filter(|value| !value.is_null()),
        };
        let sent: Map<String, Value> = parameters::NAMES
            .iter()
            .filter_map(|key| summary(key).map(|value| ((*key).to_owned(), value)))
            .collect();
        (!sent.is_empty()).then(|| Value::Object(sent).to_string())
    }

    /// The body with every field of `fields` set and every value of `appended` added to the end of
    /// the list under its key. A field is replaced where it stands, else added at the end of the
    /// body. Every other byte stays.
    pub(crate) fn edited(
        &self,
        fields: &[(&str, Cow<'_, str>)],
        appended: &[(&str, &'static str)],
    ) -> Bytes {
        if fields.is_empty() && appended.is_empty() {
            return self.body.clone();
        }
        let mut edits = Edits::default();
        self.set_fields(fields, &mut edits);
        self.append_to_lists(appended, &mut edits);
        Bytes::from(edits.apply(&self.body))
    }

    fn set_fields(&self, fields: &[(&str, Cow<'_, str>)], edits: &mut Edits) {
        let end = self.object.end - 1;
        let mut needs_comma = !self.fields.is_empty();

        for (key, value) in fields {
            let mut present = self.fields.iter().filter(|(name, _)| name == key).peekable();
            if present.peek().is_none() {
                let comma = if std::mem::replace(&mut needs_comma, true) { "," } else { "" };
                edits.put(end..end, [comma, "\"", key, "\":", value].concat());
            }
            // Every duplicate is replaced, whichever of them a server reads.
            present.for_each(|(_, place)| edits.put(place.clone(), value.clone().into_owned()));
        }
    }

    fn append_to_lists(&self, appended: &[(&str, &'static str)], edits: &mut Edits) {
        for (key, value) in appended {
            let Some(list) = self.place(key) else { continue };
            let first = first_elements(&*self.body, list, 1);
            let is_empty = first.is_ok_and(|items| items.is_empty());
            let comma = if is_empty { "" } else { "," };
            let end = list.end - 1;
            edits.put(end..end, [comma, value].concat());
        }
    }

    /// The body without its fields of these names.
    pub(crate) fn without(&self, names: &[&str]) -> Bytes {
        let fields = members(&self.body[..], &self.object).unwrap_or_default();
        let removed: Vec<bool> =
            fields.iter().map(|field| names.contains(&field.key(&self.body).as_ref())).collect();

        let mut edits = Edits::default();
        cuts(&fields, &removed).into_iter().for_each(|cut| edits.put(cut, ""));
        Bytes::from(edits.apply(&self.body))
    }

    /// The last element of the list under `key`.
    pub(crate) fn last_of(&self, key: &str) -> Option<&[u8]> {
        let mut last = None;
        each_element(&self.body[..], self.place(key)?, |element| {
            last = Some(element);
            Ok(())
        })
        .ok()?;
        Some(&self.body[last?])
    }

    /// The whole body as a tree; `None` if it holds too many values.
    pub(crate) fn parsed(&self) -> Option<Value> {
        tree(&self.body)
    }

    /// The body as it was read.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// True if the request has something to answer: messages, a prompt or an earlier response.
    pub fn says_anything(&self) -> bool {
        let said = [
            "messages",
            "prompt",
            "input",
            "text",
            "input_ids",
            "input_embeds",
            "token_ids",
            "previous_response_id",
            "conversation",
        ];
        let is_empty = |value: &[u8]| {
            let value = value.iter().filter(|byte| !byte.is_ascii_whitespace());
            let value: Vec<u8> = value.copied().take(5).collect();
            matches!(value.as_slice(), b"null" | b"[]" | b"{}" | b"\"\"")
        };
        said.iter().any(|key| self.raw(key).is_some_and(|value| !is_empty(value)))
    }

    /// Number of prompts: 1, or the length of a text completion's batch.
    pub fn prompts(&self) -> usize {
        self.batch_size().unwrap_or(1)
    }

    fn batch_size(&self) -> Option<usize> {
        let place = ["prompt", "text", "input_ids"].iter().find_map(|key| self.place(key))?;
        // A list of numbers is one prompt, given as ids.
        let first = first_elements(&*self.body, place, 1).ok()?.pop()?;
        if !matches!(self.body.get(first.start), Some(b'"' | b'[')) {
            return None;
        }
        let mut count = 0;
        each_element(&self.body[..], place, |_| {
            count += 1;
            Ok(())
        })
        .ok()?;
        Some(count)
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
    fn a_reply_that_is_fetched_later_is_told_in_every_spelling() {
        let later = |fields: &str| {
            let body = format!(r#"{{"input":"a",{fields}}}"#);
            Request::read(&Bytes::from(body)).unwrap().asks_for_later()
        };
        for yes in [
            r#""background":true"#,
            r#""background":"Yes""#,
            r#""background":1.0"#,
            r#""background":true,"background":false"#,
            r#""b\u0061ckground":"on""#,
            r#""background":[]"#,
        ] {
            assert!(later(yes), "{yes}");
        }
        for no in [r#""background":null"#, r#""background":"off""#, r#""Background":true"#] {
            assert!(!later(no), "{no}");
        }
        assert!(read(r#"{"stream":"YES"}"#).streams() && !read(r#"{"stream":"no"}"#).streams());
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
