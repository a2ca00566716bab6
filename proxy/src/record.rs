//! What was seen of a call, as a value: events in, one [`Ended`] out. No I/O.

use bytes::Bytes;
use episode::{CallId, Ended, Micros, Outcome, Route, Stamps};
use serde_json::Value;
use wire::{Collector, Owed};

use crate::rewrite::Rewrite;

/// A call that is under way.
#[derive(Debug)]
pub(crate) struct Recording {
    call_id: CallId,
    collector: Collector,
    status: Option<u16>,
    first_byte_at: Option<Micros>,
    reply: Vec<u8>,
    reply_bytes_max: usize,
    capped: bool,
    /// Whether the upstream declined, whatever status the agent was given.
    declined: bool,
    error: Option<String>,
    logprob_kind: String,
    route: Route,
    translated: Option<Route>,
    unasked: Option<String>,
}

impl Recording {
    pub(crate) fn new(call_id: CallId, route: Route, reply_bytes_max: usize) -> Self {
        Self {
            call_id,
            collector: Collector::new(route, None, None),
            route,
            translated: None,
            unasked: None,
            status: None,
            first_byte_at: None,
            reply: Vec::new(),
            reply_bytes_max,
            capped: false,
            declined: false,
            error: None,
            logprob_kind: "unknown".to_owned(),
        }
    }

    /// What reads the reply, and how the call went upstream.
    pub(crate) fn expects(&mut self, collector: Collector, rewrite: &Rewrite) {
        self.collector = collector;
        // The same call by another of the server's names for it is no translation.
        let is_other = |route: &Route| *route != self.route && *route != Route::Generate;
        self.translated = Some(rewrite.route).filter(is_other);
        self.unasked.clone_from(&rewrite.unasked);
    }

