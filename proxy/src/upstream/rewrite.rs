//! The request that goes to the upstream in place of the agent's.

use bytes::Bytes;
use episode::Route;
use http::headers;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use wire::{
    AskOptions, Collector, Dialect, ForcedSampling, PromptLookup, RefusedFields, ReplyFilter,
    ReplyTranslator, Request, Untranslatable,
};

use crate::config::{Config, TranslateMode};
use crate::error::CallError;

/// The chat route of any upstream.
const CHAT_PATH: &str = "/v1/chat/completions";

/// The reason for which a call is not asked for tokens after a 400 to it or to one of its class.
const REFUSED: &str = "the upstream answered 400 when it was asked for tokens";

/// The header by which rolltape's own engine learns who may share prefixes.
pub(crate) const CACHE_SCOPE: &str = "x-rolltape-cache-scope";

/// Headers of Anthropic's wire only.
const MESSAGES_HEADERS: [&str; 3] = ["anthropic-version", "anthropic-beta", "x-api-key"];

/// The facts that decide how a request is rewritten. A value: it does no I/O.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    wants: AskOptions,
    is_translated: bool,
    force: &'a ForcedSampling,
    route: Route,
    /// The agent's request, if its body is a JSON object and the route generates.
    request: Option<&'a Request>,
    /// The agent's request on any route, if its body is a JSON object.
    any_request: Option<&'a Request>,
    /// True if the request may name its place in the upstream's queue.
    keeps_priority: bool,
    /// The request with the conversation that it continues, if rolltape stores that one.
    history: Option<&'a Request>,
    asks: bool,
    allow_unrecorded: bool,
    /// True if the call may sample, and its body does not tell how.
    is_of_unknown_kind: bool,
    /// The scope within which rolltape's own engine shares prefixes.
    cache_scope: Option<HeaderValue>,
}

/// A request for the upstream, and the transform of its reply.
#[derive(Debug)]
pub(crate) struct Rewrite {
    /// The path, if it is not the agent's.
    pub(crate) path: Option<&'static str>,
    /// The body; `None` for the agent's own bytes.
    pub(crate) body: Option<Bytes>,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    pub(crate) transform: ContentTransform,
    /// The route that is called upstream.
    pub(crate) route: Route,
    /// True if the request asks for token data that the agent did not request.
    pub(crate) asks: bool,
    /// The fields that request it.
    pub(crate) added: Vec<&'static str>,
    /// The fields that are left out because the upstream refused them.
    pub(crate) refused: RefusedFields,
    /// The reason for which the upstream is not asked for all token data.
    pub(crate) unasked: Option<String>,
    /// The agent's request with what the user sets in it, if that is what is sent.
    pub(crate) forced: Option<Request>,
    /// True if the headers may name a place in the upstream's queue.
    keeps_priority: bool,
    /// The scope within which the upstream may share prefixes.
    pub(crate) cache_scope: Option<HeaderValue>,
}

/// The transform of a reply's JSON on its way to the agent.
#[derive(Debug)]
pub(crate) enum ContentTransform {
    /// Removes fields that the agent did not request.
    Native(ReplyFilter),
    /// Translates a chat reply to the agent's wire.
    Translated(Box<ReplyTranslator>),
}

impl<'a> Plan<'a> {
    /// The plan for a request to `route` of an upstream that speaks `dialect`.
    pub(crate) fn new(
        config: &Config,
        dialect: Dialect,
        force: &'a ForcedSampling,
        route: Route,
        request: Option<&'a Request>,
    ) -> Self {
        let wants = AskOptions {
            dialect,
            hosted_logprobs: config.vocabulary.is_some(),
            top_logprobs: config.extras.top_logprobs,
            routed_experts: config.extras.routed_experts,
            sampling_mask: config.extras.sampling_mask,
            refused: RefusedFields::default(),
        };
        let is_translated = match config.translate {
            TranslateMode::Auto => wire::is_translated(dialect, route),
            TranslateMode::Never => false,
            TranslateMode::Always => matches!(route, Route::Messages | Route::Responses),
        };

        Self {
            wants,
            is_translated,
            force,
            route,
            // Of the body of any other route only the place in the queue is read.
            request: request.filter(|_| route.generates()),
            any_request: request,
            keeps_priority: config.allow_priority,
            history: None,
            asks: true,
            allow_unrecorded: config.allow_unrecorded_sampling,
            is_of_unknown_kind: false,
            cache_scope: None,
        }
    }

