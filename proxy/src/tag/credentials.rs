//! The signed keys in the head of a request: finding them where clients put API keys, and removing
//! them wherever they are.
//!
//! A key in a header for credentials, or in a parameter of that name, names the episode. In any
//! other header, in a cookie and in any other parameter it is only removed.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use episode::{EpisodeId, Micros};
use http::headers;
use http::path::escapes::unescaped;
use hyper::header::{COOKIE, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use hyper::{HeaderMap, Uri};

use crate::error::CallError;
use crate::tag::api_key::{KeySigner, PREFIX, SignedKey};

/// Headers in which clients send an API key.
pub(crate) const KEY_HEADERS: [&str; 4] =
    ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
/// Query parameters in which clients send an API key.
const KEY_PARAMETERS: [&str; 4] = ["key", "api_key", "api-key", "access_token"];

/// The beginning of the subprotocol in which clients in a browser send an API key.
const KEY_SUBPROTOCOL: &str = "openai-insecure-api-key.";

/// Letters of a key's signature in base64: 32 bytes.
const SIGNATURE_CHARS: usize = 43;
/// Fewest letters of what a key says in base64: an episode, an attempt and a time.
const CLAIM_CHARS_MIN: usize = 8;
/// Most letters of it: 200 of an id, 10 and 19 digits, and what is between them.
const CLAIM_CHARS_MAX: usize = 310;

/// The signed key with which a request names its episode.
///
/// # Errors
/// [`CallError`] if a key is not valid, or two keys name two attempts.
pub(crate) fn signed_key(
    signer: &KeySigner,
    headers: &HeaderMap,
    uri: &Uri,
    now: Micros,
) -> Result<Option<SignedKey>, CallError> {
    let in_headers = KEY_HEADERS.iter().flat_map(|name| headers.get_all(*name));
    let in_headers = in_headers.filter_map(headers::text).flat_map(candidates);
    let in_protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(headers::text);
    let in_protocols =
        in_protocols.flat_map(protocols).map(|name| key_of_protocol(name).to_owned());
    let in_query = parameters(uri.query().unwrap_or_default())
        .filter(|parameter| is_key_parameter(parameter))
        .filter_map(|parameter| Some(unescaped(parameter.split_once('=')?.1)));

    let mut found: Option<SignedKey> = None;
    for text in in_headers.chain(in_protocols).chain(in_query) {
        let Some(verified) = signer.verify(&text, now) else { continue };
        let key = verified.map_err(|_| CallError::InvalidKey)?;
        if let Some(first) = found.as_ref().filter(|first| first.attempt != key.attempt) {
            let [first, other] = [&first.attempt, &key.attempt]
                .map(|id| format!("{} attempt {}", id.episode, id.attempt));
            return Err(CallError::TwoEpisodes(first, other));
        }
        found = Some(key);
    }
    Ok(found)
}

/// Removes every key from the headers.
pub(crate) fn strip_headers(headers: &mut HeaderMap) {
    for name in KEY_HEADERS {
        let has_key = |value: &HeaderValue| {
            let text = headers::text(value).unwrap_or_default();
            candidates(text).iter().any(|text| text.starts_with(PREFIX) || holds_key(text))
        };
        if headers.get_all(name).iter().any(has_key) {
            headers::remove(headers, &[name]);
        }
    }
    if !headers.iter().any(|(name, value)| holds_key_in(name, value)) {
        return;
    }

    let mut name: Option<HeaderName> = None;
    for (next_name, value) in std::mem::take(headers) {
        name = next_name.or(name);
        let Some(name) = &name else { continue };
        if !holds_key_in(name, &value) {
            headers.append(name.clone(), value);
        } else if *name == COOKIE {
            let left = without(&value, ';', |cookie| holds_key(&unescaped(cookie)));
            headers.extend(left.map(|value| (COOKIE, value)));
        } else if *name == SEC_WEBSOCKET_PROTOCOL {
            let left = without(&value, ',', is_key_protocol);
            headers.extend(left.map(|value| (SEC_WEBSOCKET_PROTOCOL, value)));
        }
    }
}

/// True if a header holds a key, or a subprotocol that is one.
fn holds_key_in(name: &HeaderName, value: &HeaderValue) -> bool {
    let is_protocol = || headers::text(value).is_some_and(|t| protocols(t).any(is_key_protocol));
    bytes_hold_key(value.as_bytes()) || *name == SEC_WEBSOCKET_PROTOCOL && is_protocol()
}

/// The subprotocols that a header offers.
fn protocols(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim)
}

/// The text that may be a key in a subprotocol.
fn key_of_protocol(name: &str) -> &str {
    name.strip_prefix(KEY_SUBPROTOCOL).unwrap_or(name)
}

/// True for a subprotocol that is a key, or holds one.
fn is_key_protocol(name: &str) -> bool {
    key_of_protocol(name).starts_with(PREFIX) || holds_key(&unescaped(name))
}

