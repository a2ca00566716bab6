//! The state of a connection: who waits for whom, and since when.
//!
//! The socket and the requests of a connection write it. The listener reads it once a second, and
//! when it needs room. It is made of counters, so that no chunk of a reply takes a lock; a reply
//! over HTTP/2 takes one when it begins and when it ends.

use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Request, Version};
use tokio::sync::OwnedSemaphorePermit;

use crate::body::BoxError;
use crate::body::read_mark::{ReadMark, ReadObserver};
use crate::bounds::{IDLE_AGE_MIN, SILENT_AGE_MIN, STREAM_PIECE_BYTES_MAX};

/// The value of a time that is not set.
const NEVER: u64 = 0;

/// The stage of the one request of an HTTP/1.1 connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// No request is under way.
    Idle,
    /// The body of a request is being read.
    Reading,
    /// A request was read whole, and nothing of the reply was sent.
    Answering,
    /// The reply is being sent.
    Replying,
}

/// The permit of a call in flight; `None` for calls that need none.
pub type CallPermit = Option<OwnedSemaphorePermit>;

/// Times that an agent has.
#[derive(Debug, Clone, Copy)]
pub struct AgentWaits {
    /// From the first byte of a request, or from the start of the connection, to the end of a head.
    pub head: Duration,
    /// From the end of a reply to the next request.
    pub idle: Duration,
    /// For reading on in a reply.
    pub stall: Duration,
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    accepted_at: Instant,
    /// Requests whose replies have not ended.
    open: AtomicU32,
    /// Of these, the requests that were read whole.
    read: AtomicU32,
    /// Of these, the requests whose replies have begun.
    replying: AtomicU32,
    /// True once a request came.
    has_served: AtomicBool,
    is_http2: AtomicBool,
    /// True while bytes of a reply may be on their way to the system.
    is_unflushed: AtomicBool,
    /// Time of the end of the last reply, in ms after `accepted_at`.
    idle_since: AtomicU64,
    /// Time of the first byte of a head that is not whole.
    head_since: AtomicU64,
    /// Time since which the agent reads nothing.
    stalled_since: AtomicU64,
    /// For each reply over HTTP/2, the time since which a piece of it waits for the agent to take
    /// it. The socket shows nothing of that: a stream without a window writes nothing.
    unread: Mutex<Vec<UnreadSince>>,
}

