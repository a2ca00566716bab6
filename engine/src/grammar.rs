//! Structured outputs: JSON of a schema, a regular expression, a choice, a grammar.
//!
//! - [`GrammarSpec`]: the form that a request prescribes; [`LeadingThought`]: what may come first.
//! - [`GrammarCompiler`]: the tokenizer's vocabulary, prepared for matching; one for each model.
//! - [`Grammar`]: a compiled form with its state, which says token by token what may come next; one
//!   for each reply.
//!
//! `llguidance` does the matching. It never forces tokens: the model chooses among all spellings of
//! the form, so the reported distribution is the sampling distribution.

mod gbnf;
mod schema;
mod schema_cost;
mod spaces;
mod thought;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use serde_json::{Value, json};
use template::Tokenizer;

use crate::bounds::{
    FIRST_MASK_WAIT, FORM_BYTES_MAX, FORM_DEPTH_MAX, FORM_STACK_BYTES, FORMS_AT_ONCE,
    MASK_START_WAIT, MASK_TOKEN_WAIT, MASK_WAIT,
};
use crate::id_set::IdSet;
use crate::work_limit::WorkLimit;
pub(crate) use schema::prepare as prepare_schema;
pub(crate) use schema_cost::lookup as lookup_schema;
use spaces::{SpaceCount, SpacedTokens};
use thought::ThinkTags;
pub(crate) use thought::{LeadingThought, tag};

/// A reason why a form cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrammarError {
    /// The form is malformed, contradictory or too large; the text says where.
    #[error("{reason}")]
    Form { reason: String },
    /// The model has no end-of-sequence token, with which a reply of a form ends.
    #[error("the model has no end-of-sequence token, without which no reply of a form can end")]
    NoEnd,
    /// The vocabulary cannot be prepared.
    #[error("the tokenizer cannot be used for this: {reason}")]
    Vocabulary { reason: String },
}

impl GrammarError {
    pub(crate) fn form(reason: impl Into<String>) -> GrammarError {
        GrammarError::Form { reason: reason.into() }
    }

    fn vocabulary(error: impl fmt::Display) -> GrammarError {
        GrammarError::Vocabulary { reason: error.to_string() }
    }
}

/// The form that a reply must have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GrammarSpec {
    /// JSON that matches a schema.
    Json { schema: Value, spacing: JsonWhitespace },
    /// A text that matches a regular expression as a whole.
    Regex(String),
    /// One of the texts.
    Choice(Vec<String>),
    /// A text of a grammar in Lark's notation, or in GBNF's (`root ::= ...`).
    Rules(String),
    /// Tool calls of a grammar in Lark's notation.
    Calls(String),
}

/// The white space that JSON may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JsonWhitespace {
    /// Wherever JSON allows it, a few characters in a row.
    Any,
    /// None.
    None,
    /// Text that matches the expression, wherever JSON allows white space.
    Pattern(String),
}

impl GrammarSpec {
    /// Any JSON object.
    pub(crate) fn object(spacing: JsonWhitespace) -> GrammarSpec {
        GrammarSpec::Json { schema: json!({"type": "object"}), spacing }
    }

    /// Refuses a form that is too large or too deep to be compiled in bounded time and memory.
    fn check(&self) -> Result<(), GrammarError> {
        let (len, depth) = match self {
            GrammarSpec::Json { schema, .. } => (schema.to_string().len(), 0),
            GrammarSpec::Regex(text) | GrammarSpec::Rules(text) | GrammarSpec::Calls(text) => {
                (text.len(), depth(text))
            }
            GrammarSpec::Choice(texts) => (texts.iter().map(String::len).sum(), 0),
        };
        if len > FORM_BYTES_MAX {
            return Err(GrammarError::form(format!("it is larger than {FORM_BYTES_MAX} bytes")));
        }
        if depth > FORM_DEPTH_MAX {
            let reason = format!("it has more than {FORM_DEPTH_MAX} nested groups");
            return Err(GrammarError::form(reason));
        }
        match self {
            GrammarSpec::Json { schema, .. } => schema_cost::check(schema),
            GrammarSpec::Rules(text) | GrammarSpec::Calls(text) => schema_cost::check_rules(text),
            GrammarSpec::Regex(_) | GrammarSpec::Choice(_) => Ok(()),
        }
    }

    /// Writes JSON schemas in the keywords that the library has.
    fn prepared(self) -> Result<GrammarSpec, GrammarError> {
        match self {
            GrammarSpec::Json { schema, spacing } => {
                Ok(GrammarSpec::Json { schema: schema::prepare(&schema)?, spacing })
            }
            other => Ok(other),
        }
    }

