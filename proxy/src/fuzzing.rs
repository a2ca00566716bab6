//! Entrances for the fuzz targets in `tests/fuzz`: what reads input of others, without a listener.
//! They exist with the feature `fuzzing` only.

use bytes::Bytes;
use episode::{AttemptId, Micros};
use http::body::coding::Coding;
use http::body::request_body::RequestLimits;
use hyper::header::{CONTENT_ENCODING, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Uri};

use crate::config::episode_prefix::EpisodePrefix;
use crate::tag::api_key::KeySigner;
use crate::tag::{self, TagContext};

/// The secret that signs keys here.
const SECRET: [u8; 32] = [7; 32];

/// The tag of a request, and what is left of the request for the upstream.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadTag {
    /// The name of the episode.
    pub episode: String,
    /// The attempt.
    pub attempt: u32,
    /// Path and query.
    pub path: String,
    /// The headers, in the order in which they are sent.
    pub headers: Vec<(String, Vec<u8>)>,
    /// True if a conversation named the episode, so that no other request has its name.
    pub is_auto: bool,
}

/// Reads the tag of a request at the time `now`. `None` if no HTTP request has such a head.
///
/// # Errors
/// The status of the refusal.
pub fn read_tag(
    (method, target): (&[u8], &str),
    headers: &[(&[u8], &[u8])],
    request_body: &[u8],
    now: Micros,
) -> Option<Result<ReadTag, u16>> {
    let (mut head, ()) = hyper::Request::new(()).into_parts();
    head.method = Method::from_bytes(method).ok()?;
    head.uri = target.parse::<Uri>().ok()?;
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name).ok()?;
        head.headers.append(name, HeaderValue::from_bytes(value).ok()?);
    }

    if let Err(error) = tag::path::normalize(&mut head.uri) {
        return Some(Err(error.status().as_u16()));
    }
    let request = wire::Request::read(&Bytes::copy_from_slice(request_body));
    let context = TagContext::new(signer(), EpisodePrefix::default());
    let read = tag::tag(&context, &mut head, request.as_ref(), now);
    Some(read.map_err(|error| error.status().as_u16()).map(|read| ReadTag {
        episode: read.tag.episode.to_string(),
        attempt: read.tag.attempt,
        path: read.path,
        headers: sent(&head.headers),
        is_auto: read.conversation.is_some(),
    }))
}

fn sent(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let pairs = headers.iter();
    pairs.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
}

fn signer() -> KeySigner {
    KeySigner::open(None, Some(SECRET.to_vec())).expect("there is no place that could fail")
}

/// Signs a key. `None` if no episode has this name.
pub fn sign_key(episode: &str, attempt: u32, expires_at: Micros) -> Option<String> {
    let attempt = AttemptId { episode: episode.parse().ok()?, attempt };
    Some(signer().sign(&attempt, expires_at).0)
}

/// True if `text` is a key that is valid at the time `now`.
pub fn opens(text: &str, now: Micros) -> bool {
    matches!(signer().verify(text, now), Some(Ok(_)))
}

/// Decodes a body of at most `bytes_max` bytes, whole. `None` if it is refused.
pub fn decode(coding: &str, body: &[u8], bytes_max: usize) -> Option<Bytes> {
    let limits = RequestLimits { kept: bytes_max, max: bytes_max as u64 };
    coding_of(coding).decode(&Bytes::copy_from_slice(body), limits).ok()
}

/// Decodes a body that comes in pieces, each of which decodes to at most `bytes_max`. `None` if it
/// is refused.
pub fn decode_pieces(coding: &str, pieces: &[&[u8]], bytes_max: usize) -> Option<Vec<u8>> {
    let mut decoder = coding_of(coding).decoder(bytes_max)?;
    let mut decoded = Vec::new();
    for piece in pieces {
        decoded.extend_from_slice(&decoder.push(Bytes::copy_from_slice(piece)).ok()?);
    }
    decoder.finish().ok()?;
    Some(decoded)
}

fn coding_of(name: &str) -> Coding {
    let value = HeaderValue::from_str(name).unwrap_or(HeaderValue::from_static("unknown"));
    Coding::of(&HeaderMap::from_iter([(CONTENT_ENCODING, value)]))
}
