//! The health of a run, as far as a page may ask for it: the newest attempts, for some seconds.

use std::time::Instant;

use exporter::{HealthReport, health_of};
use serde::Serialize;
use store::Snapshot;

use crate::bounds::{CHECKED, CHECKED_MAX, CHECKS_WAIT};
use crate::error::ViewError;
use crate::parameters::Parameters;

/// The verdicts on the newest attempts that a filter takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChecksView {
    /// Attempts that the filter takes.
    pub total: u64,
    /// True if there are more than these.
    pub total_is_least: bool,
    /// The verdicts on those that were read.
    #[serde(flatten)]
    pub report: HealthReport,
}

/// Reads the newest attempts that a filter takes, and judges them.
pub(crate) async fn checks(
    snapshot: &mut Snapshot,
    mut parameters: Parameters,
) -> Result<ChecksView, ViewError> {
    let filter = parameters.filter()?;
    let limit = parameters.number("limit", 1, CHECKED_MAX)?.unwrap_or(CHECKED);
    parameters.end()?;

    let until = Instant::now() + CHECKS_WAIT;
    let total = snapshot.count(&filter).await?;
    let newest = snapshot.states(&filter, None, limit).await?;
    let keys: Vec<i64> = newest.iter().map(|state| state.key).collect();
    let report = health_of(snapshot, &keys, || Instant::now() < until).await?;
    Ok(ChecksView { total: total.count, total_is_least: total.is_least, report })
}
