//! The log of an episode, made or read back from the store.

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::ReadError;
use crate::log::episode::EpisodeLog;
use crate::log::reader::LogReader;
use crate::log::tokens::{LogSource, TokenReader};

/// Calls of an episode that later ones may continue when its log is read back.
const CALLS_RESTORED: i64 = 8;

/// The log that `writer` has of an episode, made or read back. A log that cannot be read back is
/// left as it is, and a new one begins.
pub(crate) async fn open_log(
    connection: &mut StoreConnection,
    episode_key: i64,
    writer: i64,
) -> Result<EpisodeLog, sqlx::Error> {
    let insert_first = "INSERT INTO reel (episode_key, writer) SELECT $1, $2 WHERE NOT EXISTS \
                        (SELECT 1 FROM reel WHERE episode_key = $1 AND writer = $2) \
                        RETURNING reel_key";
    let inserted =
        query(insert_first).bind(episode_key).bind(writer).fetch_optional(connection).await?;
    if let Some(row) = inserted {
        return Ok(EpisodeLog::new(row.first()?));
    }

    // There are several where an earlier one could not be read back.
    let newest = "SELECT reel_key FROM reel WHERE episode_key = $1 AND writer = $2 \
                  ORDER BY reel_key DESC LIMIT 1";
    let key = query(newest).bind(episode_key).bind(writer).scalar(connection).await?;
    match read_back(connection, key).await {
        Ok(log) => Ok(log),
        Err(error) => {
            tracing::error!(%error, episode_key, "a log cannot be read back; a new one begins");
            let insert = "INSERT INTO reel (episode_key, writer) VALUES ($1, $2) \
                          RETURNING reel_key";
            let key = query(insert).bind(episode_key).bind(writer).scalar(connection).await?;
            Ok(EpisodeLog::new(key))
        }
    }
}

/// Reads a log back, with the newest calls that later ones may continue.
async fn read_back(connection: &mut StoreConnection, key: i64) -> Result<EpisodeLog, ReadError> {
    let mut log = EpisodeLog::new(key);
    let mut reader = LogReader::default();
    reader.load(connection, key, |segment| log.restore_segment(&segment)).await?;

    let newest = "SELECT c.call_key, b.body_key, b.depth FROM call c \
                  JOIN body b ON b.body_key = c.request_body \
                  WHERE c.episode_key = (SELECT episode_key FROM reel WHERE reel_key = $1) \
                  AND b.reel_key = $1 ORDER BY c.started_at DESC LIMIT $2";
    let rows = query(newest).bind(key).bind(CALLS_RESTORED).fetch_all(&mut *connection).await?;
    // The oldest first: the newest request must come to lie in front.
    for row in rows.iter().rev() {
        let (call_key, body_key) = (row.try_get("call_key")?, row.try_get("body_key")?);
        let extents = reader.extents(connection, body_key).await?;
        log.restore_request(body_key, row.try_get("depth")?, extents.to_vec());

        let mut tokens = TokenReader::default();
        tokens.load_call(connection, call_key).await?;
        let mut source = LogSource { connection: &mut *connection, reader: &mut reader };
        for path in tokens.paths(&mut source, call_key).await? {
            log.restore_path(call_key, &path);
        }
    }
    Ok(log)
}
