//! How replies are read: which form tool calls have, and whether thoughts come first.

use template::ToolFormat;

/// How tool calls are found in replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolCallParser {
    /// In the form that the chat template shows to the model.
    #[default]
    Auto,
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
    Hermes,
    /// `{"name": ..., "parameters": {...}}`.
    Llama3Json,
    /// Not at all: calls are text.
    None,
}

impl ToolCallParser {
    pub(crate) fn format(self, template: &str) -> Option<ToolFormat> {
        match self {
            ToolCallParser::Auto => ToolFormat::of_template(template),
            ToolCallParser::Hermes => Some(ToolFormat::Hermes),
            ToolCallParser::Llama3Json => Some(ToolFormat::Llama3Json),
            ToolCallParser::None => None,
        }
    }
}

/// How thoughts are told from answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningParser {
    /// Between `<think>` and `</think>` where the chat template has these tags.
    #[default]
    Auto,
    /// Between `<think>` and `</think>`.
    Think,
    /// Not at all: thoughts are text.
    None,
}

impl ReasoningParser {
    pub(crate) fn is_on(self, template: &str) -> bool {
        match self {
            ReasoningParser::Auto => template::ReasoningParser::is_in_template(template),
            ReasoningParser::Think => true,
            ReasoningParser::None => false,
        }
    }
}
