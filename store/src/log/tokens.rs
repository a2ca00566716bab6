//! Reading token ids back: a prompt is its parent's path, up to a token, and the ids behind it.
//!
//! Of prompts that each begin with the one before, only the last is assembled and compared with its
//! hash; the others are its beginnings. So the cost follows the new tokens, and every id still
//! comes from a prompt whose hash was right. Where the last one's hash is wrong, each prompt is
//! assembled and compared by itself.

use std::collections::HashMap;
use std::sync::Arc;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::encoding::pack::{hash_ids, ids_at, unpack_ids};
use crate::error::{DecodeError, ReadError};
use crate::log::format::IN_LOG;
use crate::log::reader::LogReader;

/// An index of calls answers the joins of these two, so no row of a call is read for them.
const PROMPTS_OF_EPISODE: &str =
    "SELECT p.* FROM prompt p JOIN call c USING (call_key) WHERE c.episode_key = $1";
const CHOICES_OF_EPISODE: &str =
    "SELECT k.* FROM choice k JOIN call c USING (call_key) WHERE c.episode_key = $1";

/// The prompts of a call, their parents, and so on.
const PROMPTS_OF_CALL: &str = "WITH RECURSIVE chain AS ( \
    SELECT p.* FROM prompt p WHERE p.call_key = $1 \
    UNION SELECT p.* FROM chain n \
    JOIN choice k ON k.call_key = n.parent_key AND k.choice_index = n.parent_choice \
    JOIN prompt p ON p.call_key = k.call_key AND p.prompt_index = k.prompt_index) \
    SELECT n.*, c.reel_key FROM chain n JOIN call c USING (call_key)";
const CHOICES_OF_CALL: &str = "WITH RECURSIVE chain AS ( \
    SELECT k.call_key, k.choice_index, k.prompt_index, k.tokens, k.encoding, k.start, \
    k.token_ids FROM choice k WHERE k.call_key = $1 \
    UNION SELECT k.call_key, k.choice_index, k.prompt_index, k.tokens, k.encoding, k.start, \
    k.token_ids FROM chain n \
    JOIN prompt p ON p.call_key = n.call_key AND p.prompt_index = n.prompt_index \
    JOIN choice k ON k.call_key = p.parent_key AND k.choice_index = p.parent_choice) \
    SELECT n.*, c.reel_key FROM chain n JOIN call c USING (call_key)";

/// The place of a prompt or a choice: the call's key, and the index within the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallIndex {
    pub(crate) call_key: i64,
    pub(crate) index: i64,
}

/// The connection and the logs that ids are read from.
#[derive(Debug)]
pub(crate) struct LogSource<'a> {
    pub(crate) connection: &'a mut StoreConnection,
    pub(crate) reader: &'a mut LogReader,
}

/// A reader of token ids. It holds the rows of the prompts and choices that were loaded.
#[derive(Debug, Default)]
pub(crate) struct TokenReader {
    /// True where every prompt is compared with its own hash.
    checks_each: bool,
    /// The key of the log that holds the ids of each call.
    logs: HashMap<i64, Option<i64>>,
    prompts: HashMap<CallIndex, PromptRow>,
    choices: HashMap<CallIndex, ChoiceRow>,
    /// For a prompt, one that begins with the whole of it.
    longer: HashMap<CallIndex, CallIndex>,
    /// Assembled prompts that agree with their hashes; `None` for those that do not.
    assembled: HashMap<CallIndex, Option<Arc<Vec<u32>>>>,
}

