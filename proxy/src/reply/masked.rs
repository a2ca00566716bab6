//! Replies in which the operator's key is masked on its way to the agent.
//!
//! A masked text has the length of the key, so no length of a reply changes. Bytes that may be the
//! beginning of a key wait for those that follow; all others leave as they came.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::body::{BoxError, ReplyBody};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use hyper::ext::ReasonPhrase;

use crate::record::mask::KeyMask;

/// The reply with the key masked in its head, its body and its trailers.
pub(crate) fn masked(reply: Response<ReplyBody>, mask: &KeyMask) -> Response<ReplyBody> {
    if mask.is_empty() {
        return reply;
    }
    let (mut head, body) = reply.into_parts();
    mask.hide_in_headers(&mut head.headers);
    if head.extensions.get::<ReasonPhrase>().is_some_and(|phrase| mask.is_in(phrase.as_bytes())) {
        head.extensions.remove::<ReasonPhrase>();
    }
    let body = MaskedBody { body, mask: mask.clone(), held: Bytes::new(), next: Next::Read };
    Response::from_parts(head, body.boxed_unsync())
}

/// A body with the key masked.
struct MaskedBody {
    body: ReplyBody,
    mask: KeyMask,
    /// Bytes that may be the beginning of a key.
    held: Bytes,
    next: Next,
}

/// The step after the bytes that were sent last.
enum Next {
    Read,
    /// Trailers, an error, or nothing: whatever followed the last bytes.
    Tell(Option<Result<Frame<Bytes>, BoxError>>),
}

impl MaskedBody {
    /// Takes bytes; returns those that can be sent.
    fn push(&mut self, bytes: Bytes) -> Bytes {
        let mut bytes = match self.held.is_empty() {
            true => bytes,
            false => Bytes::from([std::mem::take(&mut self.held), bytes].concat()),
        };
        self.mask.hide_in_bytes(&mut bytes);
        self.held = bytes.split_off(bytes.len() - self.mask.begun(&bytes));
        bytes
    }
}

impl Body for MaskedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Next::Tell(last) = &mut self.next {
                return Poll::Ready(last.take());
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            let last = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => match self.push(bytes) {
                    // All of it is held.
                    sent if sent.is_empty() && !self.held.is_empty() => continue,
                    sent => return Poll::Ready(Some(Ok(Frame::data(sent)))),
                },
                Some(Ok(Err(frame))) => frame.into_trailers().ok().map(|mut trailers| {
                    self.mask.hide_in_headers(&mut trailers);
                    Ok(Frame::trailers(trailers))
                }),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            };

            // What is held was no key.
            self.next = Next::Tell(last);
            let held = std::mem::take(&mut self.held);
            if !held.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(held))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty()
            && match &self.next {
                Next::Read => self.body.is_end_stream(),
                Next::Tell(last) => last.is_none(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let (held, rest) = (self.held.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + held);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + held);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http::body::outgoing::OutgoingBody;
    use hyper::HeaderMap;
    use hyper::header::HeaderValue;

    use super::*;

    const KEY: &str = "sk-own/4b8e7f3a9c1d5e2b";

    /// A body that comes in these pieces.
    struct Pieces(Vec<Frame<Bytes>>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            let next = (!self.0.is_empty()).then(|| Ok(self.0.remove(0)));
            Poll::Ready(next)
        }
    }

    /// The frames of a masked reply that comes in these pieces.
    async fn sent(pieces: &[&str], trailers: Option<HeaderMap>) -> Vec<Frame<Bytes>> {
        let data = pieces.iter().map(|piece| Frame::data(Bytes::from((*piece).to_owned())));
        let frames = data.chain(trailers.map(Frame::trailers)).collect();
        let reply = Response::new(Pieces(frames).boxed_unsync());
        let mut body = masked(reply, &KeyMask::new(Some(KEY))).into_body();
        let mut sent = Vec::new();
        while let Some(frame) = body.frame().await {
            sent.push(frame.unwrap());
        }
        sent
    }

    async fn text(pieces: &[&str]) -> String {
        let frames = sent(pieces, None).await;
        let data: Vec<Bytes> = frames.into_iter().filter_map(|f| f.into_data().ok()).collect();
        String::from_utf8(data.concat()).unwrap()
    }

    #[tokio::test]
    async fn the_key_is_masked_wherever_a_reply_is_cut() {
        let said = format!("a sk-own {KEY} b {} c sk-o", KEY.replace('/', "\\/"));
        let whole = text(&[&said]).await;
        assert!(whole.len() == said.len() && !whole.contains("4b8e7f3a"), "{whole}");
        assert!(whole.starts_with("a sk-own ") && whole.ends_with(" c sk-o"), "{whole}");
        for at in 0..said.len() {
            let (first, rest) = said.split_at(at);
            assert_eq!(text(&[first, rest]).await, whole);
            let (middle, last) = rest.split_at(rest.len() / 2);
            assert_eq!(text(&[first, middle, last]).await, whole);
        }
    }

    #[tokio::test]
    async fn what_is_no_key_leaves_as_it_came() {
        let events = ["data: {\"a\":1}\n\n", "", "data: sk-\n\n", "data: s", "k-other\n\n"];
        let frames = sent(&events, None).await;
        let lengths: Vec<usize> = frames.iter().map(|f| f.data_ref().unwrap().len()).collect();
        assert_eq!(lengths, [15, 0, 11, 6, 10], "only the beginning of a key waits");
        assert_eq!(text(&events).await, events.concat());
    }

    #[tokio::test]
    async fn headers_and_trailers_are_masked_and_follow_the_bytes() {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let trailers: HeaderMap = [("x-told".parse().unwrap(), value(KEY))].into_iter().collect();
        let frames = sent(&["a", "sk-own"], Some(trailers)).await;
        assert_eq!(frames.len(), 3);
        assert!(!frames[2].trailers_ref().unwrap()["x-told"].to_str().unwrap().contains("4b8e"));

        let reply = Response::builder().header("x-echo", format!("Bearer {KEY}"));
        let reply = reply.header("content-length", "4");
        let body = OutgoingBody::whole(Bytes::from_static(b"text"), None).boxed_unsync();
        let reply = masked(reply.body(body).unwrap(), &KeyMask::new(Some(KEY)));
        assert_eq!(reply.headers()["content-length"], "4");
        assert!(reply.headers()["x-echo"].to_str().unwrap().starts_with("Bearer rolltape-"));
        assert_eq!(reply.body().size_hint().exact(), Some(4));
    }
}
