//! Replies whose head was sent before the upstream's came: what follows it.

use bytes::Bytes;
use episode::Route;
use http::body::ReplyBody;
use http::body::heartbeat::LateReply;
use http::headers::is_event_stream;
use http_body_util::BodyExt;
use hyper::Response;
use wire::ReplyKind;

use crate::bounds::LATE_ERROR_BYTES_MAX;
use crate::error::CallError;
use crate::reply::opening::BodyKind;

/// The agent's form of a reply whose status and content type cannot be sent any more.
pub(crate) async fn late_reply(
    reply: Result<Response<ReplyBody>, CallError>,
    is_stream: bool,
    route: Route,
) -> LateReply {
    let (head, body) = match reply {
        Ok(reply) => reply.into_parts(),
        Err(error) if is_stream => return LateReply::Error(error.event(route)),
        Err(error) => return LateReply::Broken(error.into()),
    };
    let fits = match head.extensions.get() {
        Some(BodyKind(Some(kind))) => (*kind == ReplyKind::Events) == is_stream,
        // White space fits both.
        Some(BodyKind(None)) => true,
        None => is_event_stream(&head.headers) == is_stream,
    };
    if head.status.is_success() && fits {
        return LateReply::Body(body);
    }

    // The body is read to its end, since the call is on disk only then.
    let text = wire::error_text(&read_error(body).await);
    let status = if head.status.is_success() { 502 } else { head.status.as_u16() };
    match is_stream {
        true => {
            let event = wire::error_event(route, status, "upstream_error", &text);
            LateReply::Error(Bytes::from(event))
        }
        false => LateReply::Broken(format!("status {status}: {text}").into()),
    }
}

/// The body of an error, as far as it is kept.
async fn read_error(mut body: ReplyBody) -> Vec<u8> {
    let mut read = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let data = frame.into_data().unwrap_or_default();
        let room = LATE_ERROR_BYTES_MAX.saturating_sub(read.len());
        read.extend_from_slice(&data[..data.len().min(room)]);
    }
    read
}
