//! The request that goes to the upstream in place of the agent's, and its headers.

use bytes::Bytes;
use episode::Route;
use http::headers;
use hyper::HeaderMap;
use hyper::header::{self, HeaderValue};
use wire::{AskedPrompt, RefusedFields, ReplyFilter, ReplyTranslator, Request};

use crate::upstream::keys::make_bearer;

/// The header by which rolltape's own engine learns who may share prefixes.
pub(crate) const CACHE_SCOPE: &str = "x-rolltape-cache-scope";

/// Headers of Anthropic's wire only.
const MESSAGES_HEADERS: [&str; 3] = ["anthropic-version", "anthropic-beta", "x-api-key"];

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
    /// True if it has the prompt as ids.
    pub(crate) has_prompt: bool,
    /// The fields that are left out because the upstream refused them.
    pub(crate) refused: RefusedFields,
    /// The reason for which the upstream is not asked for all token data.
    pub(crate) unasked: Option<String>,
    /// The prompt, by which it is found which experts are recorded.
    pub(crate) asked_prompt: Option<AskedPrompt>,
    /// The agent's request with what the user sets in it, if that is what is sent.
    pub(crate) forced: Option<Request>,
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

/// Sets the headers of a rewritten request, after [`headers::prepare_request`]. The key is the
/// agent's still.
pub(crate) fn set_headers(rewrite: &Rewrite, headers: &mut HeaderMap) {
    if rewrite.body.is_some() {
        headers::remove(headers, &[header::CONTENT_ENCODING]);
    }
    if rewrite.path.is_some() {
        // The chat route takes the key of the Messages route as a bearer token.
        make_bearer(headers);
        headers::remove(headers, &MESSAGES_HEADERS);
    }
    if let Some(scope) = &rewrite.cache_scope {
        headers.insert(CACHE_SCOPE, scope.clone());
    }
    for (name, value) in &rewrite.headers {
        headers.insert(*name, HeaderValue::from_static(value));
    }
}

/// Removes the headers that are not for agents to set: the scope of a cache, and unless
/// `keeps_priority` a place in the upstream's queue, or a server behind it.
pub(crate) fn remove_reserved(keeps_priority: bool, headers: &mut HeaderMap) {
    if !keeps_priority {
        headers::remove_where(headers, |name| wire::is_scheduling_header(name.as_str()));
    }
    headers::remove(headers, &[CACHE_SCOPE]);
}

#[cfg(test)]
mod tests {
    use wire::{Dialect, ForcedSampling};

    use super::*;
    use crate::config::Config;
    use crate::upstream::plan::Plan;

    #[test]
    fn a_translated_call_has_its_key_as_a_bearer_token() {
        let plain = Plan::new(
            &Config::new("http://h".parse().unwrap()),
            Dialect::OpenAi,
            &ForcedSampling::default(),
            Route::Other,
            None,
        )
        .rewrite(RefusedFields::default(), &HeaderMap::new());
        let chat = Rewrite { path: Some("/v1/chat/completions"), ..plain_copy(&plain) };
        let with = |rewrite: &Rewrite, name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("anthropic-version", HeaderValue::from_static("v"));
            headers.insert(name, HeaderValue::from_static(value));
            set_headers(rewrite, &mut headers);
            let text = |(name, value): (_, &HeaderValue)| format!("{name}: {value:?}");
            headers
                .into_iter()
                .map(|(name, value)| text((name.unwrap(), &value)))
                .collect::<Vec<_>>()
        };
        assert_eq!(with(&plain, "x-api-key", "a").len(), 2);
        let translated = with(&chat, "authorization", "Bearer a");
        assert_eq!(translated, [r#"authorization: "Bearer a""#]);
        assert_eq!(with(&chat, "x-api-key", "a"), ["authorization: Sensitive"]);
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
            has_prompt: false,
            unasked: None,
            asked_prompt: None,
            forced: None,
            cache_scope: None,
        }
    }
}
