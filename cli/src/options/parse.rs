//! Parsers of values that several subcommands take.

use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr};

use episode::{CallId, EpisodeId};
use hyper::header::HeaderName;
use proxy::{EngineSpec, Upstream};
use store::{Location, SegmentFolder};

/// The port of servers with TLS.
const HTTPS_PORT: u16 = 443;
/// Seconds of a year.
const SECONDS_MAX: u64 = 31_536_000;

/// Parses an address to listen on. A port alone, or one of `localhost`, is one of loopback: nothing
/// opens to a network unless its address is given.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").unwrap_or(text).parse();
    match port {
        Ok(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Err(_) => text.parse().map_err(|_| {
            "give an IP address and a port, such as 127.0.0.1:8080, or a port alone".to_owned()
        }),
    }
}

/// Parses an upstream with its settings. A host and a port alone are of a server without TLS.
pub(crate) fn engine_spec(text: &str) -> Result<EngineSpec, String> {
    with_scheme(text).parse().map_err(|e: proxy::InvalidEngine| e.to_string())
}

/// Parses the address of an upstream, likewise.
pub(crate) fn upstream(text: &str) -> Result<Upstream, String> {
    with_scheme(text).parse().map_err(|e: proxy::InvalidUpstream| e.to_string())
}

/// Puts `http://` in front of a text that begins with a host and a port.
fn with_scheme(text: &str) -> Cow<'_, str> {
    let place = text.split(['/', ' ']).next().unwrap_or_default();
    let port = place.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(port)) if !text.contains("://") && port != HTTPS_PORT => {
            format!("http://{text}").into()
        }
        _ => text.into(),
    }
}

/// Parses a time in seconds, from 1 to a year.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("give whole seconds, from 1 to {SECONDS_MAX}"))
}

/// Headers that a call needs for something else.
const TAKEN_HEADERS: [&str; 6] =
    ["authorization", "content-length", "content-type", "cookie", "host", "x-api-key"];

/// Parses the name of a header that rolltape may set.
pub(crate) fn header(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text.parse().map_err(|_| "this is not the name of a header")?;
    match TAKEN_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("x-rolltape-") {
        true => Err("this header means something else; give another one".to_owned()),
        false => Ok(name),
    }
}

/// Parses the id of a call.
pub(crate) fn call_id(text: &str) -> Result<CallId, String> {
    text.parse().map_err(|_| {
        "not a call id; `rolltape show EPISODE --json` lists those of an episode".to_owned()
    })
}

/// An episode, and which of its attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttemptName {
    pub(crate) id: String,
    /// `None` is the newest.
    pub(crate) attempt: Option<u32>,
}

/// Parses an episode's id, or `ID/ATTEMPT`.
pub(crate) fn attempt_name(text: &str) -> Result<AttemptName, String> {
    let (id, attempt) = match text.split_once('/') {
        Some((id, attempt)) => {
            let number = attempt.parse().map_err(|_| "give ID or ID/ATTEMPT, such as run-1/2")?;
            (id, Some(number))
        }
        None => (text, None),
    };
    let id: EpisodeId = id.parse().map_err(|e: episode::InvalidId| e.to_string())?;
    Ok(AttemptName { id: id.to_string(), attempt })
}

/// Parses the URL of a bucket.
pub(crate) fn bucket_url(text: &str) -> Result<String, String> {
    match text.split_once("://") {
        Some((scheme, place)) if !scheme.is_empty() && !place.is_empty() => Ok(text.to_owned()),
        _ => Err("give the URL of a bucket, such as s3://lab/segments".to_owned()),
    }
}

/// Parses a label, `NAME=VALUE`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("give NAME=VALUE, such as owner=ann".to_owned()),
    }
}

/// Parses the location of a store. A folder without segments is refused here, because SQLite's own
/// error would not say what is wrong.
pub(crate) fn location(text: &str) -> Result<Location, String> {
    let location: Location = text.parse().map_err(|e: store::LocationError| e.to_string())?;

    match &location {
        Location::File(path) if path.is_dir() && !SegmentFolder::is_at(path) => {
            let inside = path.join("rolltape.db");
            Err(format!("this is a folder; name a file in it, such as {}", inside.display()))
        }
        _ => Ok(location),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_loopback() {
        let parsed = |text: &str| address(text).unwrap().to_string();
        assert_eq!(parsed("0.0.0.0:80"), "0.0.0.0:80");
        assert_eq!(parsed("[::1]:80"), "[::1]:80");
        assert_eq!(parsed("8090"), "127.0.0.1:8090");
        assert_eq!(parsed("localhost:8095"), "127.0.0.1:8095");
        // Elsewhere, a colon in front stands for all networks.
        for text in [":8091", "db.example:8095", "127.0.0.1", "80800", "here"] {
            assert!(address(text).unwrap_err().contains("127.0.0.1:8080"), "{text}");
        }
    }

    #[test]
    fn a_folder_is_no_store() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert!(location(path).unwrap_err().ends_with("/rolltape.db"));
        let file = format!("{path}/a.db");
        assert!(matches!(location(&file).unwrap(), Location::File(_)));
        assert!(location("mysql://h/d").unwrap_err().contains("postgres://"));
    }

    #[test]
    fn what_is_no_call_is_told_where_calls_are() {
        assert!(call_id("nope").unwrap_err().contains("rolltape show EPISODE --json"));
        assert!(call_id("01a1fc0e-0000-7000-8000-000000000000").is_ok());
    }

    #[test]
    fn a_host_and_a_port_are_an_upstream() {
        let parsed = |text: &str| upstream(text).map(|upstream| upstream.to_string());
        assert_eq!(parsed("localhost:8000").unwrap(), "http://localhost:8000");
        assert_eq!(parsed("10.0.0.7:8000/v1").unwrap(), "http://10.0.0.7:8000");
        assert_eq!(parsed("https://h:1").unwrap(), "https://h:1");
        assert_eq!(engine_spec("node-1:8000 name=a").unwrap().name, "a");
        for text in ["localhost", "api.example.com", "h:443", "localhost:x", "file:///a:1"] {
            assert!(parsed(text).unwrap_err().contains("http://"), "{text}");
        }
    }

    #[test]
    fn an_attempt_is_named_behind_its_episode() {
        let name = |id: &str, attempt| Ok(AttemptName { id: id.to_owned(), attempt });
        assert_eq!(attempt_name("run-1"), name("run-1", None));
        assert_eq!(attempt_name("run-1/2"), name("run-1", Some(2)));
        assert!(attempt_name("run-1/x").unwrap_err().contains("ID/ATTEMPT"));
        assert!(attempt_name("").is_err() && attempt_name("a b").is_err());
    }
}