/// A time in ms after the start of a connection, or [`NEVER`].
type UnreadSince = Arc<AtomicU64>;

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            accepted_at: Instant::now(),
            open: AtomicU32::new(0),
            read: AtomicU32::new(0),
            replying: AtomicU32::new(0),
            has_served: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            is_unflushed: AtomicBool::new(false),
            idle_since: AtomicU64::new(NEVER),
            head_since: AtomicU64::new(NEVER),
            stalled_since: AtomicU64::new(NEVER),
            unread: Mutex::default(),
        }
    }

    /// The present, in ms after the start of the connection; never [`NEVER`].
    fn now(&self) -> u64 {
        self.ms(Instant::now())
    }

    fn ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.accepted_at).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX).max(1)
    }

    pub(super) fn stage(&self) -> Stage {
        if self.open.load(Relaxed) == 0 {
            Stage::Idle
        } else if self.replying.load(Relaxed) > 0 {
            Stage::Replying
        } else if self.read.load(Relaxed) > 0 {
            Stage::Answering
        } else {
            Stage::Reading
        }
    }

    pub(super) fn is_http2(&self) -> bool {
        self.is_http2.load(Relaxed)
    }

    /// Notes that bytes came.
    pub(super) fn received(&self) {
        // An idle HTTP/2 connection has frames that belong to no request.
        let begins = self.open.load(Relaxed) == 0 && !self.is_http2();
        if begins && self.head_since.load(Relaxed) == NEVER {
            self.head_since.store(self.now(), Relaxed);
        }
    }

    /// Notes a write. A write that is not taken shows an agent that does not read.
    pub(super) fn wrote(&self, is_taken: bool) {
        self.is_unflushed.store(true, Relaxed);
        let is_stalled = self.stalled_since.load(Relaxed) != NEVER;
        match is_taken {
            true if is_stalled => self.stalled_since.store(NEVER, Relaxed),
            false if !is_stalled => self.stalled_since.store(self.now(), Relaxed),
            _ => {}
        }
    }

    /// Notes that the system has all bytes.
    pub(super) fn flushed(&self) {
        self.is_unflushed.store(false, Relaxed);
    }

    pub(super) fn is_flushed(&self) -> bool {
        !self.is_unflushed.load(Relaxed)
    }

    /// The reason to close the connection, if one of its times is over.
    pub(super) fn expired(&self, now: Instant, waits: AgentWaits) -> Option<&'static str> {
        let now = self.ms(now);
        let is_over =
            |since: u64, wait: Duration| u128::from(now.saturating_sub(since)) > wait.as_millis();
        let is_stalled = |since: &AtomicU64| {
            let since = since.load(Relaxed);
            since != NEVER && is_over(since, waits.stall)
        };
        let has_stalled_stream =
            || self.is_http2() && self.unread().iter().any(|since| is_stalled(since));

        if is_stalled(&self.stalled_since) || has_stalled_stream() {
            return Some("the agent does not read its reply");
        }

        if self.open.load(Relaxed) > 0 {
            return None;
        }

        let head = self.head_since.load(Relaxed);
        if head != NEVER {
            return is_over(head, waits.head).then_some("the head of a request takes too long");
        }
        if !self.has_served.load(Relaxed) {
            return is_over(NEVER, waits.head).then_some("no request came");
        }
        let idle = self.idle_since.load(Relaxed);
        is_over(idle, waits.idle).then_some("no further request came")
    }

    fn unread(&self) -> std::sync::MutexGuard<'_, Vec<UnreadSince>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The order in which connections give way: those that never asked first, then those that wait
    /// for their agent longest. `None` if a request was read and is not answered yet.
    pub(super) fn waiting(&self, now: Instant) -> Option<(bool, Instant)> {
        if self.read.load(Relaxed) > 0 || !self.is_flushed() {
            return None;
        }
        let since = self.accepted_at + Duration::from_millis(self.idle_since.load(Relaxed));
        let has_served = self.has_served.load(Relaxed);
        let age_min = if has_served { IDLE_AGE_MIN } else { SILENT_AGE_MIN };
        let is_young = now.saturating_duration_since(since) < age_min;
        (!is_young).then_some((has_served, since))
    }

    /// True if no request is under way.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.open.load(Relaxed) == 0 && self.waiting(now).is_some()
    }
}

/// A request whose reply has not ended.
#[derive(Debug)]
pub(super) struct OpenRequest {
    activity: Arc<Activity>,
    is_read: AtomicBool,
    is_replying: AtomicBool,
    /// Time since which a piece of the reply waits for the agent; on the list of the connection
    /// while the reply lasts.
    unread_since: UnreadSince,
}

impl OpenRequest {
    /// A request that has begun.
    fn new(activity: &Arc<Activity>) -> Self {
        Self {
            activity: Arc::clone(activity),
            is_read: AtomicBool::new(false),
            is_replying: AtomicBool::new(false),
            unread_since: Arc::default(),
        }
    }

    /// Notes that a head came, and leaves a handle in the request for who reads it.
    pub(super) fn begin(activity: &Arc<Activity>, request: &mut Request<Incoming>) -> Arc<Self> {
        activity.open.fetch_add(1, Relaxed);
        activity.head_since.store(NEVER, Relaxed);
        activity.has_served.store(true, Relaxed);
        if request.version() == Version::HTTP_2 {
            activity.is_http2.store(true, Relaxed);
        }
        let open = Arc::new(Self::new(activity));
        if request.body().is_end_stream() {
            open.set_read();
        }
        request.extensions_mut().insert(ReadMark(Arc::clone(&open) as Arc<dyn ReadObserver>));
        open
    }

    /// Notes that the reply begins.
    pub(super) fn set_replying(&self) {
        self.set_read();
        if self.is_replying.swap(true, Relaxed) {
            return;
        }
        let activity = &self.activity;
        activity.replying.fetch_add(1, Relaxed);
        if activity.is_http2() {
            self.set_unread(true);
            activity.unread().push(Arc::clone(&self.unread_since));
        }
    }

