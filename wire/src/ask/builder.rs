//! A request that grows by fields and headers, with the rules that hide their answers.

use std::borrow::Cow;

use super::continuation::{SGLANG_PROMPT, VLLM_PROMPT};
use super::{AskOptions, AugmentedRequest, RefusedFields};
use crate::dialect::Dialect;
use crate::hide::{FrameKind, ReplyFilter, Rule};
use crate::request::Request;

/// The reason why a request goes on as the agent sent it.
pub(super) struct NotAsked(pub(super) &'static str);

/// The upstream will refuse what the agent sent. With our fields in it, it might not. Only where it
/// is known to refuse it: what another server takes after all would be sampled unasked.
pub(super) const INVALID_REQUEST: NotAsked = NotAsked("the upstream will refuse this request");

/// The fields that take a prompt as ids.
const PROMPTS: [&str; 2] = [VLLM_PROMPT, SGLANG_PROMPT];

/// The fields that name the first token whose experts are asked for.
const EXPERTS_STARTS: [&str; 2] = [VLLM_EXPERTS_START, SGLANG_EXPERTS_START];
pub(super) const VLLM_EXPERTS_START: &str = "routed_experts_prompt_start";
pub(super) const SGLANG_EXPERTS_START: &str = "routed_experts_start_len";

/// A request that grows.
pub(super) struct RequestBuilder<'a> {
    pub(super) request: &'a Request,
    fields: Vec<(&'static str, Cow<'a, str>)>,
    appended: Vec<(&'static str, &'static str)>,
    headers: Vec<(&'static str, &'static str)>,
    pub(super) hide: ReplyFilter,
    refused: RefusedFields,
    booleans: Booleans,
}

/// The reading of what stands in the place of a boolean and is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Booleans {
    /// It is refused.
    Strict,
    /// It is as if it were absent.
    Literal,
    /// Some words and numbers are true or false, as Python reads them.
    Lenient,
}

impl Booleans {
    fn of(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Rolltape => Self::Strict,
            Dialect::Llamacpp => Self::Literal,
            Dialect::Vllm | Dialect::Sglang | Dialect::OpenAi => Self::Lenient,
        }
    }
}

impl<'a> RequestBuilder<'a> {
    /// A builder that adds none of the `refused` fields.
    pub(super) fn new(request: &'a Request, refused: RefusedFields, dialect: Dialect) -> Self {
        Self {
            request,
            fields: Vec::new(),
            appended: Vec::new(),
            headers: Vec::new(),
            hide: ReplyFilter::default(),
            refused,
            booleans: Booleans::of(dialect),
        }
    }

    /// The request with everything that was added.
    pub(super) fn finish(self) -> AugmentedRequest {
        let set = self.fields.iter().map(|(key, _)| *key);
        let appended = self.appended.iter().map(|(key, _)| *key);
        let added: Vec<_> = set.chain(appended).collect();
        AugmentedRequest {
            has_prompt: added.iter().any(|field| PROMPTS.contains(field)),
            starts_experts: added.iter().any(|field| EXPERTS_STARTS.contains(field)),
            added,
            body: self.request.edited(&self.fields, &self.appended),
            headers: self.headers,
            hide: self.hide,
            unasked: None,
        }
    }

    /// Returns true if the agent itself set the boolean `key`, in a spelling that the server takes
    /// for true.
    pub(super) fn asked(&self, key: &str) -> Result<bool, NotAsked> {
        match (self.request.raw(key), self.booleans) {
            (None | Some(b"null" | b"false"), _) => Ok(false),
            (Some(b"true"), _) => Ok(true),
            (_, Booleans::Strict) => Err(INVALID_REQUEST),
            (_, Booleans::Literal) => Ok(false),
            (_, Booleans::Lenient) => Ok(self.request.truth(key) == Some(true)),
        }
    }

    /// Returns true if the agent itself set `key`, a number that means something even when 0.
    /// Servers in Python read numbers in texts, and true and false, too.
    pub(super) fn asked_number(&self, key: &str) -> Result<bool, NotAsked> {
        match self.request.raw(key) {
            None | Some(b"null") => Ok(false),
            Some([b'0'..=b'9' | b'-', ..]) => Ok(true),
            Some(_) if self.booleans == Booleans::Strict => Err(INVALID_REQUEST),
            Some(_) => Ok(true),
        }
    }

