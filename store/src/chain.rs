//! The chain of an attempt: a digest over its calls, each over the one before.
//!
//! A call is in the chain by its row and by the hashes that the store keeps of the rest: those of
//! its bodies and prompts, and its seal. Bodies are not read. A call gets its place when a reward
//! is given: first come those that were there before, then those that have ended since, by their
//! keys. So the calls that a reward is over are always the first of the chain, whatever ends later.
//!
//! [`extend`] gives places, in a write transaction. [`head`] is the value over all calls that have
//! ended, with or without a place.

use episode::ChainHead;

use crate::database::batch::Batch;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::encoding::pack::hash;

/// Calls whose rows are read at once.
const CALLS_AT_ONCE: usize = 256;
/// The value before the first call. A change of what is hashed changes it.
const START: &[u8] = b"rolltape chain 1";

/// Other recorders of a database give no places meanwhile. It lets them write calls.
const LOCK: &str = "SELECT 1 FROM episode WHERE episode_key = $1 FOR NO KEY UPDATE";
const LAST: &str = "SELECT l.number, l.chain FROM link l JOIN call c USING (call_key) \
    WHERE c.episode_key = $1 ORDER BY l.number DESC LIMIT 1";
const WITHOUT_PLACE: &str = "SELECT c.call_key FROM call c WHERE c.episode_key = $1 \
    AND c.ended_at IS NOT NULL \
    AND NOT EXISTS (SELECT 1 FROM link l WHERE l.call_key = c.call_key) ORDER BY c.call_key";
/// The chain of an attempt whose calls are in a segment.
const SEALED: &str = "SELECT chain_calls, chain FROM sealed WHERE episode_key = $1";
const INSERT: &str = "INSERT INTO link (call_key, number, chain) VALUES ($1, $2, $3)";

/// The fields that are hashed of a call, in this order.
const CALLS: &str = "SELECT c.call_key, c.call_id, c.started_at, c.method, c.path, c.route, \
    c.requested_model, c.sampling, c.client, c.session, c.agent, c.parent_agent, c.kind, c.retry, \
    c.key_id, c.ended_at, c.status, c.outcome, c.error, c.reply_model, c.prompt_tokens, \
    c.completion_tokens, c.seal, q.length AS request_length, q.hash AS request_hash, \
    p.length AS reply_length, p.hash AS reply_hash \
    FROM call c LEFT JOIN body q ON q.body_key = c.request_body \
    LEFT JOIN body p ON p.body_key = c.reply_body WHERE c.call_key IN";
const PROMPTS: &str = "SELECT call_key, prompt_index, tokens, hash FROM prompt WHERE call_key IN";
const TEXTS_OF_START: [&str; 10] = [
    "method",
    "path",
    "route",
    "requested_model",
    "sampling",
    "client",
    "session",
    "agent",
    "parent_agent",
    "kind",
];
const TEXTS_OF_END: [&str; 4] = ["key_id", "outcome", "error", "reply_model"];
const NUMBERS: [&str; 8] = [
    "started_at",
    "retry",
    "ended_at",
    "status",
    "prompt_tokens",
    "completion_tokens",
    "request_length",
    "reply_length",
];
const HASHES: [&str; 3] = ["seal", "request_hash", "reply_hash"];

/// The parts of one call that are hashed.
#[derive(Debug)]
pub(crate) struct LinkedCall {
    pub(crate) key: i64,
    /// Its row, the hashes of its bodies and prompts, and its seal.
    bytes: Vec<u8>,
}

/// The value before the first call.
pub(crate) fn start() -> ChainHead {
    ChainHead { calls: 0, digest: hash(START) }
}

impl LinkedCall {
    /// The value after this call, where `before` is that before it.
    pub(crate) fn after(&self, before: ChainHead) -> ChainHead {
        let bytes = [before.digest.as_slice(), &self.bytes].concat();
        ChainHead { calls: before.calls + 1, digest: hash(&bytes) }
    }

    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        let mut bytes = Vec::new();
        push(&mut bytes, Some(row.try_get::<String>("call_id")?.as_bytes()));
        for name in TEXTS_OF_START.iter().chain(&TEXTS_OF_END) {
            push(&mut bytes, row.try_get::<Option<String>>(name)?.as_ref().map(String::as_bytes));
        }
        for name in NUMBERS {
            let number = row.try_get::<Option<i64>>(name)?.map(i64::to_le_bytes);
            push(&mut bytes, number.as_ref().map(<[u8; 8]>::as_slice));
        }
        for name in HASHES {
            push(&mut bytes, row.try_get::<Option<&[u8]>>(name)?);
        }
        Ok(Self { key: row.try_get("call_key")?, bytes })
    }

    fn add_prompt(&mut self, row: &Row) -> Result<(), sqlx::Error> {
        for name in ["prompt_index", "tokens"] {
            let number = row.try_get::<i64>(name)?.to_le_bytes();
            push(&mut self.bytes, Some(&number));
        }
        push(&mut self.bytes, row.try_get::<Option<&[u8]>>("hash")?);
        Ok(())
    }
}

