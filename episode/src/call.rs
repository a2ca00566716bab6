//! One call: a request and its reply, as the proxy saw them.

mod body;
mod continued;
mod end;
mod head;

pub use body::{Body, KeptBody};
pub use continued::{ContinueReason, Continued};
pub use head::ReplyHead;

use crate::words::words;
use crate::{CallId, Lineage, Micros, Route, Tag, VersionStamps, version_number};

/// One request and, once it has one, its reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The request. It is on disk before the first byte of the reply leaves.
    pub begun: CallStart,
    /// The reply; `None` while the call runs, and for good if the recorder crashed during it.
    pub ended: Option<CallEnd>,
}

/// The request of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallStart {
    /// The call.
    pub call_id: CallId,
    /// Its episode.
    pub tag: Tag,
    /// Time at which the head of the request was read.
    pub started_at: Micros,
    /// HTTP method.
    pub method: String,
    /// Path and query as they were forwarded, without the episode prefix.
    pub path: String,
    /// The kind of endpoint.
    pub route: Route,
    /// The model that the agent named.
    pub model: Option<String>,
    /// The agent's request body, byte for byte.
    pub request: Body,
    /// Sampling parameters that were sent, as a JSON object. The server chose the others.
    pub sampling: Option<String>,
    /// The agent that made the call, as it names itself.
    pub lineage: Lineage,
}

/// The reply of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallEnd {
    /// The call.
    pub call_id: CallId,
    /// Time at which the last byte of the reply was read, or the call was given up.
    pub ended_at: Micros,
    /// Time at which the first byte of the reply's body was read.
    pub first_byte_at: Option<Micros>,
    /// HTTP status that the agent received; `None` if it left before there was one.
    pub status: Option<u16>,
    /// The outcome.
    pub outcome: Outcome,
    /// The reason, if the outcome is not `complete`.
    pub error: Option<String>,
    /// The reply body as the agent received it.
    pub reply: Body,
    /// The model that the server named.
    pub model: Option<String>,
    /// Token ids of each prompt of the call, as the server reported them; empty if it did not.
    pub prompts: Vec<Vec<u32>>,
    /// Sampled tokens, by choice index.
    pub choices: Vec<Choice>,
    /// The server's own counts.
    pub usage: TokenCounts,
    /// Effective sampling parameters, as a JSON object: each with its value and with who set it.
    /// `None` if nothing was sampled, and in calls that an older version recorded.
    pub sampled_with: Option<String>,
    /// The kind of logprobs: `processed`, `temperature`, `raw` or `unknown`.
    pub logprob_kind: String,
    /// The route that was called upstream, if the call was translated to it and back.
    pub translated: Option<Route>,
    /// The reason for which the upstream was not asked for all token data.
    pub unasked: Option<String>,
    /// Heartbeats that were sent while the reply was silent. They are no part of `reply`.
    pub heartbeats: u32,
    /// The policy versions that were declared current.
    pub stamps: VersionStamps,
    /// The name of the engine that got the call; `None` if there was one upstream only.
    pub engine: Option<String>,
    /// How the call came to that engine: `new` for the first of a thread, `kept`, or `moved:` and
    /// the reason. `None` if there was one upstream only.
    pub routed: Option<String>,
    /// The outcome of the wish to send the prompt as ids; `None` if there was none.
    pub continued: Option<Continued>,
    /// The headers of the reply, as far as they are kept.
    pub head: ReplyHead,
    /// The recorded call whose reply this is, if it was given again and nothing was sampled.
    pub replayed: Option<CallId>,
}

/// Tokens that one call sampled under one choice index.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// The server's index of this choice.
    pub index: u32,
    /// Index of the prompt that it continues.
    pub prompt_index: u32,
    /// Sampled ids as the server reported them, end of turn included; `None` if it reported none.
    pub token_ids: Option<Vec<u32>>,
    /// One logprob for each sampled token; NaN if the server reported none.
    pub logprobs: Vec<f32>,
    /// The reason for which sampling stopped, as the server reported it.
    pub finish_reason: Option<String>,
    /// The stop string or stop token that matched, as text.
    pub stop_reason: Option<String>,
    /// Policy versions of the tokens, if the server reports them.
    pub versions: Vec<VersionSpan>,
    /// The source of the ids.
    pub fidelity: Fidelity,
    /// Further data that the server reported for each token.
    pub token_columns: Vec<TokenColumn>,
}

