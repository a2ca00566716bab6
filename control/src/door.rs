//! The door of the listener: the route of a request, its token, and what the read token opens.
//!
//! The read token is made of the control listener's own, so that nothing more is kept, and a new
//! one of these ends both.

use std::net::Ipv4Addr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use episode::{Giver, Provenance};
use hmac::{Hmac, KeyInit, Mac};
use http::api::auth::{Gate, Tokens};
use http::api::reply::{JsonReply, error, ok};
use http::api::route::{Lookup, similar_path};
use http::body::ReplyBody;
use http::server::caller::Caller;
use http::server::endpoint::Endpoint;
use hyper::http::Extensions;
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use serde_json::json;
use sha2::Sha256;

use crate::error::{not_let_in, refused};
use crate::reading;
use crate::routes::{self, ControlRoute, Handler, JsonHandler as J, ROUTES};
use crate::settings::Settings;

/// The text that is signed with the control listener's token. A change of it ends all read tokens.
const READ_TOKEN_TEXT: &[u8] = b"rolltape read token 1";
/// The text that is signed to name the token.
const KEY_NAME_TEXT: &[u8] = b"rolltape key name 1";
/// The start of the name.
const KEY_NAME_START: &str = "control-";
/// Bytes of the signature in the name: enough to tell tokens apart, too few to test guesses of one
/// well.
const KEY_NAME_BYTES: usize = 4;
/// The start of a read token, by which people tell it from the other.
const READ_TOKEN_START: &str = "read-";

/// The door of a listener.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) gate: Arc<Gate>,
    /// The token that only reads; `None` if no token is required.
    read_token: Option<String>,
    readers: Tokens,
    /// The name of the listener's own token in what is given under it; `None` without a token.
    key_name: Option<String>,
}

impl Door {
    /// The door of a listener at `socket`. Without an address no name but loopback's is taken.
    pub(crate) fn new(settings: &Settings, socket: &Endpoint) -> Self {
        let local = socket.ip().unwrap_or(Ipv4Addr::LOCALHOST.into());
        let read_token = settings.token.as_deref().map(read_token);
        let tokens = Tokens::new(settings.token.iter().chain(&read_token));
        let readers = Tokens::new(&read_token);
        let key_name = settings.token.as_deref().map(key_name);
        let gate = Arc::new(Gate::new("control", local, settings.hosts.clone(), tokens));
        Self { gate, read_token, readers, key_name }
    }

    /// A file of the page, if the request asks for one. Files have no secret, and a browser sends
    /// no token when it opens a page.
    pub(crate) fn page_file(&self, head: &Parts) -> Result<Option<Response<ReplyBody>>, JsonReply> {
        if head.method != Method::GET {
            return Ok(None);
        }
        let Some(file) = reading::file(head.uri.path()) else { return Ok(None) };
        self.gate.check_name(head).map_err(refused)?;
        Ok(Some(file))
    }

    /// Finds the route of a request and checks who asks.
    pub(crate) async fn let_in(
        &self,
        head: &Parts,
    ) -> Result<(&'static ControlRoute, String), JsonReply> {
        let (method, path) = (&head.method, head.uri.path());
        let lookup = routes::lookup(method, path);
        // Health checks of a load balancer carry no token.
        let is_health =
            matches!(&lookup, Lookup::Found { route, .. } if route.handler == Handler::Health);
        if !is_health {
            self.gate.check(head).await.map_err(not_let_in)?;
        }

        match lookup {
            Lookup::Found { route, parameter } => {
                if self.only_reads(head) && !is_for_readers(route.handler) {
                    return Err(only_reads(method, path));
                }
                Ok((route, parameter))
            }
            Lookup::WrongMethod(allowed) => Err(wrong_method(method, path, allowed.join(", "))),
            Lookup::Unknown => Err(unknown_path(path)),
        }
    }

    /// The read token, for whoever was let in.
    pub(crate) fn show_read_token(&self) -> JsonReply {
        ok(json!({ "read_token": self.read_token }))
    }

    /// The provenance of a reward that a request gives. It was let in: the read token gives none.
    pub(crate) fn provenance(&self, extensions: &Extensions) -> Provenance {
        let caller = extensions.get::<Caller>().copied().unwrap_or(Caller::Unknown);
        let by = match self.key_name {
            Some(_) => Giver::ControlToken,
            None => Giver::ControlOpen,
        };
        let (from, key) = (Some(caller.to_string()), self.key_name.clone());
        Provenance { by: Some(by), from, key, over: None }
    }

    /// True if a request carries the read token.
    fn only_reads(&self, head: &Parts) -> bool {
        !self.readers.is_empty() && self.readers.check(&head.headers).is_ok()
    }
}

/// The token that only reads, at a listener with this token.
fn read_token(token: &str) -> String {
    format!("{READ_TOKEN_START}{}", URL_SAFE_NO_PAD.encode(signed(token, READ_TOKEN_TEXT)))
}

