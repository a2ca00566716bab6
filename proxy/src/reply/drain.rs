//! The rest of a reply whose agent left with the whole answer: token counts, and on some servers
//! token ids. It is read for the recording alone.

use std::pin::pin;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::Handle;

use crate::bounds::REST_WAIT;
use crate::record::open_call::OpenCall;
use crate::reply::transform::BodyTransform;

/// The rest of a reply: what came and was not decoded yet, and what is still to come.
pub(super) struct RestOfReply {
    pub(super) unread: Bytes,
    pub(super) upstream: Incoming,
}

/// Reads a reply to its end, then ends the call. The upstream samples no more tokens for it, so
/// its connection is closed only if that takes too long.
pub(super) fn drain(rest: RestOfReply, mut transform: BodyTransform, mut call: Box<OpenCall>) {
    // During the shutdown of the runtime the call ends with what there is.
    let Ok(runtime) = Handle::try_current() else { return };
    runtime.spawn(async move {
        let rest = read_rest(rest, &mut transform, &mut call);
        let _ = tokio::time::timeout(REST_WAIT, rest).await;
        drop(call);
    });
}

async fn read_rest(rest: RestOfReply, transform: &mut BodyTransform, call: &mut OpenCall) {
    let RestOfReply { mut unread, upstream } = rest;
    let mut upstream = pin!(upstream);
    loop {
        while !unread.is_empty() {
            let piece = transform.take_piece(&mut unread);
            if transform.drain(piece, call.recording()) {
                return;
            }
        }
        let Some(Ok(frame)) = upstream.frame().await else { return };
        unread = frame.into_data().unwrap_or_default();
    }
}