/// Adds a value after its length. What is absent differs from what is empty.
fn push(bytes: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => bytes.push(0),
        Some(value) => {
            bytes.push(1);
            bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
            bytes.extend_from_slice(value);
        }
    }
}

/// Calls by their keys, in the order of the keys. `keys` has [`CALLS_AT_ONCE`] at most.
async fn load(
    connection: &mut StoreConnection,
    keys: &[i64],
) -> Result<Vec<LinkedCall>, sqlx::Error> {
    let list: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let list = list.join(", ");
    let rows = query(format!("{CALLS} ({list}) ORDER BY c.call_key"));
    let rows = rows.fetch_all(connection).await?;
    let mut calls = rows.iter().map(LinkedCall::of).collect::<Result<Vec<_>, _>>()?;

    let prompts = query(format!("{PROMPTS} ({list}) ORDER BY call_key, prompt_index"));
    for row in &prompts.fetch_all(connection).await? {
        let key: i64 = row.try_get("call_key")?;
        if let Ok(at) = calls.binary_search_by_key(&key, |call| call.key) {
            calls[at].add_prompt(row)?;
        }
    }
    Ok(calls)
}

/// Calls by their keys, in this order, to a function that takes one.
pub(crate) async fn for_each(
    connection: &mut StoreConnection,
    keys: &[i64],
    mut take: impl FnMut(&LinkedCall),
) -> Result<(), sqlx::Error> {
    for keys in keys.chunks(CALLS_AT_ONCE) {
        let calls = load(connection, keys).await?;
        for key in keys {
            if let Ok(at) = calls.binary_search_by_key(key, |call| call.key) {
                take(&calls[at]);
            }
        }
    }
    Ok(())
}

/// The value after the last call with a place.
async fn last(connection: &mut StoreConnection, key: i64) -> Result<ChainHead, sqlx::Error> {
    match query(LAST).bind(key).fetch_optional(connection).await? {
        None => Ok(start()),
        Some(row) => Ok(ChainHead {
            calls: row.try_get::<i64>("number")?.unsigned_abs(),
            digest: digest_of(row.try_get("chain")?),
        }),
    }
}

/// A stored value. One of another length is none that was ever written.
pub(crate) fn digest_of(stored: &[u8]) -> [u8; 16] {
    stored.try_into().unwrap_or_default()
}

/// The chain that was kept of a sealed attempt. The inner `None` is that of an earlier version.
pub(crate) async fn sealed(
    connection: &mut StoreConnection,
    key: i64,
) -> Result<Option<Option<ChainHead>>, sqlx::Error> {
    let Some(row) = query(SEALED).bind(key).fetch_optional(connection).await? else {
        return Ok(None);
    };
    let calls: Option<i64> = row.try_get("chain_calls")?;
    let digest: Option<&[u8]> = row.try_get("chain")?;
    Ok(Some(calls.zip(digest).map(|(calls, digest)| ChainHead {
        calls: calls.unsigned_abs(),
        digest: digest_of(digest),
    })))
}

/// The chain of an attempt over all calls that have ended. They are in this store.
pub(crate) async fn head(
    connection: &mut StoreConnection,
    key: i64,
) -> Result<ChainHead, sqlx::Error> {
    let keys = query(WITHOUT_PLACE).bind(key).scalars::<i64>(connection).await?;
    let mut value = last(connection, key).await?;
    for_each(connection, &keys, |call| value = call.after(value)).await?;
    Ok(value)
}

