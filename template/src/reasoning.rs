//! What a model thought before it answered: `<think>...</think>` at the start of a reply.

use crate::tools::open_prefix;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// What a piece of text added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasoningDelta {
    /// Text between the tags.
    pub reasoning: String,
    /// Text behind them.
    pub content: String,
}

/// Splits a growing text. The pieces may be cut anywhere; nothing is lost but the tags and the
/// white space before them.
#[derive(Clone, Debug)]
pub struct ReasoningParser {
    state: State,
    /// Text that may yet turn out to be a tag.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Inside,
    Outside,
}

impl ReasoningParser {
    /// Whether a chat template has its model think between these tags.
    pub fn is_in_template(source: &str) -> bool {
        source.contains(CLOSE)
    }

    /// A parser for the reply to `prompt`, which may have opened the block already.
    pub fn new(prompt: &str) -> ReasoningParser {
        let opened = prompt.trim_end().ends_with(OPEN);
        let state = if opened { State::Inside } else { State::Start };
        ReasoningParser { state, held: String::new() }
    }

    /// Takes a piece of text; what could be a tag is held back.
    pub fn push(&mut self, text: &str) -> ReasoningDelta {
        self.held.push_str(text);
        let mut delta = ReasoningDelta::default();
        if self.state == State::Start {
            let said = self.held.trim_start();
            if let Some(rest) = said.strip_prefix(OPEN) {
                self.held = rest.to_owned();
                self.state = State::Inside;
            } else if !OPEN.starts_with(said) {
                self.state = State::Outside;
            }
        }
        if self.state == State::Inside {
            if let Some((thought, rest)) = self.held.split_once(CLOSE) {
                delta.reasoning.push_str(thought);
                self.held = rest.to_owned();
                self.state = State::Outside;
            } else {
                let safe = self.held.len() - open_prefix(&self.held, CLOSE);
                delta.reasoning.extend(self.held.drain(..safe));
            }
        }
        if self.state == State::Outside {
            delta.content = std::mem::take(&mut self.held);
        }
        delta
    }

    /// The end of the text: a block that was not closed is reasoning all the same.
    pub fn finish(&mut self) -> ReasoningDelta {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Inside => ReasoningDelta { reasoning: held, content: String::new() },
            State::Start | State::Outside => {
                ReasoningDelta { reasoning: String::new(), content: held }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds in pieces of any size.
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
