//! The parsers of replies: of tool calls, and of reasoning.

use template::ToolFormat;

/// The parser of tool calls in replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolCallParser {
    /// The format that the chat template describes to the model.
    #[default]
    Auto,
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
    Hermes,
    /// `{"name": ..., "parameters": {...}}`.
    Llama3Json,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.
    Qwen3Coder,
    /// No parser: tool calls stay text.
    None,
}

impl ToolCallParser {
    /// The format of tool calls for a model with this chat template, if any.
    pub(crate) fn format(self, template: &str) -> Option<ToolFormat> {
        match self {
            ToolCallParser::Auto => ToolFormat::detect(template),
            ToolCallParser::Hermes => Some(ToolFormat::Hermes),
            ToolCallParser::Llama3Json => Some(ToolFormat::Llama3Json),
            ToolCallParser::Qwen3Coder => Some(ToolFormat::Qwen3Coder),
            ToolCallParser::None => None,
        }
    }
}

/// The parser that separates reasoning from the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningParser {
    /// Text between `<think>` and `</think>` is reasoning, if the chat template has these tags.
    #[default]
    Auto,
    /// Text between `<think>` and `</think>` is reasoning.
    Think,
    /// No parser: reasoning stays text.
    None,
}

impl ReasoningParser {
    /// Returns true if replies of a model with this chat template may contain reasoning.
    pub(crate) fn is_on(self, template: &str) -> bool {
        match self {
            ReasoningParser::Auto => template::ReasoningParser::is_in_template(template),
            ReasoningParser::Think => true,
            ReasoningParser::None => false,
        }
    }
}
