//! The treatment of a chat whose prompt is sent as ids, on which `--continue exact` rests.

use episode::Outcome;
use proxy::ClientReply;

/// The treatment of the prompt of a chat as ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PromptIdsFinding {
    /// It is not known: no chat reports the ids of its prompt.
    #[default]
    Unknown,
    /// The dialect has no field for them.
    NoField,
    /// The reply reports the ids that were sent.
    Taken,
    /// The reply reports those of the messages.
    Ignored,
    /// The chat is refused with them, and goes well without.
    Refused,
}

impl PromptIdsFinding {
    /// Judges the reply to a chat with the ids `sent` whose messages have the ids `own`.
    pub(super) fn of(reply: &ClientReply, own: &[u32], sent: &[u32]) -> Self {
        let is_complete = reply.ended.outcome == Outcome::Complete;
        match reply.ended.prompts.first() {
            _ if is_complete && !reply.has_prompt => Self::Refused,
            Some(ids) if *ids == sent => Self::Taken,
            Some(ids) if *ids == own => Self::Ignored,
            _ => Self::Unknown,
        }
    }

    /// True if `--continue exact` does nothing before such an upstream.
    pub(super) fn are_useless(self) -> bool {
        matches!(self, Self::NoField | Self::Ignored | Self::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::super::prober::tests::reply;
    use super::*;

    #[test]
    fn a_prompt_is_taken_if_the_reply_reports_it() {
        let judged = |reported: &[u32], has_prompt| {
            let mut reply = ClientReply { has_prompt, ..reply("{}") };
            reply.ended.prompts = vec![reported.to_vec()];
            PromptIdsFinding::of(&reply, &[1, 2], &[1, 2, 2])
        };
        assert_eq!(judged(&[1, 2, 2], true), PromptIdsFinding::Taken);
        assert_eq!(judged(&[1, 2], true), PromptIdsFinding::Ignored);
        assert_eq!(judged(&[1, 2], false), PromptIdsFinding::Refused);
        assert_eq!(judged(&[3], true), PromptIdsFinding::Unknown);
        assert!(!PromptIdsFinding::Unknown.are_useless() && !PromptIdsFinding::Taken.are_useless());
    }
}
