//! What goes to the upstream in place of what the agent sent.

use bytes::Bytes;
use episode::Route;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use wire::{
    Back, Collector, Dialect, Force, Hide, Prompts, Refused, Request, Untranslatable, Wants,
};

use crate::config::{Config, Translate};
use crate::fault::Fault;
use crate::headers;

/// The chat route of any upstream.
const CHAT_PATH: &str = "/v1/chat/completions";

/// Why a call goes on as it is after a 400, its own or one of an earlier call of its kind.
const REFUSED: &str = "the upstream answered 400 when it was asked for tokens";

/// Headers that mean something on Anthropic's wire only.
const OF_MESSAGES: [&str; 3] = ["anthropic-version", "anthropic-beta", "x-api-key"];

/// All that decides how a request goes on. A value: nothing happens here.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    wants: Wants,
    translates: bool,
    force: &'a Force,
    route: Route,
    sent: Option<&'a Request>,
    /// The request behind the conversation that it goes on from, where that is kept here.
    whole: Option<&'a Request>,
    asks: bool,
    /// Whether calls pass that sample where nothing tells the tokens.
    lets_pass: bool,
}

/// What to send, and what the reply goes through.
#[derive(Debug)]
pub(crate) struct Rewrite {
    /// Where to, if not where the agent called.
    pub(crate) path: Option<&'static str>,
    /// The body; none for the agent's own bytes.
    pub(crate) body: Option<Bytes>,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    pub(crate) manner: Manner,
    /// The route that is called upstream.
    pub(crate) route: Route,
    /// Whether the upstream is asked for anything on the agent's behalf.
    pub(crate) asks: bool,
    /// The fields that ask for it.
    pub(crate) added: Vec<&'static str>,
    /// The fields that are left out because the upstream refused them.
    pub(crate) refused: Refused,
    /// Why it is not, or not for all.
    pub(crate) unasked: Option<String>,
    /// The agent's request with its sampling as forced, where that is what is sent.
    pub(crate) forced: Option<Request>,
}

/// What the reply goes through on its way to the agent.
#[derive(Debug)]
pub(crate) enum Manner {
    Native(Hide),
    Translated(Box<Back>),
}