/// A path and its query without parameters that hold a key.
///
/// # Errors
/// [`CallError::KeyInPath`] if the path itself holds one.
pub(crate) fn strip_path(path_and_query: &str) -> Result<String, CallError> {
    let (path, query) = match path_and_query.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path_and_query, None),
    };
    if path_holds_key(path) {
        return Err(CallError::KeyInPath);
    }
    let Some(query) = query else { return Ok(path.to_owned()) };
    let holds = |parameter: &&str| {
        let text = unescaped(parameter);
        let value = text.split_once('=').map_or("", |(_, value)| value);
        holds_key(&text) || (is_key_parameter(parameter) && value.starts_with(PREFIX))
    };
    if !parameters(query).any(|parameter| holds(&parameter)) {
        return Ok(path_and_query.to_owned());
    }

    let kept: Vec<&str> = parameters(query).filter(|parameter| !holds(parameter)).collect();
    Ok(match kept.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", kept.join("&")),
    })
}

/// True if a path holds a key, as it is or escaped.
pub(crate) fn path_holds_key(path: &str) -> bool {
    holds_key(&unescaped(path))
}

/// The texts that may be a key in a header for credentials: the whole, what follows a scheme, and
/// the parts of HTTP's Basic scheme.
fn candidates(value: &str) -> Vec<String> {
    let value = value.trim();
    let mut found = vec![value.to_owned()];
    if let Some((scheme, rest)) = value.split_once([' ', '\t']) {
        let rest = rest.trim();
        found.push(rest.to_owned());
        if scheme.eq_ignore_ascii_case("basic") {
            let decoded = STANDARD.decode(rest).or_else(|_| STANDARD_NO_PAD.decode(rest));
            let decoded = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
            found.extend(decoded.iter().flat_map(|pair| pair.split(':')).map(str::to_owned));
        }
    }
    found
}

fn parameters(query: &str) -> impl Iterator<Item = &str> {
    query.split(['&', ';']).filter(|parameter| !parameter.is_empty())
}

fn is_key_parameter(parameter: &str) -> bool {
    let name = unescaped(parameter.split('=').next().unwrap_or_default());
    KEY_PARAMETERS.iter().any(|known| known.eq_ignore_ascii_case(&name))
}

/// The members of a header that are not to go; `None` if none is left.
fn without(value: &HeaderValue, mark: char, goes: impl Fn(&str) -> bool) -> Option<HeaderValue> {
    let text = headers::text(value)?;
    let kept: Vec<&str> = text.split(mark).map(str::trim).filter(|member| !goes(member)).collect();
    let kept = kept.join(&format!("{mark} "));
    HeaderValue::from_str(&kept).ok().filter(|left| !left.is_empty())
}

fn bytes_hold_key(bytes: &[u8]) -> bool {
    // Few values have a letter of the prefix before a hyphen, or an escape.
    let is_worth_it = bytes.windows(2).any(|pair| pair == b"t-") || bytes.contains(&b'%');
    is_worth_it && holds_key(&unescaped(&String::from_utf8_lossy(bytes)))
}

/// True if a text holds what looks like a key, as a word of its own or inside another word.
pub(crate) fn holds_key(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_word = |at: usize| at == 0 || !(is_base64(bytes[at - 1]) || bytes[at - 1] == b'.');
    let mut words = text.match_indices(PREFIX).filter(|(at, _)| is_word(*at));
    words.any(|(at, _)| is_key_body(&bytes[at + PREFIX.len()..])) || holds_claim(text)
}

/// True if a text holds a key whose claim can be read, whatever stands before it.
fn holds_claim(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.match_indices('.').any(|(dot, _)| {
        let before = run(bytes[..dot].iter().rev());
        let signature = run(bytes[dot + 1..].iter().take(SIGNATURE_CHARS));
        if signature < SIGNATURE_CHARS || before < PREFIX.len() + CLAIM_CHARS_MIN {
            return false;
        }
        // Each beginning is tried, so they are few: a text must not cost its square.
        let word = &text[dot - before.min(PREFIX.len() + CLAIM_CHARS_MAX)..dot];
        word.match_indices(PREFIX).any(|(at, _)| is_claim(&word[at + PREFIX.len()..]))
    })
}

/// True if a text is what a key says: an episode, an attempt and a time.
fn is_claim(text: &str) -> bool {
    let Some(claim) = URL_SAFE_NO_PAD.decode(text).ok() else { return false };
    let Ok(claim) = str::from_utf8(&claim) else { return false };
    match claim.split(' ').collect::<Vec<_>>()[..] {
        [episode, attempt, expires_at] => {
            let is_time = expires_at.parse::<Micros>().is_ok();
            is_time && attempt.parse::<u32>().is_ok() && episode.parse::<EpisodeId>().is_ok()
        }
        _ => false,
    }
}

/// True if bytes begin with what follows the prefix of a key.
fn is_key_body(bytes: &[u8]) -> bool {
    let claim = run(bytes.iter());
    let Some(b'.') = bytes.get(claim) else { return false };
    let signature = run(bytes[claim + 1..].iter());
    claim >= CLAIM_CHARS_MIN && signature >= SIGNATURE_CHARS
}

