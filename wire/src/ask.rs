//! Asking an upstream for ids and logprobs on the agent's behalf.
//!
//! Each server has its own words for it, its own places for the answers, and its own traps. Only
//! what can be hidden again exactly is asked for: see [`Hide`].

mod llamacpp;
mod openai;
mod refused;
mod sglang;
mod vllm;

use std::borrow::Cow;

use bytes::Bytes;
use episode::Route;

use crate::dialect::Dialect;
use crate::hide::{Drop, Hide, Rule};
use crate::request::Request;
pub use refused::{REFUSAL_BYTES_MAX, Refused};

/// What is wanted of an upstream for every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// How the upstream speaks.
    pub dialect: Dialect,
    /// Whether a hosted server is to be asked for logprobs: it can change billing and routing.
    pub hosted_logprobs: bool,
    /// How many alternatives to record beside each token.
    pub top_logprobs: u32,
    /// Whether to record which experts each token was routed to.
    pub routed_experts: bool,
    /// Whether to record which tokens truncated sampling left to choose from.
    pub sampling_mask: bool,
    /// What it would not be asked with.
    pub refused: Refused,
}

impl Wants {
    /// Ids, logprobs and versions from `dialect`, and nothing beside them.
    pub fn of(dialect: Dialect) -> Self {
        Self {
            dialect,
            hosted_logprobs: false,
            top_logprobs: 0,
            routed_experts: false,
            sampling_mask: false,
            refused: Refused::default(),
        }
    }
}

/// A request as it goes to the upstream, and what to hide of the reply.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The body to send.
    pub body: Bytes,
    /// Headers to send.
    pub headers: Vec<(&'static str, &'static str)>,
    /// What to take out of the reply.
    pub hide: Hide,
    /// The fields that were added.
    pub added: Vec<&'static str>,
    /// Why less was asked for than is needed to know the tokens.
    pub unasked: Option<&'static str>,
}

/// Adds to `request` what the upstream must be asked for to report what it sampled. `has_header`
/// tells which headers the agent itself sent.
pub fn ask(
    wants: &Wants,
    route: Route,
    request: &Request,
    has_header: impl Fn(&str) -> bool,
) -> Asked {
    let mut draft = Draft::new(request);
    draft.refused = wants.refused;
    let asked = match wants.dialect {
        _ if !route.generates() => Err(Unasked("the route samples nothing")),
        // Its other routes are chat in other words, and have no places for ids.
        Dialect::Rolltape if matches!(route, Route::Responses | Route::Messages) => {
            Err(Unasked("the engine tells ids on its chat route only"))
        }
        // Ids it tells there anyway, and its prompts are ids.
        Dialect::Rolltape if route == Route::Generate => Err(Unasked("the route tells its ids")),
        Dialect::Vllm | Dialect::Rolltape => vllm::ask(&mut draft, wants, route),
        Dialect::Sglang => sglang::ask(&mut draft, wants, route, &has_header),
        Dialect::Llamacpp => llamacpp::ask(&mut draft, route),
        Dialect::OpenAi => openai::ask(&mut draft, wants, route),
    };
    match asked {
        Ok(()) => draft.done(),
        Err(Unasked(why)) => Asked { unasked: Some(why), ..Draft::new(request).done() },
    }
}

/// Why a request goes on as the agent sent it.
struct Unasked(&'static str);

/// The agent sent what the upstream will refuse; with our fields it might not.
const FOR_THE_UPSTREAM: Unasked = Unasked("the request is for the upstream to refuse");

/// A request that grows.
struct Draft<'a> {
    request: &'a Request,
    fields: Vec<(&'static str, Cow<'static, str>)>,
    appended: Vec<(&'static str, &'static str)>,
    headers: Vec<(&'static str, &'static str)>,
    hide: Hide,
    refused: Refused,
}

impl<'a> Draft<'a> {
    fn new(request: &'a Request) -> Self {
        Self {
            request,
            fields: Vec::new(),
            appended: Vec::new(),
            headers: Vec::new(),
            hide: Hide::default(),
            refused: Refused::default(),
        }
    }

    fn done(self) -> Asked {
        let set = self.fields.iter().map(|(key, _)| *key);
        Asked {
            added: set.chain(self.appended.iter().map(|(key, _)| *key)).collect(),
            body: self.request.edited(&self.fields, &self.appended),
            headers: self.headers,
            hide: self.hide,
            unasked: None,
        }
    }

    /// Whether the agent itself asked for `key`, a boolean.
    fn asked(&self, key: &str) -> Result<bool, Unasked> {
        match self.request.raw(key) {
            None | Some(b"null" | b"false") => Ok(false),
            Some(b"true") => Ok(true),
            Some(_) => Err(FOR_THE_UPSTREAM),
        }
    }

    /// Whether the agent itself asked for `key`, a number that means something even when 0.
    fn asked_number(&self, key: &str) -> Result<bool, Unasked> {
        match self.request.raw(key) {
            None | Some(b"null") => Ok(false),
            Some([b'0'..=b'9' | b'-', ..]) => Ok(true),
            Some(_) => Err(FOR_THE_UPSTREAM),
        }
    }

    /// Whether `key` is set to something other than nothing.
    fn is_set(&self, key: &str) -> bool {
        !matches!(self.request.raw(key), None | Some(b"null" | b"0" | b"false"))
    }

    /// Asks for `key` and hides the answer by `rules`, unless the agent asked itself. Gives
    /// whether the agent did.
    fn flag(&mut self, key: &'static str, rules: &[Rule]) -> Result<bool, Unasked> {
        let asked = self.asked(key)?;
        if !asked {
            self.set(key, "true", rules);
        }
        Ok(asked)
    }

    /// Sets `key` and hides the answer by `rules`, unless the server refuses it.
    fn set(&mut self, key: &'static str, value: impl Into<Cow<'static, str>>, rules: &[Rule]) {
        if self.refused.holds(key) {
            return;
        }
        self.fields.push((key, value.into()));
        self.hide.rules(rules);
    }

    fn drop(&mut self, frames: Drop) {
        self.hide.drop(frames);
    }
}
