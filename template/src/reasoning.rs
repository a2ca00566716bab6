//! The reasoning of a model: `<think>...</think>` at the start of a reply.

use crate::tools::partial_tag_len;

/// Opens reasoning.
pub const OPEN: &str = "<think>";
/// Closes reasoning.
pub const CLOSE: &str = "</think>";

/// The reasoning and the content that a piece of text added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasoningDelta {
    /// Text between the tags.
    pub reasoning: String,
    /// Text after them.
    pub content: String,
}

/// The reasoning that a prompt ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptThought {
    /// None: the reply may begin with it.
    Absent,
    /// An open block, in which the reply begins.
    Open,
    /// A closed block, often an empty one: the reply is to have none.
    Closed,
}

impl PromptThought {
    /// Finds the block at the end of a prompt.
    pub fn of(prompt: &str) -> PromptThought {
        match prompt.trim_end() {
            prompt if prompt.ends_with(OPEN) => PromptThought::Open,
            prompt if prompt.ends_with(CLOSE) => PromptThought::Closed,
            _ => PromptThought::Absent,
        }
    }
}

/// Splits a growing text into reasoning and content. The pieces may be cut anywhere; only the tags
/// and the white space before the first one are dropped.
#[derive(Clone, Debug)]
pub struct ReasoningParser {
    state: ReasoningState,
    /// Text that may turn out to be a tag.
    pending: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReasoningState {
    Start,
    Inside,
    Outside,
}

impl ReasoningParser {
    /// Returns true if a chat template uses these tags.
    pub fn is_in_template(source: &str) -> bool {
        source.contains(CLOSE)
    }

    /// Creates a parser for the reply to `prompt`, which may already have opened the block.
    pub fn new(prompt: &str) -> ReasoningParser {
        let state = match PromptThought::of(prompt) {
            PromptThought::Open => ReasoningState::Inside,
            PromptThought::Absent | PromptThought::Closed => ReasoningState::Start,
        };
        ReasoningParser { state, pending: String::new() }
    }

    /// Returns true if the text so far ends in an open block.
    pub fn is_inside(&self) -> bool {
        self.state == ReasoningState::Inside
    }

    /// Returns true if no block can begin any more.
    pub fn is_over(&self) -> bool {
        self.state == ReasoningState::Outside
    }

    /// Takes a piece of text. A possible start of a tag is pending back.
    pub fn push(&mut self, text: &str) -> ReasoningDelta {
        self.pending.push_str(text);
        let mut delta = ReasoningDelta::default();

        // One piece may go through all three states.
        if self.state == ReasoningState::Start {
            let start = self.pending.trim_start();
            if let Some(rest) = start.strip_prefix(OPEN) {
                self.pending = rest.to_owned();
                self.state = ReasoningState::Inside;
            } else if !OPEN.starts_with(start) {
                self.state = ReasoningState::Outside;
            }
        }

        if self.state == ReasoningState::Inside {
            if let Some((reasoning, rest)) = self.pending.split_once(CLOSE) {
                delta.reasoning.push_str(reasoning);
                self.pending = rest.to_owned();
                self.state = ReasoningState::Outside;
            } else {
                let safe = self.pending.len() - partial_tag_len(&self.pending, CLOSE);
                delta.reasoning.extend(self.pending.drain(..safe));
            }
        }

        if self.state == ReasoningState::Outside {
            // After the block, tags are content.
            delta.content = std::mem::take(&mut self.pending);
        }
        delta
    }

    /// Ends the text. A block that was not closed is reasoning, too.
    pub fn finish(&mut self) -> ReasoningDelta {
        let rest = std::mem::take(&mut self.pending);
        match self.state {
            ReasoningState::Inside => ReasoningDelta { reasoning: rest, content: String::new() },
            ReasoningState::Start | ReasoningState::Outside => {
                ReasoningDelta { reasoning: String::new(), content: rest }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a text in pieces of any size.
    fn check(prompt: &str, text: &str, reasoning: &str, content: &str) {
        let letters: Vec<char> = text.chars().collect();
        for size in 1..=letters.len().max(1) {
            let mut parser = ReasoningParser::new(prompt);
            let mut sum = ReasoningDelta::default();
            let pieces = letters.chunks(size).map(|piece| piece.iter().collect::<String>());
            let mut deltas: Vec<_> = pieces.map(|piece| parser.push(&piece)).collect();
            deltas.push(parser.finish());
            for delta in deltas {
                sum.reasoning += &delta.reasoning;
                sum.content += &delta.content;
            }
            assert_eq!((sum.reasoning.as_str(), sum.content.as_str()), (reasoning, content));
        }
    }

    #[test]
    fn thoughts_are_told_from_answers() {
        check(
            "a\n",
            "\n<think>\nhm </thin\n</think>\n\nyes <think>",
            "\nhm </thin\n",
            "\n\nyes <think>",
        );
        check("a\n<think>\n", "hm</think>yes", "hm", "yes");
        check("a\n<think>\n", "hm</thi", "hm</thi", "");
        check("<think>\n\n</think>\n\n", "yes", "", "yes");
        check("a", " <th", "", " <th");
        check("a", "", "", "");
        check("a", "so <think>hm</think>", "", "so <think>hm</think>");
    }

    #[test]
    fn thoughts_come_out_while_they_are_written() {
        let mut parser = ReasoningParser::new("");
        assert_eq!(parser.push("<thi"), ReasoningDelta::default());
        assert_eq!(parser.push("nk>a").reasoning, "a");
        assert_eq!(parser.push(" b</").reasoning, " b");
        assert_eq!(parser.push("think>c").content, "c");
    }
}
