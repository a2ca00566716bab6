//! The plan of a call: how its request is rewritten, and what the upstream is asked beside it.

use std::sync::Arc;

use bytes::Bytes;
use episode::{AttemptId, Route, Tag};
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use wire::{
    AskOptions, AskedPrompt, AugmentedRequest, Collector, Dialect, ForcedSampling, KnownPrompts,
    PromptField, PromptLookup, RefusedFields, ReplyFilter, ReplyTranslator, Request,
    Untranslatable,
};

use crate::config::{Config, TranslateMode};
use crate::error::CallError;
use crate::record::end_lookups::EndLookups;
use crate::upstream::lookups::Lookups;
use crate::upstream::prompts::PromptFetcher;
use crate::upstream::rewrite::{ContentTransform, Rewrite};
use crate::upstream::sampling::CallSampling;

/// The chat route of any upstream.
const CHAT_PATH: &str = "/v1/chat/completions";

/// The reason for which a call is not asked for tokens: it was refused, or one of its class was.
const REFUSED: &str = "the upstream refused the call when it was asked for tokens";

/// A call whose request to the upstream is to be planned.
#[derive(Clone, Copy)]
pub(crate) struct PlanInput<'a> {
    pub(crate) route: Route,
    pub(crate) path: &'a str,
    /// The agent's request, if its body is a JSON object.
    pub(crate) request: Option<&'a Request>,
    /// The request with the conversation that it continues, if rolltape stores that one.
    pub(crate) history: Option<&'a Request>,
    pub(crate) force: &'a ForcedSampling,
    /// The calls that may share prefixes with this one; all if absent.
    pub(crate) cache_scope: Option<&'a HeaderValue>,
}

/// A plan, and the lookups of what the reply will not contain.
pub(crate) struct PlannedCall<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) lookups: EndLookups,
}

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
    /// The prompts of the attempt whose experts are recorded, if experts are.
    known_prompts: Option<&'a KnownPrompts>,
    /// The prompt as ids, if the upstream does not encode the messages.
    prompt: Option<Arc<PromptField>>,
}

/// Plans the request to an upstream that speaks `dialect`, and starts the lookups of the call.
pub(crate) async fn plan<'a>(
    config: &Config,
    lookups: &Arc<Lookups>,
    dialect: Dialect,
    input: PlanInput<'a>,
    headers: &HeaderMap,
) -> PlannedCall<'a> {
    let route = wire::route_for(dialect, input.route, input.path);
    let generated = input.request.filter(|_| route.generates());
    let sampling = generated.map(|request| {
        let effective = CallSampling::requested(dialect, route, request, input.force);
        CallSampling::start(lookups, dialect, route, effective, headers)
            .with_kind_named(config.logprob_kind.is_some())
    });

    let is_unknown = route == Route::Other && wire::depends_on_body(input.path);
    let first_plan = Plan::new(config, dialect, input.force, route, input.request)
        .with_history(input.history)
        .of_unknown_kind(is_unknown)
        .within(input.cache_scope.cloned());
    let plan = first_plan.for_known_model(lookups, headers).await;

    let prompts = plan.prompts().map(|prompts| PromptFetcher::start(lookups, prompts, headers));
    let lookups = EndLookups::new(move |mut end, owed| async move {
        if let Some(prompts) = prompts {
            prompts.fill(&mut end, &owed).await;
        }
        if let Some(sampling) = sampling {
            sampling.fill(&mut end, &owed).await;
        }
        end
    });
    PlannedCall { plan, lookups }
}

