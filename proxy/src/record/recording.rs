//! The recording of one call, as a value: events in, one [`CallEnd`] out. No I/O.

use bytes::Bytes;
use episode::{CallEnd, CallId, Micros, Outcome, ReplyHead, Route, TokenCounts, VersionStamps};
use http::body::heartbeat::Pulse;
use http::memory::MemoryLease;
use hyper::HeaderMap;
use serde_json::Value;
use wire::{Collector, Facts, MissingIds, ReadEvent, ReplyDocument};

use crate::bounds::REPLY_PIECE_BYTES;

/// The reason why no tokens of a reply are recorded.
const UNCOLLECTED: &str = "the reply holds more choices or tokens than are read";

/// Reasons why a reply is no answer.
const EMPTY: &str = "the reply is empty";
const UNFINISHED: &str = "the reply has no finish reason";

/// Headers that say how and when the bytes were carried, and those that hold secrets.
const UNKEPT_HEADERS: [&str; 11] = [
    "connection",
    "content-encoding",
    "content-length",
    "date",
    "keep-alive",
    "set-cookie",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "x-rolltape-call-id",
];

/// The recording of a call that is under way.
#[derive(Debug)]
pub(crate) struct Recording {
    call_id: CallId,
    collector: Collector,
    status: Option<u16>,
    first_byte_at: Option<Micros>,
    reply: Vec<u8>,
    /// The reply, if it is a document. It is shared with the agent's transfer.
    document: Option<Bytes>,
    reply_bytes_max: usize,
    is_capped: bool,
    /// The memory that the recording takes.
    memory: Option<MemoryLease>,
    /// True if the upstream answered with a 4xx, even if the agent received another status.
    is_declined: bool,
    error: Option<String>,
    logprob_kind: String,
    route: Route,
    translated: Option<Route>,
    unasked: Option<String>,
    /// The heartbeats of the reply, if it may have any.
    pulse: Option<Pulse>,
    head: ReplyHead,
    /// The record of the reply that is given again, if it is.
    given_again: Option<Box<CallEnd>>,
}

impl Recording {
    /// The call.
    pub(crate) fn call_id(&self) -> CallId {
        self.call_id
    }

    pub(crate) fn new(call_id: CallId, route: Route, reply_bytes_max: usize) -> Self {
        Self {
            call_id,
            collector: Collector::new(route, None, None),
            route,
            translated: None,
            unasked: None,
            pulse: None,

            head: ReplyHead::default(),
            given_again: None,
            status: None,
            first_byte_at: None,
            reply: Vec::new(),
            document: None,
            reply_bytes_max,
            is_capped: false,
            memory: None,
            is_declined: false,
            error: None,
            logprob_kind: "unknown".to_owned(),
        }
    }

    /// Charges the memory of the recording to a lease.
    pub(crate) fn charged_to(self, memory: MemoryLease) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Sets the heartbeats of the reply.
    pub(crate) fn set_pulse(&mut self, pulse: Pulse) {
        self.pulse = Some(pulse);
    }

    /// The heartbeats of the reply, if it may have any.
    pub(crate) fn pulse(&self) -> Option<Pulse> {
        self.pulse.clone()
    }

    /// Takes the lease, which outlives the recording until the call is on disk.
    pub(crate) fn take_memory(&mut self) -> Option<MemoryLease> {
        self.memory.take()
    }

    /// The lease of the recording.
    pub(crate) fn memory(&self) -> Option<&MemoryLease> {
        self.memory.as_ref()
    }

    /// The lease of the recording, to wait with.
    pub(crate) fn memory_mut(&mut self) -> Option<&mut MemoryLease> {
        self.memory.as_mut()
    }

    /// Notes that `bytes` are held for the reply beside what is recorded of it.
    pub(crate) fn hold_beside(&mut self, bytes: usize) {
        let document = self.document.as_ref().map_or(0, Bytes::len);
        let held = self.reply.capacity() + document + self.collector.held() + bytes;
        if let Some(memory) = &mut self.memory {
            memory.hold(held);
        }
    }