/// The name of a token: it tells one token from another, and not what either is.
fn key_name(token: &str) -> String {
    let signed = signed(token, KEY_NAME_TEXT);
    let digits = signed.iter().take(KEY_NAME_BYTES).map(|byte| format!("{byte:02x}"));
    format!("{KEY_NAME_START}{}", digits.collect::<String>())
}

/// A text, signed with a token.
fn signed(token: &str, text: &[u8]) -> Vec<u8> {
    let mut signature = Hmac::<Sha256>::new_from_slice(token.as_bytes())
        .expect("HMAC takes a secret of any length");
    signature.update(text);
    signature.finalize().into_bytes().to_vec()
}

/// True for a route that the read token opens: it changes nothing, asks no upstream and tells no
/// secret. It opens none that is not named here.
fn is_for_readers(handler: Handler) -> bool {
    match handler {
        Handler::Health | Handler::Metrics | Handler::Read(_) | Handler::Changes => true,
        Handler::Json(handler) => matches!(
            handler,
            J::OpenApi
                | J::ShowReadToken
                | J::ShowEpisode
                | J::ListConsumers
                | J::ShowAdmission
                | J::ListVersions
        ),
        Handler::Feed | Handler::Models | Handler::Engine(_) => false,
    }
}

fn only_reads(method: &Method, path: &str) -> JsonReply {
    let message = format!(
        "the read token does not open {method} `{path}`; the control listener's own token does"
    );
    error(StatusCode::FORBIDDEN, &message)
}

fn wrong_method(method: &Method, path: &str, allowed: String) -> JsonReply {
    let message = format!("`{path}` does not take {method}; use {allowed}");
    JsonReply { allow: Some(allowed), ..error(StatusCode::METHOD_NOT_ALLOWED, &message) }
}

fn unknown_path(path: &str) -> JsonReply {
    let hint = match similar_path(ROUTES.iter(), path) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => "see docs/control.md".to_owned(),
    };
    let message = format!("the control listener has no route `{path}`; {hint}");
    error(StatusCode::NOT_FOUND, &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The routes that the read token opens.
    const OPEN: [&str; 21] = [
        "GET /health",
        "GET /openapi.json",
        "GET /metrics",
        "GET /read-token",
        "GET /episodes",
        "GET /episodes/{id}/tree",
        "GET /calls/{id}",
        "GET /calls/{id}/tokens",
        "GET /calls/{id}/request",
        "GET /calls/{id}/reply",
        "GET /groups",
        "GET /tasks",
        "GET /stats",
        "GET /search",
        "GET /checks",
        "GET /audit",
        "GET /events",
        "GET /episodes/{id}",
        "GET /feed/consumers",
        "GET /admission",
        "GET /versions",
    ];
    /// Those of rolltape itself that it does not open.
    const SHUT: [&str; 22] = [
        // It writes.
        "GET /ready",
        "POST /episodes",
        "POST /episodes/{id}/key",
        "POST /episodes/{id}/keys/revoke",
        "POST /keys/rotate",
        "POST /episodes/{id}/rewards",
        "POST /episodes/{id}/close",
        "DELETE /episodes/{id}",
        "POST /prune",
        "POST /annotations",
        "POST /feed",
        "POST /feed/leases/{id}/ack",
        "POST /feed/leases/{id}/nack",
        "POST /feed/leases/{id}/renew",
        "POST /admission",
        "DELETE /admission",
        "POST /version",
        // It tells addresses within a network.
        "GET /upstreams",
        "POST /upstreams",
        "POST /upstreams/{name}/drain",
        "DELETE /upstreams/{name}",
        // The upstream is asked, with its key.
        "GET /v1/models",
    ];

    #[test]
    fn it_is_decided_of_every_route_whether_readers_may_ask() {
        for route in ROUTES.iter() {
            let name = format!("{} {}", route.methods.join(", "), route.path);
            let is_engine = matches!(route.handler, Handler::Engine(_));
            let (open, shut) = (OPEN.contains(&&*name), SHUT.contains(&&*name) || is_engine);
            assert!(open != shut, "say in this test whether the read token opens {name}");
            assert_eq!(is_for_readers(route.handler), open, "{name}");
            assert!(!open || route.methods == ["GET"], "{name} changes something");
        }
    }

    #[test]
    fn a_read_token_is_of_its_token_alone() {
        let token = read_token("the-token-of-this-listener");
        assert_eq!(token, read_token("the-token-of-this-listener"));
        assert_ne!(token, read_token("the-token-of-this-listeneR"));
        assert!(token.starts_with("read-") && token.len() == 48, "{token}");
        assert_ne!(token, read_token(&token), "and it makes no further one");
    }

    #[test]
    fn the_name_of_a_token_is_of_it_alone_and_does_not_tell_it() {
        let name = key_name("the-token-of-this-listener");
        assert_eq!(name, key_name("the-token-of-this-listener"));
        assert_ne!(name, key_name("the-token-of-this-listeneR"));
        assert!(name.starts_with("control-") && name.len() == 16, "{name}");
        assert!(!read_token("the-token-of-this-listener").contains(&name[8..]));
    }
}
