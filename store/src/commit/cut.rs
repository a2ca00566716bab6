//! Calls that are ended from outside, inside the write transaction.

use bytes::Bytes;
use episode::{CallEnd, CallId, Micros, Outcome, TokenCounts, VersionStamps};

use crate::commit::ended::write_ended;
use crate::database::connection::StoreConnection;
use crate::error::{CommitError, CommitResult};
use crate::log::cache::LogCache;

/// Ends calls that are under way, with an empty reply. The end that their process may write later
/// is refused.
pub(crate) async fn cut(
    connection: &mut StoreConnection,
    logs: &mut LogCache,
    calls: &[CallId],
    at: Micros,
) -> CommitResult {
    for call in calls {
        match write_ended(connection, logs, &end_of_cut(*call, at)).await {
            // It ended meanwhile.
            Err(CommitError::NotBegun(_)) => {}
            written => written?,
        }
    }
    Ok(())
}

/// The end of a call that was cut at `at`.
fn end_of_cut(call_id: CallId, at: Micros) -> CallEnd {
    CallEnd {
        call_id,
        ended_at: at,
        first_byte_at: None,
        status: None,
        outcome: Outcome::ClientGone,
        error: Some("the episode was closed".to_owned()),
        reply: Bytes::new(),
        model: None,
        prompts: Vec::new(),
        choices: Vec::new(),
        usage: TokenCounts::default(),
        sampled_with: None,
        logprob_kind: "unknown".to_owned(),
        translated: None,
        unasked: None,
        stamps: VersionStamps::default(),
    }
}
