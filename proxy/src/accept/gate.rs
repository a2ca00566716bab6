//! The gate of the data listener: which requests of agents are served at all.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;

use http::web::{self, HostName};
use hyper::body::Body;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Request, Uri};
use wire::Access;

use crate::accept::upgrade;
use crate::bounds::REFUSED_PATHS_MAX;
use crate::config::Config;
use crate::config::allowed::AllowedPath;
use crate::error::CallError;
use crate::tag;
use crate::tag::credentials;
use crate::upstream::stray;

/// The rules of one data listener.
#[derive(Debug)]
pub(crate) struct Gate {
    allowed_paths: Vec<AllowedPath>,
    allows_unrecorded: bool,
    /// The check of who a web page is, if there is a key to spend.
    browsers: Option<BrowserRules>,
    /// The refused paths that the log has named.
    told: Mutex<BTreeSet<String>>,
}

/// The rules against web pages that spend the operator's key.
#[derive(Debug)]
struct BrowserRules {
    allowed_origins: Vec<String>,
    is_on_loopback: bool,
}

impl Gate {
    /// The gate of a listener at `address`, if that is known.
    pub(crate) fn new(config: &Config, address: Option<IpAddr>) -> Self {
        let browsers = config.upstream_key.as_ref().map(|_| BrowserRules {
            allowed_origins: config.allowed_origins.clone(),
            is_on_loopback: address.is_some_and(|address| address.to_canonical().is_loopback()),
        });
        Self {
            allowed_paths: config.allowed_paths.clone(),
            allows_unrecorded: config.allow_unrecorded_sampling,
            browsers,
            told: Mutex::default(),
        }
    }

    /// Checks a request whose path is in its normal form.
    ///
    /// # Errors
    /// [`CallError`] if a web page may have sent it, or if its method and path are closed.
    pub(crate) fn check(&self, request: &Request<impl Body>) -> Result<(), CallError> {
        if let Some(browsers) = &self.browsers {
            browsers.check(request.uri(), request.headers())?;
        }

        let (method, path) = (request.method(), tag::path_of(request.uri().path()));
        if tag::is_engine_route(path) {
            return Err(CallError::EngineRoute);
        }

        // A WebSocket begins with GET, but its path is that of a POST that samples.
        if upgrade::is_requested(request) {
            return Err(match wire::route(Method::POST.as_str(), path).generates() {
                true => CallError::UpgradeOfSampling,
                false => CallError::Upgrade,
            });
        }

        if self.allowed_paths.iter().any(|allowed| allowed.allows(method, path)) {
            return Ok(());
        }
        match wire::access(method.as_str(), path) {
            Access::Open => Ok(()),
            Access::Unrecorded if self.allows_unrecorded => Ok(()),
            Access::Unrecorded => Err(CallError::Unrecordable),
            Access::Closed => Err(self.closed(method, path)),
        }
    }

    /// The refusal of a path that is not on the list. The log names each path once.
    fn closed(&self, method: &Method, path: &str) -> CallError {
        let endpoint = format!("{method} {path}");
        let is_new = self
            .told
            .lock()
            .is_ok_and(|mut told| told.len() < REFUSED_PATHS_MAX && told.insert(endpoint.clone()));
        let hint = stray::likely_mistake(path);
        if is_new && !credentials::path_holds_key(path) {
            let question = hint.unwrap_or_default();
            tracing::warn!(%method, path, "an agent was refused a path off the list {question}");
        }
        CallError::ClosedPath { endpoint, hint }
    }
}