    fn top_level(self) -> Result<TopLevelGrammar, GrammarError> {
        match self {
            GrammarSpec::Json { mut schema, spacing } => {
                let may_end_in_spaces = spacing == JsonWhitespace::Any;
                if schema.is_object() {
                    compile_options(spacing).apply_to(&mut schema);
                }
                let json = TopLevelGrammar::from_json_schema(schema);
                Ok(if may_end_in_spaces { spaces::behind(json) } else { json })
            }
            GrammarSpec::Regex(regex) => Ok(TopLevelGrammar::from_regex(&regex)),
            GrammarSpec::Choice(texts) => Ok(TopLevelGrammar::from_lark(one_of(&texts))),
            GrammarSpec::Rules(text) if gbnf::is_gbnf(&text) => {
                let lark = gbnf::to_lark(&text).map_err(GrammarError::form)?;
                Ok(TopLevelGrammar::from_lark(lark))
            }
            GrammarSpec::Rules(text) | GrammarSpec::Calls(text) => {
                Ok(TopLevelGrammar::from_lark(text))
            }
        }
    }
}

/// The grammar of one of several texts, in Lark's notation.
fn one_of(texts: &[String]) -> String {
    // A JSON string is a valid string in Lark too.
    let literals: Vec<String> =
        texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
    format!("start: {}", literals.join(" | "))
}

/// Returns an upper bound of the nesting of groups; brackets in strings count too.
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

fn compile_options(spacing: JsonWhitespace) -> JsonCompileOptions {
    let mut options = JsonCompileOptions::default();
    match spacing {
        JsonWhitespace::Any => {}
        JsonWhitespace::None => options.whitespace_flexible = false,
        JsonWhitespace::Pattern(pattern) => options.whitespace_pattern = Some(pattern),
    }
    options
}

/// The vocabulary of a model, prepared for any form.
pub(crate) struct GrammarCompiler {
    factory: ParserFactory,
    ends: Arc<[u32]>,
    think_tags: ThinkTags,
    spaced: Arc<SpacedTokens>,
    /// Limit of the forms that are compiled at once.
    compilations: WorkLimit,
}