    /// Returns true if `key` has a value that is not plainly null, 0 or false.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.request.truth(key) != Some(false)
    }

    /// Returns true if `key` is a number of at least 1, as servers in C++ read it.
    pub(super) fn is_positive(&self, key: &str) -> bool {
        self.number(key).is_some_and(|number| number >= 1.0)
    }

    fn number(&self, key: &str) -> Option<f64> {
        serde_json::from_slice(self.request.raw(key)?).ok()
    }

    /// Sets `key` to true, whatever the agent wrote there, and hides the answer by `rules` unless
    /// the agent asked for it. Returns true if the agent did.
    pub(super) fn flag(&mut self, key: &'static str, rules: &[Rule]) -> Result<bool, NotAsked> {
        let is_asked = self.asked(key)?;
        if self.request.raw(key) != Some(b"true") {
            self.set(key, "true", if is_asked { &[] } else { rules });
        }
        Ok(is_asked)
    }

    /// Sets `key` and hides the answer by `rules`, unless the server refuses the field.
    pub(super) fn set(
        &mut self,
        key: &'static str,
        value: impl Into<Cow<'a, str>>,
        rules: &[Rule],
    ) {
        if self.refused.holds(key) {
            return;
        }
        self.fields.push((key, value.into()));
        self.hide.add_rules(rules);
    }

    /// Asks for experts from the token on that `options` name, by the field `key`, unless the agent
    /// named one itself.
    pub(super) fn set_experts_start(&mut self, key: &'static str, options: &AskOptions) {
        if options.experts_from > 0 && self.request.raw(key).is_none() {
            self.set(key, options.experts_from.to_string(), &[]);
        }
    }

    /// Adds `value` to the end of the list under `key` and hides the answer by `rules`, unless the
    /// server refuses the field.
    pub(super) fn append(&mut self, key: &'static str, value: &'static str, rules: &[Rule]) {
        if self.refused.holds(key) {
            return;
        }
        self.appended.push((key, value));
        self.hide.add_rules(rules);
    }

    /// Sends a header.
    pub(super) fn header(&mut self, name: &'static str) {
        self.headers.push((name, "1"));
    }

    /// Returns true if `key` has a list in which everything is true.
    pub(super) fn all_are_true(&self, key: &str) -> bool {
        let list =
            self.request.raw(key).and_then(|raw| serde_json::from_slice::<Vec<bool>>(raw).ok());
        list.is_some_and(|list| !list.is_empty() && list.into_iter().all(|truth| truth))
    }

    /// Returns true if the agent asked for alternatives without logprobs, in the form that vLLM is
    /// known to refuse.
    pub(super) fn wants_only_alternatives(&self) -> bool {
        let has_none = matches!(self.request.raw("logprobs"), None | Some(b"null" | b"false"));
        has_none && self.number("top_logprobs").is_some_and(|number| number != 0.0)
    }

    /// Asks for the alternatives that `options` want and the agent did not ask for. Where the
    /// agent asked for logprobs without alternatives, `rule` empties them.
    pub(super) fn set_top_logprobs(
        &mut self,
        options: &AskOptions,
        agent_asked_logprobs: bool,
        rule: Rule,
    ) {
        if agent_asked_logprobs && self.is_set("top_logprobs") {
            return;
        }
        if options.top_logprobs == 0 && !self.has_void_alternatives(agent_asked_logprobs) {
            return;
        }
        let rules = if agent_asked_logprobs { &[rule][..] } else { &[] };
        self.set("top_logprobs", options.top_logprobs.to_string(), rules);
    }

    /// Asks for no alternatives where the agent wants some without logprobs.
    pub(super) fn drop_void_alternatives(&mut self, agent_asked_logprobs: bool) {
        let is_null = self.request.raw("top_logprobs") == Some(b"null");
        if !is_null && self.has_void_alternatives(agent_asked_logprobs) {
            self.set("top_logprobs", "0", &[]);
        }
    }

    /// Returns true if the request names alternatives that mean nothing, and beside our fields
    /// might mean something or be refused.
    fn has_void_alternatives(&self, agent_asked_logprobs: bool) -> bool {
        match self.request.raw("top_logprobs") {
            None | Some(b"0") => false,
            // vLLM before 0.31 takes a null for no logprobs at all.
            Some(b"null") => true,
            Some(_) => !agent_asked_logprobs && self.booleans != Booleans::Strict,
        }
    }

    /// Hides the frames of this kind.
    pub(super) fn hide_frames(&mut self, frames: FrameKind) {
        self.hide.add_frames(frames);
    }
}
