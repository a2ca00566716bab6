//! Checking the chain of an attempt: each call is what was linked, and each reward is over a part
//! of the chain.

use std::collections::HashMap;

use episode::ChainHead;

use crate::chain;
use crate::database::query::query;
use crate::database::row::Row;
use crate::verify::check::EpisodeCheck;

/// The calls that have ended: first those with a place in the chain, then the others.
const CALLS: &str = "SELECT c.call_key, c.call_id, l.number, l.chain FROM call c \
    LEFT JOIN link l USING (call_key) \
    WHERE c.episode_key = $1 AND (c.ended_at IS NOT NULL OR l.call_key IS NOT NULL) \
    ORDER BY l.number IS NULL, l.number, c.call_key";

/// The values of a chain, as far as they are known here.
#[derive(Debug, Default)]
pub(crate) struct CheckedChain {
    /// By the number of calls.
    values: HashMap<u64, [u8; 16]>,
    /// Fewer calls are in a segment, where the values are checked.
    known_from: u64,
    /// True where all calls are in a segment.
    pub(crate) is_sealed: bool,
}

/// A call in the chain.
struct Link {
    call: String,
    key: i64,
    /// Its place and the value that was written; `None` where it has no place yet.
    written: Option<ChainHead>,
}

/// Checks that each call is what was linked, and names those that are not.
pub(crate) async fn check_links(
    episode: &mut EpisodeCheck<'_>,
) -> Result<CheckedChain, sqlx::Error> {
    if let Some(kept) = chain::sealed(episode.connection, episode.key).await? {
        return Ok(CheckedChain::of_sealed(kept));
    }
    let rows = query(CALLS).bind(episode.key).fetch_all(&mut *episode.connection).await?;
    let links = rows.iter().map(Link::of).collect::<Result<Vec<_>, _>>()?;
    let keys: Vec<i64> = links.iter().map(|link| link.key).collect();

    let mut value = chain::start();
    let mut chain = CheckedChain::default();
    chain.values.insert(0, value.digest);
    let (mut rest, mut defects) = (links.iter(), Vec::new());
    chain::for_each(episode.connection, &keys, |call| {
        let Some(link) = rest.find(|link| link.key == call.key) else { return };
        let found = call.after(value);
        // What follows is compared with what was written, so that each defect is told once.
        value = link.written.unwrap_or(found);
        if let Some(what) = defect(found, value) {
            defects.push((link.call.clone(), what));
        }
        chain.values.insert(value.calls, value.digest);
    })
    .await?;

    for (call, what) in defects {
        episode.damaged(Some(&call), what);
    }
    Ok(chain)
}

/// The difference of a call from what was written.
fn defect(found: ChainHead, written: ChainHead) -> Option<String> {
    let (place, expected) = (written.calls, found.calls);
    if place != expected {
        return Some(format!(
            "the chain breaks at this call: it is number {place}, and {} calls are before it",
            expected - 1
        ));
    }
    (found != written).then(|| {
        "the chain breaks at this call: its record is not what a reward was given over".to_owned()
    })
}

impl Link {
    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        let number: Option<i64> = row.try_get("number")?;
        let digest: Option<&[u8]> = row.try_get("chain")?;
        let written = number.zip(digest).map(|(number, digest)| ChainHead {
            calls: number.unsigned_abs(),
            digest: chain::digest_of(digest),
        });
        Ok(Self { call: row.try_get("call_id")?, key: row.try_get("call_key")?, written })
    }
}

impl CheckedChain {
    fn of_sealed(kept: Option<ChainHead>) -> Self {
        match kept {
            None => Self { values: HashMap::new(), known_from: u64::MAX, is_sealed: true },
            Some(ChainHead { calls, digest }) => Self {
                values: HashMap::from([(calls, digest)]),
                known_from: calls,
                is_sealed: true,
            },
        }
    }

    /// The defect of a reward that says it is over `over`.
    pub(crate) fn defect(&self, over: ChainHead) -> Option<String> {
        if over.calls < self.known_from {
            return None;
        }
        let calls = over.calls;
        match self.values.get(&calls) {
            Some(digest) if *digest == over.digest => None,
            Some(_) => Some(format!(
                "it was given over other records than the first {calls} calls of the chain"
            )),
            None => Some(format!("it was given over {calls} calls, which the chain does not have")),
        }
    }
}
