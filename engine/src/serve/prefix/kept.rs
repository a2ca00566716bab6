//! The part of a reply that is part of the conversation.

use template::Tokenizer;
use template::continuation::ReplySyntax;

use super::{REPLACEMENT, SampledReply};
use crate::schedule::request::FinishReason;

/// The part of the sampled ids that belongs to the conversation.
pub(super) struct KeptIds<'a> {
    pub(super) ids: &'a [u32],
    /// The text of the last id, if that ends the turn.
    pub(super) end: Option<String>,
}

impl<'a> KeptIds<'a> {
    /// Finds the kept part of a reply; none if it is empty, or if the engine failed.
    pub(super) fn of(
        sampled: &SampledReply<'a>,
        tokenizer: &Tokenizer,
        syntax: &ReplySyntax,
    ) -> Option<KeptIds<'a>> {
        let ids = sampled.ids;
        let kept = match sampled.finish {
            FinishReason::Failed(_) => return None,
            FinishReason::Length | FinishReason::Aborted => KeptIds { ids, end: None },
            FinishReason::StopText { at, .. } => {
                KeptIds { ids: ids_within(sampled, *at, tokenizer), end: None }
            }
            FinishReason::Eos | FinishReason::StopId(_) => {
                let last = ids.last().map(|id| tokenizer.decode(&[*id], false));
                match last {
                    Some(end) if syntax.turn_ends.contains(&end) => KeptIds { ids, end: Some(end) },
                    _ if sampled.includes_stop => KeptIds { ids, end: None },
                    // No template writes this token at the end of a turn.
                    _ => KeptIds { ids: &ids[..ids.len().saturating_sub(1)], end: None },
                }
            }
        };
        (!kept.ids.is_empty()).then_some(kept)
    }
}

/// Returns the most ids whose text is within the first `at` bytes of the reply's text.
fn ids_within<'a>(sampled: &SampledReply<'a>, at: usize, tokenizer: &Tokenizer) -> &'a [u32] {
    let mut kept = sampled.ids;
    while let [shorter @ .., _] = kept {
        let text = tokenizer.decode_after(sampled.prompt, kept, sampled.skip_special_tokens);
        if text.len() <= at && !text.ends_with(REPLACEMENT) {
            break;
        }
        kept = shorter;
    }
    kept
}
