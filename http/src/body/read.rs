//! Bodies of requests, read within bounds of size, time and memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request};
use tokio::time::Instant;

use crate::body::BodyError;
use crate::body::coding::{Coding, DecodeError, decoded_bytes_max};
use crate::body::pace::{Pace, PacedBody};
use crate::body::read_mark::mark_read;
use crate::body::request_body::{RequestBody, RequestLimits};
use crate::bounds::BODY_COPIES;
use crate::memory::{MemoryAccount, MemoryLease};

/// Rules by which the body of a request is read.
#[derive(Debug, Clone, Copy)]
pub struct BodyRules {
    /// Its bounds.
    pub limits: RequestLimits,
    /// The time of a piece.
    pub wait: Duration,
    /// True if a body that cannot be decoded is refused; false if it stays as it was sent.
    pub is_required: bool,
    /// Removes the trailers that are not taken.
    pub clean_trailers: fn(&mut HeaderMap),
}

/// Reads a request, whole or up to the bound of what is kept.
///
/// # Errors
/// [`BodyError`] if the announced length exceeds its bound, there is no memory for the body, it
/// breaks off or comes too slowly, or it is required and cannot be decoded.
pub async fn read(
    request: Request<Incoming>,
    rules: BodyRules,
    memory: &Arc<MemoryAccount>,
) -> Result<(Parts, RequestBody), BodyError> {
    let (mut head, incoming) = request.into_parts();
    // A length that is announced can be refused before anything is read.
    if incoming.size_hint().lower() > rules.limits.max {
        return Err(BodyError::TooLong(rules.limits.max));
    }
    let mut lease = memory.lease();
    lease.admit(0)?;

    let mut body = take(incoming, rules, &mut lease).await?;
    if body.rest.is_some() {
        // The beginning of a body cannot be decoded on its own, and is held once.
        body.decoded = body.raw.clone();
        lease.shrink(body.raw.len());
    } else {
        mark_read(&mut head.extensions);
        (body.decoded, lease) = decode(&head, &body, rules.limits, lease).await?;
        lease.hold((body.raw.len() + body.decoded.len()).max(body.raw.len() * BODY_COPIES));
    }
    body.memory = Some(lease);
    Ok((head, body))
}

/// Takes the bytes of a body up to the bound of what is kept.
async fn take(
    mut incoming: Incoming,
    rules: BodyRules,
    lease: &mut MemoryLease,
) -> Result<RequestBody, BodyError> {
    let BodyRules { limits, wait, is_required, clean_trailers } = rules;
    let mut body = RequestBody { is_required, ..RequestBody::default() };
    let mut read = BytesMut::new();
    let mut pace = Pace::new(wait, Instant::now());
    loop {
        let frame = tokio::time::timeout_at(pace.deadline(Instant::now()), incoming.frame()).await;
        let Some(frame) = frame.map_err(|_| BodyError::TooSlow(pace.bytes()))? else { break };
        match frame.map_err(|error| BodyError::Unreadable(error.to_string()))?.into_data() {
            Ok(data) => {
                lease.admit((read.len() + data.len()) * BODY_COPIES)?;
                // A body of one frame is not copied.
                if read.is_empty() && incoming.is_end_stream() {
                    body.raw = data;
                    break;
                }
                pace.add(data.len());
                read.extend_from_slice(&data);
            }
            Err(frame) => {
                body.trailers = frame.into_trailers().ok();
                body.trailers.iter_mut().for_each(clean_trailers);
            }
        }
        if read.len() > limits.kept {
            body.rest = Some(PacedBody::new(incoming, wait, read.len()));
            break;
        }
    }

    if body.raw.is_empty() {
        body.raw = read.freeze();
    }
    Ok(body)
}

/// Undoes the content coding of a body. A body that cannot be decoded is refused on a generating
/// route; on any other it stays as it was sent, for the upstream to judge. The lease stays with the
/// work, which goes on if the agent leaves.
async fn decode(
    head: &Parts,
    body: &RequestBody,
    limits: RequestLimits,
    mut lease: MemoryLease,
) -> Result<(Bytes, MemoryLease), BodyError> {
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
            Err(BodyError::Unreadable(format!("its {coding:?} coding is damaged: {error}")))
        }
        Err(DecodeError::TooLong) if body.is_required => Err(BodyError::TooLong(limits.max)),
        Err(DecodeError::TooDense(max)) if body.is_required => Err(BodyError::TooDense(max)),
        Err(_) => Ok((raw.clone(), lease)),
    }
}

/// Reads a whole request of at most `bytes_max`. `wait` is the time of a piece.
///
/// # Errors
/// [`BodyError`] if it is longer, breaks off or comes too slowly.
pub async fn read_whole(
    request: Request<Incoming>,
    bytes_max: usize,
    wait: Duration,
) -> Result<(Parts, Bytes), BodyError> {
    let limits = RequestLimits { kept: bytes_max, max: bytes_max as u64 };
    let rules = BodyRules { limits, wait, is_required: false, clean_trailers: |_| {} };
    // Such requests are few and short, and must not suffer from calls.
    let memory = Arc::new(MemoryAccount::new(u64::MAX));
    let (head, body) = read(request, rules, &memory).await?;
    match body.rest {
        None => Ok((head, body.decoded)),
        Some(_) => Err(BodyError::TooLong(limits.max)),
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
}