/// Gives a place to each call of an attempt that has ended, in the transaction that has begun on
/// `connection`, and returns the value after the last one. `None` where that is not known: an
/// earlier version sealed the attempt.
pub(crate) async fn extend(
    connection: &mut StoreConnection,
    key: i64,
) -> Result<Option<ChainHead>, sqlx::Error> {
    // First, since a sealing that ends meanwhile takes the calls away.
    if !connection.is_file() {
        query(LOCK).bind(key).execute(connection).await?;
    }
    if let Some(kept) = sealed(connection, key).await? {
        return Ok(kept);
    }

    let keys = query(WITHOUT_PLACE).bind(key).scalars::<i64>(connection).await?;
    let mut value = last(connection, key).await?;
    for keys in keys.chunks(CALLS_AT_ONCE) {
        let mut links = Batch::default();
        for call in load(connection, keys).await? {
            value = call.after(value);
            links.then(INSERT).bind(call.key).bind(value.calls as i64).bind(value.digest.to_vec());
        }
        links.run(connection).await?;
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use episode::{AttemptId, CallStart, Giver, Provenance, Reward, RewardScope};

    use super::*;
    use crate::site::on_both;
    use crate::tests::{begun, ended};
    use crate::{Selection, Snapshot, Store, verify};

    async fn end(store: &Store, call: &CallStart) {
        store.end(ended(call.call_id)).await.done().await.unwrap();
    }

    async fn reward(store: &Store, attempt: &AttemptId) {
        let provenance = Provenance {
            by: Some(Giver::ControlToken),
            from: Some("10.0.0.7".into()),
            key: Some("control-1234abcd".into()),
            // The writer says what it is over, whatever comes.
            over: Some(ChainHead { calls: 9, digest: [9; 16] }),
        };
        let reward = Reward {
            scope: RewardScope::Episode,
            name: "reward".into(),
            value: Some(1.0),
            source: "judge".into(),
            at: 1,
            provenance,
        };
        store.reward(attempt.clone(), reward).await.unwrap();
    }

    #[tokio::test]
    async fn a_reward_is_over_the_calls_that_had_ended() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            let calls = [begun("a", 1), begun("a", 2), begun("a", 3)];
            let attempt = AttemptId::from(&calls[0].tag);
            for call in &calls {
                store.begin(call.clone()).await.done().await.unwrap();
            }
            reward(&store, &attempt).await;
            end(&store, &calls[1]).await;
            reward(&store, &attempt).await;
            // The first call ends last: it is the last of the chain.
            end(&store, &calls[2]).await;
            end(&store, &calls[0]).await;
            reward(&store, &attempt).await;
            reward(&store, &attempt).await;
            drop(store);
            writer.finish().await;

            let mut snapshot = Snapshot::open(&site.at).await.unwrap();
            let record = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
            let rewards = snapshot.rewards(&record).await.unwrap();
            let over: Vec<_> = rewards.iter().map(|r| r.provenance.over.unwrap()).collect();
            let calls: Vec<u64> = over.iter().map(|over| over.calls).collect();
            assert_eq!((calls, over[0]), (vec![0, 1, 3, 3], start()));
            assert_eq!(over[2], over[3], "nothing ended between");
            assert_eq!(snapshot.chain(&record).await.unwrap(), over[3]);
            let given = &rewards[1].provenance;
            assert_eq!(
                (given.by, given.from.as_deref()),
                (Some(Giver::ControlToken), Some("10.0.0.7"))
            );
            assert_eq!(given.key.as_deref(), Some("control-1234abcd"));
            let report = verify(&site.at).await.unwrap();
            assert_eq!(report.damage, []);
        })
        .await;
    }

    #[tokio::test]
    async fn a_chain_has_one_value_with_places_or_without() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            let calls: Vec<_> = (0..3).map(|at| begun("a", at)).collect();
            for call in &calls {
                store.begin(call.clone()).await.done().await.unwrap();
                end(&store, call).await;
            }
            let chain = async || {
                let mut snapshot = Snapshot::open(&site.at).await.unwrap();
                let record = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
                snapshot.chain(&record).await.unwrap()
            };
            let before = chain().await;
            reward(&store, &AttemptId::from(&calls[0].tag)).await;
            assert_eq!((before, before.calls), (chain().await, 3));
            drop(store);
            writer.finish().await;
        })
        .await;
    }

    #[test]
    fn absent_is_not_empty_and_values_do_not_run_together() {
        let bytes = |values: &[Option<&[u8]>]| {
            let mut bytes = Vec::new();
            values.iter().for_each(|value| push(&mut bytes, *value));
            bytes
        };
        assert_ne!(bytes(&[None]), bytes(&[Some(b"")]));
        assert_ne!(bytes(&[Some(b"a"), Some(b"b")]), bytes(&[Some(b"ab"), Some(b"")]));
    }
}
