//! Reading token ids back: a prompt is its parent's path, up to a token, and what is behind it.
//!
//! Of prompts of which each holds the one before, the last is put together and compared with its
//! hash; the others are its beginnings. So the time follows what is new, and every id is still one
//! that a hash was found right for: where the last one's is not, each is read and compared by
//! itself.

use std::collections::HashMap;
use std::sync::Arc;

use crate::fields::Row;
use crate::link::Link;
use crate::pack::{DecodeError, REELED, hash_ids, ids_at, unpack_ids};
use crate::query::query;
use crate::read::{ReadError, Reader, size};

/// Prompts of an episode, with what each goes on from.
const OF_EPISODE: &str = "SELECT p.*, c.reel_key FROM prompt p JOIN call c USING (call_key) \
    WHERE c.episode_key = $1";
const CHOICES_OF_EPISODE: &str = "SELECT k.*, c.reel_key \
    FROM choice k JOIN call c USING (call_key) WHERE c.episode_key = $1 ORDER BY k.choice_index";

/// A call's prompts, their parents', and so on.
const OF_CALL: &str = "WITH RECURSIVE chain AS ( \
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

/// Token ids of calls, as far as they were loaded.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Whether every prompt is to be compared with its own hash.
    each: bool,
    prompts: HashMap<(i64, i64), StoredPrompt>,
    choices: HashMap<(i64, i64), StoredChoice>,
    /// For a prompt one that begins with the whole of it.
    longer: HashMap<(i64, i64), (i64, i64)>,
    /// Prompts that were put together and agree with their hashes; none that does not.
    whole: HashMap<(i64, i64), Option<Arc<Vec<u32>>>>,
}

