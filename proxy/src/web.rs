//! Web pages that send requests from a browser on this machine: by which host they address a
//! listener, and whether they are of another origin. Both listeners have these rules.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri};

/// The relation of the page that sent a request to its server, as browsers state it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Its values for requests of the server's own pages and of no page.
const OWN_SITES: [&[u8]; 2] = [b"same-origin", b"none"];

/// The hosts by which a request is addressed, in its target and its headers, with their ports.
///
/// # Errors
/// The text of one that is no host.
pub fn hosts(uri: &Uri, headers: &HeaderMap) -> Result<Vec<Authority>, String> {
    let mut hosts: Vec<Authority> = uri.authority().cloned().into_iter().collect();
    for value in headers.get_all(HOST) {
        let host = Authority::try_from(value.as_bytes()).ok();
        match host.filter(|host| !host.as_str().contains('@')) {
            Some(host) => hosts.push(host),
            None => return Err(String::from_utf8_lossy(value.as_bytes()).into_owned()),
        }
    }
    match hosts.iter().find(|host| host.as_str().contains('@')) {
        Some(host) => Err(host.to_string()),
        None => Ok(hosts),
    }
}

/// The name of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostName<'a> {
    /// An address.
    Address(IpAddr),
    /// A name.
    Name(&'a str),
}

impl<'a> HostName<'a> {
    /// The name of a host, without its port.
    pub fn of(host: &'a Authority) -> Self {
        let name = host.host().trim_start_matches('[').trim_end_matches(']');
        name.parse().map_or(Self::Name(name), Self::Address)
    }

    /// True if it is this machine under a name that nobody else resolves.
    pub fn is_loopback(self) -> bool {
        match self {
            Self::Address(address) => address.is_loopback(),
            Self::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    /// True for a name below `localhost`, which browsers look for on this machine and other
    /// programs may not.
    pub fn is_below_localhost(self) -> bool {
        let Self::Name(name) = self else { return false };
        let last = name.rsplit_once('.').map(|(_, last)| last);
        last.is_some_and(|last| last.eq_ignore_ascii_case("localhost"))
    }
}

/// The origin of the page that sent a request, if it is neither a page of `hosts` nor one that
/// `allows` names. An image or a form that gets has no origin, and is `unknown`.
pub fn foreign_origin(
    headers: &HeaderMap,
    hosts: &[Authority],
    allows: impl Fn(&str) -> bool,
) -> Option<String> {
    let mut is_allowed = false;
    for origin in headers.get_all(ORIGIN) {
        let text = String::from_utf8_lossy(origin.as_bytes());
        is_allowed = allows(&text);
        if !is_allowed && !is_own(&text, hosts) {
            return Some(text.into_owned());
        }
    }
    // A page of an allowed origin is of another site.
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    let is_foreign = !is_allowed && sites.any(|site| !OWN_SITES.contains(&site.as_bytes()));
    is_foreign.then(|| "unknown".to_owned())
}

/// True if every host of a request is that of the origin.
fn is_own(origin: &str, hosts: &[Authority]) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let is_same = |own: &Authority| host.is_some_and(|host| own.as_str() == host);
    !hosts.is_empty() && hosts.iter().all(is_same)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn loopback_is_what_nobody_else_resolves() {
        let is_loopback = |text: &str| HostName::of(&text.parse().unwrap()).is_loopback();
        for own in ["localhost", "LOCALHOST:80", "127.0.0.1:1", "127.8.9.1", "[::1]:80"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in ["localhost.", "x.localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "h"] {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn what_is_below_localhost_is_told_apart() {
        let is_below = |text: &str| HostName::of(&text.parse().unwrap()).is_below_localhost();
        assert!(is_below("a.localhost:80") && is_below("a.b.LOCALHOST"));
        for other in ["localhost", "localhost.", "a.localhost.", "a.localhost.b", "127.0.0.1"] {
            assert!(!is_below(other), "{other}");
        }
    }

    #[test]
    fn every_host_counts_and_must_be_one() {
        let hosts = |uri: &'static str, pairs: &[(&'static str, &'static str)]| {
            hosts(&Uri::from_static(uri), &headers(pairs))
        };
        assert_eq!(hosts("/", &[]), Ok(vec![]));
        assert_eq!(hosts("http://a:1/", &[("host", "b"), ("host", "c")]).unwrap().len(), 3);
        for (uri, host) in [("/", ""), ("/", "a b"), ("/", "u@h"), ("http://u@h/", "h")] {
            assert!(hosts(uri, &[("host", "h"), ("host", host)]).is_err(), "{uri} {host}");
        }
    }

    #[test]
    fn every_origin_and_every_site_counts() {
        let own = ["h:1".parse().unwrap()];
        let foreign = |pairs: &[(&'static str, &'static str)]| {
            foreign_origin(&headers(pairs), &own, |origin| origin == "app://mine").is_some()
        };
        let (mine, allowed) = (("origin", "http://h:1"), ("origin", "app://mine"));
        let (same, cross) = (("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site"));
        assert!(!foreign(&[]) && !foreign(&[mine]) && !foreign(&[mine, same]));
        assert!(!foreign(&[allowed]) && !foreign(&[allowed, cross]));
        assert!(foreign(&[mine, cross]) && foreign(&[same, cross]) && foreign(&[cross]));
        for other in ["http://H:1", "http://h", "http://h:1/", "null", "", "h:1", "ftp://h:1"] {
            assert!(foreign(&[("origin", other)]), "{other}");
            assert!(foreign(&[mine, ("origin", other)]), "{other}");
        }
        let two = ["h:1".parse().unwrap(), "g:1".parse().unwrap()];
        assert!(foreign_origin(&headers(&[mine]), &two, |_| false).is_some());
        assert!(foreign_origin(&headers(&[mine]), &[], |_| false).is_some());
    }
}