    /// Stops to record the reply. What was recorded of its bytes stays.
    pub(crate) fn cap(&mut self) {
        self.is_capped = true;
        self.collector.stop();
    }

    /// Sets the reader of the reply to a request that went to `route`, and the reason for which the
    /// upstream was not asked for all token data.
    pub(crate) fn expect_reply(
        &mut self,
        collector: Collector,
        route: Route,
        unasked: Option<String>,
    ) {
        self.collector = collector;
        // A server's own route with the same content is not a translation.
        let is_other = route != self.route && route != Route::Generate;
        self.translated = is_other.then_some(route);
        self.unasked = unasked;
    }

    /// Sets the status that the agent receives.
    pub(crate) fn set_status(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Notes the upstream's status, where the agent receives another.
    pub(crate) fn note_upstream_status(&mut self, status: u16) {
        self.is_declined = (400..500).contains(&status);
    }

    /// Sets the headers that the agent receives, as far as they are kept.
    pub(crate) fn set_head(&mut self, headers: &HeaderMap) {
        for (name, value) in headers {
            if let Ok(value) = value.to_str()
                && !UNKEPT_HEADERS.contains(&name.as_str())
            {
                self.head.add(name.as_str(), value);
            }
        }
    }

    /// Notes that the reply is that of a recorded call.
    pub(crate) fn give_again(&mut self, recorded: CallEnd) {
        self.given_again = Some(Box::new(recorded));
    }

    /// Sets the kind of the upstream's logprobs.
    pub(crate) fn set_logprob_kind(&mut self, kind: &str) {
        kind.clone_into(&mut self.logprob_kind);
    }

    /// Notes that bytes of the reply's body arrived.
    pub(crate) fn add_arrival(&mut self, now: impl FnOnce() -> Micros) {
        self.first_byte_at.get_or_insert_with(now);
    }

    /// Adds a reply of the upstream, as it was sent.
    pub(crate) fn add_upstream_document(&mut self, document: &ReplyDocument) {
        self.collector.take_document(document);
    }

    /// Adds an event of the upstream, as it was sent.
    pub(crate) fn add_upstream_event(&mut self, event: &ReadEvent<'_>) {
        self.collector.take_event(event);
    }

    /// Adds bytes that the agent receives.
    pub(crate) fn add_reply_bytes(&mut self, bytes: &[u8]) {
        if self.is_capped || self.reply.len() + bytes.len() > self.reply_bytes_max {
            self.is_capped = true;
            return;
        }
        if self.reply.capacity() - self.reply.len() < bytes.len() {
            // Doubling would hold up to twice as much as a long reply.
            self.reply.reserve_exact(bytes.len().max(self.reply.len() / 4).max(REPLY_PIECE_BYTES));
        }
        self.reply.extend_from_slice(bytes);
    }

    /// Sets the document that the agent receives.
    pub(crate) fn set_document(&mut self, document: Bytes) {
        match document.len() <= self.reply_bytes_max {
            true => self.document = Some(document),
            false => self.is_capped = true,
        }
    }

    /// The reply, as far as it is recorded.
    fn reply(&self) -> &[u8] {
        self.document.as_deref().unwrap_or(&self.reply)
    }

    /// Sets the error that ended the reply. The first one counts.
    pub(crate) fn set_error(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    /// True if every choice has reported its finish reason, and no error.
    pub(crate) fn is_finished(&self) -> bool {
        self.collector.finished() && !self.collector.failed()
    }

    /// True if the reply told an error.
    pub(crate) fn has_failed(&self) -> bool {
        self.collector.failed()
    }

    /// The outcome of the call if its agent leaves now. An agent that received every finish reason
    /// has the whole answer and need not wait for the end of the stream. On a translated wire the
    /// finish reasons come with the end.
    pub(crate) fn outcome_if_left(&self) -> Outcome {
        match self.translated.is_none() && self.is_finished() {
            true => Outcome::Complete,
            false => Outcome::ClientGone,
        }
    }

    /// The answer that the agent received, if any.
    pub(crate) fn answer(&self) -> Option<Value> {
        wire::answer(self.route, self.reply())
    }

    /// Ends the call. `outcome` is that of the transport; the content of the reply can only make it
    /// worse. The second value is what remains to be asked of the upstream.
    pub(crate) fn finish(mut self, outcome: Outcome, at: Micros) -> (CallEnd, MissingIds) {
        if let Some(recorded) = self.given_again.take() {
            return (self.given(*recorded, outcome, at), MissingIds::default());
        }
        let mut facts = self.take_facts();
        // An error of the transfer takes precedence over one in the reply.
        let error = self.error.take().or_else(|| facts.error.take());
        let is_capped = self.is_capped || facts.is_capped;
        let error = error.or_else(|| self.unanswered(outcome, &facts).filter(|_| !is_capped));
        let outcome = match (outcome, self.status) {
            // An error made the agent leave.
            (Outcome::ClientGone, _) if error.is_some() => Outcome::UpstreamFailed,
            (Outcome::Complete, Some(400..=499)) => Outcome::Refused,
            (Outcome::Complete, _) if self.is_declined => Outcome::Refused,
            (Outcome::Complete, Some(500..)) => Outcome::UpstreamFailed,
            (Outcome::Complete, _) if error.is_some() => Outcome::UpstreamFailed,
            (Outcome::Complete, _) if is_capped => Outcome::Capped,
            (of_transport, _) => of_transport,
        };
        let uncollected = || UNCOLLECTED.to_owned();
        let error = error.or_else(|| facts.is_capped.then(uncollected));

        let end = CallEnd {
            call_id: self.call_id,
            ended_at: at,
            first_byte_at: self.first_byte_at,
            status: self.status,
            outcome,
            error,
            reply: self.document.unwrap_or_else(|| Bytes::from(self.reply)).into(),
            model: facts.model,
            prompts: facts.prompts,
            choices: facts.choices,
            usage: facts.usage,
            sampled_with: None,
            logprob_kind: self.logprob_kind,
            translated: self.translated,
            unasked: self.unasked,
            heartbeats: self.pulse.map_or(0, |pulse| pulse.end()),
            stamps: VersionStamps::default(),
            engine: None,
            routed: None,
            continued: None,
            head: self.head,
            replayed: None,
        };
        (end, facts.missing)
    }

    /// The end of a call whose reply was given again: what was recorded of it, as far as it was
    /// sent. Nothing was sampled, so no tokens are counted.
    fn given(self, recorded: CallEnd, outcome: Outcome, at: Micros) -> CallEnd {
        CallEnd {
            call_id: self.call_id,
            ended_at: at,
            first_byte_at: self.first_byte_at,
            outcome: match outcome {
                Outcome::Complete => recorded.outcome,
                other => other,
            },
            reply: Bytes::from(self.reply).into(),
            usage: TokenCounts::default(),
            heartbeats: self.pulse.map_or(0, |pulse| pulse.end()),
            engine: None,
            routed: None,
            continued: None,
            replayed: Some(recorded.call_id),
            ..recorded
        }
    }

    /// The facts of the reply, once.
    fn take_facts(&mut self) -> Facts {
        if matches!(self.route, Route::Embeddings | Route::CountTokens) {
            // These are relayed unread; only their token counts are recorded.
            let reply =
                self.document.clone().unwrap_or_else(|| std::mem::take(&mut self.reply).into());
            self.collector.take(&reply);
            self.document = Some(reply);
        }
        let unused = Collector::new(self.route, None, None);
        std::mem::replace(&mut self.collector, unused).facts()
    }

    /// The reason why a whole reply is no answer to a call that asks for one, if it is none. A
    /// refusal tells its own.
    fn unanswered(&self, outcome: Outcome, facts: &Facts) -> Option<String> {
        if outcome != Outcome::Complete || !self.route.generates() || self.is_declined {
            return None;
        }
        match self.status {
            Some(400..) => None,
            Some(status) if !(200..300).contains(&status) => {
                Some(format!("the upstream answered with status {status}"))
            }
            _ if facts.is_finished => None,
            _ if self.reply().trim_ascii().is_empty() => Some(EMPTY.to_owned()),
            _ => Some(UNFINISHED.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn add(recording: &mut Recording, json: &[u8]) {
        recording.add_upstream_document(&ReplyDocument::new(Bytes::copy_from_slice(json)));
    }

    fn recording() -> Recording {
        let mut recording = Recording::new(CallId(Uuid::nil()), Route::Chat, 10);
        recording.set_status(200);
        recording
    }

    #[test]
    fn a_whole_reply_is_complete() {
        let mut recording = recording();
        recording.add_arrival(|| 5);
        recording.add_arrival(|| 6);
        add(&mut recording, br#"{"choices":[{"index":0,"token_ids":[1],"finish_reason":"stop"}]}"#);
        recording.add_reply_bytes(b"12345");
        assert!(recording.is_finished());
        let ended = recording.finish(Outcome::Complete, 9).0;
        assert_eq!(
            (ended.outcome, ended.first_byte_at, ended.ended_at),
            (Outcome::Complete, Some(5), 9)
        );
        assert_eq!(ended.reply, &b"12345"[..]);
        assert_eq!(ended.usage.completion, Some(1));
    }

    #[test]
    fn who_leaves_after_the_last_finish_reason_has_the_whole_answer() {
        let request = Bytes::from_static(br#"{"n":2}"#);
        let asked = wire::Request::read(&request).unwrap();
        let mut two = recording();
        two.collector = Collector::new(Route::Chat, Some(&asked), None);
        let finish = |index: u32, reason: &str| {
            format!(r#"{{"choices":[{{"index":{index},"finish_reason":{reason}}}]}}"#)
        };
        for (index, reason) in [(0, "null"), (1, "\"\""), (0, "\"length\"")] {
            add(&mut two, finish(index, reason).as_bytes());
            assert_eq!(two.outcome_if_left(), Outcome::ClientGone, "{index} {reason}");
        }
        add(&mut two, finish(1, "\"stop\"").as_bytes());
        assert_eq!(two.outcome_if_left(), Outcome::Complete);
        two.translated = Some(Route::Chat);
        assert_eq!(two.outcome_if_left(), Outcome::ClientGone, "its own wire has not told it yet");
        two.translated = None;
        add(&mut two, br#"{"error":{"message":"boom"}}"#);
        assert_eq!(two.outcome_if_left(), Outcome::ClientGone);
        assert_eq!(two.finish(Outcome::ClientGone, 0).0.outcome, Outcome::UpstreamFailed);
    }

    #[test]
    fn what_the_reply_says_can_only_make_it_worse() {
        let mut refused = recording();
        refused.set_status(404);
        assert_eq!(refused.finish(Outcome::Complete, 0).0.outcome, Outcome::Refused);
        let mut in_stream = recording();
        in_stream.note_upstream_status(400);
        add(&mut in_stream, br#"{"error":{"message":"too long"}}"#);
        assert_eq!(in_stream.finish(Outcome::Complete, 0).0.outcome, Outcome::Refused);
        let mut broken = recording();
        add(&mut broken, br#"{"error":{"message":"boom"}}"#);
        let ended = broken.finish(Outcome::Complete, 0).0;
        assert_eq!(
            (ended.outcome, ended.error.as_deref()),
            (Outcome::UpstreamFailed, Some("boom"))
        );
        let mut long = recording();
        long.add_reply_bytes(b"0123456789");
        long.add_reply_bytes(b"0");
        let ended = long.finish(Outcome::Complete, 0).0;
        assert_eq!((ended.outcome, ended.reply.len()), (Outcome::Capped, 10));
        let left = recording().finish(Outcome::ClientGone, 0).0;
        assert_eq!(left.outcome, Outcome::ClientGone);
        let mut left = recording();
        add(&mut left, br#"{"error":{"message":"boom"}}"#);
        assert_eq!(left.finish(Outcome::ClientGone, 0).0.outcome, Outcome::UpstreamFailed);
    }

    /// The outcome and the error of a whole reply of this status.
    fn settled(route: Route, status: u16, reply: &[u8]) -> (Outcome, Option<String>) {
        let mut recording = Recording::new(CallId(Uuid::nil()), route, 1 << 20);
        recording.set_status(status);
        add(&mut recording, reply);
        recording.set_document(Bytes::copy_from_slice(reply));
        let ended = recording.finish(Outcome::Complete, 0).0;
        (ended.outcome, ended.error)
    }

    #[test]
    fn a_reply_without_a_finish_reason_is_no_answer() {
        let page = b"<html><body>Bad gateway</body></html>";
        let open = br#"{"choices":[{"message":{"content":"hi"},"finish_reason":null}]}"#;
        for (reply, told) in
            [(&b""[..], EMPTY), (b" \n", EMPTY), (page, UNFINISHED), (open, UNFINISHED)]
        {
            let failed = (Outcome::UpstreamFailed, Some(told.to_owned()));
            assert_eq!(settled(Route::Chat, 200, reply), failed);
        }
        // Who asks for no answer needs none.
        for route in [Route::Embeddings, Route::CountTokens, Route::Other] {
            assert_eq!(settled(route, 200, page), (Outcome::Complete, None), "{route:?}");
        }
    }

    #[test]
    fn each_route_has_its_own_spelling_of_an_end() {
        for (route, reply) in [
            (Route::Chat, r#"{"choices":[{"finish_reason":"tool_calls"}]}"#),
            (Route::Completions, r#"{"choices":[{"text":"a","finish_reason":"length"}]}"#),
            (Route::Generate, r#"{"content":"a","stop":true,"stop_type":"eos"}"#),
            (Route::Generate, r#"{"content":"a","stop":true}"#),
            (Route::Generate, r#"{"text":"a","meta_info":{"finish_reason":{"type":"length"}}}"#),
            (Route::Messages, r#"{"type":"message","content":[],"stop_reason":"pause_turn"}"#),
            (Route::Responses, r#"{"object":"response","status":"completed","output":[]}"#),
            (Route::Responses, r#"{"object":"response","status":"incomplete"}"#),
        ] {
            assert_eq!(settled(route, 200, reply.as_bytes()), (Outcome::Complete, None), "{reply}");
        }
    }

    #[test]
    fn only_a_success_is_an_answer() {
        let whole = br#"{"choices":[{"finish_reason":"stop"}]}"#;
        let outcome = |status| settled(Route::Chat, status, whole).0;
        assert_eq!([200, 201, 206].map(outcome), [Outcome::Complete; 3]);
        assert_eq!([400, 404, 429].map(outcome), [Outcome::Refused; 3]);
        assert_eq!([302, 304, 500, 529].map(outcome), [Outcome::UpstreamFailed; 4]);
        let told = settled(Route::Chat, 302, b"moved").1;
        assert_eq!(told.as_deref(), Some("the upstream answered with status 302"));
        assert_eq!(settled(Route::Other, 302, b"moved"), (Outcome::Complete, None));
    }

    #[test]
    fn an_answer_that_broke_off_failed_whatever_its_status() {
        for reason in ["error", "abort"] {
            let reply = format!(r#"{{"choices":[{{"finish_reason":"{reason}"}}]}}"#);
            let told = format!("the engine ended the answer with `{reason}`");
            let failed = (Outcome::UpstreamFailed, Some(told));
            assert_eq!(settled(Route::Chat, 200, reply.as_bytes()), failed);
        }
    }
}
