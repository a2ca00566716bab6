//! Replies of a prescribed form: JSON of a schema, a regular expression, a choice, a grammar.
//!
//! - [`Grammars`]: the tokenizer's vocabulary laid out for matching; one for each model.
//! - [`Form`]: what a request prescribes.
//! - [`Grammar`]: a form ready to say, token by token, what may come next; one for each reply.
//!
//! The matching itself is that of `llguidance`. It never forces tokens: the model chooses among all
//! spellings of the form, so the reported distribution is the one that was sampled from.

mod gbnf;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use serde_json::{Value, json};
use template::Tokenizer;

/// Bytes of the largest form.
const LARGEST: usize = 128 << 10;

/// Groups in one another in a regular expression or in rules. Schemas are as deep as JSON may be.
const DEEPEST: usize = 200;

/// Bytes of stack for making a form ready; used only as far as the form goes down.
const STACK: usize = 256 << 20;

/// Why a form cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrammarError {
    /// The form is damaged, contradicts itself, or is too large; the text says where.
    #[error("{reason}")]
    Form { reason: String },
    /// A reply of a form ends with the end-of-sequence token.
    #[error("the model has no end-of-sequence token, without which no reply of a form can end")]
    NoEnd,
    /// The vocabulary cannot be laid out.
    #[error("the tokenizer cannot be used for this: {reason}")]
    Vocabulary { reason: String },
}

/// What a reply is to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// JSON of a schema.
    Json { schema: Value, spacing: Spacing },
    /// The whole reply matches.
    Regex(String),
    /// One of the texts.
    Choice(Vec<String>),
    /// A grammar in Lark's notation, or in GBNF's (`root ::= ...`).
    Rules(String),
}

/// Where JSON may have white space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// Wherever JSON allows it.
    Any,
    /// Nowhere.
    None,
    /// What the expression matches, wherever JSON allows some.
    Pattern(String),
}

impl Form {
    /// Any JSON object.
    pub(crate) fn object(spacing: Spacing) -> Form {
        Form::Json { schema: json!({"type": "object"}), spacing }
    }

    /// Refuses what is too large or too deep to be made ready in bounded time and room.
    fn check(&self) -> Result<(), GrammarError> {
        let (len, depth) = match self {
            Form::Json { schema, .. } => (schema.to_string().len(), 0),
            Form::Regex(text) | Form::Rules(text) => (text.len(), depth(text)),
            Form::Choice(texts) => (texts.iter().map(String::len).sum(), 0),
        };
        let reason = match () {
            () if len > LARGEST => format!("it is larger than {LARGEST} bytes"),
            () if depth > DEEPEST => format!("it has more than {DEEPEST} groups in one another"),
            () => return Ok(()),
        };
        Err(GrammarError::Form { reason })
    }

    fn top_level(self) -> Result<TopLevelGrammar, GrammarError> {
        match self {
            Form::Json { mut schema, spacing } => {
                if schema.is_object() {
                    options(spacing).apply_to(&mut schema);
                }
                Ok(TopLevelGrammar::from_json_schema(schema))
            }
            Form::Regex(regex) => Ok(TopLevelGrammar::from_regex(&regex)),
            Form::Choice(texts) => {
                // A JSON string is a string of Lark's too.
                let texts = texts.iter().map(|text| Value::from(text.as_str()).to_string());
                let texts: Vec<String> = texts.collect();
                Ok(TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | "))))
            }
            Form::Rules(text) if gbnf::is_gbnf(&text) => {
                let lark = gbnf::to_lark(&text).map_err(|reason| GrammarError::Form { reason })?;
                Ok(TopLevelGrammar::from_lark(lark))
            }
            Form::Rules(text) => Ok(TopLevelGrammar::from_lark(text)),
        }
    }
}

/// The most groups that could be in one another; marks in strings count too.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn options(spacing: Spacing) -> JsonCompileOptions {
    let plain = JsonCompileOptions::default();
    match spacing {
        Spacing::Any => plain,
        Spacing::None => JsonCompileOptions { whitespace_flexible: false, ..plain },
        Spacing::Pattern(pattern) => {
            JsonCompileOptions { whitespace_pattern: Some(pattern), ..plain }
        }
    }
}