/// The calls with which one may share prefixes: those of its group, else of its episode; or all.
/// Behind them stands the attempt, whose prefixes go first once it is closed.
pub(crate) fn cache_scope(config: &Config, tag: &Tag) -> Option<HeaderValue> {
    let scope = match &tag.group {
        _ if config.share_prefixes => String::new(),
        Some(group) => format!("group:{group}"),
        None => format!("episode:{}", tag.episode),
    };
    let attempt = AttemptId::from(tag);
    HeaderValue::from_str(&format!("{scope}; attempt={attempt}")).ok()
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
            experts_from: 0,
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
            known_prompts: None,
            prompt: None,
        }
    }

    /// Lets rolltape's own engine share prefixes within `scope` only.
    fn within(self, scope: Option<HeaderValue>) -> Self {
        let has_scopes = self.wants.dialect == Dialect::Rolltape;
        Self { cache_scope: scope.filter(|_| has_scopes), ..self }
    }

    /// Sets the prompts whose experts are recorded.
    pub(crate) fn after(self, known_prompts: Option<&'a KnownPrompts>) -> Self {
        Self { known_prompts, ..self }
    }

    /// Sets the prompt as ids.
    pub(crate) fn with_prompt(self, prompt: Option<Arc<PromptField>>) -> Self {
        Self { prompt, ..self }
    }

    /// True if the prompt may be sent as ids. rolltape's own engine does by itself what that is
    /// for.
    pub(crate) fn may_continue(&self, is_announced: bool) -> bool {
        let is_chat = self.is_translated || self.route == Route::Chat;
        // Our own engine does so by itself, for what it sampled itself.
        let is_needed = is_announced || self.wants.dialect != Dialect::Rolltape;
        self.request.is_some() && is_chat && self.asks && is_needed
    }

    /// The chat request that is sent, without what it is asked for; `None` if none is.
    pub(crate) fn chat(&self) -> Option<Request> {
        let request = self.request?;
        let sent = match self.route {
            _ if self.is_translated => Request::read(&self.translate(request).ok()?.0)?,
            Route::Chat => request.clone(),
            _ => return None,
        };
        Some(self.forced(&sent).unwrap_or(sent))
    }

    /// Sets the request with the conversation that it continues.
    fn with_history(self, history: Option<&'a Request>) -> Self {
        Self { history, ..self }
    }

    /// Sets whether the call may sample without telling how.
    fn of_unknown_kind(self, is_of_unknown_kind: bool) -> Self {
        Self { is_of_unknown_kind, ..self }
    }

    /// Asks the upstream for no token data.
    pub(crate) fn without_asking(self) -> Self {
        Self { asks: false, ..self }
    }

    /// Drops the translation if the upstream does not have the model: its own route refuses such a
    /// model, and its chat route would accept it.
    async fn for_known_model(self, lookups: &Lookups, agent: &HeaderMap) -> Self {
        match self.unchecked_model() {
            Some(name) if !lookups.has_model(&name, agent).await => {
                Self { is_translated: false, ..self }
            }
            _ => self,
        }
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
        if self.is_in_background() {
            return Some(CallError::InBackground);
        }
        // A server may read what rolltape cannot.
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

    /// True if the reply is fetched later, by a call that is not this one. What it samples then is
    /// not recorded, not in any budget, and goes on after the attempt was closed.
    fn is_in_background(&self) -> bool {
        let asks = self.request.is_some_and(Request::asks_for_later);
        asks && self.route == Route::Responses && !self.allow_unrecorded
    }

    /// The model of a translated call, if the server checks it on the agent's route and not on its
    /// chat route.
    fn unchecked_model(&self) -> Option<String> {
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
            has_prompt: false,
            unasked,
            asked_prompt: None,
            forced: None,
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
        let (asked, asked_prompt) =
            self.ask(wants, self.route, forced.as_ref().unwrap_or(request), |name| {
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
            has_prompt: asked.has_prompt,
            refused: wants.refused,
            asked_prompt,
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
        let (asked, asked_prompt) = self.ask(wants, Route::Chat, &request, |_| false);
        Rewrite {
            body: Some(asked.body),
            headers: asked.headers,
            asks: asked.unasked.is_none(),
            added: asked.added,
            has_prompt: asked.has_prompt,
            asked_prompt,
            unasked: asked.unasked.map(str::to_owned).or_else(|| refused_fields(wants.refused)),
            ..rewrite
        }
    }

    /// Asks for token data, and for experts that are not recorded yet.
    fn ask(
        &self,
        wants: &AskOptions,
        route: Route,
        request: &Request,
        has_header: impl Fn(&str) -> bool,
    ) -> (AugmentedRequest, Option<AskedPrompt>) {
        let prompt = self.known_prompts.and_then(|known| known.find(route, request));
        let experts_from = prompt.as_ref().map_or(0, AskedPrompt::start);
        let wants = AskOptions { experts_from, ..*wants };
        let asked = wire::ask(&wants, route, request, self.prompt.as_deref(), has_header);
        let prompt = prompt.map(|prompt| match asked.starts_experts {
            true => prompt,
            false => prompt.whole(),
        });
        (asked, prompt)
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
