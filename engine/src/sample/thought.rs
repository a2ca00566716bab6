//! The most tokens of a reply's reasoning.

use std::sync::Arc;

use template::reasoning::CLOSE;
use template::{Detokenizer, PromptThought, ReasoningParser, Tokenizer, TokenizerError};

/// A budget of reasoning, and how much of it a reply has used.
///
/// The tags are found in the text, as the parser of replies finds them, so that any spelling of
/// them counts. The tokens of the tags themselves are outside the budget, except for the first ones
/// of a closing tag that has several.
#[derive(Clone, Debug)]
pub(crate) struct ThoughtBudget {
    tokens: usize,
    used: usize,
    /// Tokens of the reply that were seen.
    seen: usize,
    parser: ReasoningParser,
    detokenizer: Detokenizer,
    tokenizer: Arc<Tokenizer>,
    /// The closing tag.
    close: Arc<[u32]>,
    /// The number of its tokens that were forced.
    forced: usize,
}

/// The end of a prompt, as the model and as the parser of reasoning see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptEnd<'a> {
    pub(crate) ids: &'a [u32],
    pub(crate) thought: PromptThought,
}

impl ThoughtBudget {
    /// A budget of `tokens` for a reply to `prompt`.
    ///
    /// # Errors
    /// If the closing tag cannot be encoded.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        prompt: PromptEnd<'_>,
        tokens: usize,
    ) -> Result<ThoughtBudget, TokenizerError> {
        Ok(ThoughtBudget {
            tokens,
            used: 0,
            seen: 0,
            parser: ReasoningParser::new(prompt.thought),
            detokenizer: Detokenizer::after(prompt.ids, false),
            tokenizer: Arc::clone(tokenizer),
            close: tokenizer.encode_after(CLOSE)?.into(),
            forced: 0,
        })
    }

    /// Notes a token of the reply.
    pub(super) fn push(&mut self, id: u32) {
        self.seen += 1;
        if self.parser.is_over() {
            return;
        }
        self.forced += usize::from(self.closing_id().is_some());
        let was_inside = self.parser.is_inside();
        self.parser.push(&self.detokenizer.push(&self.tokenizer, id));
        self.used += usize::from(was_inside && self.parser.is_inside());
    }

    /// Returns the only token that may come next, if the budget is spent.
    pub(super) fn closing_id(&self) -> Option<u32> {
        let is_spent = self.parser.is_inside() && self.used >= self.tokens;
        if is_spent { self.close.get(self.forced).copied() } else { None }
    }

    /// Returns true if the token at `position` may have to be a part of the closing tag. Tokens
    /// before it may be unknown yet.
    pub(super) fn may_close_at(&self, position: usize) -> bool {
        let unseen = position.saturating_sub(self.seen);
        let may_be_inside = self.parser.is_inside() || unseen > 0 && !self.parser.is_over();
        may_be_inside && self.used + unseen >= self.tokens
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn tokenizer() -> Arc<Tokenizer> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
        Arc::new(Tokenizer::load(&folder).unwrap())
    }

    fn end(thought: PromptThought) -> PromptEnd<'static> {
        PromptEnd { ids: &[], thought }
    }

    /// Says `text`, token by token, as far as the budget lets it, and then goes on with what the
    /// budget demands. Returns what was said.
    fn said(prompt: &str, tokens: usize, text: &str) -> String {
        let tokenizer = tokenizer();
        let prompt = end(PromptThought::of(prompt));
        let mut budget = ThoughtBudget::new(&tokenizer, prompt, tokens).unwrap();
        let mut ids = Vec::new();
        for id in tokenizer.encode(text, false).unwrap() {
            if budget.closing_id().is_some() {
                break;
            }
            budget.push(id);
            ids.push(id);
        }
        while let Some(id) = budget.closing_id() {
            assert!(budget.may_close_at(ids.len()));
            budget.push(id);
            ids.push(id);
        }
        tokenizer.decode(&ids, false)
    }

    #[test]
    fn a_spent_budget_closes_the_reasoning() {
        let long = "a b c d e f g h</think>yes";
        assert_eq!(said("x<think>\n", 3, long), "a b</think>");
        assert_eq!(said("x<think>", 0, long), "</think>");
        assert_eq!(said("x<think>", 99, long), long);
        assert_eq!(said("x", 3, &format!("<think>{long}")), "<think>a b</think>");
        assert_eq!(said("x", 0, "no thought at all"), "no thought at all");
        assert_eq!(said("<think></think>", 0, "a <think> b"), "a <think> b");
    }

    #[test]
    fn unknown_tokens_may_spend_it() {
        let budget = ThoughtBudget::new(&tokenizer(), end(PromptThought::Open), 3).unwrap();
        assert!(!budget.may_close_at(2));
        assert!(budget.may_close_at(3));
        let later = ThoughtBudget::new(&tokenizer(), end(PromptThought::Absent), 3).unwrap();
        assert!(!later.may_close_at(0));
        assert!(later.may_close_at(3));
    }
}
