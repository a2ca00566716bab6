//! Checking chains: what a body or a prompt goes on from is there, is of the same episode, and is
//! as deep as it says.

use std::collections::HashMap;

use crate::link::Link;
use crate::query::query;
use crate::verify_episode::Examined;

const BODIES: &str = "SELECT b.body_key, b.base_key, b.depth, b.reel_key, r.episode_key, c.call_id \
    FROM call c JOIN body b ON b.body_key IN (c.request_body, c.reply_body) \
    LEFT JOIN reel r ON r.reel_key = b.reel_key WHERE c.episode_key = $1";
const PROMPTS: &str = "SELECT p.call_key, p.prompt_index, p.parent_key, p.parent_choice, \
    p.shared, p.tokens, p.depth, c.call_id \
    FROM prompt p JOIN call c USING (call_key) WHERE c.episode_key = $1";
const CHOICES: &str = "SELECT k.call_key, k.choice_index, k.prompt_index, k.tokens \
    FROM choice k JOIN call c USING (call_key) WHERE c.episode_key = $1";

/// A prompt as far as chains go.
struct Chained {
    call: String,
    parent: Option<(i64, i64)>,
    shared: i64,
    tokens: i64,
    depth: i64,
}

/// Checks the chains of an episode.
pub(crate) async fn check_chains(episode: &mut Examined<'_>) -> Result<(), sqlx::Error> {
    check_bodies(episode).await?;
    let prompts = prompts(episode.connection, episode.key).await?;
    let choices = choices(episode.connection, episode.key).await?;
    for ((_, index), link) in &prompts {
        if let Some(what) = link.broken(&prompts, &choices) {
            episode.broken(Some(&link.call), format!("prompt {index} {what}"));
        }
    }
    Ok(())
}

async fn check_bodies(episode: &mut Examined<'_>) -> Result<(), sqlx::Error> {
    let rows = query(BODIES).bind(episode.key).fetch_all(&mut *episode.connection).await?;
    let mut depths: HashMap<i64, i64> = HashMap::new();
    for row in &rows {
        depths.insert(row.try_get("body_key")?, row.try_get("depth")?);
    }
    for row in &rows {
        let (key, depth): (i64, i64) = (row.try_get("body_key")?, row.try_get("depth")?);
        let base: Option<i64> = row.try_get("base_key")?;
        let call: String = row.try_get("call_id")?;
        let reel: Option<i64> = row.try_get("reel_key")?;
        if reel.is_some() && row.try_get::<Option<i64>>("episode_key")? != Some(episode.key) {
            episode.broken(Some(&call), format!("`body` {key} is in no reel of this episode"));
        }
        match base.map(|base| (base, depths.get(&base))) {
            None if depth == 0 => {}
            Some((_, Some(below))) if depth == below + 1 => {}
            Some((base, None)) => {
                let what = format!("`body` {key} goes on from {base}, which the episode has not");
                episode.broken(Some(&call), what);
            }
            None | Some(_) => {
                episode.broken(Some(&call), format!("the depth of `body` {key} is wrong"));
            }
        }
    }
    Ok(())
}

type Prompts = HashMap<(i64, i64), Chained>;
/// The prompt that a choice continues, and how many tokens it sampled.
type Choices = HashMap<(i64, i64), (i64, Option<i64>)>;

async fn prompts(connection: &mut Link, key: i64) -> Result<Prompts, sqlx::Error> {
    let mut found = HashMap::new();
    for row in query(PROMPTS).bind(key).fetch_all(connection).await? {
        let parent_key: Option<i64> = row.try_get("parent_key")?;
        let link = Chained {
            call: row.try_get("call_id")?,
            parent: parent_key.zip(row.try_get("parent_choice")?),
            shared: row.try_get("shared")?,
            tokens: row.try_get("tokens")?,
            depth: row.try_get("depth")?,
        };
        found.insert((row.try_get("call_key")?, row.try_get("prompt_index")?), link);
    }
    Ok(found)
}

async fn choices(connection: &mut Link, key: i64) -> Result<Choices, sqlx::Error> {
    let mut found = HashMap::new();
    for row in query(CHOICES).bind(key).fetch_all(connection).await? {
        let at = (row.try_get("call_key")?, row.try_get("choice_index")?);
        found.insert(at, (row.try_get("prompt_index")?, row.try_get("tokens")?));
    }
    Ok(found)
}

impl Chained {
    /// What is wrong with it.
    fn broken(&self, prompts: &Prompts, choices: &Choices) -> Option<&'static str> {
        let Some(parent) = self.parent else {
            let alone = self.shared == 0 && self.depth == 0;
            return (!alone).then_some("has lost its parent");
        };
        let choice = choices.get(&parent);
        let before = choice.and_then(|(prompt, _)| prompts.get(&(parent.0, *prompt)));
        let (Some((_, sampled)), Some(before)) = (choice, before) else {
            return Some("goes on from what the episode has not");
        };
        if self.shared > self.tokens || self.shared > before.tokens + sampled.unwrap_or(0) {
            return Some("shares more than there is");
        }
        (self.depth != before.depth + 1).then_some("is not as deep as it says")
    }
}
