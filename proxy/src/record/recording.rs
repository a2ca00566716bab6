//! The recording of one call, as a value: events in, one [`CallEnd`] out. No I/O.

use bytes::Bytes;
use episode::{CallEnd, CallId, Micros, Outcome, Route, VersionStamps};
use http::body::heartbeat::Pulse;
use http::memory::MemoryLease;
use serde_json::Value;
use wire::{Collector, MissingIds, ReplyDocument};

use crate::bounds::REPLY_PIECE_BYTES;

/// The reason why no tokens of a reply are recorded.
const UNCOLLECTED: &str = "the reply holds more choices or tokens than are read";

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

    /// Sets the kind of the upstream's logprobs.
    pub(crate) fn set_logprob_kind(&mut self, kind: &str) {
        kind.clone_into(&mut self.logprob_kind);
    }

    /// Notes that bytes of the reply's body arrived.
    pub(crate) fn add_arrival(&mut self, now: impl FnOnce() -> Micros) {
        self.first_byte_at.get_or_insert_with(now);
    }

    /// Adds a reply of the upstream, or the data of an event, as it was sent.
    pub(crate) fn add_upstream_document(&mut self, document: &ReplyDocument) {
        self.collector.take_document(document);
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
        if matches!(self.route, Route::Embeddings | Route::CountTokens) {
            // These are relayed unread; only their token counts are recorded.
            let reply =
                self.document.clone().unwrap_or_else(|| std::mem::take(&mut self.reply).into());
            self.collector.take(&reply);
            self.document = Some(reply);
        }

        // An error of the transfer takes precedence over one in the reply.
        let facts = self.collector.facts();
        let error = self.error.or(facts.error);
        let is_capped = self.is_capped || facts.is_capped;
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
            reply: self.document.unwrap_or_else(|| Bytes::from(self.reply)),
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
        };
        (end, facts.missing)
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
}