    /// Lets rolltape's own engine share prefixes within `scope` only.
    pub(crate) fn within(self, scope: Option<HeaderValue>) -> Self {
        let has_scopes = self.wants.dialect == Dialect::Rolltape;
        Self { cache_scope: scope.filter(|_| has_scopes), ..self }
    }

    /// Sets the request with the conversation that it continues.
    pub(crate) fn with_history(self, history: Option<&'a Request>) -> Self {
        Self { history, ..self }
    }

    /// Sets whether the call may sample without telling how.
    pub(crate) fn of_unknown_kind(self, is_of_unknown_kind: bool) -> Self {
        Self { is_of_unknown_kind, ..self }
    }

    /// Asks the upstream for no token data.
    pub(crate) fn without_asking(self) -> Self {
        Self { asks: false, ..self }
    }

    /// Sends the request on the agent's own route.
    pub(crate) fn without_translation(self) -> Self {
        Self { is_translated: false, ..self }
    }

    /// The reader of the reply to `rewrite`.
    pub(crate) fn collector(&self, rewrite: &Rewrite, config: &Config) -> Collector {
        let request = rewrite.forced.as_ref().or(self.request);
        let collector = Collector::new(rewrite.route, request, config.vocabulary.clone());
        match self.wants.top_logprobs {
            0 => collector,
            _ => collector.keep_alternatives(),
        }
    }

    /// The prompts to look up during the call, if its reply will not contain their ids.
    pub(crate) fn prompts(&self) -> Option<PromptLookup> {
        let is_needed = PromptLookup::applies_to(self.wants.dialect, self.route);
        let request = self.request.filter(|_| is_needed)?;
        if !self.is_translated {
            return PromptLookup::for_request(self.route, request);
        }
        let (chat, _) = self.translate(request).ok()?;
        PromptLookup::for_request(Route::Chat, &Request::read(&chat)?)
    }

    /// The error for a request that can neither be translated nor be sent as it is.
    pub(crate) fn refusal(&self) -> Option<CallError> {
        if self.is_unrecordable() {
            return Some(CallError::Unrecordable);
        }
        // A server may read what rolltape cannot, such as another encoding of text.
        if self.route.generates() && self.request.is_none() && !self.force.is_empty() {
            return Some(CallError::NotForced);
        }
        let request = self.request.filter(|_| self.is_translated)?;
        if let Some(body) = wire::server_state_error(self.route, request) {
            return Some(CallError::NeedsServerState(body));
        }
        wire::missing_limit_error(self.wants.dialect, self.route, request)
            .map(CallError::NeedsLimit)
    }

    /// True if the call may sample on a route that its body does not tell, or goes to a native
    /// generating route whose tokens cannot be recorded, or whose sampling parameters cannot be
    /// forced: SGLang has them in another place there.
    fn is_unrecordable(&self) -> bool {
        let dialect = self.wants.dialect;
        let nests_parameters = matches!(dialect, Dialect::Sglang | Dialect::Rolltape);
        let is_recordable =
            wire::reports_natively(dialect) && (self.force.is_empty() || !nests_parameters);
        let is_lost = self.route == Route::Generate && !is_recordable || self.is_of_unknown_kind;
        is_lost && !self.allow_unrecorded
    }

    /// The model of a translated call, if the server checks it on the agent's route and not on its
    /// chat route.
    pub(crate) fn unchecked_model(&self) -> Option<String> {
        let is_checked = self.wants.dialect == Dialect::Sglang && self.route == Route::Responses;
        self.request.filter(|_| self.is_translated && is_checked).and_then(Request::model)
    }

    /// The request to send. It asks for token data as far as that can be hidden from the agent,
    /// without the fields that the upstream `refused`.
    pub(crate) fn rewrite(&self, refused: RefusedFields, headers: &HeaderMap) -> Rewrite {
        let Some(request) = self.request else {
            let is_unread = self.route.generates();
            let unread = is_unread.then(|| "the body is not a JSON object".to_owned());
            let sent = self.any_request.and_then(|request| self.without_priority(request));
            let body = sent.map(|request| request.body().clone());
            return Rewrite { body, ..self.unchanged(unread) };
        };
        let wants =
            (self.asks && !refused.is_all()).then_some(AskOptions { refused, ..self.wants });
        if !self.is_translated {
            return self.native(wants.as_ref(), request, headers);
        }
        match self.translate(request) {
            Ok((chat, back)) => self.translated(wants.as_ref(), chat, back),
            Err(why) => Rewrite {
                unasked: Some(format!("not translated to chat: {why}")),
                ..self.native(wants.as_ref(), request, headers)
            },
        }
    }

