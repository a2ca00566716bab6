//! Prompts that were sent as ids, so that they begin with what was sampled.

use crate::words::words;

/// The outcome of the wish to send a prompt as ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Continued {
    /// Ids at the start of the prompt that are an earlier prompt and the ids sampled after it; 0 if
    /// the upstream encoded the text itself.
    pub tokens: u32,
    /// The reason for which they are none, or not those of the longest path.
    pub reason: Option<ContinueReason>,
}

words! {
    /// The reason for which a prompt does not begin with all that was sampled before.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ContinueReason {
        /// The conversation goes on from no recorded answer.
        NoParent = "no_parent",
        /// The agent or the template rewrote the conversation.
        HistoryEdited = "history_edited",
        /// The template leaves thoughts out of earlier turns, or the agent did not send them back.
        ThoughtsStripped = "thoughts_stripped",
        /// The text has other words of the same meaning, such as arguments in another spacing.
        Respelled = "respelled",
        /// The words that opened the answer are others in the history.
        OpeningRewritten = "opening_rewritten",
        /// Of several tool calls the history has the first.
        CallsDropped = "calls_dropped",
        /// The answer ended at a text or a token that was sampled and is no part of the history.
        /// The ids before it are sent.
        StopCut = "stop_cut",
        /// Thoughts that the text lacks are in the ids, as the user asked for.
        AsSampled = "as_sampled",
        /// The longest path ends within a token of the text.
        SeamInToken = "seam_in_token",
        /// The text of the recorded ids is not known.
        TextUnknown = "text_unknown",
        /// The upstream encodes the messages to other ids than it says.
        TemplateDiffers = "template_differs",
        /// It is not shown yet that the upstream's own words hold for requests with such fields.
        NotProven = "not_proven",
        /// The agent set a field that decides about the prompt.
        PromptFields = "prompt_fields",
        /// The messages hold pictures, sounds or the like.
        Media = "media",
        /// The upstream does not take a prompt of ids here, or cannot say how it encodes one.
        NotSupported = "not_supported",
        /// The upstream did not answer in time how it encodes the messages.
        NotAnswered = "not_answered",
        /// The recorded answers could not be read back: the store failed, or they take more memory
        /// than there was.
        NotRead = "not_read",
    }
}

impl Continued {
    /// No recorded ids, for this reason.
    pub fn none(reason: ContinueReason) -> Self {
        Self { tokens: 0, reason: Some(reason) }
    }

    /// As a JSON object.
    pub fn to_json(self) -> String {
        match self.reason {
            Some(reason) => {
                format!(r#"{{"tokens":{},"reason":"{}"}}"#, self.tokens, reason.as_str())
            }
            None => format!(r#"{{"tokens":{},"reason":null}}"#, self.tokens),
        }
    }

    /// Reads what [`Self::to_json`] writes.
    pub fn from_json(json: &str) -> Option<Self> {
        let (tokens, reason) = json.strip_prefix(r#"{"tokens":"#)?.split_once(r#","reason":"#)?;
        let tokens = tokens.parse().ok()?;
        match reason.strip_suffix('}')? {
            "null" => Some(Self { tokens, reason: None }),
            word => {
                let word = word.trim_matches('"');
                Some(Self { tokens, reason: Some(ContinueReason::from_word(word)?) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for record in [
            Continued { tokens: 12, reason: None },
            Continued { tokens: 3, reason: Some(ContinueReason::StopCut) },
            Continued::none(ContinueReason::NoParent),
        ] {
            assert_eq!(Continued::from_json(&record.to_json()), Some(record));
        }
        assert_eq!(Continued::from_json("{}"), None);
    }
}
