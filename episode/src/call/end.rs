//! Ends of calls without a reply.

use crate::Body;

use super::CallEnd;
use crate::{CallId, Micros, Outcome, ReplyHead, TokenCounts, VersionStamps};

impl CallEnd {
    /// The end of a call of whose reply nothing is known.
    pub fn without_reply(call_id: CallId, ended_at: Micros, outcome: Outcome) -> Self {
        Self {
            call_id,
            ended_at,
            first_byte_at: None,
            status: None,
            outcome,
            error: None,

            reply: Body::default(),
            model: None,
            prompts: Vec::new(),
            choices: Vec::new(),
            usage: TokenCounts::default(),
            sampled_with: None,
            logprob_kind: "unknown".to_owned(),

            translated: None,
            unasked: None,
            heartbeats: 0,
            stamps: VersionStamps::default(),
            engine: None,
            routed: None,
            continued: None,
            head: ReplyHead::default(),
            replayed: None,
        }
    }
}