#[derive(Debug, Clone)]
struct PromptRow {
    /// The choice whose path the prompt continues.
    parent: Option<CallIndex>,
    /// Tokens of that path that the prompt begins with.
    shared: usize,
    /// Tokens of the whole prompt.
    tokens: usize,
    depth: i64,
    /// The ids behind the shared ones.
    rest: TokenRun,
    hash: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct ChoiceRow {
    prompt_index: i64,
    sampled: Option<TokenRun>,
}

/// A run of ids: in the row itself, or in a log.
#[derive(Debug, Clone)]
enum TokenRun {
    Row(Vec<u32>),
    Log { log_key: i64, start: u64, count: usize },
}

/// A stretch of a prompt.
enum PromptPart<'a> {
    /// The first ids of a prompt that is assembled.
    Prompt { ids: &'a Arc<Vec<u32>>, count: usize },
    /// The first ids of a run.
    Run { run: &'a TokenRun, count: usize },
}

/// A choice with the whole path that leads to it.
#[derive(Debug)]
pub(crate) struct ChoicePath {
    pub(crate) choice: u32,
    /// Parents that lead to the prompt.
    pub(crate) depth: u32,
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampled: Vec<u32>,
}

impl TokenReader {
    /// A reader that compares every prompt with its own hash, even one that is a beginning of
    /// another.
    pub(crate) fn checking_each() -> Self {
        Self { checks_each: true, ..Self::default() }
    }

    /// Loads the prompts and choices of an episode, all of whose calls are given. Returns the rows
    /// of its choices.
    pub(crate) async fn load_episode(
        &mut self,
        connection: &mut StoreConnection,
        episode_key: i64,
        calls: &[Row],
    ) -> Result<Vec<Row>, ReadError> {
        for call in calls {
            self.keep_log_key(call)?;
        }
        self.load_prompts(connection, PROMPTS_OF_EPISODE, episode_key).await?;
        self.load_choices(connection, CHOICES_OF_EPISODE, episode_key).await
    }

    /// Loads the prompts and choices that one call needs.
    pub(crate) async fn load_call(
        &mut self,
        connection: &mut StoreConnection,
        call_key: i64,
    ) -> Result<(), ReadError> {
        self.load_prompts(connection, PROMPTS_OF_CALL, call_key).await?;
        self.load_choices(connection, CHOICES_OF_CALL, call_key).await.map(drop)
    }

    async fn load_prompts(
        &mut self,
        connection: &mut StoreConnection,
        sql: &'static str,
        key: i64,
    ) -> Result<(), ReadError> {
        for row in query(sql).bind(key).fetch_all(connection).await? {
            let at = CallIndex::of(&row, "prompt_index")?;
            let log_key = self.log_key(&row, at.call_key)?;
            self.prompts.insert(at, PromptRow::of(&row, log_key)?);
        }
        Ok(())
    }

    /// Keeps the key of the log that a row of a call names.
    fn keep_log_key(&mut self, call: &Row) -> Result<(), sqlx::Error> {
        self.logs.insert(call.try_get("call_key")?, call.try_get("reel_key")?);
        Ok(())
    }

    /// The log that the ids of a row are in: that of its call, or the one that the row names.
    fn log_key(&self, row: &Row, call_key: i64) -> Result<Option<i64>, sqlx::Error> {
        match self.logs.get(&call_key) {
            Some(known) => Ok(*known),
            None => row.try_get("reel_key"),
        }
    }

    async fn load_choices(
        &mut self,
        connection: &mut StoreConnection,
        sql: &'static str,
        key: i64,
    ) -> Result<Vec<Row>, ReadError> {
        let rows = query(sql).bind(key).fetch_all(connection).await?;
        for row in &rows {
            let at = CallIndex::of(row, "choice_index")?;
            let log_key = self.log_key(row, at.call_key)?;
            self.choices.insert(at, ChoiceRow::of(row, log_key)?);
        }

        if !self.checks_each {
            let pairs = self.prompts.keys().filter_map(|at| Some((self.covered_by(*at)?, *at)));
            self.longer = pairs.collect();
        }
        Ok(rows)
    }

    /// The prompt that this one begins with the whole of, and whose hash this one's hash covers.
    fn covered_by(&self, at: CallIndex) -> Option<CallIndex> {
        let longer = &self.prompts[&at];
        let parent = longer.parent?;
        let index = self.choices.get(&parent)?.prompt_index;
        let covered = CallIndex { call_key: parent.call_key, index };
        let shorter = self.prompts.get(&covered)?;

        let is_checked = longer.hash.is_some() || shorter.hash.is_none();
        (is_checked && covered != at && longer.shared >= shorter.tokens).then_some(covered)
    }

    /// The prompts of a call that was loaded.
    pub(crate) async fn prompts(
        &mut self,
        source: &mut LogSource<'_>,
        call_key: i64,
    ) -> Result<Vec<Vec<u32>>, ReadError> {
        let mut prompts = Vec::new();
        let mut at = CallIndex { call_key, index: 0 };
        while self.prompts.contains_key(&at) {
            prompts.push(self.prompt(source, at).await?);
            at.index += 1;
        }
        Ok(prompts)
    }

    /// The sampled ids of a choice that was loaded; `None` where they are not known.
    pub(crate) async fn sampled(
        &self,
        source: &mut LogSource<'_>,
        choice: CallIndex,
    ) -> Result<Option<Vec<u32>>, ReadError> {
        let row = self.choices.get(&choice).ok_or(DecodeError::Log)?;
        match &row.sampled {
            None => Ok(None),
            Some(run) => run.ids(source, run.len()).await.map(Some),
        }
    }

    /// The choices of a call that was loaded, each with its path. Choices without ids are left out.
    pub(crate) async fn paths(
        &mut self,
        source: &mut LogSource<'_>,
        call_key: i64,
    ) -> Result<Vec<ChoicePath>, ReadError> {
        let mut choices: Vec<_> = self
            .choices
            .iter()
            .filter(|(at, _)| at.call_key == call_key)
            .map(|(at, row)| (*at, row.prompt_index))
            .collect();
        choices.sort_unstable();

        let mut paths = Vec::new();
        for (choice, index) in choices {
            let Some(sampled) = self.sampled(source, choice).await? else { continue };
            let at = CallIndex { call_key, index };
            let Some(row) = self.prompts.get(&at) else { continue };
            let (choice, depth) = (choice.index as u32, row.depth as u32);
            let prompt = self.prompt(source, at).await?;
            paths.push(ChoicePath { choice, depth, prompt, sampled });
        }
        Ok(paths)
    }

    /// A prompt, checked against its hash or that of a longer one.
    async fn prompt(
        &mut self,
        source: &mut LogSource<'_>,
        at: CallIndex,
    ) -> Result<Vec<u32>, ReadError> {
        let tokens = self.prompts.get(&at).ok_or(DecodeError::Log)?.tokens;

        // Most prompts are the beginning of a longer one, which is assembled once.
        let longest = self.longest(at);
        if longest != at {
            if !self.assembled.contains_key(&longest) {
                let ids = self.assemble(source, longest).await;
                self.assembled.insert(longest, ids.ok().map(Arc::new));
            }
            if let Some(Some(ids)) = self.assembled.get(&longest) {
                return Ok(ids.get(..tokens).ok_or(DecodeError::Log)?.to_vec());
            }
        }

        // It is the longest itself, or the longest is damaged.
        if let Some(Some(ids)) = self.assembled.get(&at) {
            return Ok(ids.to_vec());
        }
        let ids = self.assemble(source, at).await?;
        self.assembled.insert(at, Some(Arc::new(ids.clone())));
        Ok(ids)
    }

    /// The last prompt of those that begin with this one.
    fn longest(&self, mut at: CallIndex) -> CallIndex {
        // The bound ends a circle, which only a damaged store has.
        for _ in 0..=self.prompts.len() {
            match self.longer.get(&at) {
                Some(longer) => at = *longer,
                None => return at,
            }
        }
        at
    }

    /// Puts the ids of a prompt together and compares them with its hash.
    async fn assemble(
        &self,
        source: &mut LogSource<'_>,
        at: CallIndex,
    ) -> Result<Vec<u32>, ReadError> {
        let mut assembled = Vec::new();
        for part in self.parts(at)?.into_iter().rev() {
            match part {
                PromptPart::Prompt { ids, count } => {
                    assembled.extend_from_slice(ids.get(..count).ok_or(DecodeError::Log)?);
                }
                PromptPart::Run { run, count } => assembled.extend(run.ids(source, count).await?),
            }
        }

        let row = self.prompts.get(&at).ok_or(DecodeError::Log)?;
        if row.hash.as_ref().is_some_and(|expected| *expected != hash_ids(&assembled)) {
            return Err(DecodeError::Hash.into());
        }
        Ok(assembled)
    }

    /// The parts of a prompt, the last first: up from parent to parent until a prompt is assembled.
    fn parts(&self, mut at: CallIndex) -> Result<Vec<PromptPart<'_>>, DecodeError> {
        let mut parts = Vec::new();
        // The tokens from the beginning of the prompt `at` that are still wanted.
        let mut count = usize::MAX;

        // The bound ends a circle: no sound chain is longer than there are prompts.
        for _ in 0..=self.prompts.len() {
            if let Some(Some(ids)) = self.assembled.get(&at) {
                parts.push(PromptPart::Prompt { ids, count: count.min(ids.len()) });
                return Ok(parts);
            }

            // The prompt's own ids, behind those that it shares with its parent's path.
            let row = self.prompts.get(&at).ok_or(DecodeError::Log)?;
            count = count.min(row.tokens);
            let own = count.saturating_sub(row.shared);
            parts.push(PromptPart::Run { run: &row.rest, count: own });
            count = count.min(row.shared);
            let Some(parent) = row.parent else { return Ok(parts) };

            // The parent's path: its prompt, then the ids that it sampled. The shared ones of them
            // belong to this prompt.
            let choice = self.choices.get(&parent).ok_or(DecodeError::Log)?;
            at = CallIndex { call_key: parent.call_key, index: choice.prompt_index };
            let prompt_tokens = self.prompts.get(&at).ok_or(DecodeError::Log)?.tokens;
            let of_sampled = count.saturating_sub(prompt_tokens);
            if let (1.., Some(run)) = (of_sampled, &choice.sampled) {
                parts.push(PromptPart::Run { run, count: of_sampled });
            }
            count = count.min(prompt_tokens);
        }
        Err(DecodeError::Log)
    }
}

impl CallIndex {
    /// Reads `call_key` and the column `index` of a row.
    pub(crate) fn of(row: &Row, index: &str) -> Result<Self, sqlx::Error> {
        Ok(Self { call_key: row.try_get("call_key")?, index: row.try_get(index)? })
    }
}

impl TokenRun {
    fn of(row: &Row, count: usize, log_key: Option<i64>) -> Result<Self, ReadError> {
        let encoding: i64 = row.try_get("encoding")?;
        if encoding != IN_LOG {
            return Ok(Self::Row(unpack_ids(encoding, row.try_get("token_ids")?)?));
        }
        let log_key = log_key.ok_or(DecodeError::Log)?;
        let start: usize = row.try_get("start")?;
        Ok(Self::Log { log_key, start: start as u64, count })
    }