impl GrammarCompiler {
    /// Prepares the tokenizer's `vocab` ids, of which `ends` end a reply. Takes a moment for a
    /// large vocabulary.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        vocab: usize,
        ends: &[u32],
    ) -> Result<GrammarCompiler, GrammarError> {
        let Some(end) = ends.first() else { return Err(GrammarError::NoEnd) };
        let json = tokenizer.to_json().map_err(GrammarError::vocabulary)?;
        let mut token_bytes =
            token_bytes_from_tokenizer_json(&json).map_err(GrammarError::vocabulary)?;
        // Ids without a token have no text, so they never match.
        token_bytes.resize(vocab, Vec::new());

        let info = TokRxInfo::new(vocab as u32, *end);
        let trie = TokTrie::from(&info, &token_bytes).with_eos_tokens(ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(GrammarError::vocabulary)?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(GrammarCompiler {
            factory,
            ends: ends.into(),
            think_tags: ThinkTags::new(tokenizer),
            spaced: Arc::new(SpacedTokens::new(env)),
            compilations: WorkLimit::new(FORMS_AT_ONCE),
        })
    }

    /// Compiles a form, when it is its turn. Blocks while it does, about a second at most: the
    /// bounds of forms and the library's own limits hold it there.
    pub(crate) fn compile(
        &self,
        form: GrammarSpec,
        thought: LeadingThought,
    ) -> Result<Grammar, GrammarError> {
        form.check()?;
        let _permit = self.compilations.acquire(1);
        // The library recurses into a form, so it gets a stack for the deepest one allowed.
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("grammar".into())
                .stack_size(FORM_STACK_BYTES)
                .spawn_scoped(scope, || self.compile_here(form, thought))
                .map_err(|error| GrammarError::form(error.to_string()))?
                .join()
                .unwrap_or_else(|_| Err(GrammarError::form("the form is damaged")))
        })
    }

    fn compile_here(
        &self,
        form: GrammarSpec,
        thought: LeadingThought,
    ) -> Result<Grammar, GrammarError> {
        let form = form.prepared()?;
        form.check()?;
        // Models put blank lines between reasoning and calls. A form is the content as it is.
        let blank = if matches!(form, GrammarSpec::Calls(_)) { "BLANK" } else { "" };
        let has_spaces = matches!(form, GrammarSpec::Json { spacing: JsonWhitespace::Any, .. });
        let is_thought = thought == LeadingThought::Open;
        let spaces = has_spaces.then(|| SpaceCount::new(Arc::clone(&self.spaced), is_thought));
        let whole = self.think_tags.before(form.top_level()?, thought, blank);
        let parser = self.factory.create_parser(whole);
        let mut matcher = Matcher::new(parser).into_cancellable();
        if let Some(reason) = matcher.get_error() {
            return Err(GrammarError::form(schema::explained(reason)));
        }

        // A form that nothing matches is refused now rather than in the middle of a step.
        let first = watch::within(FIRST_MASK_WAIT, &mut matcher, Matcher::compute_mask_or_eos);
        let first = match first {
            _ if matcher.is_cancelled() => {
                return Err(GrammarError::form("it takes too long to match"));
            }
            first => first.map_err(|error| GrammarError::form(error.to_string()))?,
        };
        if first.is_zero() {
            return Err(GrammarError::form("no text matches the form"));
        }
        Ok(Grammar::new(matcher, Arc::clone(&self.ends), spaces))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchState {
    Open,
    /// The reply has ended.
    Over,
    /// The library stopped at one of its limits.
    Failed,
}

/// A compiled form and its state after the tokens so far.
pub(crate) struct Grammar {
    matcher: Matcher,
    ends: Arc<[u32]>,
    /// The white space of JSON; none where the form is no JSON, or says what it may be.
    spaces: Option<SpaceCount>,
    state: MatchState,
    /// Tokens that were matched.
    tokens: u32,
    /// The time that their masks and matches took.
    spent: Duration,
    /// The part of it that the last token took.
    last: Duration,
}

impl Clone for Grammar {
    /// A grammar in the same state that shares nothing with this one.
    fn clone(&self) -> Grammar {
        let (matcher, ends) = (self.matcher.deep_clone(), Arc::clone(&self.ends));
        Grammar { matcher, ends, spaces: self.spaces.clone(), ..*self }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Grammar {
    fn new(matcher: Matcher, ends: Arc<[u32]>, spaces: Option<SpaceCount>) -> Grammar {
        let (state, zero) = (MatchState::Open, Duration::ZERO);
        Grammar { matcher, ends, spaces, state, tokens: 0, spent: zero, last: zero }
    }

    /// Excludes the ids that cannot come next.
    pub(crate) fn mask(&mut self, ids: &mut IdSet) {
        self.last = Duration::ZERO;
        match self.timed(Matcher::compute_mask_or_eos) {
            Ok(mask) => {
                ids.keep(mask.as_slice());
                self.spaces.iter().for_each(|spaces| spaces.mask(ids));
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Excludes the ids that cannot come next from `logits`, `[vocab]`.
    #[cfg(test)]
    pub(crate) fn mask_logits(&mut self, logits: &mut [f32]) {
        let mut ids = IdSet::all(logits.len());
        self.mask(&mut ids);
        ids.mask(logits);
    }

    /// Returns true if a token can come next. A matcher that works on it for too long is of no use
    /// from then on.
    pub(crate) fn may_follow(&mut self, id: u32) -> bool {
        let open = self.state == MatchState::Open;
        let mut matches = || {
            let found =
                watch::within(MASK_WAIT, &mut self.matcher, |one| one.validate_tokens(&[id]));
            matches!(found, Ok(1))
        };
        open && (self.ends.contains(&id) || matches())
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, id: u32) {
        if self.state != MatchState::Open {
            return;
        }
        if self.ends.contains(&id) {
            self.state = MatchState::Over;
            return;
        }
        self.tokens += 1;
        self.spaces.iter_mut().for_each(|spaces| spaces.push(id));
        if let Err(error) = self.timed(|matcher| matcher.consume_token(id)) {
            self.fail(&error);
        } else if self.spent > MASK_START_WAIT + MASK_TOKEN_WAIT * self.tokens {
            self.fail(&"its tokens take too long to match");
        }
    }

    /// Has the matcher work on one token, and counts the time. A matcher that works for too long
    /// is stopped.
    fn timed<T>(&mut self, work: impl FnOnce(&mut Matcher) -> T) -> T {
        let begun = Instant::now();
        let result = watch::within(MASK_WAIT, &mut self.matcher, work);
        // What is longer and was not stopped, the whole process waited for.
        let elapsed = begun.elapsed().min(MASK_WAIT);
        self.spent += elapsed;
        self.last += elapsed;
        result
    }

    fn fail(&mut self, error: &dyn fmt::Display) {
        tracing::warn!(%error, "a grammar exceeded a limit of the matcher");
        self.state = MatchState::Failed;
    }

    /// Returns the time that the last token took.
    pub(crate) fn last_time(&self) -> Duration {
        self.last
    }

    /// Returns true if the reply has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.state == MatchState::Over
    }

    /// Returns true if the library stopped at one of its limits.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == MatchState::Failed
    }
}

#[cfg(test)]
mod tests;
