//! Checks of a request before anything else of it is read: by which name it was addressed, whether
//! a foreign web page sent it, and whether it carries the token.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::bounds::{REFUSALS_LOG_EVERY, WRONG_TOKEN_WAIT, WRONG_TOKENS_WAITING_MAX};
use crate::web::{self, HostName};

/// Tokens of which a request must carry one. Without any, all requests pass.
#[derive(Debug, Clone, Default)]
pub struct Tokens(Vec<[u8; 32]>);

impl Tokens {
    /// The tokens with these texts.
    pub fn new<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self(texts.into_iter().map(|text| digest(text.as_ref().as_bytes())).collect())
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True for one of the tokens. The comparison takes the same time for any other text.
    pub fn has(&self, text: &[u8]) -> bool {
        let given = digest(text);
        self.0.iter().fold(false, |is_known, token| is_known | (*token == given))
    }

    /// Checks `authorization: Bearer TOKEN`.
    ///
    /// # Errors
    /// [`Refusal`] without one of the tokens.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.is_empty() {
            return Ok(());
        }
        let given = headers.get(AUTHORIZATION).ok_or(Refusal::NoToken)?;
        let token = given.as_bytes().strip_prefix(b"Bearer ");
        token.filter(|token| self.has(token)).map(drop).ok_or(Refusal::WrongToken)
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The checks of one listener, and the counts of what they refused.
#[derive(Debug)]
pub struct Gate {
    /// The name of the listener in the log.
    listener: &'static str,
    /// The address that is listened on.
    local: IpAddr,
    /// Further names by which the listener may be addressed.
    names: Vec<String>,
    tokens: Tokens,
    refusals: Refusals,
    /// Bounds the requests with a wrong token that wait for their answer.
    wrong_tokens: Semaphore,
}

/// The reason for which a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is addressed by a name that is not the listener's.
    Host,
    /// A web page of another origin sent it.
    Origin,
    /// It carries no token.
    NoToken,
    /// It carries another token.
    WrongToken,
}

/// The answer to a request that is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotLetIn {
    /// A refusal.
    Refused(Refusal),
    /// Too many requests with a wrong token wait for theirs.
    TooManyWrongTokens,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Host, Self::Origin, Self::NoToken, Self::WrongToken];

    /// The name in metrics and in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Origin => "origin",
            Self::NoToken => "no_token",
            Self::WrongToken => "wrong_token",
        }
    }
}

impl Gate {
    /// The gate of a listener at `local`, which may be addressed by further names.
    pub fn new(listener: &'static str, local: IpAddr, names: Vec<String>, tokens: Tokens) -> Self {
        let wrong_tokens = Semaphore::new(WRONG_TOKENS_WAITING_MAX);
        Self { listener, local, names, tokens, refusals: Refusals::default(), wrong_tokens }
    }

    /// Lets a request in, or says why not. For a wrong token that takes a second.
    ///
    /// # Errors
    /// [`NotLetIn`] if a check refuses it.
    pub async fn check(&self, head: &Parts) -> Result<(), NotLetIn> {
        let Err(refusal) = self.judge(head) else { return Ok(()) };
        self.count(refusal);
        if refusal == Refusal::WrongToken {
            let waiting = self.wrong_tokens.try_acquire();
            let _waiting = waiting.map_err(|_| NotLetIn::TooManyWrongTokens)?;
            tokio::time::sleep(WRONG_TOKEN_WAIT).await;
        }
        Err(NotLetIn::Refused(refusal))
    }

    /// Checks only by which name a request is addressed. A page of the web may lead a person here.
    ///
    /// # Errors
    /// [`Refusal::Host`] if the name is not the listener's.
    pub fn check_name(&self, head: &Parts) -> Result<(), Refusal> {
        self.own_hosts(head).map(drop).inspect_err(|refusal| self.count(*refusal))
    }

    /// The numbers of refused requests since the start.
    pub fn refused(&self) -> impl Iterator<Item = (Refusal, u64)> {
        let counts = self.refusals.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Refusal::ALL.into_iter().zip(counts)
    }

    fn judge(&self, head: &Parts) -> Result<(), Refusal> {
        let hosts = self.own_hosts(head)?;
        if web::foreign_origin(&head.headers, &hosts, |_| false).is_some() {
            return Err(Refusal::Origin);
        }
        self.tokens.check(&head.headers)
    }

    /// The hosts by which a request is addressed, if all are the listener's own.
    fn own_hosts(&self, head: &Parts) -> Result<Vec<Authority>, Refusal> {
        // A request without a name may have been addressed by any.
        let hosts = web::hosts(&head.uri, &head.headers).map_err(|_| Refusal::Host)?;
        match !hosts.is_empty() && hosts.iter().all(|host| self.is_own(host)) {
            true => Ok(hosts),
            false => Err(Refusal::Host),
        }
    }

    /// True for loopback, the listener's own address and the configured names, with any port:
    /// a tunnel may have another one. A name of the web may lead here, so others are refused.
    fn is_own(&self, host: &Authority) -> bool {
        let host = HostName::of(host);
        let is_given = match host {
            HostName::Address(address) => address == self.local || self.local.is_unspecified(),
            HostName::Name(name) => self.names.iter().any(|own| own.eq_ignore_ascii_case(name)),
        };
        is_given || host.is_loopback()
    }

    /// Counts a refusal, and logs from time to time how many there were.
    fn count(&self, refusal: Refusal) {
        let (reason, listener) = (refusal.name(), self.listener);
        if let Some(refused) = self.refusals.count(refusal) {
            tracing::warn!(reason, refused, "refused at the {listener} listener");
        }
    }
}

