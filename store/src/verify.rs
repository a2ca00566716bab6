//! Checking a store: the database's own checks first, then every row against the rows that refer to
//! it.
//!
//! A damaged record is reported and skipped. The memory used is bounded by the largest episode.
//!
//! - `report`: the findings.
//! - `check`: one episode under check; `episode` walks through it: `logs`, then its calls, then
//!   the `chains` of its bodies and prompts, then `links`, the chain that rewards are over.
//! - `segments`: the files of sealed attempts.

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::SnapshotError;
use crate::location::Location;
use crate::snapshot::Snapshot;
use crate::verify::check::EpisodeCheck;
use crate::verify::report::VerifyReport;
use crate::verify::segments::check_segments;

mod chains;
mod check;
mod episode;
mod links;
mod logs;
pub(crate) mod report;
mod segments;

/// Findings that one check of the whole store reports.
const FINDINGS_MAX: i64 = 100;

/// Checks the store at a location. It may be written to meanwhile: one moment of it is checked. A
/// file is read in the caller's own thread, which is blocked.
///
/// # Errors
/// [`SnapshotError`] when there is no store, or it is too damaged to be opened at all.
pub async fn verify(at: impl Into<Location>) -> Result<VerifyReport, SnapshotError> {
    // Each row is a question of its own: trips to another thread would cost more than the answers.
    let mut snapshot = Snapshot::open_here(at).await?;
    let mut report = check_store(snapshot.connection()).await;
    check_segments(snapshot.connection(), &mut report).await;
    Ok(report)
}

/// Checks a store without its segments, or a segment.
async fn check_store(connection: &mut StoreConnection) -> VerifyReport {
    let mut report = VerifyReport::default();

    // A server checks its pages itself.
    if connection.is_file() {
        check_file(connection, &mut report).await;
    }
    check_references(connection, &mut report).await;
    check_strays(connection, &mut report).await;

    let episodes = query("SELECT episode_key FROM episode ORDER BY episode_key");
    let keys = match episodes.scalars::<i64>(connection).await {
        Ok(keys) => keys,
        Err(error) => {
            report.add_store_damage(format!("its episodes cannot be listed: {error}"));
            return report;
        }
    };
    for key in keys {
        report.episodes += 1;
        EpisodeCheck::new(connection, &mut report, key).run().await;
    }
    report
}

/// Runs SQLite's own check of pages and indexes.
async fn check_file(connection: &mut StoreConnection, report: &mut VerifyReport) {
    let check = query(format!("PRAGMA integrity_check({FINDINGS_MAX})"));
    match check.scalars::<String>(connection).await {
        Err(error) => report.add_store_damage(format!("SQLite cannot check it: {error}")),
        Ok(lines) => {
            for line in lines.iter().filter(|line| *line != "ok") {
                report.add_store_damage(format!("SQLite says: {}", line.replace('\n', ", ")));
            }
        }
    }
}

/// A column that refers to a row of another table.
struct Reference {
    table: &'static str,
    key: &'static str,
    column: &'static str,
    target: &'static str,
}

const fn reference(
    table: &'static str,
    key: &'static str,
    column: &'static str,
    target: &'static str,
) -> Reference {
    Reference { table, key, column, target }
}

/// All references. The databases check most of them themselves when they are written.
const REFERENCES: [Reference; 19] = [
    reference("label", "label_key", "episode_key", "episode"),
    reference("api_key", "api_key_key", "episode_key", "episode"),
    reference("mark", "writer", "episode_key", "episode"),
    reference("reel", "reel_key", "episode_key", "episode"),
    reference("reward", "reward_key", "episode_key", "episode"),
    reference("comment", "comment_key", "episode_key", "episode"),
    reference("call", "call_key", "episode_key", "episode"),
    reference("call", "call_key", "request_body", "body"),
    reference("call", "call_key", "reply_body", "body"),
    reference("call", "call_key", "reel_key", "reel"),
    reference("segment", "segment_key", "reel_key", "reel"),
    reference("body", "body_key", "reel_key", "reel"),
    reference("body", "body_key", "base_key", "body"),
    reference("prompt", "call_key", "call_key", "call"),
    reference("prompt", "call_key", "parent_key", "call"),
    reference("choice", "choice_key", "call_key", "call"),
    reference("side", "call_key", "call_key", "call"),
    reference("annotation", "annotation_key", "call_key", "call"),
    reference("link", "call_key", "call_key", "call"),
];

/// Looks for references to rows that do not exist.
async fn check_references(connection: &mut StoreConnection, report: &mut VerifyReport) {
    for Reference { table, key, column, target } in REFERENCES {
        let dangling = query(format!(
            "SELECT c.{key} FROM {table} c LEFT JOIN {target} p ON p.{target}_key = c.{column} \
             WHERE c.{column} IS NOT NULL AND p.{target}_key IS NULL ORDER BY 1 \
             LIMIT {FINDINGS_MAX}"
        ));
        match dangling.scalars::<i64>(connection).await {
            Err(error) => report.add_store_damage(format!(
                "the references of its `{table}` cannot be checked: {error}"
            )),
            Ok(keys) => {
                for key in keys {
                    report.add_store_damage(format!(
                        "`{table}` {key} refers to a `{target}` that does not exist"
                    ));
                }
            }
        }
    }
}

/// Looks for bodies that no call refers to.
async fn check_strays(connection: &mut StoreConnection, report: &mut VerifyReport) {
    let strays = query(
        "SELECT body_key FROM body EXCEPT SELECT request_body FROM call \
         EXCEPT SELECT reply_body FROM call ORDER BY 1 LIMIT $1",
    );
    match strays.bind(FINDINGS_MAX).scalars::<i64>(connection).await {
        Err(error) => report.add_store_damage(format!("its bodies cannot be listed: {error}")),
        Ok(keys) => {
            for key in keys {
                report.add_store_damage(format!("`body` {key} belongs to no call: a call is lost"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