words! {
    /// The source of token ids.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum Fidelity {
        /// The server reported ids.
        #[default]
        Exact = "exact",
        /// Each id was found in the vocabulary by the bytes that the server reported, without
        /// ambiguity. The end token, which a server does not report, is known from the stop reason.
        Mapped = "mapped",
    }
}

/// Data beside the ids of a choice, one value for each token, as the server wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenColumn {
    /// The name of the column: `top_logprobs`, `routed_experts`, `sampling_mask` or `redacted`.
    pub name: String,
    /// One JSON value: an array with one element for each token, or what the server sent instead.
    pub json: String,
}

/// The half-open span `[start, end)` of a choice's tokens that one policy version sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionSpan {
    /// The server's label for its weights.
    pub version: String,
    /// First token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

impl VersionSpan {
    /// The number in the label, if it has one.
    pub fn number(&self) -> Option<i64> {
        version_number(&self.version)
    }
}

impl Choice {
    /// Version spans of one choice that are recorded; further ones are left out. Weights are not
    /// exchanged as often while a reply runs.
    pub const SPANS_MAX: usize = 1024;

    /// The column that says which ids are others, since they said a secret: `prompt` and `sampled`
    /// have `[[START, END], ...]` each.
    pub const REDACTED: &str = "redacted";

    /// Returns true where the version spans cannot be those of this choice: one ends before it
    /// begins, two overlap, or there are too many.
    pub fn has_impossible_versions(&self) -> bool {
        let mut end = 0;
        let mut spans: Vec<_> = self.versions.iter().map(|span| (span.start, span.end)).collect();
        spans.sort_unstable();
        let is_impossible = |(start, until): (u32, u32)| {
            let begins = std::mem::replace(&mut end, until);
            start > until || start < begins
        };
        self.versions.len() >= Self::SPANS_MAX || spans.into_iter().any(is_impossible)
    }
}

/// Token counts that the server reported, or that follow from its ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens of the prompt.
    pub prompt: Option<u64>,
    /// Tokens sampled, over all choices.
    pub completion: Option<u64>,
}

impl TokenCounts {
    /// The largest count that is recorded, in tokens; larger ones are recorded as this one. No
    /// server has counted as many, and the sums of a million calls still fit into 64 bits.
    pub const MAX: u64 = 1 << 40;

    /// Returns true where a count is larger than any that a server can have counted.
    pub fn is_absurd(&self) -> bool {
        [self.prompt, self.completion].into_iter().flatten().any(|count| count >= Self::MAX)
    }
}

words! {
    /// The way in which a call ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Outcome {
        /// The whole reply was read.
        Complete = "complete",
        /// The agent left before the terminal event.
        ClientGone = "client_gone",
        /// There was no reply, the server failed, or the reply was cut short.
        UpstreamFailed = "upstream_failed",
        /// The reply exceeded the recorder's limit and was not kept whole.
        Capped = "capped",
        /// The server or the proxy declined the request (status 4xx).
        Refused = "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_follow_each_other_are_possible_and_others_are_not() {
        let impossible = |spans: &[(u32, u32)]| {
            let span = |(start, end): &(u32, u32)| VersionSpan {
                version: "v".to_owned(),
                start: *start,
                end: *end,
            };
            let versions = spans.iter().map(span).collect();
            Choice { versions, ..Choice::default() }.has_impossible_versions()
        };
        for spans in [&[][..], &[(0, 3)], &[(0, 2), (2, 5)], &[(2, 5), (0, 2)], &[(1, 1), (4, 9)]] {
            assert!(!impossible(spans), "{spans:?}");
        }
        for spans in [&[(3, 0)][..], &[(0, 3), (2, 5)], &[(0, 9), (1, 2)]] {
            assert!(impossible(spans), "{spans:?}");
        }
        assert!(impossible(&vec![(0, 0); Choice::SPANS_MAX]));
    }

    #[test]
    fn a_count_beyond_all_bounds_is_absurd() {
        let absurd = |prompt, completion| TokenCounts { prompt, completion }.is_absurd();
        assert!(!absurd(None, None) && !absurd(Some(0), Some(TokenCounts::MAX - 1)));
        assert!(absurd(Some(TokenCounts::MAX), None) && absurd(None, Some(u64::MAX)));
    }
}
