//! Weights: their labels, numbers and checksums, and who told of them.

use episode::{Micros, version_number};

use crate::commit::Verdict;
use crate::fields::Row;
use crate::link::Link;
use crate::query::query;
use crate::snapshot::{Snapshot, SnapshotError};

/// A version of the weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionRecord {
    /// What servers and trainers call it.
    pub label: String,
    /// A hash of the weights, where it is known.
    pub checksum: Option<String>,
    /// Who told of it first: `control` or `upstream`.
    pub source: String,
    /// When that was.
    pub first_seen: Micros,
    /// When it was last said to be current; none where nobody said so.
    pub said_at: Option<Micros>,
    /// When the upstream was last found to have changed over to it; none where it never was.
    pub served_at: Option<Micros>,
}

impl VersionRecord {
    /// When it was last told to be the one that is current: by what is said or served, else by
    /// when it was seen first.
    pub fn told_at(&self) -> Micros {
        self.said_at.max(self.served_at).unwrap_or(self.first_seen)
    }

    /// The number of its label, where it has one.
    pub fn number(&self) -> Option<i64> {
        version_number(&self.label)
    }
}

/// Adds what is told to what is known of the label. Another checksum is another version.
pub(crate) async fn write_version(link: &mut Link, told: &VersionRecord) -> Verdict {
    let known = "SELECT version_key, checksum FROM version WHERE label = $1 \
                 ORDER BY version_key DESC LIMIT 1";
    let known = query(known).bind(&told.label).fetch_optional(link).await?;
    if let Some(row) = known {
        let checksum: Option<String> = row.try_get("checksum")?;
        let agree = checksum.as_ref().zip(told.checksum.as_ref()).is_none_or(|(a, b)| a == b);
        if agree {
            let more = "UPDATE version SET checksum = coalesce(checksum, $2), \
                        said_at = coalesce($3, said_at), served_at = coalesce($4, served_at) \
                        WHERE version_key = $1";
            let more = query(more).bind(row.try_get::<i64>("version_key")?);
            let more = more.bind(told.checksum.as_deref()).bind(told.said_at);
            let more = more.bind(told.served_at);
            return Ok(more.execute(link).await?);
        }
    }
    let new = "INSERT INTO version (label, number, checksum, source, first_seen, said_at, \
               served_at) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let new = query(new).bind(&told.label).bind(told.number()).bind(told.checksum.as_deref());
    let new = new.bind(&told.source).bind(told.first_seen).bind(told.said_at);
    let new = new.bind(told.served_at);
    Ok(new.execute(link).await?)
}

/// The columns of a version.
const COLUMNS: &str = "label, checksum, source, first_seen, said_at, served_at";

impl Snapshot {
    /// The version that was last said to be current, and the one that was last told of in any way;
    /// there may be neither, and they may be one.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn current_versions(&mut self) -> Result<Vec<VersionRecord>, SnapshotError> {
        // As `VersionRecord::told_at` has it.
        let told = "CASE WHEN said_at IS NULL AND served_at IS NULL THEN first_seen \
            WHEN served_at IS NULL OR said_at > served_at THEN said_at ELSE served_at END";
        let mut found = Vec::new();
        for rest in [
            "WHERE said_at IS NOT NULL ORDER BY said_at DESC, version_key DESC LIMIT 1".to_owned(),
            format!("ORDER BY {told} DESC, version_key DESC LIMIT 1"),
        ] {
            let row = query(format!("SELECT {COLUMNS} FROM version {rest}"));
            let row = row.fetch_optional(self.connection()).await?;
            found.extend(row.as_ref().map(version_of).transpose()?);
        }
        Ok(found)
    }

    /// All versions, in the order in which they were told of.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn versions(&mut self) -> Result<Vec<VersionRecord>, SnapshotError> {
        let all = format!("SELECT {COLUMNS} FROM version ORDER BY version_key");
        let rows = query(all).fetch_all(self.connection()).await?;
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
            let at: Vec<_> = found.iter().map(VersionRecord::told_at).collect();
            assert_eq!((at, found[1].served_at), (vec![4, 9, 6], Some(9)));
            let current = store.snapshot().await.unwrap().current_versions().await.unwrap();
            assert_eq!(current, [found[0].clone(), found[1].clone()]);
            drop(store);
            writer.finish().await;
        })
        .await;
    }
}
