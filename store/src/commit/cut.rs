//! Calls that are ended from outside, inside the write transaction.

use episode::{CallEnd, CallId, Micros, Outcome};

use crate::commit::ended::write_ended;
use crate::commit::state::CommitState;
use crate::database::connection::StoreConnection;
use crate::error::{CommitError, CommitResult};

/// Ends calls that are under way, with an empty reply. The end that their process may write later
/// is refused.
pub(crate) async fn cut(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    calls: &[CallId],
    at: Micros,
) -> CommitResult {
    for call in calls {
        match write_ended(connection, state, &end_of_cut(*call, at)).await {
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
        error: Some("the episode was closed".to_owned()),
        ..CallEnd::without_reply(call_id, at, Outcome::ClientGone)
    }
}