    /// Notes whether a piece of the reply waits for the agent.
    fn set_unread(&self, is_unread: bool) {
        let since = if is_unread { self.activity.now() } else { NEVER };
        self.unread_since.store(since, Relaxed);
    }
}

impl ReadObserver for OpenRequest {
    fn set_read(&self) {
        if !self.is_read.swap(true, Relaxed) {
            self.activity.read.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let activity = &self.activity;
        activity.idle_since.store(activity.now(), Relaxed);
        if self.is_replying.load(Relaxed) {
            activity.replying.fetch_sub(1, Relaxed);
            if activity.is_http2() {
                activity.unread().retain(|since| !Arc::ptr_eq(since, &self.unread_since));
            }
        }
        if self.is_read.load(Relaxed) {
            activity.read.fetch_sub(1, Relaxed);
        }
        activity.open.fetch_sub(1, Relaxed);
    }
}

/// The body of a reply, which keeps its request open until it is dropped.
///
/// Over HTTP/2 it is given in small pieces, each of which is asked for when the agent has taken the
/// one before: so it shows whether the agent reads, and no stream holds more than a piece. The last
/// piece keeps the request open until it is sent.
pub(super) struct OpenBody<B> {
    body: B,
    open: Arc<OpenRequest>,
    is_http2: bool,
    /// Rest of a frame, still to be sent.
    left: Bytes,
}

impl<B> OpenBody<B> {
    pub(super) fn new(body: B, open: Arc<OpenRequest>) -> Self {
        let is_http2 = open.activity.is_http2();
        Self { body, open, is_http2, left: Bytes::new() }
    }
}

impl<B: Body> OpenBody<B> {
    fn has_ended(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    /// The next piece of what is left of a frame.
    fn next_piece(&mut self) -> Bytes {
        let piece = self.left.split_to(self.left.len().min(STREAM_PIECE_BYTES_MAX));
        match self.has_ended() {
            true => Bytes::from_owner(LastPiece { piece, _open: Arc::clone(&self.open) }),
            false => piece,
        }
    }
}

/// The last bytes of a reply, which keep its request open until they are sent.
struct LastPiece {
    piece: Bytes,
    _open: Arc<OpenRequest>,
}

impl AsRef<[u8]> for LastPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl<B> Body for OpenBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.is_http2 {
            return Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into);
        }
        if self.left.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            self.open.set_unread(polled.is_ready());
            match ready!(polled) {
                Some(Ok(frame)) if frame.data_ref().is_some_and(|data| !data.is_empty()) => {
                    self.left = frame.into_data().unwrap_or_default();
                }
                other => return Poll::Ready(other.map(|frame| frame.map_err(Into::into))),
            }
        } else {
            self.open.set_unread(true);
        }
        let piece = self.next_piece();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        let (left, hint) = (self.left.len() as u64, self.body.size_hint());
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + left);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + left);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::body::full;

    const WAITS: AgentWaits = AgentWaits {
        head: Duration::from_secs(30),
        idle: Duration::from_secs(600),
        stall: Duration::from_secs(900),
    };

    fn after(activity: &Activity, seconds: u64) -> Instant {
        activity.accepted_at + Duration::from_secs(seconds)
    }

    fn request(activity: &Arc<Activity>) -> OpenRequest {
        activity.open.fetch_add(1, Relaxed);
        activity.has_served.store(true, Relaxed);
        activity.head_since.store(NEVER, Relaxed);
        OpenRequest::new(activity)
    }

    #[test]
    fn an_agent_that_says_nothing_has_the_time_of_a_head() {
        let silent = Activity::new();
        assert_eq!(silent.expired(after(&silent, 29), WAITS), None);
        assert!(silent.expired(after(&silent, 31), WAITS).is_some());
        let halfway = Activity::new();
        halfway.received();
        assert!(halfway.expired(after(&halfway, 31), WAITS).is_some());
    }

    #[test]
    fn an_agent_between_two_calls_has_the_longer_time() {
        let activity = Arc::new(Activity::new());
        drop(request(&activity));
        assert_eq!(activity.expired(after(&activity, 599), WAITS), None);
        assert!(activity.expired(after(&activity, 602), WAITS).is_some());
        // Its next head has the time of a head.
        activity.received();
        assert!(activity.expired(after(&activity, 32), WAITS).is_some());
    }

    #[test]
    fn frames_of_an_idle_http2_connection_begin_no_head() {
        let activity = Arc::new(Activity::new());
        activity.is_http2.store(true, Relaxed);
        drop(request(&activity));
        activity.received();
        assert_eq!(activity.expired(after(&activity, 599), WAITS), None);
    }

    #[test]
    fn a_call_under_way_never_expires_and_never_gives_way() {
        let activity = Arc::new(Activity::new());
        let open = request(&activity);
        open.set_read();
        let late = after(&activity, 100_000);
        assert_eq!((activity.expired(late, WAITS), activity.waiting(late)), (None, None));
        drop(open);
        assert!(activity.expired(late, WAITS).is_some());
        assert!(activity.waiting(late).is_some());
    }

    #[test]
    fn an_agent_that_stops_reading_is_left_at_last() {
        let activity = Arc::new(Activity::new());
        let open = request(&activity);
        open.set_replying();
        activity.wrote(false);
        assert_eq!(activity.expired(after(&activity, 60), WAITS), None);
        assert!(activity.expired(after(&activity, 100_000), WAITS).is_some());
        activity.wrote(true);
        assert_eq!(activity.expired(after(&activity, 100_000), WAITS), None);
    }

    #[test]
    fn a_stream_that_is_not_read_ends_though_its_connection_writes() {
        let activity = Arc::new(Activity::new());
        activity.is_http2.store(true, Relaxed);
        let (read, unread) = (request(&activity), request(&activity));
        read.set_replying();
        unread.set_replying();
        read.set_unread(false);
        // Answers to pings are taken.
        activity.wrote(true);
        assert_eq!(activity.expired(after(&activity, 60), WAITS), None);
        assert!(activity.expired(after(&activity, 1000), WAITS).is_some());
        drop(unread);
        assert_eq!(activity.expired(after(&activity, 1000), WAITS), None);
        assert_eq!(activity.unread().len(), 1);
    }

    #[tokio::test]
    async fn a_reply_over_http2_is_open_until_its_last_piece_is_sent() {
        let activity = Arc::new(Activity::new());
        activity.is_http2.store(true, Relaxed);
        let open = Arc::new(request(&activity));
        open.set_replying();
        let document = Bytes::from(vec![7; 2 * STREAM_PIECE_BYTES_MAX + 1]);
        let mut body = OpenBody::new(full(document.clone()), open);
        assert_eq!(body.size_hint().exact(), Some(document.len() as u64));
        let mut pieces = Vec::new();
        while !body.is_end_stream() {
            pieces.push(body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        assert_eq!(pieces.concat(), document);
        assert_eq!(pieces.len(), 3);

        drop(body);
        assert_eq!(activity.open.load(Relaxed), 1, "the last piece is not sent");
        drop(pieces);
        assert_eq!(activity.open.load(Relaxed), 0);
        assert!(activity.unread().is_empty());
    }

    #[test]
    fn who_never_asked_gives_way_before_who_did() {
        let (silent, used) = (Activity::new(), Arc::new(Activity::new()));
        drop(request(&used));
        let late = after(&used, 60);
        assert!(silent.waiting(late) < used.waiting(late));
        let slow = Arc::new(Activity::new());
        let _body = request(&slow);
        assert!(slow.waiting(late).is_some(), "a body that is not whole gives way");
    }

    #[test]
    fn a_reply_that_is_not_flushed_does_not_give_way() {
        let activity = Arc::new(Activity::new());
        drop(request(&activity));
        activity.wrote(true);
        let late = after(&activity, 60);
        assert_eq!(activity.waiting(late), None);
        activity.flushed();
        assert!(activity.is_idle(late));
    }
}
