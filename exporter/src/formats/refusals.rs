//! Reasons for which a format refuses a row, as words for the report.

use crate::notes::Reason;
use crate::rows::row::Row;

/// Word for the reason why a row makes no record.
pub(crate) type RefusalReason = &'static str;

/// A check of one row; none for a row that is taken.
pub(crate) type RowRefusal = fn(&Row) -> Option<RefusalReason>;

pub(crate) fn nothing(_: &Row) -> Option<RefusalReason> {
    None
}

/// Refuses rows that a loss over ratios of probabilities cannot take. Ids that were made from text
/// have zeros for logprobs, and a trainer would take them for real.
pub(crate) fn untrained(row: &Row) -> Option<RefusalReason> {
    match row.tokens.trained() {
        0 => Some("rows_without_trained_tokens"),
        _ if row.reasons.contains(&Reason::Retokenized) => Some("rows_without_logprobs"),
        _ => None,
    }
}

pub(crate) fn unscored(row: &Row) -> Option<RefusalReason> {
    row.score().is_none().then_some("rows_without_reward")
}

pub(crate) fn untrained_or_unscored(row: &Row) -> Option<RefusalReason> {
    untrained(row).or_else(|| unscored(row))
}

/// Refuses rows that a loss cannot take, but for those that the server aborted: their readers have
/// a state for them.
pub(crate) fn untrained_or_unscored_unless_aborted(row: &Row) -> Option<RefusalReason> {
    if row.is_aborted() { unscored(row) } else { untrained_or_unscored(row) }
}

/// Refuses rows that no other model has scored.
pub(crate) fn untaught(row: &Row) -> Option<RefusalReason> {
    untrained(row).or_else(|| row.scores.is_empty().then_some("rows_without_scores"))
}

/// Refuses rows that would have no label.
pub(crate) fn unlabeled(row: &Row) -> Option<RefusalReason> {
    (row.tokens.trained() == 0).then_some("rows_without_trained_tokens")
}

pub(crate) fn unanswered(row: &Row) -> Option<RefusalReason> {
    let last = row.dialogue.completion.last();
    last.is_none_or(|message| message.role != "assistant").then_some("rows_without_answer")
}

/// Returns the reason for a row that has no message to train.
pub(crate) fn without_messages(row: &Row) -> RefusalReason {
    match row.fidelity {
        Some(_) => "rows_without_trained_tokens",
        None => "rows_without_answer",
    }
}
