//! Requests of agents, read whole within bounds of size and time.
//!
//! - `gate`: the requests that are served at all. `upgrade`: requests for other protocols.

pub(crate) mod gate;
pub(crate) mod upgrade;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::body::coding::{Coding, DecodeError, decoded_bytes_max};
use http::body::pace::{Pace, PacedBody};
use http::body::request_body::{RequestBody, RequestLimits};
use http::memory::{MemoryAccount, MemoryLease};
use http::server::activity::mark_read;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request};
use tokio::time::Instant;

use crate::bounds::BODY_COPIES;
use crate::config::Config;
use crate::error::CallError;
use crate::tag;
use crate::upstream::trailers;

/// Reads a request of an agent, whole or up to the bound of what is kept.
///
/// # Errors
/// [`CallError`] if the announced length exceeds its bound, there is no memory for the body, it
/// breaks off or comes too slowly, or that of a generating route cannot be decoded.
pub(crate) async fn read(
    request: Request<Incoming>,
    config: &Config,
    memory: &Arc<MemoryAccount>,
) -> Result<(Parts, RequestBody), CallError> {
    read_within(request, config.request_limits(), config.body_wait, memory).await
}

/// Reads a request, whole or up to `limits.kept`. `wait` is the time of a piece.
async fn read_within(
    request: Request<Incoming>,
    limits: RequestLimits,
    wait: Duration,
    memory: &Arc<MemoryAccount>,
) -> Result<(Parts, RequestBody), CallError> {
    let (mut head, mut incoming) = request.into_parts();
    // A length that is announced can be refused before anything is read.
    if incoming.size_hint().lower() > limits.max {
        return Err(CallError::TooLong(limits.max));
    }

    let mut lease = memory.lease();
    lease.admit(0)?;
    let is_required = tag::route_of(&head.method, head.uri.path()).generates();
    let mut body = RequestBody { is_required, ..RequestBody::default() };
    let mut read = BytesMut::new();
    let mut pace = Pace::new(wait, Instant::now());
    loop {
        let frame = tokio::time::timeout_at(pace.deadline(Instant::now()), incoming.frame()).await;
        let Some(frame) = frame.map_err(|_| CallError::TooSlow(pace.bytes()))? else { break };
        match frame.map_err(|error| CallError::Unreadable(error.to_string()))?.into_data() {
            Ok(data) if lease.admit((read.len() + data.len()) * BODY_COPIES).is_err() => {
                return Err(CallError::Overloaded);
            }
            // A body of one frame is not copied.
            Ok(data) if read.is_empty() && incoming.is_end_stream() => {
                body.raw = data;
                break;
            }
            Ok(data) => {
                pace.add(data.len());
                read.extend_from_slice(&data);
            }
            Err(frame) => body.trailers = frame.into_trailers().ok().map(cleaned),
        }
        if read.len() > limits.kept {
            body.rest = Some(PacedBody::new(incoming, wait, read.len()));
            break;
        }
    }
    if body.raw.is_empty() {
        body.raw = read.freeze();
    }
    if body.rest.is_none() {
        mark_read(&mut head.extensions);
    }

    if body.rest.is_some() {
        // The beginning of a body cannot be decoded on its own, and is held once.
        body.decoded = body.raw.clone();
        lease.shrink(body.raw.len());
    } else {
        (body.decoded, lease) = decode(&head, &body, limits, lease).await?;
        lease.hold((body.raw.len() + body.decoded.len()).max(body.raw.len() * BODY_COPIES));
    }
    body.memory = Some(lease);
    Ok((head, body))
}

/// The body of a request, if it is a JSON object. The beginning of a longer body is none, though it
/// may look like one: what is sent on is not what was read.
///
/// # Errors
/// [`CallError::TooComplex`] if it is one beyond the bounds of JSON. That holds on every route: a
/// body that is not read keeps its place in the upstream's queue.
pub(crate) fn json(body: &RequestBody) -> Result<Option<wire::Request>, CallError> {
    if body.rest.is_some() {
        return Ok(None);
    }
    let read = wire::Request::read(&body.decoded);
    if read.is_none() && wire::Request::is_beyond_bounds(&body.decoded) {
        return Err(CallError::TooComplex);
    }
    Ok(read)
}

fn cleaned(mut trailers: HeaderMap) -> HeaderMap {
    trailers::clean(&mut trailers);
    trailers
}

