//! A request that grows by fields and headers, with the rules that hide their answers.

use std::borrow::Cow;

use super::continuation::{SGLANG_PROMPT, VLLM_PROMPT};
use super::{AskOptions, AugmentedRequest, RefusedFields};
use crate::hide::{FrameKind, ReplyFilter, Rule};
use crate::request::Request;

/// The reason why a request goes on as the agent sent it.
pub(super) struct NotAsked(pub(super) &'static str);

/// The upstream will refuse what the agent sent. With our fields in it, it might not.
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
}

impl<'a> RequestBuilder<'a> {
    /// A builder that adds none of the `refused` fields.
    pub(super) fn new(request: &'a Request, refused: RefusedFields) -> Self {
        Self {
            request,
            fields: Vec::new(),
            appended: Vec::new(),
            headers: Vec::new(),
            hide: ReplyFilter::default(),
            refused,
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

    /// Returns true if the agent itself set the boolean `key`.
    pub(super) fn asked(&self, key: &str) -> Result<bool, NotAsked> {
        match self.request.raw(key) {
            None | Some(b"null" | b"false") => Ok(false),
            Some(b"true") => Ok(true),
            Some(_) => Err(INVALID_REQUEST),
        }
    }

    /// Returns true if the agent itself set `key`, a number that means something even when 0.
    pub(super) fn asked_number(&self, key: &str) -> Result<bool, NotAsked> {
        match self.request.raw(key) {
            None | Some(b"null") => Ok(false),
            Some([b'0'..=b'9' | b'-', ..]) => Ok(true),
            Some(_) => Err(INVALID_REQUEST),
        }
    }

    /// Returns true if `key` has a value other than null, 0 and false.
    pub(super) fn is_set(&self, key: &str) -> bool {
        !matches!(self.request.raw(key), None | Some(b"null" | b"0" | b"false"))
    }

    /// Sets `key` to true and hides the answer by `rules`, unless the agent set it itself. Returns
    /// true if the agent did.
    pub(super) fn flag(&mut self, key: &'static str, rules: &[Rule]) -> Result<bool, NotAsked> {
        let is_asked = self.asked(key)?;
        if !is_asked {
            self.set(key, "true", rules);
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

    /// Asks for the alternatives that `options` want and the agent did not ask for. Where the
    /// agent asked for logprobs without alternatives, `rule` empties them.
    pub(super) fn set_top_logprobs(
        &mut self,
        options: &AskOptions,
        agent_asked_logprobs: bool,
        rule: Rule,
    ) {
        // vLLM before 0.31 takes a null for no logprobs at all.
        let is_null = self.request.raw("top_logprobs") == Some(b"null");
        if self.is_set("top_logprobs") || (options.top_logprobs == 0 && !is_null) {
            return;
        }
        let rules = if agent_asked_logprobs { &[rule][..] } else { &[] };
        self.set("top_logprobs", options.top_logprobs.to_string(), rules);
    }

    /// Hides the frames of this kind.
    pub(super) fn hide_frames(&mut self, frames: FrameKind) {
        self.hide.add_frames(frames);
    }
}
