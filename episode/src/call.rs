//! One call: a request and its reply, as the proxy witnessed them.

use bytes::Bytes;

use crate::{CallId, Lineage, Micros, Route, Stamps, Tag, version_number};

/// One request and, once it has one, its reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The request, on disk before the first byte of the reply leaves.
    pub begun: Begun,
    /// The reply; absent while the call runs, and for ever if the recorder died with it.
    pub ended: Option<Ended>,
}

/// The request of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    /// The call.
    pub call_id: CallId,
    /// Its episode.
    pub tag: Tag,
    /// When the request's head was read.
    pub started_at: Micros,
    /// HTTP method.
    pub method: String,
    /// Path and query as forwarded, without the episode prefix.
    pub path: String,
    /// What kind of endpoint this is.
    pub route: Route,
    /// The model that the agent named.
    pub model: Option<String>,
    /// The agent's request body, byte for byte.
    pub request: Bytes,
    /// Sampling parameters as they went to the upstream, as a JSON object; absent ones were left
    /// to the server.
    pub sampling: Option<String>,
    /// Which of its agents made the call, as the agent itself says.
    pub lineage: Lineage,
}

/// The reply of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The call.
    pub call_id: CallId,
    /// When the last byte of the reply was read, or the call was given up.
    pub ended_at: Micros,
    /// When the first byte of the reply's body was read.
    pub first_byte_at: Option<Micros>,
    /// HTTP status that the agent was given; none when it left before there was one.
    pub status: Option<u16>,
    /// How the call ended.
    pub outcome: Outcome,
    /// Why, when the outcome is not `complete`.
    pub error: Option<String>,
    /// The reply body as the agent saw it.
    pub reply: Bytes,
    /// The model that the server named.
    pub model: Option<String>,
    /// Token ids of each prompt of the call, as the server reported them; empty when it did not.
    pub prompts: Vec<Vec<u32>>,
    /// What was sampled, by choice index.
    pub choices: Vec<Choice>,
    /// The server's own counts.
    pub usage: TokenCounts,
    /// What the call was sampled with, as a JSON object: each parameter with its value and with
    /// who set it. None where nothing was sampled, and in calls of before it was recorded.
    pub sampled_with: Option<String>,
    /// What the logprobs are: `processed`, `temperature`, `raw` or `unknown`.
    pub logprob_kind: String,
    /// The route that was called upstream, where it is not the agent's own: the call was
    /// translated there and back.
    pub translated: Option<Route>,
    /// Why the upstream was not asked for all that would make the tokens known.
    pub unasked: Option<String>,
    /// The versions that were said to be current.
    pub stamps: Stamps,
}

/// Tokens that one call sampled under one index.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// The server's index of this choice.
    pub index: u32,
    /// Which of the call's prompts it continues.
    pub prompt_index: u32,
    /// Sampled ids as the server reported them, end of turn included; none when it reported none.
    pub token_ids: Option<Vec<u32>>,
    /// One logprob for each sampled token; NaN where the server gave none.
    pub logprobs: Vec<f32>,
    /// The model's own word for why it stopped.
    pub finish_reason: Option<String>,
    /// The stop string or stop token that matched, as text.
    pub stop_reason: Option<String>,
    /// Which weights sampled which tokens, where the server says so.
    pub versions: Vec<VersionSpan>,
    /// How the ids are known.
    pub fidelity: Fidelity,
    /// What else the server said of each token.
    pub sides: Vec<Side>,
}

/// How token ids are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fidelity {
    /// The server reported ids.
    #[default]
    Exact,
    /// Found in the vocabulary by the bytes that the server reported, each without a second
    /// reading; or by its saying that the model's end token, which it did not report, came last.
    Mapped,
}

impl Fidelity {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Mapped => "mapped",
        }
    }

    /// The fidelity that [`Self::as_str`] names.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Exact, Self::Mapped].into_iter().find(|f| f.as_str() == word)
    }
}

/// An array beside the ids of a choice, in the server's own spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// What it holds: `top_logprobs`, `routed_experts`, `sampling_mask`.
    pub name: String,
    /// One JSON value: an array with an element a token, or what the server sent in its place.
    pub json: String,
}

/// The half-open span `[start, end)` of a choice's tokens that one policy version sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionSpan {
    /// The server's label of its weights.
    pub version: String,
    /// First token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

impl VersionSpan {
    /// The number of the label, where it has one.
    pub fn number(&self) -> Option<i64> {
        version_number(&self.version)
    }
}

/// Token counts as the server reported them, or as counted from its ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens of the prompt.
    pub prompt: Option<u64>,
    /// Tokens sampled, over all choices.
    pub completion: Option<u64>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The whole reply was read.
    Complete,
    /// The agent left before the terminal event.
    ClientGone,
    /// No reply, an error of the server, or a reply cut short.
    UpstreamFailed,
    /// The reply outgrew the recorder's bound and was not kept whole.
    Capped,
    /// The server or the proxy declined the request (status 4xx).
    Refused,
}

impl Outcome {
    const ALL: [Self; 5] =
        [Self::Complete, Self::ClientGone, Self::UpstreamFailed, Self::Capped, Self::Refused];

    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientGone => "client_gone",
            Self::UpstreamFailed => "upstream_failed",
            Self::Capped => "capped",
            Self::Refused => "refused",
        }
    }

    /// The outcome that [`Self::as_str`] names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|o| o.as_str() == word)
    }
}
