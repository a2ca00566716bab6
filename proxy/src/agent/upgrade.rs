//! Connections that switch from HTTP to another protocol.
//!
//! Bytes after the switch are not recorded. A WebSocket to a generating route is therefore refused
//! with 426, after which clients fall back to POST. Others are relayed where the user allows their
//! path, within the bounds of a call: a connection that has switched keeps its place among the
//! connections and among the calls, and ends when nothing passes for too long, when its episode is
//! closed, and when rolltape stops. No other protocol is switched to.

use std::sync::Arc;

use bytes::Bytes;
use episode::{AttemptId, Outcome, Route};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};
use wire::ForcedSampling;

use crate::agent::request_body::RequestBody;
use crate::agent::tunnel::{Switched, Tunnel};
use crate::body::{ReplyBody, full};
use crate::clock::now;
use crate::error::CallError;
use crate::fleet::threads::Thread;
use crate::headers::{self, AcceptedCodings};
use crate::proxy::Proxy;
use crate::record::open_call::{Arrival, OpenCall, committed};
use crate::reply::tee::{self, ReplyReceiver};

/// The only protocol that a connection switches to.
const WEBSOCKET: &[u8] = b"websocket";

/// True if a request asks for a WebSocket and nothing else. Any other request is a call: its
/// upgrade is optional, and is declined.
pub(crate) fn is_requested(request: &Request<impl Body>) -> bool {
    let asks = headers::list_members(request.headers(), CONNECTION).any(|name| name == "upgrade");
    let can_ask = request.method() == Method::GET && request.version() == Version::HTTP_11;
    asks && can_ask && names_websocket(request.headers()) && request.body().is_end_stream()
}

/// True if the one protocol that the headers name is WebSocket.
fn names_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter().map(HeaderValue::as_bytes);
    let first = protocols.next().unwrap_or_default();
    first.trim_ascii().eq_ignore_ascii_case(WEBSOCKET) && protocols.next().is_none()
}

/// Relays an upgrade that the gate lets pass and, if the upstream agrees, every byte after it.
pub(crate) async fn relay(
    proxy: &Arc<Proxy>,
    mut request: Request<Incoming>,
) -> Result<Response<ReplyBody>, CallError> {
    let agent = hyper::upgrade::on(&mut request);
    let (mut head, _) = request.into_parts();
    let started_at = now();
    let switched = Switched::take_from(&mut head.extensions);
    let permit = proxy.call_permit().await;
    let tagged = proxy.tag(&mut head, None, started_at)?;
    let path = tagged.path.clone();
    // Before the start record: an episode that was closed by then takes no call.
    let closed = proxy.tracker.add_tunnel(AttemptId::from(&tagged.tag));
    let thread = Thread::of(&AttemptId::from(&tagged.tag), &tagged.lineage, Route::Other, None);

    let (body, force) = (&RequestBody::default(), &ForcedSampling::default());
    let arrival = Arrival { head: &head, body, request: None, force, started_at };
    let mut call = OpenCall::begin(proxy, arrival, tagged, None).await;
    call.wait_for_start().await?;

    // `upgrade` is a hop-by-hop header, so it is removed and then set again.
    let protocol = head.headers.get(UPGRADE).cloned();
    headers::prepare_request(&mut head.headers, Route::Other);
    set_upgrade(&mut head.headers, protocol);
    let place = match proxy.fleet.place(&thread).await {
        Ok(place) => place,
        Err(error) => return Err(call.fail(error).await),
    };
    let engine = Arc::clone(&place.engine);
    call.put_on(place);
    let mut reply = match engine.forward.upgrade(&head, &path).await {
        Ok(reply) => reply,
        Err(error) => return Err(call.fail(error).await),
    };

    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
        if !names_websocket(reply.headers()) {
            let error = CallError::Broken("it switches to another protocol".to_owned());
            return Err(call.fail(error).await);
        }
        let upstream = hyper::upgrade::on(&mut reply);
        let idle_wait = proxy.config().idle_wait;
        switched.set(Tunnel { agent, upstream, idle_wait, closed, _permit: permit });
    }
    let codings = AcceptedCodings::of(&head.headers);
    let receiver = ReplyReceiver::new(Route::Other, codings, proxy.config());
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
