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

    /// Finds the block in which a reply begins: the latest tag of `begun`, the part of the prompt
    /// that the reply continues, decides, or else the end of the part `before` it.
    pub fn within(before: &str, begun: &str) -> PromptThought {
        match (begun.rfind(OPEN), begun.rfind(CLOSE)) {
            (None, None) => PromptThought::of(before),
            (open, close) if open > close => PromptThought::Open,
            _ => PromptThought::Closed,
        }
    }

    /// Returns true if a text has a tag of reasoning.
    pub fn is_in(text: &str) -> bool {
        text.contains(OPEN) || text.contains(CLOSE)
    }
}

/// Splits a growing text into reasoning and content. The pieces may be cut anywhere; only the tags
/// and the white space before the first one are dropped.
///
/// A closing tag that was not opened ends reasoning too, as in vLLM. [`ReasoningParser::read`]
/// takes the text before it for reasoning; in a stream that text was returned as content.
#[derive(Clone, Debug)]
pub struct ReasoningParser {
    state: ReasoningState,
    /// Text that may turn out to be a tag.
    pending: String,
    /// True if a grammar holds the content to a form, in which tags are text.
    has_form: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReasoningState {
    Start,
    Inside,
    /// In content that had no tag yet.
    Untagged,
    Outside,
}

impl ReasoningParser {
    /// Returns true if a chat template uses these tags.
    pub fn is_in_template(source: &str) -> bool {
        source.contains(CLOSE)
    }

    /// Creates a parser for the reply to a prompt that ends with this thought.
    pub fn new(thought: PromptThought) -> ReasoningParser {
        let state = match thought {
            PromptThought::Open => ReasoningState::Inside,
            PromptThought::Absent | PromptThought::Closed => ReasoningState::Start,
        };
        ReasoningParser { state, pending: String::new(), has_form: false }
    }

    /// The parser of a reply whose content a grammar holds to a form: a closing tag that was not
    /// opened is part of it.
    #[must_use]
    pub fn before_form(self) -> ReasoningParser {
        ReasoningParser { has_form: true, ..self }
    }

    /// Returns true if the text so far ends in an open block.
    pub fn is_inside(&self) -> bool {
        self.state == ReasoningState::Inside
    }

    /// Returns true if no block can begin any more.
    pub fn is_over(&self) -> bool {
        matches!(self.state, ReasoningState::Untagged | ReasoningState::Outside)
    }

    /// Splits a whole text.
    pub fn read(mut self, text: &str) -> ReasoningDelta {
        if self.state == ReasoningState::Start
            && !self.has_form
            && let Some((reasoning, content)) = text.split_once(CLOSE)
            && !reasoning.contains(OPEN)
        {
            return ReasoningDelta { reasoning: reasoning.to_owned(), content: content.to_owned() };
        }

        let mut delta = self.push(text);
        let rest = self.finish();
        delta.reasoning.push_str(&rest.reasoning);
        delta.content.push_str(&rest.content);
        delta
    }

