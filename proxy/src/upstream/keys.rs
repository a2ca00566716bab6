//! The upstream's own key, in the form in which the upstream takes it.
//!
//! Clients of Anthropic's API send a key as `x-api-key` and name a version; those of OpenAI's send
//! a bearer token. The upstream gets its key as the client of a call would send it, whatever key
//! the agent itself has. A 401 or a 403 may say that this was wrong: the call is sent again in the
//! other form, and the form that was accepted is remembered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use episode::Route;
use http::headers;
use hyper::header::{self, HeaderName, HeaderValue, InvalidHeaderValue};
use hyper::{HeaderMap, StatusCode};

use crate::bounds::REFUSED_CLASS_LIFE;
use crate::tag::credentials::KEY_HEADERS;

/// The header of Anthropic's clients for a key.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The header of Anthropic's clients for the version of the API.
pub(super) const VERSION: HeaderName = HeaderName::from_static("anthropic-version");
/// The version that is named for an agent that names none.
const DEFAULT_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// A header that holds a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// `authorization: Bearer KEY`
    Bearer,
    /// `x-api-key: KEY`
    ApiKey,
}

impl KeyForm {
    fn other(self) -> Self {
        match self {
            Self::Bearer => Self::ApiKey,
            Self::ApiKey => Self::Bearer,
        }
    }
}

/// Calls for which an upstream takes its key in one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeyUse {
    pub(super) route: Route,
    /// True if the client is one of Anthropic's API.
    pub(super) is_anthropic: bool,
}

/// The upstream's own key, and what is known of its form.
#[derive(Debug)]
pub(crate) struct OwnKey {
    key: HeaderValue,
    known: Mutex<HashMap<KeyUse, KnownForm>>,
}

/// The answers that earlier calls got to a key.
#[derive(Debug, Clone, Copy)]
struct KnownForm {
    form: KeyForm,
    /// The time at which both forms were refused.
    refused_at: Option<Instant>,
}

impl OwnKey {
    pub(super) fn new(key: &str) -> Result<Self, InvalidHeaderValue> {
        let mut key = HeaderValue::from_str(key)?;
        key.set_sensitive(true);
        Ok(Self { key, known: Mutex::default() })
    }

    /// The form in which the key is sent first.
    pub(super) fn form(&self, calls: KeyUse) -> KeyForm {
        match self.known().get(&calls) {
            Some(known) => known.form,
            None if calls.is_anthropic => KeyForm::ApiKey,
            None => KeyForm::Bearer,
        }
    }

    /// The form to try after an answer to the key in `form`.
    pub(super) fn next_form(
        &self,
        calls: KeyUse,
        form: KeyForm,
        status: StatusCode,
    ) -> Option<KeyForm> {
        let refused_at = self.known().get(&calls).and_then(|known| known.refused_at);
        let is_hopeless = refused_at.is_some_and(|at| at.elapsed() < REFUSED_CLASS_LIFE);
        (is_refusal(status) && !is_hopeless).then(|| form.other())
    }

    /// Notes the answer to the key in `form`, after the other one was refused.
    pub(super) fn note(&self, calls: KeyUse, form: KeyForm, status: StatusCode) {
        let known = match is_refusal(status) {
            true => KnownForm { form: form.other(), refused_at: Some(Instant::now()) },
            false => KnownForm { form, refused_at: None },
        };
        self.known().insert(calls, known);
    }

