//! The words for causes, what they mean, and what to change.

use serde::Serialize;

/// Why a history no longer starts with what was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Arguments of a tool call are the same value in another spelling.
    ArgumentsReserialized,
    /// The agent went back to an earlier turn and said something else.
    Branched,
    /// The history was summarized, or is being summarized.
    Compaction,
    /// The system's or the developer's message is another one.
    InstructionsChanged,
    /// A message is gone.
    MessageDropped,
    /// A message says something else.
    MessageEdited,
    /// A message says the same in another form.
    MessageRespelled,
    /// Another model was asked.
    ModelChanged,
    /// A date, a clock, a counter or a random word changed.
    NonceOrDate,
    /// It is another agent's call, or for another purpose.
    OtherAgent,
    /// It is another conversation that begins alike.
    OtherConversation,
    /// The same text has other ids.
    Retokenized,
    /// Only the tokens around the end of a turn or the next header differ.
    Seam,
    /// The same messages were written as other text.
    TemplateChanged,
    /// The messages still hold the reasoning, but the prompt does not.
    ThinkingCutByTemplate,
    /// The agent did not send the reasoning back.
    ThinkingStripped,
    /// The tools that are offered differ.
    ToolsChanged,
    /// No rule knows it.
    Unknown,
    /// Only spaces and line breaks differ.
    WhitespaceChanged,
}

impl Cause {
    /// All of them, in the order of their words.
    pub const ALL: [Self; 19] = [
        Self::ArgumentsReserialized,
        Self::Branched,
        Self::Compaction,
        Self::InstructionsChanged,
        Self::MessageDropped,
        Self::MessageEdited,
        Self::MessageRespelled,
        Self::ModelChanged,
        Self::NonceOrDate,
        Self::OtherAgent,
        Self::OtherConversation,
        Self::Retokenized,
        Self::Seam,
        Self::TemplateChanged,
        Self::ThinkingCutByTemplate,
        Self::ThinkingStripped,
        Self::ToolsChanged,
        Self::Unknown,
        Self::WhitespaceChanged,
    ];

