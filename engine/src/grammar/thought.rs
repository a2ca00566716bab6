//! Reasoning before a form.

use llguidance::api::TopLevelGrammar;
use serde_json::Value;
use template::reasoning::{CLOSE, OPEN};
use template::{PromptThought, Tokenizer};

/// The reasoning that comes before a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeadingThought {
    /// None: the reply begins with the form.
    None,
    /// A block of reasoning, or none.
    Optional,
    /// The rest of a block that the prompt opened.
    Open,
}

impl LeadingThought {
    /// The reasoning that a reply may have whose prompt ends with `thought`; `thinks` is false for
    /// a model without it.
    pub(crate) fn of(thinks: bool, thought: PromptThought) -> LeadingThought {
        match thought {
            _ if !thinks => LeadingThought::None,
            PromptThought::Absent => LeadingThought::Optional,
            PromptThought::Open => LeadingThought::Open,
            PromptThought::Closed => LeadingThought::None,
        }
    }
}

/// The tags of reasoning in Lark's notation.
#[derive(Clone, Debug)]
pub(super) struct ThinkTags {
    open: String,
    close: String,
}

impl ThinkTags {
    pub(super) fn new(tokenizer: &Tokenizer) -> ThinkTags {
        ThinkTags { open: tag(tokenizer, OPEN), close: tag(tokenizer, CLOSE) }
    }

    /// Puts reasoning before a form. `blank` stands between them: `BLANK`, which is blank lines, or
    /// nothing.
    pub(super) fn before(
        &self,
        form: TopLevelGrammar,
        thought: LeadingThought,
        blank: &str,
    ) -> TopLevelGrammar {
        const FORM: &str = "form";
        let lead = match thought {
            LeadingThought::None => return form,
            LeadingThought::Optional => format!("(open_thought thought {blank})?"),
            LeadingThought::Open => format!("thought {blank}"),
        };
        // A text lexeme never crosses a special token. A closing tag of plain text would be
        // swallowed by one, so there the lexeme names the tag as its suffix.
        let ThinkTags { open, close } = self;
        let thought = match close.starts_with('<') {
            true => format!("thought: THOUGHT {close}\nTHOUGHT: /(?s:.*)/\n"),
            false => format!("thought[suffix={close}]: /(?s:.*)/\n"),
        };
        let rules =
            format!("start: {lead} @{FORM}\nopen_thought: {open}\n{thought}BLANK: /\\n*/\n");

        let mut whole = TopLevelGrammar::from_lark(rules);
        let mut parts = form.grammars;
        parts.iter_mut().take(1).for_each(|start| start.name = Some(FORM.to_owned()));
        whole.grammars.extend(parts);
        whole
    }
}

/// Writes a tag in Lark's notation: the special token if it is one, else its text.
pub(crate) fn tag(tokenizer: &Tokenizer, text: &str) -> String {
    match tokenizer.special_id(text) {
        Some(id) => format!("<[{id}]>"),
        None => Value::from(text).to_string(),
    }
}
