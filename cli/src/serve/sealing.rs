//! `serve --segments`: what is finished leaves the store while it records.

use std::path::PathBuf;
use std::time::Duration;

use episode::Micros;
use exporter::PutReport;
use store::{Location, SealOptions, SealReport, SegmentError, SegmentFolder};
use tokio::task::JoinHandle;

use crate::exit::Failure;
use crate::options::parse::bucket_url;
use crate::options::segments::kept_bytes;
use crate::time::{duration, now};
use crate::upkeep::seal::{GROUP_WAIT_US, SEGMENT_BYTES, put};

/// Longest time between two looks for finished episodes.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(60);
/// A segment that is shorter waits for further episodes, for so many times `--seal-after`.
const SHORT_BYTES: u64 = SEGMENT_BYTES / 2;
const SHORT_WAITS: Micros = 12;

/// Segments of a server.
#[derive(Debug, clap::Args)]
pub(super) struct SealingArgs {
    /// Move finished episodes to segments in this folder
    ///
    /// As `rolltape seal` does. The store stays as small as what is under way.
    #[arg(long, value_name = "FOLDER", env = "ROLLTAPE_SEGMENTS")]
    segments: Option<PathBuf>,
    /// Put the segments into a bucket, too
    #[arg(long, value_name = "URL", value_parser = bucket_url, requires = "segments")]
    #[arg(env = "ROLLTAPE_SEGMENTS_BUCKET")]
    segments_bucket: Option<String>,
    /// Keep only so many bytes of segments in the folder
    ///
    /// The oldest leave it once the bucket has them. They are brought back when they are read.
    #[arg(long, value_name = "BYTES", value_parser = kept_bytes, requires = "segments_bucket")]
    #[arg(env = "ROLLTAPE_SEGMENTS_KEEP")]
    segments_keep: Option<u64>,
    /// Time after which a finished episode is sealed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5m")]
    #[arg(env = "ROLLTAPE_SEAL_AFTER")]
    seal_after: Micros,
}

impl SealingArgs {
    /// Seals what is finished, again and again, until the task is aborted.
    pub(super) fn start(self, store: Location) -> Option<JoinHandle<()>> {
        let folder = self.segments?;
        let (after, bucket) = (self.seal_after, self.segments_bucket);
        let keep = self.segments_keep;
        let every = Duration::from_micros(after.max(0).unsigned_abs());
        Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(every.clamp(Duration::from_secs(1), LOOK_EVERY_MAX)).await;
                log(store::seal(&store, &options(folder.clone(), after)).await);
                if let Some(url) = &bucket {
                    log_put(put(SegmentFolder::at(&folder), url, keep).await);
                }
            }
        }))
    }
}

fn options(folder: PathBuf, after: Micros) -> SealOptions {
    let now = now();
    SealOptions {
        folder,
        finished_before: now.saturating_sub(after),
        segment_bytes: SEGMENT_BYTES,
        segment_bytes_min: SHORT_BYTES,
        short_before: now.saturating_sub(after.saturating_mul(SHORT_WAITS)),
        group_wait: GROUP_WAIT_US,
        now,
    }
}

fn log(sealed: Result<SealReport, SegmentError>) {
    match sealed {
        Ok(report) if report.attempts > 0 => {
            let segments = report.entries.len();
            tracing::info!(episodes = report.attempts, segments, "finished episodes were sealed");
        }
        Ok(_) => {}
        // What is not sealed stays in the store.
        Err(error) => {
            let error = Failure::of(&error).to_string();
            tracing::warn!(%error, "finished episodes stay in the store: they cannot be sealed");
        }
    }
}

fn log_put(put: Result<PutReport, Failure>) {
    match put {
        Ok(put) if put != PutReport::default() => {
            let PutReport { files, bytes, deleted, left, .. } = put;
            tracing::info!(files, bytes, deleted, left, "segments were put into the bucket");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "segments were not put into the bucket"),
    }
}