    fn translate(&self, request: &Request) -> Result<(Bytes, ReplyTranslator), Untranslatable> {
        let whole = self.history.unwrap_or(request);
        let (chat, mut back) = wire::translate(self.wants.dialect, self.route, whole)?;
        if let Some(id) = wire::previous_response(self.route, request.body()) {
            back = back.continuing(&id);
        }
        Ok((chat, back))
    }

    /// A request of which only the beginning is in memory.
    pub(crate) fn too_long(&self) -> Rewrite {
        self.unchanged(Some("the request is too long to be held".to_owned()))
    }

    fn unchanged(&self, unasked: Option<String>) -> Rewrite {
        Rewrite {
            path: None,
            body: None,
            headers: Vec::new(),
            transform: ContentTransform::Native(ReplyFilter::default()),
            route: self.route,
            asks: false,
            added: Vec::new(),
            refused: RefusedFields::ALL,
            unasked,
            forced: None,
            keeps_priority: self.keeps_priority,
            cache_scope: self.cache_scope.clone(),
        }
    }

    /// The request on the agent's own route.
    fn native(
        &self,
        wants: Option<&AskOptions>,
        request: &Request,
        headers: &HeaderMap,
    ) -> Rewrite {
        let forced = self.forced(request);
        let body = forced.as_ref().map(|forced| forced.body().clone());
        let Some(wants) = wants else {
            return Rewrite { body, forced, ..self.unchanged(Some(self.not_asked())) };
        };

        // SGLang treats its own headers as set if their value is 1.
        let asked = wire::ask(wants, self.route, forced.as_ref().unwrap_or(request), |name| {
            headers.get_all(name).iter().any(|value| value == "1")
        });
        let asks = asked.unasked.is_none();
        let unasked = asked.unasked.map(str::to_owned).or_else(|| refused_fields(wants.refused));
        Rewrite {
            body: if asks { Some(asked.body) } else { body },
            headers: asked.headers,
            transform: ContentTransform::Native(asked.hide),
            asks,
            added: asked.added,
            refused: wants.refused,
            forced,
            ..self.unchanged(unasked)
        }
    }

    /// The request on the chat route. Nothing needs to be hidden: the reply is written anew.
    fn translated(
        &self,
        wants: Option<&AskOptions>,
        chat: Bytes,
        back: ReplyTranslator,
    ) -> Rewrite {
        let forced = Request::read(&chat).and_then(|request| self.forced(&request));
        let body = forced.map_or(chat, |request| request.body().clone());
        let rewrite = Rewrite {
            path: Some(CHAT_PATH),
            transform: ContentTransform::Translated(Box::new(back)),
            route: Route::Chat,
            refused: wants.map_or(RefusedFields::ALL, |wants| wants.refused),
            ..self.unchanged(Some(self.not_asked()))
        };

        let Some((request, wants)) = Request::read(&body).zip(wants) else {
            return Rewrite { body: Some(body), ..rewrite };
        };
        let asked = wire::ask(wants, Route::Chat, &request, |_| false);
        Rewrite {
            body: Some(asked.body),
            headers: asked.headers,
            asks: asked.unasked.is_none(),
            added: asked.added,
            unasked: asked.unasked.map(str::to_owned).or_else(|| refused_fields(wants.refused)),
            ..rewrite
        }
    }

    /// The reason for which nothing is asked for.
    fn not_asked(&self) -> String {
        if self.asks { REFUSED } else { "nothing was to be asked for" }.to_owned()
    }

    /// The request with forced sampling parameters and without a place in the queue; `None` if that
    /// changes nothing.
    fn forced(&self, request: &Request) -> Option<Request> {
        let unplaced = self.without_priority(request);
        if self.force.is_empty() {
            return unplaced;
        }
        let request = unplaced.as_ref().unwrap_or(request);
        Request::read(&self.force.apply(self.wants.dialect, request))
    }

    /// The request without the fields by which it chooses its place in the upstream's queue; `None`
    /// if it has none, or may keep them.
    fn without_priority(&self, request: &Request) -> Option<Request> {
        if self.keeps_priority { None } else { wire::without_scheduling(request) }
    }
}