    /// The status that the agent is given.
    pub(crate) fn status(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// The status that the upstream gave, where the agent is given another.
    pub(crate) fn upstream_status(&mut self, status: u16) {
        self.declined = (400..500).contains(&status);
    }

    /// What the upstream's logprobs are.
    pub(crate) fn logprob_kind(&mut self, kind: &str) {
        kind.clone_into(&mut self.logprob_kind);
    }

    /// Bytes of the body came in.
    pub(crate) fn arrived(&mut self, at: Micros) {
        self.first_byte_at.get_or_insert(at);
    }

    /// A document, or the data of an event, as the upstream sent it.
    pub(crate) fn said(&mut self, json: &[u8]) {
        self.collector.take(json);
    }

    /// Bytes that the agent is given.
    pub(crate) fn shown(&mut self, bytes: &[u8]) {
        if self.capped || self.reply.len() + bytes.len() > self.reply_bytes_max {
            self.capped = true;
        } else {
            self.reply.extend_from_slice(bytes);
        }
    }

    /// Something went wrong on the way.
    pub(crate) fn failed(&mut self, why: String) {
        self.error.get_or_insert(why);
    }

    /// Whether every choice has said why it stopped.
    pub(crate) fn finished(&self) -> bool {
        self.collector.finished() && !self.collector.failed()
    }

    /// How the call ends when its agent leaves now. Whoever was told of every choice why it stopped
    /// has the whole answer and need not wait for the end of the stream. On a wire that the reply
    /// is turned into, that is told with the end.
    pub(crate) fn left(&self) -> Outcome {
        match self.translated.is_none() && self.finished() {
            true => Outcome::Complete,
            false => Outcome::ClientGone,
        }
    }

    /// The answer that the agent was given, if it was given one.
    pub(crate) fn answer(&self) -> Option<Value> {
        let answers = wire::answers(self.route, &self.reply);
        answers.into_iter().next().map(|answer| answer.message)
    }

    /// The end of the call. `outcome` is what the transport saw; what the reply itself says can
    /// only make it worse. With it comes what is left to be asked of the upstream.
    pub(crate) fn finish(mut self, outcome: Outcome, at: Micros) -> (Ended, Owed) {
        if matches!(self.route, Route::Embeddings | Route::CountTokens) {
            // Relayed as they are; only their counts are of interest.
            self.collector.take(&self.reply);
        }
        let facts = self.collector.facts();
        let error = self.error.or(facts.error);
        let outcome = match (outcome, self.status) {
            // An agent leaves because of it.
            (Outcome::ClientGone, _) if error.is_some() => Outcome::UpstreamFailed,
            (Outcome::Complete, Some(400..=499)) => Outcome::Refused,
            (Outcome::Complete, _) if self.declined => Outcome::Refused,
            (Outcome::Complete, Some(500..)) => Outcome::UpstreamFailed,
            (Outcome::Complete, _) if error.is_some() => Outcome::UpstreamFailed,
            (Outcome::Complete, _) if self.capped => Outcome::Capped,
            (seen, _) => seen,
        };
        let ended = Ended {
            call_id: self.call_id,
            ended_at: at,
            first_byte_at: self.first_byte_at,
            status: self.status,
            outcome,
            error,
            reply: Bytes::from(self.reply),
            model: facts.model,
            prompts: facts.prompts,
            choices: facts.choices,
            usage: facts.usage,
            sampled_with: None,
            logprob_kind: self.logprob_kind,
            translated: self.translated,
            unasked: self.unasked,
            stamps: Stamps::default(),
        };
        (ended, facts.missing)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn recording() -> Recording {
        let mut recording = Recording::new(CallId(Uuid::nil()), Route::Chat, 10);
        recording.status(200);
        recording
    }

    #[test]
    fn a_whole_reply_is_complete() {
        let mut recording = recording();
        recording.arrived(5);
        recording.arrived(6);
        recording.said(br#"{"choices":[{"index":0,"token_ids":[1],"finish_reason":"stop"}]}"#);
        recording.shown(b"12345");
        assert!(recording.finished());
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
            two.said(finish(index, reason).as_bytes());
            assert_eq!(two.left(), Outcome::ClientGone, "{index} {reason}");
        }
        two.said(finish(1, "\"stop\"").as_bytes());
        assert_eq!(two.left(), Outcome::Complete);
        two.translated = Some(Route::Chat);
        assert_eq!(two.left(), Outcome::ClientGone, "its own wire has not told it yet");
        two.translated = None;
        two.said(br#"{"error":{"message":"boom"}}"#);
        assert_eq!(two.left(), Outcome::ClientGone);
        assert_eq!(two.finish(Outcome::ClientGone, 0).0.outcome, Outcome::UpstreamFailed);
    }

    #[test]
    fn what_the_reply_says_can_only_make_it_worse() {
        let mut refused = recording();
        refused.status(404);
        assert_eq!(refused.finish(Outcome::Complete, 0).0.outcome, Outcome::Refused);
        let mut in_stream = recording();
        in_stream.upstream_status(400);
        in_stream.said(br#"{"error":{"message":"too long"}}"#);
        assert_eq!(in_stream.finish(Outcome::Complete, 0).0.outcome, Outcome::Refused);
        let mut broken = recording();
        broken.said(br#"{"error":{"message":"boom"}}"#);
        let ended = broken.finish(Outcome::Complete, 0).0;
        assert_eq!(
            (ended.outcome, ended.error.as_deref()),
            (Outcome::UpstreamFailed, Some("boom"))
        );
        let mut long = recording();
        long.shown(b"0123456789");
        long.shown(b"0");
        let ended = long.finish(Outcome::Complete, 0).0;
        assert_eq!((ended.outcome, ended.reply.len()), (Outcome::Capped, 10));
        let left = recording().finish(Outcome::ClientGone, 0).0;
        assert_eq!(left.outcome, Outcome::ClientGone);
        let mut left = recording();
        left.said(br#"{"error":{"message":"boom"}}"#);
        assert_eq!(left.finish(Outcome::ClientGone, 0).0.outcome, Outcome::UpstreamFailed);
    }
}