impl<'a> Plan<'a> {
    /// The plan for a request to `route` of an upstream that speaks `dialect`.
    pub(crate) fn new(
        config: &Config,
        dialect: Dialect,
        force: &'a Force,
        (route, sent): (Route, Option<&'a Request>),
    ) -> Self {
        let wants = Wants {
            dialect,
            hosted_logprobs: config.vocabulary.is_some(),
            top_logprobs: config.beside.top_logprobs,
            routed_experts: config.beside.routed_experts,
            sampling_mask: config.beside.sampling_mask,
            refused: Refused::default(),
        };
        let translates = match config.translate {
            Translate::Auto => wire::translates(dialect, route),
            Translate::Never => false,
            Translate::Always => matches!(route, Route::Messages | Route::Responses),
        };
        let sent = sent.filter(|_| route.generates());
        let lets_pass = config.allow_unrecorded_sampling;
        Self { wants, translates, force, route, sent, whole: None, asks: true, lets_pass }
    }

    /// The same for a request that goes on from a conversation which is kept here.
    pub(crate) fn behind(self, whole: Option<&'a Request>) -> Self {
        Self { whole, ..self }
    }

    /// The same, but for asking the upstream for anything.
    pub(crate) fn unasking(self) -> Self {
        Self { asks: false, ..self }
    }

    /// What reads the reply to what was sent.
    pub(crate) fn collector(&self, rewrite: &Rewrite, config: &Config) -> Collector {
        let sent = rewrite.forced.as_ref().or(self.sent);
        let collector = Collector::new(rewrite.route, sent, config.vocabulary.clone());
        match self.wants.top_logprobs {
            0 => collector,
            _ => collector.keep_alternatives(),
        }
    }

    /// What is to be asked of the upstream beside the call, so that its prompts are known.
    pub(crate) fn prompts(&self) -> Option<Prompts> {
        let is_asked = Prompts::are_asked_of(self.wants.dialect, self.route);
        let sent = self.sent.filter(|_| is_asked)?;
        if !self.translates {
            return Prompts::of(self.route, sent);
        }
        let (chat, _) = self.translate(sent).ok()?;
        Prompts::of(Route::Chat, &Request::read(&chat)?)
    }

    /// The answer to a request that cannot be translated and must not go on as it is.
    pub(crate) fn refusal(&self) -> Option<Fault> {
        if self.is_unheard() {
            return Some(Fault::Unheard);
        }
        let sent = self.sent.filter(|_| self.translates)?;
        let state = wire::leans_on_state(self.route, sent).map(Fault::LeansOnState);
        let limit = || wire::lacks_limit(self.wants.dialect, self.route, sent);
        state.or_else(|| limit().map(Fault::LacksLimit))
    }

    /// Whether the call goes to a route of another server's own, or would be sampled otherwise than
    /// is recorded: SGLang has its parameters elsewhere there.
    fn is_unheard(&self) -> bool {
        let nested = matches!(self.wants.dialect, Dialect::Sglang | Dialect::Rolltape);
        let is_told = wire::tells_natively(self.wants.dialect);
        let as_said = is_told && (self.force.is_empty() || !nested);
        self.route == Route::Generate && !as_said && !self.lets_pass
    }

    /// The model of a call that is translated, where the server's own route looks whether it has
    /// it and its chat route does not.
    pub(crate) fn doubted_model(&self) -> Option<String> {
        let looks = self.wants.dialect == Dialect::Sglang && self.route == Route::Responses;
        self.sent.filter(|_| self.translates && looks).and_then(Request::model)
    }

    /// The same, but for translating.
    pub(crate) fn untranslated(self) -> Self {
        Self { translates: false, ..self }
    }

    /// What to send. The upstream is asked for tokens as far as that can be hidden, but for what it
    /// `refused`.
    pub(crate) fn rewrite(&self, refused: Refused, headers: &HeaderMap) -> Rewrite {
        let Some(sent) = self.sent else {
            let unread = self.route.generates().then(|| "the body is not a JSON object".to_owned());
            return self.as_sent(unread);
        };
        let asking = (self.asks && !refused.is_all()).then_some(Wants { refused, ..self.wants });
        if !self.translates {
            return self.native(asking.as_ref(), sent, headers);
        }
        match self.translate(sent) {
            Ok((chat, back)) => self.translated(asking.as_ref(), chat, back),
            Err(why) => Rewrite {
                unasked: Some(format!("not translated to chat: {why}")),
                ..self.native(asking.as_ref(), sent, headers)
            },
        }
    }

    fn translate(&self, sent: &Request) -> Result<(Bytes, Back), Untranslatable> {
        let (chat, back) =
            wire::translate(self.wants.dialect, self.route, self.whole.unwrap_or(sent))?;
        let before = wire::previous_response(self.route, sent.body());
        Ok((chat, before.iter().fold(back, |back, id| back.after(id))))
    }

    /// A request of which only the beginning is here.
    pub(crate) fn too_long(&self) -> Rewrite {
        self.as_sent(Some("the request is too long to be held".to_owned()))
    }

    fn as_sent(&self, unasked: Option<String>) -> Rewrite {
        Rewrite {
            path: None,
            body: None,
            headers: Vec::new(),
            manner: Manner::Native(Hide::default()),
            route: self.route,
            asks: false,
            added: Vec::new(),
            refused: Refused::ALL,
            unasked,
            forced: None,
        }
    }

    fn native(&self, asking: Option<&Wants>, sent: &Request, headers: &HeaderMap) -> Rewrite {
        let forced = self.forced(sent);
        let body = forced.as_ref().map(|request| request.body().clone());
        let Some(wants) = asking else {
            return Rewrite { body, forced, ..self.as_sent(Some(self.silence())) };
        };
        // SGLang reads its own as set where they are this.
        let has_header = |name: &str| headers.get_all(name).iter().any(|value| value == "1");
        let request = forced.as_ref().unwrap_or(sent);
        let asked = wire::ask(wants, self.route, request, has_header);
        let asks = asked.unasked.is_none();
        Rewrite {
            body: if asks { Some(asked.body) } else { body },
            headers: asked.headers,
            manner: Manner::Native(asked.hide),
            asks,
            added: asked.added,
            refused: wants.refused,
            forced,
            ..self.as_sent(asked.unasked.map(str::to_owned).or_else(|| given_up(wants.refused)))
        }
    }

    /// Nothing of what is asked for needs to be hidden: the reply is written anew.
    fn translated(&self, asking: Option<&Wants>, chat: Bytes, back: Back) -> Rewrite {
        let forced = Request::read(&chat).and_then(|request| self.forced(&request));
        let chat = forced.map_or(chat, |request| request.body().clone());
        let asked = Request::read(&chat)
            .zip(asking)
            .map(|(request, wants)| wire::ask(wants, Route::Chat, &request, |_| false));
        let asks = asked.as_ref().is_some_and(|asked| asked.unasked.is_none());
        let unasked = match (&asked, asking) {
            (Some(asked), Some(wants)) => {
                asked.unasked.map(str::to_owned).or_else(|| given_up(wants.refused))
            }
            _ => Some(self.silence()),
        };
        Rewrite {
            path: Some(CHAT_PATH),
            asks,
            added: asked.as_ref().map_or_else(Vec::new, |asked| asked.added.clone()),
            refused: asking.map_or(Refused::ALL, |wants| wants.refused),
            headers: asked.as_ref().map_or_else(Vec::new, |asked| asked.headers.clone()),
            body: Some(asked.map_or(chat, |asked| asked.body)),
            manner: Manner::Translated(Box::new(back)),
            route: Route::Chat,
            unasked,
            forced: None,
        }
    }

    /// Why nothing is asked for that could be.
    fn silence(&self) -> String {
        if self.asks { REFUSED } else { "nothing was to be asked for" }.to_owned()
    }

    /// The request with its sampling as forced; none where nothing is.
    fn forced(&self, request: &Request) -> Option<Request> {
        if self.force.is_empty() {
            return None;
        }
        Request::read(&self.force.apply(self.wants.dialect, request))
    }
}

/// Why an upstream is not asked for all.
fn given_up(refused: Refused) -> Option<String> {
    let names: Vec<String> = refused.names().map(|name| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| format!("the upstream refuses {}", names.join(", ")))
}

/// The headers of a request on its way, after [`headers::request_headers`].
pub(crate) fn headers_for(
    rewrite: &Rewrite,
    upstream_key: Option<&HeaderValue>,
    headers: &mut HeaderMap,
) {
    if rewrite.body.is_some() {
        headers::without(headers, &[header::CONTENT_ENCODING]);
    }
    if rewrite.path.is_some() {
        if let Some(Ok(bearer)) = headers.get("x-api-key").map(bearer)
            && !headers.contains_key(header::AUTHORIZATION)
        {
            headers.insert(header::AUTHORIZATION, bearer);
        }
        headers::without(headers, &OF_MESSAGES);
    }
    credentials(upstream_key, headers);
    for (name, value) in &rewrite.headers {
        headers.insert(*name, HeaderValue::from_static(value));
    }
}

/// Puts the upstream's own key, if there is one, in the place of the agent's.
pub(crate) fn credentials(upstream_key: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let Some(key) = upstream_key else { return };
    let own = headers.contains_key("x-api-key") && !headers.contains_key(header::AUTHORIZATION);
    let (name, value) = match own {
        true => (HeaderName::from_static("x-api-key"), Ok(key.clone())),
        false => (header::AUTHORIZATION, bearer(key)),
    };
    if let Ok(value) = value {
        if !own {
            headers::without(headers, &["x-api-key"]);
        }
        headers.insert(name, value);
    }
}

/// The credentials that `key` makes.
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
            &Force::default(),
            (Route::Other, None),
        )
        .rewrite(Refused::default(), &HeaderMap::new());
        let chat = || Rewrite { path: Some(CHAT_PATH), ..plain_copy(&plain) };
        let with = |rewrite: &Rewrite, pair: (&'static str, &'static str), key: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(pair.0, HeaderValue::from_static(pair.1));
            let key = key.map(|key| HeaderValue::from_str(key).unwrap());
            headers_for(rewrite, key.as_ref(), &mut headers);
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
            manner: Manner::Native(Hide::default()),
            route: rewrite.route,
            asks: false,
            added: Vec::new(),
            refused: Refused::ALL,
            unasked: None,
            forced: None,
        }
    }
}
