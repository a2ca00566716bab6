//! Trailers of requests.

use http::headers;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Frame};
use hyper::header::{self, HeaderName};

use crate::tag;
use crate::upstream::rewrite::remove_reserved;

/// Removes what the upstream never receives in a header, and what says who calls or how a body is
/// read: a trailer must not say that (RFC 9110, section 6.5.1).
pub(crate) fn clean(trailers: &mut HeaderMap) {
    const REFUSED: [HeaderName; 8] = [
        header::COOKIE,
        header::TE,
        header::TRAILER,
        header::CONTENT_ENCODING,
        header::CONTENT_TYPE,
        header::CONTENT_RANGE,
        header::ACCEPT_ENCODING,
        header::HOST,
    ];
    headers::remove_hop_by_hop(trailers);
    headers::remove(trailers, &REFUSED);
    headers::remove_rewritten(trailers);
    remove_reserved(false, trailers);
    tag::remove_tags_and_keys(trailers);
}

/// A body, with its trailers cleaned.
pub(crate) fn cleaned<B: Body>(body: B) -> impl Body<Data = B::Data, Error = B::Error> {
    body.map_frame(|frame| match frame.into_trailers() {
        Ok(mut trailers) => {
            clean(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;
    use crate::upstream::rewrite::CACHE_SCOPE;

    #[test]
    fn what_is_kept_from_headers_is_kept_from_trailers() {
        let mut trailers = HeaderMap::new();
        for name in [
            "authorization",
            "x-api-key",
            "x-episode-id",
            "x-episode-tag",
            "x-data-parallel-rank",
            "x-smg-target-worker",
            CACHE_SCOPE,
            "content-length",
            "transfer-encoding",
            "x-original-url",
            "cookie",
            "x-checksum",
        ] {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            trailers.append(name, HeaderValue::from_static("1"));
        }
        clean(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-checksum"]);
    }
}
