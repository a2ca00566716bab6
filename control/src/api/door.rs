//! Checks of a request to the control listener before anything else of it is read: by which name it
//! was addressed, whether a foreign web page sent it, and whether it carries the token.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, StatusCode};
use proxy::ground::web::{self, HostName};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::api::reply::{JsonReply, error};
use crate::bounds::{REFUSALS_LOG_EVERY, WRONG_TOKEN_WAIT, WRONG_TOKENS_WAITING_MAX};

/// The checks of one control listener, and the counts of what they refused.
#[derive(Debug)]
pub(crate) struct Door {
    /// The address that is listened on.
    local: IpAddr,
    /// Further names by which the listener may be addressed.
    names: Vec<String>,
    token: Option<[u8; 32]>,
    refusals: Refusals,
    /// Bounds the requests with a wrong token that wait for their answer.
    wrong_tokens: Semaphore,
}

/// The reason for which a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Host,
    Origin,
    NoToken,
    WrongToken,
}

impl Refusal {
    pub(crate) const ALL: [Self; 4] = [Self::Host, Self::Origin, Self::NoToken, Self::WrongToken];

    /// The name in metrics and in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Origin => "origin",
            Self::NoToken => "no_token",
            Self::WrongToken => "wrong_token",
        }
    }
}

impl Door {
    /// The door of a listener at `local`, which may be addressed by further names.
    pub(crate) fn new(local: IpAddr, names: Vec<String>, token: Option<&str>) -> Self {
        Self {
            local,
            names,
            token: token.map(|token| digest(token.as_bytes())),
            refusals: Refusals::default(),
            wrong_tokens: Semaphore::new(WRONG_TOKENS_WAITING_MAX),
        }
    }

    /// Lets a request in, or answers it. A wrong token is answered late.
    pub(crate) async fn check(&self, head: &Parts) -> Result<(), JsonReply> {
        let Err(refusal) = self.judge(head) else { return Ok(()) };
        self.refusals.count(refusal);
        if refusal == Refusal::WrongToken {
            let Ok(_waiting) = self.wrong_tokens.try_acquire() else {
                let message = "too many requests with a wrong token";
                return Err(error(StatusCode::TOO_MANY_REQUESTS, message));
            };
            tokio::time::sleep(WRONG_TOKEN_WAIT).await;
        }
        Err(refusal.reply())
    }

    /// Checks only by which name a request is addressed. A page of the web may lead a person here.
    pub(crate) fn check_name(&self, head: &Parts) -> Result<(), JsonReply> {
        self.own_hosts(head).map(drop).map_err(|refusal| {
            self.refusals.count(refusal);
            refusal.reply()
        })
    }

    /// The numbers of refused requests since the start.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (Refusal, u64)> {
        let counts = self.refusals.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Refusal::ALL.into_iter().zip(counts)
    }

    fn judge(&self, head: &Parts) -> Result<(), Refusal> {
        let hosts = self.own_hosts(head)?;
        if web::foreign_origin(&head.headers, &hosts, |_| false).is_some() {
            return Err(Refusal::Origin);
        }
        self.check_token(&head.headers)
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

    /// Checks the token. The comparison takes the same time for any wrong token.
    fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(token) = self.token else { return Ok(()) };
        let Some(given) = headers.get(AUTHORIZATION) else { return Err(Refusal::NoToken) };
        match given.as_bytes().strip_prefix(b"Bearer ") {
            Some(given) if digest(given) == token => Ok(()),
            _ => Err(Refusal::WrongToken),
        }
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

impl Refusal {
    fn reply(self) -> JsonReply {
        match self {
            Self::Host => error(
                StatusCode::FORBIDDEN,
                "the control listener is not addressed by this name; use its address, or name it \
                 with `rolltape serve --control-host NAME`",
            ),
            Self::Origin => error(
                StatusCode::FORBIDDEN,
                "the control listener takes no requests of web pages of another origin",
            ),
            Self::NoToken | Self::WrongToken => {
                let given = if self == Self::NoToken { "gives none" } else { "gives another" };
                let message = format!(
                    "the control listener requires its token, and this request {given}: \
                     authorization: Bearer TOKEN; `rolltape serve` says at its start which file \
                     holds it, STORE-token beside its store by default"
                );
                error(StatusCode::UNAUTHORIZED, &message)
            }
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
    fn count(&self, refusal: Refusal) {
        self.counts[refusal as usize].fetch_add(1, Ordering::Relaxed);
        let total: u64 = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let Ok(mut logged) = self.logged.lock() else { return };
        let before = match &*logged {
            Some(last) if last.at.elapsed() < REFUSALS_LOG_EVERY => return,
            last => last.as_ref().map_or(0, |last| last.total),
        };
        *logged = Some(Logged { at: Instant::now(), total });
        let reason = refusal.name();
        tracing::warn!(reason, refused = total - before, "refused at the control listener");
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn door(local: &str, names: &[&str], token: Option<&str>) -> Door {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Door::new(local.parse().unwrap(), names, token)
    }

    fn judge(door: &Door, uri: &str, headers: &[(&str, &str)]) -> Option<Refusal> {
        let request = headers.iter().fold(Request::builder().uri(uri), |request, (name, value)| {
            request.header(*name, *value)
        });
        door.judge(&request.body(()).unwrap().into_parts().0).err()
    }

    #[test]
    fn only_own_names_address_the_listener() {
        let door = door("10.0.0.7", &["rolltape.example"], None);
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
            assert_eq!(judge(&door, "/ready", &[("host", own)]), None, "{own}");
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
            assert_eq!(judge(&door, "/ready", &[("host", other)]), Some(Refusal::Host), "{other}");
        }
    }

    #[test]
    fn every_name_of_a_request_counts() {
        let door = door("127.0.0.1", &[], None);
        let (own, evil) = (("host", "localhost"), ("host", "evil.example"));
        assert_eq!(judge(&door, "/ready", &[]), Some(Refusal::Host));
        assert_eq!(judge(&door, "/ready", &[own, evil]), Some(Refusal::Host));
        assert_eq!(judge(&door, "/ready", &[evil, own]), Some(Refusal::Host));
        assert_eq!(judge(&door, "http://evil.example/ready", &[own]), Some(Refusal::Host));
        assert_eq!(judge(&door, "http://localhost/ready", &[evil]), Some(Refusal::Host));
        assert_eq!(judge(&door, "http://localhost/ready", &[]), None);
    }

    #[test]
    fn a_listener_everywhere_is_addressed_by_any_address_and_by_no_foreign_name() {
        let door = door("0.0.0.0", &[], None);
        assert_eq!(judge(&door, "/ready", &[("host", "192.0.2.1:8081")]), None);
        assert_eq!(judge(&door, "/ready", &[("host", "evil.example")]), Some(Refusal::Host));
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let door = door("127.0.0.1", &[], None);
        let ask =
            |name, value| judge(&door, "/ready", &[("host", "localhost:8081"), (name, value)]);
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
        let door = door("127.0.0.1", &[], Some("the-token-of-this-listener"));
        let ask =
            |value| judge(&door, "/ready", &[("host", "localhost"), ("authorization", value)]);
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
        let without = judge(&door, "/ready", &[("host", "localhost")]);
        assert_eq!(without, Some(Refusal::NoToken));
    }
}
