//! Connections that become something else than HTTP.
//!
//! What passes over them is not recorded, so a WebSocket on a route that samples tokens is
//! refused with 426, on which its clients fall back to POST. Others are relayed.

use std::sync::Arc;

use bytes::Bytes;
use episode::{Outcome, Route};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use wire::Force;

use crate::accept::Taken;
use crate::fault::{Fault, whole};
use crate::headers::{self, Accepts};
use crate::open_call::{OpenCall, now};
use crate::proxy::Proxy;
use crate::record::Recording;
use crate::serve::begun;
use crate::tag;
use crate::tee::{self, Reader, ReplyBody};

/// Whether a request asks for another protocol than some HTTP, and for nothing beside it. What has
/// a body is a call: its upgrade may be declined, and is.
pub(crate) fn is_wanted(request: &Request<Incoming>) -> bool {
    let asks = headers::tokens(request.headers(), CONNECTION).any(|token| token == "upgrade");
    let protocol = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    let other = protocol.is_some_and(|name| !name.eq_ignore_ascii_case(b"h2c"));
    asks && other && request.body().is_end_stream()
}

/// Relays an upgrade and, if the upstream agrees, every byte after it.
pub(crate) async fn relay(
    proxy: &Arc<Proxy>,
    mut request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Fault> {
    let path = request.uri().path().to_owned();
    if tag::route_of(&hyper::Method::POST, &path).generates() {
        return Err(Fault::Upgrade);
    }
    let agent = hyper::upgrade::on(&mut request);
    let (mut head, _) = request.into_parts();
    let tagged = tag::tag(&proxy.known, &mut head, None, now())?;
    let begun = begun(&head, tagged, (None, &Force::default()), (&Taken::default(), now()));
    let path = begun.path.clone();
    let recording = Recording::new(begun.call_id, begun.route, proxy.config().reply_bytes_max);
    let mut open = OpenCall::begin(proxy, begun, recording, None).await;
    open.begun().await?;
    let protocol = head.headers.get(UPGRADE).cloned();
    headers::request_headers(&mut head.headers, Route::Other);
    ask_for(&mut head.headers, protocol);
    let mut reply = match proxy.forward.upgrade(&head, &path).await {
        Ok(reply) => reply,
        Err(fault) => return Err(open.fail(fault).await),
    };
    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
        let upstream = hyper::upgrade::on(&mut reply);
        tokio::spawn(async move {
            if let (Ok(agent), Ok(upstream)) = tokio::join!(agent, upstream) {
                let (mut agent, mut upstream) = (TokioIo::new(agent), TokioIo::new(upstream));
                // Either side may leave as it likes.
                let _ = tokio::io::copy_bidirectional(&mut agent, &mut upstream).await;
            }
        });
    }
    let reader = Reader {
        route: Route::Other,
        accepts: Accepts::of(&head.headers),
        bytes_max: proxy.config().reply_bytes_max,
    };
    answered(reply, open, &reader).await
}

fn ask_for(headers: &mut HeaderMap, protocol: Option<HeaderValue>) {
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// The head of the answer; a refusal's body goes with it.
async fn answered(
    reply: Response<Incoming>,
    mut open: OpenCall,
    reader: &Reader,
) -> Result<Response<ReplyBody>, Fault> {
    let (mut head, body) = reply.into_parts();
    open.recording().status(head.status.as_u16());
    if head.status != StatusCode::SWITCHING_PROTOCOLS {
        return tee::plain((head, body), open, reader).await;
    }
    let protocol = head.headers.get(UPGRADE).cloned();
    headers::end_to_end(&mut head.headers);
    ask_for(&mut head.headers, protocol);
    tee::committed(open.end(Outcome::Complete)).await?;
    Ok(Response::from_parts(head, whole(Bytes::new())))
}
