//! Connections that switch from HTTP to another protocol.
//!
//! Bytes after the switch are not recorded. A WebSocket to a generating route is therefore refused
//! with 426, after which clients fall back to POST. Others are relayed.

use std::sync::Arc;

use bytes::Bytes;
use episode::{Outcome, Route};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use wire::ForcedSampling;

use crate::body::{ReplyBody, RequestBody, full};
use crate::clock::now;
use crate::error::CallError;
use crate::headers::{self, AcceptedCodings};
use crate::proxy::Proxy;
use crate::record::open_call::{Arrival, OpenCall, committed};
use crate::reply::tee::{self, ReplyReceiver};
use crate::tag;

/// True if a request asks for a protocol other than HTTP and has no body. A request with a body is
/// a call: its upgrade is optional, and is declined.
pub(crate) fn is_requested(request: &Request<Incoming>) -> bool {
    let asks = headers::list_members(request.headers(), CONNECTION).any(|name| name == "upgrade");
    let protocol = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    let is_other = protocol.is_some_and(|name| !name.eq_ignore_ascii_case(b"h2c"));
    asks && is_other && request.body().is_end_stream()
}

/// Relays an upgrade and, if the upstream agrees, every byte after it.
pub(crate) async fn relay(
    proxy: &Arc<Proxy>,
    mut request: Request<Incoming>,
) -> Result<Response<ReplyBody>, CallError> {
    // A WebSocket starts with GET, but its path is that of a POST that samples.
    if tag::route_of(&hyper::Method::POST, request.uri().path()).generates() {
        return Err(CallError::Upgrade);
    }
    let agent = hyper::upgrade::on(&mut request);
    let (mut head, _) = request.into_parts();
    let started_at = now();
    let tagged = tag::tag(&proxy.tags, &mut head, None, started_at)?;
    let path = tagged.path.clone();

    let (body, force) = (&RequestBody::default(), &ForcedSampling::default());
    let arrival = Arrival { head: &head, body, request: None, force, started_at };
    let mut call = OpenCall::begin(proxy, arrival, tagged, None).await;
    call.wait_for_start().await?;

    // `upgrade` is a hop-by-hop header, so it is removed and then set again.
    let protocol = head.headers.get(UPGRADE).cloned();
    headers::prepare_request(&mut head.headers, Route::Other);
    set_upgrade(&mut head.headers, protocol);
    let mut reply = match proxy.forward.upgrade(&head, &path).await {
        Ok(reply) => reply,
        Err(error) => return Err(call.fail(error).await),
    };

    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
        let upstream = hyper::upgrade::on(&mut reply);
        tokio::spawn(async move {
            if let (Ok(agent), Ok(upstream)) = tokio::join!(agent, upstream) {
                let (mut agent, mut upstream) = (TokioIo::new(agent), TokioIo::new(upstream));
                // Either side may close the connection at any time.
                let _ = tokio::io::copy_bidirectional(&mut agent, &mut upstream).await;
            }
        });
    }
    let receiver = ReplyReceiver {
        route: Route::Other,
        codings: AcceptedCodings::of(&head.headers),
        bytes_max: proxy.config().reply_bytes_max,
    };
    relay_reply(reply, call, &receiver).await
}

fn set_upgrade(headers: &mut HeaderMap, protocol: Option<HeaderValue>) {
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// Relays the head of a switch, or a whole refusal.
async fn relay_reply(
    reply: Response<Incoming>,
    mut call: OpenCall,
    receiver: &ReplyReceiver,
) -> Result<Response<ReplyBody>, CallError> {
    let (mut head, body) = reply.into_parts();
    call.recording().set_status(head.status.as_u16());
    if head.status != StatusCode::SWITCHING_PROTOCOLS {
        return tee::relay_opaque(head, body, call, receiver).await;
    }
    let protocol = head.headers.get(UPGRADE).cloned();
    headers::remove_hop_by_hop(&mut head.headers);
    set_upgrade(&mut head.headers, protocol);
    committed(call.end(Outcome::Complete)).await?;
    Ok(Response::from_parts(head, full(Bytes::new())))
}
