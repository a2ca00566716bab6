//! Versions of the weights: their labels, numbers and checksums, and who reported them.

use episode::{Micros, version_number};

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::{CommitResult, SnapshotError};
use crate::snapshot::Snapshot;

/// A version of the weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionRecord {
    /// The name that servers and trainers give it.
    pub label: String,
    /// A hash of the weights, where it is known.
    pub checksum: Option<String>,
    /// The first to report it: `control` or `upstream`.
    pub source: String,
    /// The time of that first report.
    pub first_seen: Micros,
    /// The time at which it was last declared current; `None` where nobody declared it.
    pub said_at: Option<Micros>,
    /// The time at which the upstream was last found to have changed to it; `None` where it never
    /// was.
    pub served_at: Option<Micros>,
}

impl VersionRecord {
    /// The time at which it was last reported as the current one: declared or served, else first
    /// seen.
    pub fn reported_at(&self) -> Micros {
        self.said_at.max(self.served_at).unwrap_or(self.first_seen)
    }

    /// The number of its label, where it has one.
    pub fn number(&self) -> Option<i64> {
        version_number(&self.label)
    }
}

/// Adds a report to what is known of its label. Another checksum is another version.
pub(crate) async fn write_version(
    connection: &mut StoreConnection,
    version: &VersionRecord,
) -> CommitResult {
    let newest = "SELECT version_key, checksum FROM version WHERE label = $1 \
                  ORDER BY version_key DESC LIMIT 1";
    let known = query(newest).bind(&version.label).fetch_optional(connection).await?;

    if let Some(row) = known {
        let checksum: Option<String> = row.try_get("checksum")?;
        // A report without a checksum fits any version of its label.
        let both = checksum.as_ref().zip(version.checksum.as_ref());
        if both.is_none_or(|(known, reported)| known == reported) {
            let key: i64 = row.try_get("version_key")?;
            return Ok(update_version(connection, key, version).await?);
        }
    }

    let insert = "INSERT INTO version (label, number, checksum, source, first_seen, said_at, \
                  served_at) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    query(insert)
        .bind(&version.label)
        .bind(version.number())
        .bind(version.checksum.as_deref())
        .bind(&version.source)
        .bind(version.first_seen)
        .bind(version.said_at)
        .bind(version.served_at)
        .execute(connection)
        .await?;
    Ok(())
}

async fn update_version(
    connection: &mut StoreConnection,
    key: i64,
    version: &VersionRecord,
) -> Result<(), sqlx::Error> {
    let update = "UPDATE version SET checksum = coalesce(checksum, $2), \
                  said_at = coalesce($3, said_at), served_at = coalesce($4, served_at) \
                  WHERE version_key = $1";
    query(update)
        .bind(key)
        .bind(version.checksum.as_deref())
        .bind(version.said_at)
        .bind(version.served_at)
        .execute(connection)
        .await
}

/// The columns of a version.
const COLUMNS: &str = "label, checksum, source, first_seen, said_at, served_at";

/// The SQL of [`VersionRecord::reported_at`].
const REPORTED_AT: &str = "CASE WHEN said_at IS NULL AND served_at IS NULL THEN first_seen \
    WHEN served_at IS NULL OR said_at > served_at THEN said_at ELSE served_at END";

impl Snapshot {
    /// The version that was last declared current, and the one that was last reported in any way.
    /// There may be neither, and they may be the same one.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn current_versions(&mut self) -> Result<Vec<VersionRecord>, SnapshotError> {
        let mut found = Vec::new();
        for rest in [
            "WHERE said_at IS NOT NULL ORDER BY said_at DESC, version_key DESC LIMIT 1".to_owned(),
            format!("ORDER BY {REPORTED_AT} DESC, version_key DESC LIMIT 1"),
        ] {
            let select = query(format!("SELECT {COLUMNS} FROM version {rest}"));
            if let Some(row) = select.fetch_optional(self.connection()).await? {
                found.push(version_of(&row)?);
            }
        }
        Ok(found)
    }

    /// All versions, in the order in which they were first reported.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn versions(&mut self) -> Result<Vec<VersionRecord>, SnapshotError> {
        let select = format!("SELECT {COLUMNS} FROM version ORDER BY version_key");
        let rows = query(select).fetch_all(self.connection()).await?;
        rows.iter().map(|row| Ok(version_of(row)?)).collect()
    }
}

fn version_of(row: &Row) -> Result<VersionRecord, sqlx::Error> {
    Ok(VersionRecord {
        label: row.try_get("label")?,
        checksum: row.try_get("checksum")?,
        source: row.try_get("source")?,
        first_seen: row.try_get("first_seen")?,
        said_at: row.try_get("said_at")?,
        served_at: row.try_get("served_at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::on_both;

    #[tokio::test]
    async fn a_label_with_another_checksum_is_another_version() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            let told = |label: &str, checksum: Option<&str>, at, said| VersionRecord {
                label: label.to_owned(),
                checksum: checksum.map(str::to_owned),
                source: "control".to_owned(),
                first_seen: at,
                said_at: said,
                served_at: None,
            };
            for version in [
                told("step_7", None, 1, Some(1)),
                told("latest", Some("a"), 2, None),
                told("step_7", Some("b"), 3, None),
                told("step_7", Some("b"), 4, Some(4)),
                told("step_7", None, 5, None),
                told("step_7", Some("c"), 6, None),
            ] {
                store.version(version).await.unwrap();
            }
            let found = store.snapshot().await.unwrap().versions().await.unwrap();
            let expected = [
                told("step_7", Some("b"), 1, Some(4)),
                told("latest", Some("a"), 2, None),
                told("step_7", Some("c"), 6, None),
            ];
            assert_eq!(found, expected);
            assert_eq!((found[0].number(), found[1].number()), (Some(7), None));
            let served = VersionRecord { served_at: Some(9), ..told("latest", None, 8, None) };
            store.version(served).await.unwrap();
            store.version(told("latest", None, 10, None)).await.unwrap();
            let found = store.snapshot().await.unwrap().versions().await.unwrap();
            let at: Vec<_> = found.iter().map(VersionRecord::reported_at).collect();
            assert_eq!((at, found[1].served_at), (vec![4, 9, 6], Some(9)));
            let current = store.snapshot().await.unwrap().current_versions().await.unwrap();
            assert_eq!(current, [found[0].clone(), found[1].clone()]);
            drop(store);
            writer.finish().await;
        })
        .await;
    }
}
