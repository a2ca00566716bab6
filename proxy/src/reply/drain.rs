//! The rest of a reply whose agent left with the whole answer: token counts, and on some servers
//! token ids. It is read for the recording alone.

use std::pin::pin;

use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use tokio::runtime::Handle;

use crate::bounds::REST_WAIT;
use crate::record::open_call::OpenCall;
use crate::reply::transform::BodyTransform;

/// Reads a reply to its end, then ends the call. The upstream samples no more tokens for it, so
/// its connection is closed only if that takes too long.
pub(super) fn drain(mut upstream: Incoming, mut transform: BodyTransform, mut call: Box<OpenCall>) {
    // During the shutdown of the runtime the call ends with what there is.
    let Ok(runtime) = Handle::try_current() else { return };
    runtime.spawn(async move {
        let rest = read_rest(&mut upstream, &mut transform, &mut call);
        let _ = tokio::time::timeout(REST_WAIT, rest).await;
        drop(call);
    });
}

async fn read_rest(upstream: &mut Incoming, transform: &mut BodyTransform, call: &mut OpenCall) {
    let mut upstream = pin!(upstream);
    while let Some(Ok(frame)) = upstream.frame().await {
        let Ok(bytes) = Frame::into_data(frame) else { continue };
        if transform.drain(bytes, call.recording()) {
            break;
        }
    }
}