/// Counts of refused requests, which are logged from time to time.
#[derive(Debug, Default)]
struct Refusals {
    /// In the order of [`Refusal::ALL`].
    counts: [AtomicU64; Refusal::ALL.len()],
    logged: Mutex<Option<Logged>>,
}

/// The last line of the log about refused requests.
#[derive(Debug)]
struct Logged {
    at: Instant,
    /// All requests that were refused by then.
    total: u64,
}

impl Refusals {
    /// Counts a refusal. Returns the number of those since the last line of the log, if one is due.
    fn count(&self, refusal: Refusal) -> Option<u64> {
        self.counts[refusal as usize].fetch_add(1, Ordering::Relaxed);
        let total: u64 = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let mut logged = self.logged.lock().ok()?;
        let before = match &*logged {
            Some(last) if last.at.elapsed() < REFUSALS_LOG_EVERY => return None,
            last => last.as_ref().map_or(0, |last| last.total),
        };
        *logged = Some(Logged { at: Instant::now(), total });
        Some(total - before)
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn gate(local: &str, names: &[&str], token: Option<&str>) -> Gate {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Gate::new("control", local.parse().unwrap(), names, Tokens::new(token))
    }

    fn judge(gate: &Gate, uri: &str, headers: &[(&str, &str)]) -> Option<Refusal> {
        let request = headers.iter().fold(Request::builder().uri(uri), |request, (name, value)| {
            request.header(*name, *value)
        });
        gate.judge(&request.body(()).unwrap().into_parts().0).err()
    }

    #[test]
    fn only_own_names_address_the_listener() {
        let gate = gate("10.0.0.7", &["rolltape.example"], None);
        for own in [
            "127.0.0.1",
            "127.0.0.1:8081",
            "localhost:1",
            "LocalHost",
            "[::1]:8081",
            "127.8.9.1:80",
            "10.0.0.7:8081",
            "rolltape.example",
            "Rolltape.Example:443",
        ] {
            assert_eq!(judge(&gate, "/ready", &[("host", own)]), None, "{own}");
        }
        for other in [
            "evil.example",
            "evil.example:8081",
            "10.0.0.8",
            "[::2]",
            "",
            ":8081",
            "a b",
            "localhost.evil.example",
            "rolltape.example.evil",
            "x.rolltape.example",
            "localhost.",
            "127.0.0.1.evil.example",
            "127.1",
            "0x7f000001",
            "2130706433",
            "0.0.0.0",
            "[::]",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost/evil",
            "127.0.0.1, x",
        ] {
            assert_eq!(judge(&gate, "/ready", &[("host", other)]), Some(Refusal::Host), "{other}");
        }
    }

    #[test]
    fn every_name_of_a_request_counts() {
        let gate = gate("127.0.0.1", &[], None);
        let (own, evil) = (("host", "localhost"), ("host", "evil.example"));
        assert_eq!(judge(&gate, "/ready", &[]), Some(Refusal::Host));
        assert_eq!(judge(&gate, "/ready", &[own, evil]), Some(Refusal::Host));
        assert_eq!(judge(&gate, "/ready", &[evil, own]), Some(Refusal::Host));
        assert_eq!(judge(&gate, "http://evil.example/ready", &[own]), Some(Refusal::Host));
        assert_eq!(judge(&gate, "http://localhost/ready", &[evil]), Some(Refusal::Host));
        assert_eq!(judge(&gate, "http://localhost/ready", &[]), None);
    }

    #[test]
    fn a_listener_everywhere_has_any_address_and_no_foreign_name() {
        let gate = gate("0.0.0.0", &[], None);
        assert_eq!(judge(&gate, "/ready", &[("host", "192.0.2.1:8081")]), None);
        assert_eq!(judge(&gate, "/ready", &[("host", "evil.example")]), Some(Refusal::Host));
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let gate = gate("127.0.0.1", &[], None);
        let ask =
            |name, value| judge(&gate, "/ready", &[("host", "localhost:8081"), (name, value)]);
        for own in ["http://localhost:8081", "https://localhost:8081"] {
            assert_eq!(ask("origin", own), None, "{own}");
        }
        for other in [
            "http://evil.example",
            "https://LOCALHOST:8081",
            "null",
            "",
            "http://localhost",
            "http://localhost:3000",
            "http://127.0.0.1:8081",
            "http://localhost:8081.evil.example",
            "localhost:8081",
            "file://",
            "http://evil.example/http://localhost:8081",
        ] {
            assert_eq!(ask("origin", other), Some(Refusal::Origin), "{other}");
        }
        for (site, expected) in [
            ("none", None),
            ("same-origin", None),
            ("same-site", Some(Refusal::Origin)),
            ("cross-site", Some(Refusal::Origin)),
            ("else", Some(Refusal::Origin)),
        ] {
            assert_eq!(ask("sec-fetch-site", site), expected, "{site}");
        }
    }

    #[test]
    fn only_the_token_opens() {
        let gate = gate("127.0.0.1", &[], Some("the-token-of-this-listener"));
        let ask =
            |value| judge(&gate, "/ready", &[("host", "localhost"), ("authorization", value)]);
        assert_eq!(ask("Bearer the-token-of-this-listener"), None);
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer the-token-of-this-listene",
            "Basic abc",
            "the-token-of-this-listener",
            "Bearer  the-token-of-this-listener",
            "Bearer the-token-of-this-listener, Bearer x",
            "Bearer The-token-of-this-listener",
        ] {
            assert_eq!(ask(wrong), Some(Refusal::WrongToken), "{wrong}");
        }
        let without = judge(&gate, "/ready", &[("host", "localhost")]);
        assert_eq!(without, Some(Refusal::NoToken));
    }
}