    /// Takes a piece of text. A possible start of a tag is pending back.
    pub fn push(&mut self, text: &str) -> ReasoningDelta {
        self.pending.push_str(text);
        let mut delta = ReasoningDelta::default();

        // One piece may go through several states.
        if self.state == ReasoningState::Start {
            let start = self.pending.trim_start();
            if let Some(rest) = start.strip_prefix(OPEN) {
                self.pending = rest.to_owned();
                self.state = ReasoningState::Inside;
            } else if !OPEN.starts_with(start) {
                self.state = match self.has_form {
                    true => ReasoningState::Outside,
                    false => ReasoningState::Untagged,
                };
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

        if self.state == ReasoningState::Untagged {
            self.read_untagged(&mut delta);
        }
        if self.state == ReasoningState::Outside {
            // After the block, tags are content.
            delta.content.push_str(&std::mem::take(&mut self.pending));
        }
        delta
    }

    /// Reads content up to the first tag. A closing one is dropped.
    fn read_untagged(&mut self, delta: &mut ReasoningDelta) {
        let [open, close] = [OPEN, CLOSE].map(|tag| self.pending.find(tag));
        match (open, close) {
            (None, None) => {
                let held = [OPEN, CLOSE].map(|tag| partial_tag_len(&self.pending, tag));
                let safe = self.pending.len() - held[0].max(held[1]);
                delta.content.extend(self.pending.drain(..safe));
            }
            (open, Some(close)) if open.is_none_or(|open| close < open) => {
                delta.content.push_str(&self.pending[..close]);
                self.pending.drain(..close + CLOSE.len());
                self.state = ReasoningState::Outside;
            }
            _ => self.state = ReasoningState::Outside,
        }
    }

    /// Ends the text. A block that was not closed is reasoning, too.
    pub fn finish(&mut self) -> ReasoningDelta {
        let rest = std::mem::take(&mut self.pending);
        match self.state {
            ReasoningState::Inside => ReasoningDelta { reasoning: rest, content: String::new() },
            _ => ReasoningDelta { reasoning: String::new(), content: rest },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a text, whole and in pieces of any size.
    fn check(prompt: &str, text: &str, reasoning: &str, content: &str) {
        let whole = ReasoningParser::new(PromptThought::of(prompt)).read(text);
        assert_eq!((whole.reasoning.as_str(), whole.content.as_str()), (reasoning, content));
        let letters: Vec<char> = text.chars().collect();
        for size in 1..=letters.len().max(1) {
            let mut parser = ReasoningParser::new(PromptThought::of(prompt));
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
        let mut parser = ReasoningParser::new(PromptThought::Absent);
        assert_eq!(parser.push("<thi"), ReasoningDelta::default());
        assert_eq!(parser.push("nk>a").reasoning, "a");
        assert_eq!(parser.push(" b</").reasoning, " b");
        assert_eq!(parser.push("think>c").content, "c");
    }

    #[test]
    fn a_closing_tag_that_was_not_opened_ends_reasoning() {
        for thought in [PromptThought::Absent, PromptThought::Closed] {
            let whole = ReasoningParser::new(thought).read("hm</think>yes</think>");
            let expected = ("hm", "yes</think>");
            assert_eq!((whole.reasoning.as_str(), whole.content.as_str()), expected);

            // A stream cannot take back what it gave out, but it drops the tag.
            let mut parser = ReasoningParser::new(thought);
            let pieces = ["hm", "</thi", "nk>y", "es</think>"].map(|piece| parser.push(piece));
            let content: String = pieces.into_iter().map(|delta| delta.content).collect();
            assert_eq!(content + &parser.finish().content, "hmyes</think>");
        }
    }

    #[test]
    fn a_closing_tag_in_a_form_is_text() {
        let text = "{\"a\": \"</think>\"}";
        for thought in [PromptThought::Absent, PromptThought::Closed] {
            let parser = ReasoningParser::new(thought).before_form();
            let whole = parser.clone().read(text);
            assert_eq!((whole.reasoning.as_str(), whole.content.as_str()), ("", text));
            assert_eq!(parser.clone().push(text).content, text);
            let thinking = parser.read(&format!("<think>hm</think>{text}"));
            assert_eq!((thinking.reasoning.as_str(), thinking.content.as_str()), ("hm", text));
        }
    }

    #[test]
    fn the_latest_tag_of_what_a_reply_continues_decides() {
        use PromptThought::{Absent, Closed, Open};
        for (before, begun, thought) in [
            ("a", "b", Absent),
            ("<think>\n", "b", Open),
            ("<think>\n\n</think>\n\n", "b", Closed),
            ("a", "<think>b", Open),
            ("a", "so <think>b</think>c", Closed),
            ("<think>", "b</think>c", Closed),
            ("</think>", "<think>b", Open),
        ] {
            assert_eq!(PromptThought::within(before, begun), thought, "{before} {begun}");
        }
    }
}