/// The reason for which not all fields are asked for.
fn refused_fields(refused: RefusedFields) -> Option<String> {
    let names: Vec<String> = refused.names().map(|name| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| format!("the upstream refuses {}", names.join(", ")))
}

/// Sets the headers of a rewritten request, after [`headers::prepare_request`].
pub(crate) fn set_headers(
    rewrite: &Rewrite,
    upstream_key: Option<&HeaderValue>,
    headers: &mut HeaderMap,
) {
    if rewrite.body.is_some() {
        headers::remove(headers, &[header::CONTENT_ENCODING]);
    }
    if rewrite.path.is_some() {
        // The chat route takes the key of the Messages route as a bearer token.
        if let Some(Ok(bearer)) = headers.get("x-api-key").map(bearer)
            && !headers.contains_key(header::AUTHORIZATION)
        {
            headers.insert(header::AUTHORIZATION, bearer);
        }
        headers::remove(headers, &MESSAGES_HEADERS);
    }
    remove_reserved(rewrite.keeps_priority, headers);
    set_credentials(upstream_key, headers);
    if let Some(scope) = &rewrite.cache_scope {
        headers.insert(CACHE_SCOPE, scope.clone());
    }
    for (name, value) in &rewrite.headers {
        headers.insert(*name, HeaderValue::from_static(value));
    }
}

/// Removes the headers that are not for agents to set: the scope of a cache, and unless
/// `keeps_priority` a place in the upstream's queue.
fn remove_reserved(keeps_priority: bool, headers: &mut HeaderMap) {
    if !keeps_priority {
        headers::remove(headers, &wire::SCHEDULING_HEADERS);
    }
    headers::remove(headers, &[CACHE_SCOPE]);
}

/// Replaces the agent's key by the upstream's own, if there is one.
pub(crate) fn set_credentials(upstream_key: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let Some(key) = upstream_key else { return };
    if headers.contains_key("x-api-key") && !headers.contains_key(header::AUTHORIZATION) {
        headers.insert(HeaderName::from_static("x-api-key"), key.clone());
    } else if let Ok(bearer) = bearer(key) {
        headers::remove(headers, &["x-api-key"]);
        headers.insert(header::AUTHORIZATION, bearer);
    }
}

/// The value of `authorization` for a key.
pub(crate) fn bearer(key: &HeaderValue) -> Result<HeaderValue, header::InvalidHeaderValue> {
    let mut bearer = HeaderValue::from_bytes(&[b"Bearer ", key.as_bytes()].concat())?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upstreams_own_key_takes_the_place_of_the_agents() {
        let plain = Plan::new(
            &Config::new("http://h".parse().unwrap()),
            Dialect::OpenAi,
            &ForcedSampling::default(),
            Route::Other,
            None,
        )
        .rewrite(RefusedFields::default(), &HeaderMap::new());
        let chat = || Rewrite { path: Some(CHAT_PATH), ..plain_copy(&plain) };
        let with = |rewrite: &Rewrite, pair: (&'static str, &'static str), key: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(pair.0, HeaderValue::from_static(pair.1));
            let key = key.map(|key| HeaderValue::from_str(key).unwrap());
            set_headers(rewrite, key.as_ref(), &mut headers);
            let mut all: Vec<_> = headers
                .iter()
                .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
                .collect();
            all.sort();
            all.join(", ")
        };
        let agents = ("authorization", "Bearer a");
        assert_eq!(with(&plain, agents, None), "authorization: Bearer a");
        assert_eq!(with(&plain, agents, Some("u")), "authorization: Bearer u");
        assert_eq!(with(&plain, ("x-api-key", "a"), Some("u")), "x-api-key: u");
        assert_eq!(with(&chat(), ("x-api-key", "a"), None), "authorization: Bearer a");
        assert_eq!(with(&chat(), ("x-api-key", "a"), Some("u")), "authorization: Bearer u");
    }

    fn plain_copy(rewrite: &Rewrite) -> Rewrite {
        Rewrite {
            path: None,
            body: None,
            headers: Vec::new(),
            transform: ContentTransform::Native(ReplyFilter::default()),
            route: rewrite.route,
            asks: false,
            added: Vec::new(),
            refused: RefusedFields::ALL,
            unasked: None,
            forced: None,
            keeps_priority: rewrite.keeps_priority,
            cache_scope: None,
        }
    }
}
