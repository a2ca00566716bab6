//! The causes of forks: their words, their meanings, and what to change.

use serde::Serialize;

/// Cause of a fork: why a history no longer starts with what was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Arguments of a tool call are the same value in another spelling.
    ArgumentsReserialized,
    /// The agent went back to an earlier turn and said something else.
    Branched,
    /// The history was summarized, or is being summarized.
    Compaction,
    /// The system's or the developer's message changed.
    InstructionsChanged,
    /// A message was left out.
    MessageDropped,
    /// A message says something else.
    MessageEdited,
    /// A message says the same in another form.
    MessageRespelled,
    /// Another model was asked.
    ModelChanged,
    /// A date, a clock, a counter or a random word changed.
    NonceOrDate,
    /// The call is another agent's, or for another purpose.
    OtherAgent,
    /// The call belongs to another conversation that begins alike.
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
    /// The offered tools differ.
    ToolsChanged,
    /// No rule knows it.
    Unknown,
    /// Only spaces and line breaks differ.
    WhitespaceChanged,
}

impl Cause {
    /// All causes, sorted by word.
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

    /// Returns the word that is exported.
    pub fn as_str(self) -> &'static str {
        match self {
            // Intended by the agent.
            Self::Branched => "branched",
            Self::Compaction => "compaction",
            Self::OtherAgent => "other_agent",
            Self::OtherConversation => "other_conversation",

            // Differences in a message.
            Self::ArgumentsReserialized => "arguments_reserialized",
            Self::MessageDropped => "message_dropped",
            Self::MessageEdited => "message_edited",
            Self::MessageRespelled => "message_respelled",
            Self::NonceOrDate => "nonce_or_date",
            Self::ThinkingStripped => "thinking_stripped",
            Self::WhitespaceChanged => "whitespace_changed",

            // Differences in the rest of the request.
            Self::InstructionsChanged => "instructions_changed",
            Self::ModelChanged => "model_changed",
            Self::TemplateChanged => "template_changed",
            Self::ToolsChanged => "tools_changed",

            // Differences in the tokens alone.
            Self::Retokenized => "retokenized",
            Self::Seam => "seam",
            Self::ThinkingCutByTemplate => "thinking_cut_by_template",

            // No rule applies.
            Self::Unknown => "unknown",
        }
    }

    /// Returns true where the agent intends to leave its history, so there is nothing to repair.
    pub fn is_meant(self) -> bool {
        matches!(
            self,
            Self::Branched | Self::Compaction | Self::OtherAgent | Self::OtherConversation
        )
    }

    /// Returns the meaning of the word, as the user's page has it.
    pub fn meaning(self) -> &'static str {
        match self {
            // Intended by the agent.
            Self::Branched => "the agent went back to an earlier turn and said something else",
            Self::Compaction => "the history was replaced by a summary, or the call makes one",
            Self::OtherAgent => "the call is another agent's, or for another purpose",
            Self::OtherConversation => {
                "it is another conversation, whose prompt begins with the same tokens"
            }

            // Differences in a message.
            Self::ArgumentsReserialized => {
                "the arguments of a tool call are the same value in another spelling: other \
                 spaces, escapes or order of keys"
            }
            Self::MessageDropped => "a message of the history is gone",
            Self::MessageEdited => "a message of the history says something else",
            Self::MessageRespelled => {
                "a message says the same in another form: text as a list of parts, another id of a \
                 tool call"
            }
            Self::NonceOrDate => "a date, a clock, a counter or a random word changed",
            Self::ThinkingStripped => {
                "the agent did not send the reasoning of an earlier turn back"
            }
            Self::WhitespaceChanged => "a message differs in spaces and line breaks only",

            // Differences in the rest of the request.
            Self::InstructionsChanged => {
                "the system's or the developer's message says something else"
            }
            Self::ModelChanged => "another model was asked",
            Self::TemplateChanged => {
                "the same messages were written as another prompt: by another template, or with \
                 other arguments to it"
            }
            Self::ToolsChanged => "the tools that are offered, or their schemas, differ",

            // Differences in the tokens alone.
            Self::Retokenized => "the same text has other ids than those that were sampled",
            Self::Seam => {
                "only tokens around the end of a turn or the header of the next one differ"
            }
            Self::ThinkingCutByTemplate => {
                "the messages still hold the reasoning, but the prompt does not: the chat template \
                 leaves it out of earlier turns"
            }

            // No rule applies.
            Self::Unknown => "no rule knows it",
        }
    }

    /// Returns what to change in the agent or its template.
    pub fn advice(self) -> &'static str {
        match self {
            // Intended by the agent.
            Self::Branched | Self::OtherAgent | Self::OtherConversation => "nothing to change",
            Self::Compaction => "nothing to change; summarize less often if the cost is too high",

            // Differences in a message.
            Self::ArgumentsReserialized => {
                "keep the arguments of a tool call as the string that came, and send that back"
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
            Self::NonceOrDate => {
                "fix the date for the episode, or put what changes into the newest message; for \
                 Claude Code set CLAUDE_CODE_ATTRIBUTION_HEADER=0"
            }
            Self::ThinkingStripped => {
                "send `reasoning` or `reasoning_content` back with each assistant message, and \
                 leave `<think>` in its text"
            }
            Self::WhitespaceChanged => "do not trim or re-indent what the model or a tool said",

            // Differences in the rest of the request.
            Self::InstructionsChanged => {
                "keep the instructions as they were, and say what is new in the newest message"
            }
            Self::ModelChanged => {
                "ask one model through the whole conversation; the tokens of two models are never \
                 one path"
            }
            Self::TemplateChanged => {
                "send the same chat_template_kwargs and reasoning effort with every call, and \
                 serve a template without a clock"
            }
            Self::ToolsChanged => {
                "offer the same tools, in the same order and with the same schemas, in every call"
            }

            // Differences in the tokens alone.
            Self::Retokenized => {
                "nothing in the agent: the server tokenizes the text of its own answer anew; rows \
                 stay exact, and only a server that is sent token ids can avoid it"
            }
            Self::Seam => {
                "use a chat template that ends an answer of the history exactly as the model ends \
                 it: the end-of-turn token, the newline after it, the opener of the reasoning"
            }
            Self::ThinkingCutByTemplate => {
                "serve a chat template that keeps the reasoning of earlier turns \
                 (`--chat-template`), or train with the rows as they are"
            }

            // No rule applies.
            Self::Unknown => {
                "compare the two calls with `rolltape show EPISODE --call CALL`; `--tokenizer` \
                 shows the text around the place"
            }
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
        let page = include_str!("../../../docs/forks.md");
        for cause in Cause::ALL {
            let line =
                format!("| {} | {} | {} |\n", cause.as_str(), cause.meaning(), cause.advice());
            assert!(page.contains(&line), "docs/forks.md lacks the line\n{line}");
        }
    }
}