    /// Puts the key into the headers of a request, in place of any that the agent sent.
    pub(super) fn put(&self, calls: KeyUse, form: KeyForm, headers: &mut HeaderMap) {
        headers::remove(headers, &KEY_HEADERS);
        match form {
            KeyForm::ApiKey => drop(headers.insert(API_KEY, self.key.clone())),
            KeyForm::Bearer => {
                headers.extend(bearer(&self.key).ok().map(|key| (header::AUTHORIZATION, key)));
            }
        }
        let is_anthropics = calls.is_anthropic || form == KeyForm::ApiKey;
        if is_anthropics && !headers.contains_key(VERSION) {
            headers.insert(VERSION, DEFAULT_VERSION);
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<KeyUse, KnownForm>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True for the answers of servers to a key that they do not find or do not take.
pub(super) fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// The value of `authorization` for a key.
fn bearer(key: &HeaderValue) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut bearer = HeaderValue::from_bytes(&[b"Bearer ", key.as_bytes()].concat())?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

/// The headers by which an agent says who it is, with the version that goes with them.
pub(super) fn credentials_of(agent: &HeaderMap) -> HeaderMap {
    let names = [header::AUTHORIZATION, API_KEY, VERSION];
    let sent = names.into_iter().filter_map(|name| Some((name.clone(), agent.get(name)?.clone())));
    sent.collect()
}

/// Makes a bearer token of the key in Anthropic's header. Returns false if there is none, or a
/// token already.
pub(super) fn make_bearer(headers: &mut HeaderMap) -> bool {
    let key = headers.get(API_KEY).filter(|_| !headers.contains_key(header::AUTHORIZATION));
    let Some(Ok(bearer)) = key.map(bearer) else { return false };
    headers::remove(headers, &[API_KEY]);
    headers.insert(header::AUTHORIZATION, bearer);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: KeyUse = KeyUse { route: Route::Messages, is_anthropic: true };
    const CHAT: KeyUse = KeyUse { route: Route::Chat, is_anthropic: false };

    /// The headers of a call that came with every key that agents send.
    fn sent(key: &OwnKey, calls: KeyUse) -> Vec<String> {
        let agents = KEY_HEADERS.map(|name| (HeaderName::from_static(name), "agents"));
        let mut headers: HeaderMap =
            agents.into_iter().map(|(name, key)| (name, HeaderValue::from_static(key))).collect();
        key.put(calls, key.form(calls), &mut headers);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn the_key_goes_as_the_client_of_a_call_would_send_it() {
        let key = OwnKey::new("sk-1").unwrap();
        assert_eq!(sent(&key, CHAT), ["authorization: Bearer sk-1"]);
        assert_eq!(sent(&key, MESSAGES), ["x-api-key: sk-1", "anthropic-version: 2023-06-01"]);
        let mut headers = HeaderMap::new();
        headers.insert(VERSION, HeaderValue::from_static("2030-01-01"));
        key.put(MESSAGES, KeyForm::ApiKey, &mut headers);
        assert_eq!(headers[VERSION], "2030-01-01");
        assert!(!format!("{key:?}").contains("sk-1"));
    }

    #[test]
    fn the_form_that_was_accepted_is_the_next_first() {
        let key = OwnKey::new("sk-1").unwrap();
        assert_eq!(key.next_form(MESSAGES, KeyForm::ApiKey, StatusCode::OK), None);
        assert_eq!(key.next_form(MESSAGES, KeyForm::ApiKey, StatusCode::BAD_REQUEST), None);
        let other = key.next_form(MESSAGES, KeyForm::ApiKey, StatusCode::UNAUTHORIZED).unwrap();
        key.note(MESSAGES, other, StatusCode::BAD_REQUEST);
        assert_eq!(key.form(MESSAGES), KeyForm::Bearer);
        assert_eq!(key.form(CHAT), KeyForm::Bearer, "another kind of calls is not concerned");
    }

    #[test]
    fn a_key_that_is_refused_in_both_forms_is_sent_once() {
        let key = OwnKey::new("sk-1").unwrap();
        key.note(CHAT, KeyForm::ApiKey, StatusCode::UNAUTHORIZED);
        assert_eq!(key.form(CHAT), KeyForm::Bearer);
        assert_eq!(key.next_form(CHAT, KeyForm::Bearer, StatusCode::UNAUTHORIZED), None);
    }
}