#[derive(Debug, Clone)]
struct StoredPrompt {
    parent: Option<(i64, i64)>,
    shared: usize,
    tokens: usize,
    depth: i64,
    rest: Run,
    hash: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct StoredChoice {
    prompt_index: i64,
    sampled: Option<Run>,
}

/// Where ids are.
#[derive(Debug, Clone)]
enum Run {
    Here(Vec<u32>),
    Reel { reel_key: i64, start: u64, count: usize },
}

/// A stretch of a prompt.
enum Part<'a> {
    /// The first so many ids of a prompt that is known.
    Whole(&'a Arc<Vec<u32>>, usize),
    /// The first so many of a run.
    Run(&'a Run, usize),
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

impl Trace {
    /// One that compares every prompt with its own hash, whatever others say of it.
    pub(crate) fn of_each() -> Self {
        Self { each: true, ..Self::default() }
    }

    /// Loads all that belongs to an episode; the whole rows of its choices, by index.
    pub(crate) async fn of_episode(
        &mut self,
        connection: &mut Link,
        episode_key: i64,
    ) -> Result<Vec<Row>, ReadError> {
        self.load(connection, (OF_EPISODE, CHOICES_OF_EPISODE), episode_key).await
    }

    /// Loads what is needed for one call.
    pub(crate) async fn of_call(
        &mut self,
        connection: &mut Link,
        call_key: i64,
    ) -> Result<(), ReadError> {
        self.load(connection, (OF_CALL, CHOICES_OF_CALL), call_key).await.map(drop)
    }

    async fn load(
        &mut self,
        connection: &mut Link,
        (prompts, choices): (&'static str, &'static str),
        key: i64,
    ) -> Result<Vec<Row>, ReadError> {
        for row in query(prompts).bind(key).fetch_all(&mut *connection).await? {
            let at = (row.try_get("call_key")?, row.try_get("prompt_index")?);
            self.prompts.insert(at, prompt_of(&row)?);
        }
        let rows = query(choices).bind(key).fetch_all(connection).await?;
        for row in &rows {
            let at = (row.try_get("call_key")?, row.try_get("choice_index")?);
            self.choices.insert(at, choice_of(row)?);
        }
        if !self.each {
            let held = |at: &(i64, i64)| Some((self.held_by(*at)?, *at));
            self.longer = self.prompts.keys().filter_map(held).collect();
        }
        Ok(rows)
    }

    /// The prompt that this one begins with the whole of, and may speak for.
    fn held_by(&self, at: (i64, i64)) -> Option<(i64, i64)> {
        let longer = &self.prompts[&at];
        let parent = longer.parent?;
        let held = (parent.0, self.choices.get(&parent)?.prompt_index);
        let shorter = self.prompts.get(&held)?;
        let is_sure = longer.hash.is_some() || shorter.hash.is_none();
        (is_sure && held != at && longer.shared >= shorter.tokens).then_some(held)
    }

    /// The prompts of a call that was loaded.
    pub(crate) async fn prompts(
        &mut self,
        (connection, reader): (&mut Link, &mut Reader),
        call_key: i64,
    ) -> Result<Vec<Vec<u32>>, ReadError> {
        let mut prompts = Vec::new();
        while self.prompts.contains_key(&(call_key, prompts.len() as i64)) {
            let at = (call_key, prompts.len() as i64);
            prompts.push(self.prompt((&mut *connection, &mut *reader), at).await?);
        }
        Ok(prompts)
    }

    /// The sampled ids of a choice that was loaded; `None` where they are not known.
    pub(crate) async fn sampled(
        &self,
        (connection, reader): (&mut Link, &mut Reader),
        choice: (i64, i64),
    ) -> Result<Option<Vec<u32>>, ReadError> {
        let stored = self.choices.get(&choice).ok_or(DecodeError::Reel)?;
        match &stored.sampled {
            None => Ok(None),
            Some(run) => run.ids((connection, reader), run.len()).await.map(Some),
        }
    }

    /// The choices of a call that was loaded, each with its path.
    pub(crate) async fn paths(
        &mut self,
        (connection, reader): (&mut Link, &mut Reader),
        call_key: i64,
    ) -> Result<Vec<ChoicePath>, ReadError> {
        let mut paths = Vec::new();
        let own = self.choices.iter().filter(|((call, _), _)| *call == call_key);
        let mut own: Vec<_> = own.map(|(at, stored)| (*at, stored.prompt_index)).collect();
        own.sort_unstable();
        for (at, prompt_index) in own {
            let from = (&mut *connection, &mut *reader);
            let Some(sampled) = self.sampled(from, at).await? else { continue };
            let Some(depth) = self.prompts.get(&(call_key, prompt_index)).map(|p| p.depth) else {
                continue;
            };
            let from = (&mut *connection, &mut *reader);
            let prompt = self.prompt(from, (call_key, prompt_index)).await?;
            paths.push(ChoicePath { choice: at.1 as u32, depth: depth as u32, prompt, sampled });
        }
        Ok(paths)
    }

    /// A prompt, checked against its hash or that of a longer one.
    async fn prompt(
        &mut self,
        (connection, reader): (&mut Link, &mut Reader),
        at: (i64, i64),
    ) -> Result<Vec<u32>, ReadError> {
        let tokens = self.prompts.get(&at).ok_or(DecodeError::Reel)?.tokens;
        let longest = self.longest(at);
        if longest != at {
            if !self.whole.contains_key(&longest) {
                let whole = self.put_together((&mut *connection, &mut *reader), longest).await;
                self.whole.insert(longest, whole.ok().map(Arc::new));
            }
            if let Some(Some(whole)) = self.whole.get(&longest) {
                return Ok(whole.get(..tokens).ok_or(DecodeError::Reel)?.to_vec());
            }
        }
        if let Some(Some(whole)) = self.whole.get(&at) {
            return Ok(whole.to_vec());
        }
        let whole = self.put_together((connection, reader), at).await?;
        self.whole.insert(at, Some(Arc::new(whole.clone())));
        Ok(whole)
    }

    /// The last prompt of those that begin with this one.
    fn longest(&self, mut at: (i64, i64)) -> (i64, i64) {
        // Those that go in a circle are longer than none.
        for _ in 0..=self.prompts.len() {
            match self.longer.get(&at) {
                Some(longer) => at = *longer,
                None => return at,
            }
        }
        at
    }

    async fn put_together(
        &self,
        (connection, reader): (&mut Link, &mut Reader),
        at: (i64, i64),
    ) -> Result<Vec<u32>, ReadError> {
        let mut ids = Vec::new();
        for part in self.parts(at)?.into_iter().rev() {
            match part {
                Part::Whole(whole, count) => {
                    ids.extend_from_slice(whole.get(..count).ok_or(DecodeError::Reel)?);
                }
                Part::Run(run, count) => {
                    ids.extend(run.ids((&mut *connection, &mut *reader), count).await?);
                }
            }
        }
        let stored = self.prompts.get(&at).ok_or(DecodeError::Reel)?;
        if stored.hash.as_ref().is_some_and(|known| *known != hash_ids(&ids)) {
            return Err(DecodeError::Hash.into());
        }
        Ok(ids)
    }

    /// What a prompt is made of, the last first: up from parent to parent until one is known.
    fn parts(&self, mut at: (i64, i64)) -> Result<Vec<Part<'_>>, DecodeError> {
        let mut parts = Vec::new();
        let mut count = usize::MAX;
        // A chain that is longer than there are prompts goes in a circle.
        for _ in 0..=self.prompts.len() {
            if let Some(Some(whole)) = self.whole.get(&at) {
                parts.push(Part::Whole(whole, count.min(whole.len())));
                return Ok(parts);
            }
            let stored = self.prompts.get(&at).ok_or(DecodeError::Reel)?;
            count = count.min(stored.tokens);
            parts.push(Part::Run(&stored.rest, count.saturating_sub(stored.shared)));
            let Some(choice) = stored.parent else { return Ok(parts) };
            let choice = self.choices.get(&choice).map(|found| (choice.0, found));
            let (parent_key, choice) = choice.ok_or(DecodeError::Reel)?;
            at = (parent_key, choice.prompt_index);
            let before = self.prompts.get(&at).ok_or(DecodeError::Reel)?.tokens;
            count = count.min(stored.shared);
            if let (Some(more @ 1..), Some(run)) = (count.checked_sub(before), &choice.sampled) {
                parts.push(Part::Run(run, more));
            }
            count = count.min(before);
        }
        Err(DecodeError::Reel)
    }
}

impl Run {
    /// The first `count` ids.
    async fn ids(
        &self,
        (connection, reader): (&mut Link, &mut Reader),
        count: usize,
    ) -> Result<Vec<u32>, ReadError> {
        match self {
            _ if count == 0 => Ok(Vec::new()),
            Self::Here(ids) => Ok(ids.get(..count).ok_or(DecodeError::Reel)?.to_vec()),
            Self::Reel { reel_key, start, .. } => {
                let logs = reader.logs(connection, *reel_key).await?;
                Ok(ids_at(&logs.tokens, *start, count as u64)?)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Here(ids) => ids.len(),
            Self::Reel { count, .. } => *count,
        }
    }

    fn of(row: &Row, count: usize) -> Result<Self, ReadError> {
        let encoding: i64 = row.try_get("encoding")?;
        if encoding != REELED {
            let ids: &[u8] = row.try_get("token_ids")?;
            return Ok(Self::Here(unpack_ids(encoding, ids)?));
        }
        let reel_key: Option<i64> = row.try_get("reel_key")?;
        let reel_key = reel_key.ok_or(DecodeError::Reel)?;
        Ok(Self::Reel { reel_key, start: size(row, "start")? as u64, count })
    }
}

fn prompt_of(row: &Row) -> Result<StoredPrompt, ReadError> {
    let (tokens, shared) = (size(row, "tokens")?, size(row, "shared")?);
    let parent_key: Option<i64> = row.try_get("parent_key")?;
    let parent_choice: Option<i64> = row.try_get("parent_choice")?;
    Ok(StoredPrompt {
        parent: parent_key.zip(parent_choice),
        shared,
        tokens,
        depth: row.try_get("depth")?,
        rest: Run::of(row, tokens.checked_sub(shared).ok_or(DecodeError::Reel)?)?,
        hash: row.try_get("hash")?,
    })
}

fn choice_of(row: &Row) -> Result<StoredChoice, ReadError> {
    let tokens: Option<i64> = row.try_get("tokens")?;
    Ok(StoredChoice {
        prompt_index: row.try_get("prompt_index")?,
        sampled: tokens.map(|_| Run::of(row, size(row, "tokens")?)).transpose()?,
    })
}
