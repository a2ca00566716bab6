//! Attempts that failed because of the infrastructure. They say nothing about the policy, so they
//! are compared with nothing.

use episode::{Call, INFRASTRUCTURE_FAILED, Outcome};
use store::AttemptRecord;

/// The end of the last call that samples of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastCall {
    /// There is no such call.
    None,
    /// Its end was never recorded.
    Lost,
    Ended(Outcome),
}

impl LastCall {
    /// The last one of the calls of an attempt.
    pub(crate) fn of(calls: &[Call]) -> Self {
        let sampling = calls.iter().filter(|call| call.begun.route.generates());
        match sampling.max_by_key(|call| (call.begun.started_at, call.begun.call_id)) {
            None => Self::None,
            Some(call) => match &call.ended {
                None => Self::Lost,
                Some(ended) => Self::Ended(ended.outcome),
            },
        }
    }
}

/// Returns true where an attempt was closed as such a failure, or did not end well and its last
/// call is one.
pub(crate) fn failed_by_infrastructure(record: &AttemptRecord, last: LastCall) -> bool {
    failed_by_status(record).unwrap_or(match last {
        LastCall::None => false,
        // The last call of an open attempt may be under way.
        LastCall::Lost => record.closed_at.is_some(),
        LastCall::Ended(outcome) => is_infrastructure(outcome),
    })
}

/// The same where the status alone decides: whoever closes an attempt as completed or truncated
/// knows better than its last call.
pub(crate) fn failed_by_status(record: &AttemptRecord) -> Option<bool> {
    match record.status.as_deref() {
        Some(INFRASTRUCTURE_FAILED) => Some(true),
        Some("completed" | "truncated") => Some(false),
        _ => None,
    }
}

/// Returns true where neither the agent nor the policy ended a call.
pub(crate) fn is_infrastructure(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::UpstreamFailed | Outcome::Capped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::{call, episode, reply};

    #[track_caller]
    fn check(status: Option<&str>, last: LastCall, expected: bool) {
        let mut record = episode(Vec::new()).record;
        (record.status, record.closed_at) = (status.map(str::to_owned), Some(1));
        assert_eq!(failed_by_infrastructure(&record, last), expected, "{status:?} {last:?}");
    }

    #[test]
    fn the_last_call_decides_unless_the_harness_does() {
        let failures = [
            LastCall::Ended(Outcome::UpstreamFailed),
            LastCall::Ended(Outcome::Capped),
            LastCall::Lost,
        ];
        for last in failures {
            check(None, last, true);
            check(Some("failed"), last, true);
            check(Some("aborted"), last, true);
            check(Some("completed"), last, false);
            check(Some("truncated"), last, false);
        }
        for outcome in [Outcome::Complete, Outcome::ClientGone, Outcome::Refused] {
            check(None, LastCall::Ended(outcome), false);
            check(Some("failed"), LastCall::Ended(outcome), false);
            check(Some(INFRASTRUCTURE_FAILED), LastCall::Ended(outcome), true);
        }
        check(None, LastCall::None, false);
        let open = episode(Vec::new()).record;
        assert!(!failed_by_infrastructure(&open, LastCall::Lost), "it may be under way");
    }

    #[test]
    fn the_last_call_is_the_one_that_began_last_and_samples() {
        let mut failed = call(1, &[1], &[&[2]]);
        reply(&mut failed).outcome = Outcome::UpstreamFailed;
        let mut plain = call(3, &[1], &[]);
        plain.begun.route = episode::Route::Models;
        let retried = call(2, &[1], &[&[3]]);
        let calls = [retried, failed.clone(), plain.clone()];
        assert_eq!(LastCall::of(&calls), LastCall::Ended(Outcome::Complete));
        let calls = [failed, plain.clone()];
        assert_eq!(LastCall::of(&calls), LastCall::Ended(Outcome::UpstreamFailed));
        assert_eq!(LastCall::of(&[plain]), LastCall::None);
    }
}