    /// The first `count` ids.
    async fn ids(&self, source: &mut LogSource<'_>, count: usize) -> Result<Vec<u32>, ReadError> {
        match self {
            _ if count == 0 => Ok(Vec::new()),
            Self::Row(ids) => Ok(ids.get(..count).ok_or(DecodeError::Log)?.to_vec()),
            Self::Log { log_key, start, .. } => {
                let log = source.reader.log(source.connection, *log_key).await?;
                Ok(ids_at(&log.tokens, *start, count as u64)?)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Row(ids) => ids.len(),
            Self::Log { count, .. } => *count,
        }
    }
}

impl PromptRow {
    fn of(row: &Row, log_key: Option<i64>) -> Result<Self, ReadError> {
        let (tokens, shared): (usize, usize) = (row.try_get("tokens")?, row.try_get("shared")?);
        let parent_key: Option<i64> = row.try_get("parent_key")?;
        let parent_choice: Option<i64> = row.try_get("parent_choice")?;
        let parent = parent_key.zip(parent_choice);
        let own = tokens.checked_sub(shared).ok_or(DecodeError::Log)?;
        Ok(Self {
            parent: parent.map(|(call_key, index)| CallIndex { call_key, index }),
            shared,
            tokens,
            depth: row.try_get("depth")?,
            rest: TokenRun::of(row, own, log_key)?,
            hash: row.try_get("hash")?,
        })
    }
}

impl ChoiceRow {
    fn of(row: &Row, log_key: Option<i64>) -> Result<Self, ReadError> {
        let tokens: Option<usize> = row.try_get("tokens")?;
        Ok(Self {
            prompt_index: row.try_get("prompt_index")?,
            sampled: tokens.map(|count| TokenRun::of(row, count, log_key)).transpose()?,
        })
    }
}
