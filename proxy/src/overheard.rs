//! What an upstream still says when its agent has left with the whole answer: counts, and on some
//! servers the ids of the tokens. It is read for the recording alone.

use std::pin::pin;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use tokio::runtime::Handle;

use crate::lens::Lens;
use crate::open_call::OpenCall;

/// How long an upstream that has said why it stopped may take for the rest.
const REST_WAIT: Duration = Duration::from_secs(1);

/// Reads a reply to its end, then ends the call. The upstream samples nothing more for it, so its
/// connection is given up only when it takes too long.
pub(crate) fn overhear(mut upstream: Incoming, mut lens: Lens, mut call: Box<OpenCall>) {
    // Without a runtime, or with one that ends, the call ends with what there is.
    let Ok(runtime) = Handle::try_current() else { return };
    runtime.spawn(async move {
        let rest = rest(&mut upstream, &mut lens, &mut call);
        let _ = tokio::time::timeout(REST_WAIT, rest).await;
        drop(call);
    });
}

async fn rest(upstream: &mut Incoming, lens: &mut Lens, call: &mut OpenCall) {
    let mut upstream = pin!(upstream);
    while let Some(Ok(frame)) = upstream.frame().await {
        let Ok(bytes) = Frame::into_data(frame) else { continue };
        if lens.overheard(bytes, call.recording()) {
            break;
        }
    }
}
