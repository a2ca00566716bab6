//! Checking chains: the base of a body and the parent of a prompt exist, belong to the same
//! episode, and have a depth that is lower by one.

use std::collections::HashMap;

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::log::tokens::CallIndex;
use crate::verify::check::EpisodeCheck;

const BODIES: &str = "SELECT b.body_key, b.base_key, b.depth, b.reel_key, r.episode_key, c.call_id \
    FROM call c JOIN body b ON b.body_key IN (c.request_body, c.reply_body) \
    LEFT JOIN reel r ON r.reel_key = b.reel_key WHERE c.episode_key = $1";
const PROMPTS: &str = "SELECT p.call_key, p.prompt_index, p.parent_key, p.parent_choice, \
    p.shared, p.tokens, p.depth, c.call_id \
    FROM prompt p JOIN call c USING (call_key) WHERE c.episode_key = $1";
const CHOICES: &str = "SELECT k.call_key, k.choice_index, k.prompt_index, k.tokens \
    FROM choice k JOIN call c USING (call_key) WHERE c.episode_key = $1";

/// A prompt in its chain.
struct PromptLink {
    call: String,
    parent: Option<CallIndex>,
    shared: i64,
    tokens: i64,
    depth: i64,
}

/// A choice that a prompt may continue.
struct ChainLink {
    prompt_index: i64,
    sampled: Option<i64>,
}

/// The prompts and choices of an episode.
struct EpisodeLinks {
    prompts: HashMap<CallIndex, PromptLink>,
    choices: HashMap<CallIndex, ChainLink>,
}

/// Checks the chains of an episode.
pub(crate) async fn check_chains(episode: &mut EpisodeCheck<'_>) -> Result<(), sqlx::Error> {
    check_bodies(episode).await?;

    let links = EpisodeLinks::load(episode.connection, episode.key).await?;
    for (at, prompt) in &links.prompts {
        if let Some(defect) = links.defect(prompt) {
            episode.damaged(Some(&prompt.call), format!("prompt {} {defect}", at.index));
        }
    }
    Ok(())
}

async fn check_bodies(episode: &mut EpisodeCheck<'_>) -> Result<(), sqlx::Error> {
    let rows = query(BODIES).bind(episode.key).fetch_all(&mut *episode.connection).await?;
    let mut depths: HashMap<i64, i64> = HashMap::new();
    for row in &rows {
        depths.insert(row.try_get("body_key")?, row.try_get("depth")?);
    }
    for row in &rows {
        check_body(episode, row, &depths)?;
    }
    Ok(())
}

/// Checks the log, base and depth of a body; `depths` are those of the episode's bodies.
fn check_body(
    episode: &mut EpisodeCheck<'_>,
    row: &Row,
    depths: &HashMap<i64, i64>,
) -> Result<(), sqlx::Error> {
    let (key, depth): (i64, i64) = (row.try_get("body_key")?, row.try_get("depth")?);
    let base: Option<i64> = row.try_get("base_key")?;
    let call: String = row.try_get("call_id")?;
    let log: Option<i64> = row.try_get("reel_key")?;

    if log.is_some() && row.try_get::<Option<i64>>("episode_key")? != Some(episode.key) {
        episode.damaged(Some(&call), format!("`body` {key} is in no log of this episode"));
    }
    match base.map(|base| (base, depths.get(&base))) {
        None if depth == 0 => {}
        Some((_, Some(base_depth))) if depth == base_depth + 1 => {}
        Some((base, None)) => {
            let what = format!("`body` {key} is based on {base}, which the episode lacks");
            episode.damaged(Some(&call), what);
        }
        None | Some(_) => {
            episode.damaged(Some(&call), format!("the depth of `body` {key} is wrong"));
        }
    }
    Ok(())
}

impl EpisodeLinks {
    async fn load(connection: &mut StoreConnection, key: i64) -> Result<Self, sqlx::Error> {
        let mut prompts = HashMap::new();
        for row in query(PROMPTS).bind(key).fetch_all(connection).await? {
            prompts.insert(CallIndex::of(&row, "prompt_index")?, PromptLink::of(&row)?);
        }

        let mut choices = HashMap::new();
        for row in query(CHOICES).bind(key).fetch_all(connection).await? {
            let choice = ChainLink {
                prompt_index: row.try_get("prompt_index")?,
                sampled: row.try_get("tokens")?,
            };
            choices.insert(CallIndex::of(&row, "choice_index")?, choice);
        }
        Ok(Self { prompts, choices })
    }

    /// The defect of a prompt's place in its chain.
    fn defect(&self, prompt: &PromptLink) -> Option<&'static str> {
        let Some(parent) = prompt.parent else {
            let is_root = prompt.shared == 0 && prompt.depth == 0;
            return (!is_root).then_some("has lost its parent");
        };

        const NO_PARENT: Option<&str> = Some("continues a path that the episode lacks");
        let Some(choice) = self.choices.get(&parent) else { return NO_PARENT };
        let at = CallIndex { call_key: parent.call_key, index: choice.prompt_index };
        let Some(before) = self.prompts.get(&at) else { return NO_PARENT };

        let path_tokens = before.tokens + choice.sampled.unwrap_or(0);
        if prompt.shared > prompt.tokens || prompt.shared > path_tokens {
            return Some("shares more tokens than its parent has");
        }
        (prompt.depth != before.depth + 1).then_some("has the wrong depth")
    }
}

impl PromptLink {
    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        let parent_key: Option<i64> = row.try_get("parent_key")?;
        let parent = parent_key.zip(row.try_get("parent_choice")?);
        Ok(Self {
            call: row.try_get("call_id")?,
            parent: parent.map(|(call_key, index)| CallIndex { call_key, index }),
            shared: row.try_get("shared")?,
            tokens: row.try_get("tokens")?,
            depth: row.try_get("depth")?,
        })
    }
}