/// Number of letters of base64 with which bytes begin.
fn run<'b>(bytes: impl Iterator<Item = &'b u8>) -> usize {
    bytes.take_while(|byte| is_base64(**byte)).count()
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer() -> KeySigner {
        KeySigner::open(None, Some(vec![7; 32])).unwrap()
    }

    fn key() -> String {
        signer().sign(&"run/2".parse().unwrap(), 100).0
    }

    fn map(name: &'static str, value: &str) -> HeaderMap {
        [(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())]
            .into_iter()
            .collect()
    }

    #[test]
    fn a_key_is_found_where_clients_put_keys() {
        let key = key();
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        let uri: Uri = "/v1/models".parse().unwrap();
        for (name, value) in [
            ("authorization", format!("Bearer {key}")),
            ("authorization", format!("bearer\t{key} ")),
            ("authorization", format!("Token {key}")),
            ("authorization", basic(&format!("user:{key}"))),
            ("authorization", basic(&format!("{key}:"))),
            ("x-api-key", key.clone()),
            ("api-key", key.clone()),
            ("x-goog-api-key", key.clone()),
        ] {
            let mut headers = map(name, &value);
            let found = signed_key(&signer(), &headers, &uri, 0).unwrap().unwrap();
            assert_eq!(found.attempt.to_string(), "run/2", "{value}");
            strip_headers(&mut headers);
            assert!(headers.is_empty(), "{name}: {value}");
        }
        for offered in ["realtime, openai-insecure-api-key.", "", "openai-insecure-api-key."] {
            let headers = map("sec-websocket-protocol", &format!("{offered}{key}, x"));
            assert!(signed_key(&signer(), &headers, &uri, 0).unwrap().is_some(), "{offered}");
        }
        let uri: Uri = format!("/v1/models?a=1&api_key={key}").parse().unwrap();
        assert!(signed_key(&signer(), &HeaderMap::new(), &uri, 0).unwrap().is_some());
    }

    #[test]
    fn a_key_is_removed_from_any_header_and_nothing_else_is() {
        let key = key();
        for (name, value) in [
            ("x-custom", key.clone()),
            ("x-custom", format!("a, {key}")),
            ("referer", format!("http://h/?k={key}")),
            ("x-custom", key.replacen("rt-", "%72t-", 1)),
            ("x-custom", format!("a.b{key}x")),
            ("x-custom", format!("rt-rt-{key}.more")),
            ("sec-websocket-protocol", format!("openai-insecure-api-key.{key}")),
            ("sec-websocket-protocol", "openai-insecure-api-key.rt-none".to_owned()),
        ] {
            let mut headers = map(name, &value);
            strip_headers(&mut headers);
            assert!(headers.is_empty(), "{name}: {value}");
        }
        let mut headers = map("cookie", &format!("a=1; k={key}; b=rt-2"));
        strip_headers(&mut headers);
        assert_eq!(headers["cookie"], "a=1; b=rt-2");
        let offered = format!("realtime, openai-insecure-api-key.{key}, openai-beta.rt-v1");
        let mut headers = map("sec-websocket-protocol", &offered);
        strip_headers(&mut headers);
        assert_eq!(headers["sec-websocket-protocol"], "realtime, openai-beta.rt-v1");
        for (name, value) in [
            ("user-agent", "start-up/1.0 rt-client.1"),
            ("authorization", "Bearer sk-proj-rt-1"),
            ("authorization", "Basic dXNlcjpwYXNz"),
            ("x-jwt", &format!("eyJh.xrt-{}.{}", "a".repeat(20), "b".repeat(43))),
        ] {
            let mut headers = map(name, value);
            strip_headers(&mut headers);
            assert_eq!(headers.len(), 1, "{value}");
        }
    }

    #[test]
    fn a_text_of_beginnings_costs_no_square() {
        let dots = format!("{}.{}", "rt-".repeat(40), "b".repeat(43));
        let text = dots.repeat(5_000);
        let begun = std::time::Instant::now();
        assert!(!holds_claim(&text));
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_key_is_removed_from_the_query_and_refused_in_the_path() {
        let key = key();
        let escaped = key.replacen("rt-", "%72%74-", 1);
        let strip = |path: String| strip_path(&path);
        assert_eq!(strip(format!("/v1/models?a=b&key={key}")).unwrap(), "/v1/models?a=b");
        assert_eq!(strip(format!("/v1/models?x={escaped}")).unwrap(), "/v1/models");
        assert_eq!(strip("/v1/models?key=rt-1&b".to_owned()).unwrap(), "/v1/models?b");
        assert_eq!(strip("/v1/models?a=1;b=%20".to_owned()).unwrap(), "/v1/models?a=1;b=%20");
        let inside = format!("/v1/models/x{key}");
        for path in [format!("/v1/{key}"), format!("/v1/{escaped}/x?a"), inside] {
            assert!(matches!(strip(path), Err(CallError::KeyInPath)));
        }
    }
}
