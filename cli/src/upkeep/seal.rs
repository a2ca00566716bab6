//! `rolltape seal`: moves finished episodes from a store to segments.

use std::path::PathBuf;
use std::process::ExitCode;

use episode::Micros;
use exporter::{PutError, PutReport, put_segments};
use serde_json::json;
use store::{EntryKind, SealOptions, SealReport, SegmentError, SegmentFolder};

use crate::exit::{CommandResult, Failure};
use crate::options::engine::bytes;
use crate::options::parse::bucket_url;
use crate::options::segments::{bucket, kept_bytes};
use crate::options::store::StoreArgs;
use crate::print;
use crate::time::{duration, now};

/// Length at which a segment ends.
pub(crate) const SEGMENT_BYTES: u64 = 256 << 20;
/// Longest wait of a finished episode for others of its group: a day.
pub(crate) const GROUP_WAIT_US: Micros = 86_400_000_000;

/// Move finished episodes from a store to files that never change
///
/// The store keeps a line of each episode, its rewards included, and reads the calls from these
/// files: export, feed, show and view give what they gave before. The files alone are a store, too:
/// every reading command takes their folder as --store.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Segments")]
pub(crate) struct Args {
    /// Folder of the segments; it is made if it is not there
    #[arg(long, value_name = "FOLDER")]
    segments: PathBuf,
    /// Put the segments into a bucket, too
    ///
    /// It gets what it lacks of the folder, and loses what prune replaced.
    #[arg(long, value_name = "URL", value_parser = bucket_url)]
    segments_bucket: Option<String>,
    /// Keep only so many bytes of segments in the folder
    ///
    /// The oldest leave it once the bucket has them. Commands that read one bring it back.
    #[arg(long, value_name = "BYTES", value_parser = kept_bytes, requires = "segments_bucket")]
    segments_keep: Option<u64>,
    /// Only episodes finished this long ago
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5m")]
    finished_for: Micros,
    /// Length at which a segment ends
    ///
    /// A group is never split.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "256MiB")]
    segment_size: u64,
    /// Leave what would make a shorter segment
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1")]
    segment_size_min: u64,
    /// Longest wait for others of a group
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1d")]
    group_wait: Micros,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Seals what is finished.
pub(crate) async fn run(args: Args) -> CommandResult {
    let now = now();
    let options = SealOptions {
        folder: args.segments,
        finished_before: now.saturating_sub(args.finished_for),
        segment_bytes: args.segment_size,
        segment_bytes_min: args.segment_size_min,
        short_before: 0,
        group_wait: args.group_wait,
        now,
    };
    let report = store::seal(&args.store.location, &options).await.map_err(failure)?;
    let put = match &args.segments_bucket {
        Some(url) => Some(put(SegmentFolder::at(options.folder), url, args.segments_keep).await?),
        None => None,
    };

    match args.json {
        true => print::line(&report_json(&report, put).to_string())?,
        false => {
            print_report(&report)?;
            put.iter().try_for_each(print_put)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Brings a bucket to what the folder has, which keeps so many bytes.
pub(crate) async fn put(
    folder: SegmentFolder,
    url: &str,
    keep: Option<u64>,
) -> Result<PutReport, Failure> {
    put_segments(&folder, &bucket(url), keep).await.map_err(|error| {
        let hint = match error {
            PutError::OtherFolder(..) => "give a place of its own to each folder",
            _ => "the segments are in their folder; the next sealing goes on",
        };
        Failure::of(&error).hint(hint)
    })
}

fn failure(error: SegmentError) -> Failure {
    match error {
        SegmentError::Read(error) => error.into(),
        SegmentError::Open(error) => error.into(),
        error => Failure::of(&error),
    }
}

fn print_report(report: &SealReport) -> Result<(), Failure> {
    let rows: Vec<_> = report
        .entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Attempts)
        .map(|entry| {
            let numbers = [entry.attempts, entry.calls, entry.completion_tokens, entry.bytes];
            let numbers = numbers.iter().map(u64::to_string);
            std::iter::once(entry.file.clone()).chain(numbers).collect()
        })
        .collect();
    if !rows.is_empty() {
        print::table(&["segment", "episodes", "calls", "sampled tokens", "bytes"], &rows)?;
    }

    print::line(&format!("sealed: {}", print::count(report.attempts, "episode")))?;
    for (kind, what) in [(EntryKind::Rewards, "rewards"), (EntryKind::Annotations, "annotations")] {
        let late = report.entries.iter().filter(|entry| entry.kind == kind);
        let late: u64 = late.map(|entry| entry.attempts).sum();
        if late > 0 {
            print::line(&format!("{what} that came late: {late}"))?;
        }
    }
    if report.waiting > 0 {
        let waiting = print::count(report.waiting, "episode");
        print::line(&format!("left until their group is finished: {waiting}"))?;
    }
    if report.changed > 0 {
        let changed = print::count(report.changed, "episode");
        print::line(&format!("changed meanwhile, left for the next time: {changed}"))?;
    }
    match report.bytes_before {
        0 => Ok(()),
        before => {
            print::line(&format!("the store has {} bytes; it had {before}", report.bytes_after))
        }
    }
}

fn print_put(put: &PutReport) -> Result<(), Failure> {
    let files = print::count(put.files, "file");
    print::line(&format!("put into the bucket: {files}, {} bytes", put.bytes))?;
    if put.deleted > 0 {
        print::line(&format!("deleted there: {}", print::count(put.deleted, "file")))?;
    }
    if put.left > 0 {
        print::line(&format!("left the folder: {}", print::count(put.left, "file")))?;
    }
    Ok(())
}

fn report_json(report: &SealReport, put: Option<PutReport>) -> serde_json::Value {
    let entries: Vec<_> = report.entries.iter().map(store::CatalogEntry::to_json).collect();
    let mut told = json!({
        "episodes": report.attempts,
        "waiting": report.waiting,
        "changed": report.changed,
        "entries": entries,
        "file_bytes_before": report.bytes_before,
        "file_bytes_after": report.bytes_after,
    });

    if let Some(put) = put {
        told["bucket"] = json!({
            "files": put.files,
            "bytes": put.bytes,
            "entries": put.entries,
            "deleted": put.deleted,
            "left": put.left,
        });
    }
    told
}