impl BrowserRules {
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), CallError> {
        let (hosts, odd) = match web::hosts(uri, headers) {
            Ok(hosts) => (hosts, None),
            Err(odd) => (Vec::new(), Some(odd)),
        };
        if let Some(origin) =
            web::foreign_origin(headers, &hosts, |origin| self.allows_origin(origin))
        {
            return Err(CallError::ForeignOrigin(origin));
        }

        // A name that somebody else resolves to this machine is the origin of their page.
        // Names below `localhost` spend the key only: the control listener does not take them.
        let is_here = |host: &Authority| {
            let name = HostName::of(host);
            name.is_loopback() || name.is_below_localhost()
        };
        let is_foreign = |host: &&Authority| !is_here(host) && !self.allows_host(host.as_str());
        let foreign = odd.or_else(|| hosts.iter().find(is_foreign).map(ToString::to_string));
        match foreign.filter(|_| self.is_on_loopback) {
            Some(host) => Err(CallError::ForeignHost(host)),
            None => Ok(()),
        }
    }

    fn allows_origin(&self, origin: &str) -> bool {
        self.allowed_origins.iter().any(|allowed| allowed == "*" || allowed == origin)
    }

    /// Returns true if an allowed origin is on this host.
    fn allows_host(&self, host: &str) -> bool {
        self.allowed_origins.iter().any(|allowed| {
            allowed == "*" || allowed.split_once("://").is_some_and(|(_, named)| named == host)
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Empty;

    use super::*;

    fn config() -> Config {
        Config::new("http://h".parse().unwrap())
    }

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<Empty<Bytes>> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Empty::new()).unwrap()
    }

    #[test]
    fn a_named_path_is_open_and_no_other() {
        let mut config = config();
        config.allowed_paths =
            ["post /tokenize", "GET /v1/files/*"].map(|text| text.parse().unwrap()).to_vec();
        let gate = Gate::new(&config, None);
        let is_open = |method, path| gate.check(&request(method, path, &[])).is_ok();
        assert!(is_open("POST", "/tokenize") && is_open("POST", "/e/a/a/1/tokenize/"));
        assert!(is_open("GET", "/v1/files/f/content") && is_open("POST", "/v1/chat/completions"));
        assert!(!is_open("GET", "/tokenize") && !is_open("POST", "/v1/tokenize"));
        assert!(!is_open("GET", "/v1/files") && !is_open("DELETE", "/v1/files/f"));
        assert!(!is_open("POST", "/pause") && !is_open("POST", "/e/a/v1/pause"));
    }

    #[test]
    fn no_option_opens_the_control_of_the_upstream() {
        let mut config = config();
        config.allowed_paths = vec!["POST /*".parse().unwrap()];
        let gate = Gate::new(&config, None);
        for path in ["/e/a/pause", "/v1/pause"] {
            let refused = gate.check(&request("POST", path, &[]));
            assert!(matches!(refused, Err(CallError::EngineRoute)), "{path}: {refused:?}");
        }
    }

    #[test]
    fn a_page_of_somebody_else_spends_no_key() {
        let mut config = config();
        config.upstream_key = Some("k".to_owned());
        config.allowed_origins = vec!["app://mine".to_owned(), "https://a.b".to_owned()];
        let gate = Gate::new(&config, Some("127.0.0.1".parse().unwrap()));
        let passes = |headers: &[(&str, &str)]| {
            gate.check(&request("POST", "/v1/chat/completions", headers)).is_ok()
        };
        let local = ("host", "localhost:8080");
        assert!(passes(&[]) && passes(&[local]) && passes(&[("host", "[::1]:80")]));
        assert!(passes(&[local, ("origin", "app://mine")]) && passes(&[("host", "a.b")]));
        assert!(passes(&[local, ("origin", "http://localhost:8080")]));
        assert!(passes(&[local, ("sec-fetch-site", "same-origin")]));
        for origin in ["https://evil.example", "null", "http://localhost:3000", "", "app://mine.x"]
        {
            assert!(!passes(&[local, ("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site", "other"] {
            assert!(!passes(&[local, ("sec-fetch-site", site)]), "{site}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "a@127.0.0.1", ""]
        {
            assert!(!passes(&[("host", host)]), "{host}");
            assert!(!passes(&[("host", host), ("origin", &format!("http://{host}"))]), "{host}");
        }
        assert!(!passes(&[local, ("host", "evil.example")]));
    }

    #[test]
    fn without_a_key_there_is_nothing_to_spend() {
        let gate = Gate::new(&config(), Some("127.0.0.1".parse().unwrap()));
        let foreign = [("host", "test"), ("origin", "https://a.b")];
        assert!(gate.check(&request("OPTIONS", "/v1/chat/completions", &foreign)).is_ok());
    }
}