    /// The word exported.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ArgumentsReserialized => "arguments_reserialized",
            Self::Branched => "branched",
            Self::Compaction => "compaction",
            Self::InstructionsChanged => "instructions_changed",
            Self::MessageDropped => "message_dropped",
            Self::MessageEdited => "message_edited",
            Self::MessageRespelled => "message_respelled",
            Self::ModelChanged => "model_changed",
            Self::NonceOrDate => "nonce_or_date",
            Self::OtherAgent => "other_agent",
            Self::OtherConversation => "other_conversation",
            Self::Retokenized => "retokenized",
            Self::Seam => "seam",
            Self::TemplateChanged => "template_changed",
            Self::ThinkingCutByTemplate => "thinking_cut_by_template",
            Self::ThinkingStripped => "thinking_stripped",
            Self::ToolsChanged => "tools_changed",
            Self::Unknown => "unknown",
            Self::WhitespaceChanged => "whitespace_changed",
        }
    }

    /// Whether the agent means to leave its history so: there is nothing to repair.
    pub fn is_meant(self) -> bool {
        matches!(
            self,
            Self::Branched | Self::Compaction | Self::OtherAgent | Self::OtherConversation
        )
    }

    /// What happened, as the user page has it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::ArgumentsReserialized => {
                "the arguments of a tool call are the same value in another spelling: other \
                 spaces, escapes or order of keys"
            }
            Self::Branched => "the agent went back to an earlier turn and said something else",
            Self::Compaction => "the history was replaced by a summary, or the call makes one",
            Self::InstructionsChanged => {
                "the system's or the developer's message says something else"
            }
            Self::MessageDropped => "a message of the history is gone",
            Self::MessageEdited => "a message of the history says something else",
            Self::MessageRespelled => {
                "a message says the same in another form: text as a list of parts, another id of a \
                 tool call"
            }
            Self::ModelChanged => "another model was asked",
            Self::NonceOrDate => "a date, a clock, a counter or a random word changed",
            Self::OtherAgent => "the call is another agent's, or for another purpose",
            Self::OtherConversation => {
                "it is another conversation, whose prompt begins with the same tokens"
            }
            Self::Retokenized => "the same text has other ids than those that were sampled",
            Self::Seam => {
                "only tokens around the end of a turn or the header of the next one differ"
            }
            Self::TemplateChanged => {
                "the same messages were written as another prompt: by another template, or with \
                 other arguments to it"
            }
            Self::ThinkingCutByTemplate => {
                "the messages still hold the reasoning, but the prompt does not: the chat template \
                 leaves it out of earlier turns"
            }
            Self::ThinkingStripped => {
                "the agent did not send the reasoning of an earlier turn back"
            }
            Self::ToolsChanged => "the tools that are offered, or their schemas, differ",
            Self::Unknown => "no rule knows it",
            Self::WhitespaceChanged => "a message differs in spaces and line breaks only",
        }
    }

    /// What to change in the agent or its template.
    pub fn advice(self) -> &'static str {
        match self {
            Self::ArgumentsReserialized => {
                "keep the arguments of a tool call as the string that came, and send that back"
            }
            Self::Branched | Self::OtherAgent | Self::OtherConversation => "nothing to change",
            Self::Compaction => "nothing to change; summarize less often if the cost is too high",
            Self::InstructionsChanged => {
                "keep the instructions as they were, and say what is new in the newest message"
            }
            Self::MessageDropped => {
                "send the history back whole, or drop many messages at once and seldom, so that \
                 the prompts between stay prefixes of each other"
            }
            Self::MessageEdited => {
                "send messages back as they were said; put what is new into a new message"
            }
            Self::MessageRespelled => {
                "send the message object that came, with its ids and in its form, back unchanged"
            }
            Self::ModelChanged => {
                "ask one model through the whole conversation; the tokens of two models are never \
                 one path"
            }
            Self::NonceOrDate => {
                "fix the date for the episode, or put what changes into the newest message; for \
                 Claude Code set CLAUDE_CODE_ATTRIBUTION_HEADER=0"
            }
            Self::Retokenized => {
                "nothing in the agent: the server tokenizes the text of its own answer anew; rows \
                 stay exact, and only a server that is sent token ids can avoid it"
            }
            Self::Seam => {
                "use a chat template that ends an answer of the history exactly as the model ends \
                 it: the end-of-turn token, the newline after it, the opener of the reasoning"
            }
            Self::TemplateChanged => {
                "send the same chat_template_kwargs and reasoning effort with every call, and \
                 serve a template without a clock"
            }
            Self::ThinkingCutByTemplate => {
                "serve a chat template that keeps the reasoning of earlier turns \
                 (`--chat-template`), or train with the rows as they are"
            }
            Self::ThinkingStripped => {
                "send `reasoning` or `reasoning_content` back with each assistant message, and \
                 leave `<think>` in its text"
            }
            Self::ToolsChanged => {
                "offer the same tools, in the same order and with the same schemas, in every call"
            }
            Self::Unknown => {
                "compare the two calls with `rolltape show EPISODE --call CALL`; `--tokenizer` \
                 shows the text around the place"
            }
            Self::WhitespaceChanged => "do not trim or re-indent what the model or a tool said",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_has_one_word_everywhere_and_they_are_in_order() {
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.as_str());
        }
        assert!(Cause::ALL.map(Cause::as_str).is_sorted());
    }

    #[test]
    fn the_user_page_explains_every_cause() {
        let page = include_str!("../../../../docs/forks.md");
        for cause in Cause::ALL {
            let line =
                format!("| {} | {} | {} |\n", cause.as_str(), cause.meaning(), cause.advice());
            assert!(page.contains(&line), "docs/forks.md lacks the line\n{line}");
        }
    }
}