/// The vocabulary of a model, ready for any form.
pub(crate) struct Grammars {
    factory: ParserFactory,
    ends: Arc<[u32]>,
}

impl Grammars {
    /// Lays out the tokenizer's `vocab` ids, of which `ends` end a reply. Takes a moment for a
    /// large vocabulary.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        vocab: usize,
        ends: &[u32],
    ) -> Result<Grammars, GrammarError> {
        let Some(end) = ends.first() else { return Err(GrammarError::NoEnd) };
        let damaged = |reason: String| GrammarError::Vocabulary { reason };
        let json = tokenizer.to_json().map_err(|error| damaged(error.to_string()))?;
        let words = token_bytes_from_tokenizer_json(&json);
        let mut words = words.map_err(|error| damaged(error.to_string()))?;
        // Ids without a token have no text, so they never fit.
        words.resize(vocab, Vec::new());
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, *end), &words).with_eos_tokens(ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let factory = ParserFactory::new_simple(&env);
        let mut factory = factory.map_err(|error| damaged(error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Grammars { factory, ends: ends.into() })
    }

    /// Makes a form ready. Blocks for as long as that takes, which the bounds on forms and the
    /// library's limits keep to a second or so.
    pub(crate) fn compile(&self, form: Form) -> Result<Grammar, GrammarError> {
        form.check()?;
        // The library goes down into a form by recursion, so it gets room for all that the bounds
        // on forms allow.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let made = thread.spawn_scoped(scope, || self.compile_here(form));
            let unfit = |reason: &str| GrammarError::Form { reason: reason.to_owned() };
            let made = made.map_err(|error| unfit(&error.to_string()))?;
            made.join().unwrap_or_else(|_| Err(unfit("the form is damaged")))
        })
    }

    fn compile_here(&self, form: Form) -> Result<Grammar, GrammarError> {
        let parser = self.factory.create_parser(form.top_level()?);
        let mut matcher = Matcher::new(parser);
        if let Some(reason) = matcher.get_error() {
            return Err(GrammarError::Form { reason });
        }
        // A form that nothing fits is refused now rather than in the middle of a step.
        let first = matcher.compute_mask_or_eos();
        let first = first.map_err(|error| GrammarError::Form { reason: error.to_string() })?;
        if first.is_zero() {
            let reason = "no text has the form that is asked for".to_owned();
            return Err(GrammarError::Form { reason });
        }
        Ok(Grammar { matcher, ends: Arc::clone(&self.ends), state: State::Open })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The reply has ended.
    Over,
    /// The library gave up.
    Failed,
}

/// A form and how much of it has been said.
pub(crate) struct Grammar {
    matcher: Matcher,
    ends: Arc<[u32]>,
    state: State,
}

impl Clone for Grammar {
    /// A grammar at the same place that shares nothing with this one.
    fn clone(&self) -> Grammar {
        let (matcher, ends) = (self.matcher.deep_clone(), Arc::clone(&self.ends));
        Grammar { matcher, ends, state: self.state }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Grammar {
    /// Takes all ids that cannot come next out of `logits`, one for each id.
    pub(crate) fn mask(&mut self, logits: &mut [f32]) {
        match self.matcher.compute_mask_or_eos() {
            Ok(mask) => {
                for (word, logits) in mask.as_slice().iter().zip(logits.chunks_mut(32)) {
                    forbid(*word, logits);
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Takes in the id that came next.
    pub(crate) fn push(&mut self, id: u32) {
        if self.state != State::Open {
            return;
        }
        if self.ends.contains(&id) {
            self.state = State::Over;
        } else if let Err(error) = self.matcher.consume_token(id) {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &dyn fmt::Display) {
        tracing::warn!(%error, "a grammar could not be followed to the end");
        self.state = State::Failed;
    }

    /// Whether the reply has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether the form turned out to be too much.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == State::Failed
    }
}

/// Takes out the ids of 32 logits whose bit in `allowed` is not set.
fn forbid(allowed: u32, logits: &mut [f32]) {
    match allowed {
        u32::MAX => {}
        0 => logits.fill(f32::NEG_INFINITY),
        bits => {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if bits & (1 << bit) == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}
