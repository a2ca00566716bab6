//! Deleting episodes from a store and from its segments.

use crate::error::with_causes;
use crate::location::Location;
use crate::maintenance::prune;
use crate::maintenance::prune::{PruneError, PruneFilter, PruneReport};
use crate::maintenance::segments::forget::forget_pruned;

/// Deletes episodes from the store at a location, gives the space back, and replaces the segments
/// that hold any of them.
///
/// A file must not be recorded to meanwhile: its writer holds in memory what later calls of an
/// episode refer to, and deletes by itself ([`Store::prune`](crate::Store::prune)). A database may
/// be recorded to: its writers learn from the database that an episode is gone, and begin it anew.
///
/// # Errors
/// [`PruneError`] when another process records to the file, or the database refuses. What segments
/// still hold is in the report.
pub async fn prune(
    at: impl Into<Location>,
    filter: &PruneFilter,
) -> Result<PruneReport, PruneError> {
    let at = at.into();
    let report = prune::prune(&at, filter).await?;
    Ok(with_segments(&at, report).await)
}

/// Takes what was pruned out of segments.
pub(crate) async fn with_segments(at: &Location, report: PruneReport) -> PruneReport {
    match forget_pruned(at).await {
        Ok(removal) => PruneReport {
            segments_replaced: removal.entries.len() as u64,
            segments_left: removal.in_use(),
            ..report
        },
        Err(error) => PruneReport { segments_left: Some(with_causes(&error)), ..report },
    }
}