/// Undoes the content coding of a body. A body that cannot be decoded is refused on a generating
/// route; on any other it stays as it was sent, for the upstream to judge. The lease stays with the
/// work, which goes on if the agent leaves.
async fn decode(
    head: &Parts,
    body: &RequestBody,
    limits: RequestLimits,
    mut lease: MemoryLease,
) -> Result<(Bytes, MemoryLease), CallError> {
    let (coding, raw) = (Coding::of(&head.headers), &body.raw);
    if coding == Coding::Identity {
        return Ok((raw.clone(), lease));
    }
    let decoded_max = decoded_bytes_max(raw.len() as u64).min(limits.kept as u64);
    let decoded_max = usize::try_from(decoded_max).unwrap_or(usize::MAX);
    lease.admit(raw.len().saturating_add(decoded_max.saturating_mul(BODY_COPIES)))?;
    let (coded, spare) = (raw.clone(), lease.sibling());
    // A small body can take seconds to decode.
    let work = tokio::task::spawn_blocking(move || (coding.decode(&coded, limits), lease)).await;

    let (decoded, mut lease) = work.unwrap_or((Err(DecodeError::Unknown), spare));
    let held = decoded.as_ref().map_or(0, Bytes::len);
    lease.shrink(raw.len() + held * BODY_COPIES);
    match decoded {
        Ok(decoded) => Ok((decoded, lease)),
        Err(DecodeError::Damaged(error)) if body.is_required => {
            Err(CallError::Unreadable(format!("its {coding:?} coding is damaged: {error}")))
        }
        Err(DecodeError::TooLong) if body.is_required => Err(CallError::TooLong(limits.max)),
        Err(DecodeError::TooDense(max)) if body.is_required => Err(CallError::TooDense(max)),
        Err(_) => Ok((raw.clone(), lease)),
    }
}

/// Reads a whole request of at most `bytes_max`. `wait` is the time of a piece.
///
/// # Errors
/// [`CallError`] if it is longer, breaks off or comes too slowly.
pub(crate) async fn read_whole(
    request: Request<Incoming>,
    bytes_max: usize,
    wait: Duration,
) -> Result<(Parts, Bytes), CallError> {
    let limits = RequestLimits { kept: bytes_max, max: bytes_max as u64 };
    // Such requests are few and short, and must not suffer from calls.
    let memory = Arc::new(MemoryAccount::new(u64::MAX));
    let (head, body) = read_within(request, limits, wait, &memory).await?;
    match body.rest {
        None => Ok((head, body.decoded)),
        Some(_) => Err(CallError::TooLong(limits.max)),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Bytes that a small gzip body decodes to: what takes a while to decode.
    const DECODED_BYTES: usize = 16 << 20;

    fn gzip(plain: &[u8]) -> Bytes {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap().into()
    }

    #[tokio::test]
    async fn the_memory_of_a_body_is_charged_until_the_work_on_it_ends() {
        let text: Vec<u8> = (0..DECODED_BYTES).map(|at| (at / 40 % 251) as u8).collect();
        let body = RequestBody { raw: gzip(&text), is_required: true, ..RequestBody::default() };
        let head = Request::builder().header("content-encoding", "gzip").body(()).unwrap();
        let head = head.into_parts().0;
        let limits = RequestLimits { kept: 64 << 20, max: 64 << 20 };
        let memory = Arc::new(MemoryAccount::new(1 << 30));

        // An agent that leaves drops the future.
        {
            let mut left = pin!(decode(&head, &body, limits, memory.lease()));
            assert!(left.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert!(memory.counts().held > DECODED_BYTES as u64, "{:?}", memory.counts());
        let given_back = async {
            while memory.counts().held > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), given_back).await.expect("it is given back");
    }

    #[test]
    fn a_body_beyond_the_bounds_of_json_is_refused_on_every_route() {
        let fields: Vec<String> = (0..5000).map(|n| format!("\"f{n}\":1")).collect();
        let many = Bytes::from(format!("{{{}}}", fields.join(",")));
        for is_required in [true, false] {
            let body = RequestBody { decoded: many.clone(), is_required, ..RequestBody::default() };
            assert!(matches!(json(&body), Err(CallError::TooComplex)), "{is_required}");
        }
        let text = RequestBody { decoded: Bytes::from_static(b"text"), ..RequestBody::default() };
        assert!(matches!(json(&text), Ok(None)));
    }
}
