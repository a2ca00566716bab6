//! `rolltape prune`: removes episodes from a store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use control::{PruneDocument, PrunedAttempt};
use episode::{AttemptId, EpisodeId, Micros};
use hyper::Method;
use serde_json::json;
use store::{Location, PruneError, PruneFilter, PruneReport, SegmentFolder, Snapshot};

use crate::exit::{CommandResult, Failure};
use crate::http::{self, Http};
use crate::options::control::{ControlCa, ControlToken};
use crate::options::pointer::{self, ServerPointer};
use crate::options::store::StoreArgs;
use crate::print;
use crate::terminal;
use crate::time::{duration, now};

/// Microseconds of a second.
const SECOND: Micros = 1_000_000;
/// Attempts of a kind that are kept whose names are printed.
const KEPT_PRINTED: usize = 10;

/// Remove episodes from a store and free their space
///
/// A server on this machine that records to the file is asked to remove them, and goes on
/// recording. It keeps what is open, has a call under way, or is leased by a reader of the feed.
/// Segments that hold any of them are written anew. --store may be a folder of segments.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Episodes to remove")]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct Args {
    /// Remove episodes that were silent for this long
    ///
    /// Such as 45m, 12h, 30d or 8w. An episode is silent without calls, rewards and closing.
    #[arg(long, value_name = "TIME", value_parser = duration, group = "what")]
    older_than: Option<Micros>,
    /// Remove this episode
    #[arg(long, value_name = "ID", group = "what")]
    episode: Option<EpisodeId>,
    /// Remove only this attempt of --episode [default: all]
    #[arg(long, value_name = "N", requires = "episode")]
    attempt: Option<u32>,
    /// Remove all episodes but those exported; repeatable
    ///
    /// A folder of exports, or one manifest.
    #[arg(long, value_name = "PATH", group = "what")]
    keep_exported: Vec<PathBuf>,
    /// Print what would be removed, and change nothing
    #[arg(long, help_heading = "Output")]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    token: ControlToken,
    #[command(flatten)]
    ca: ControlCa,
}

/// Prunes the store, or prints the plan.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let segments = segments_of(&args.store.location);
    // Of segments alone: a store that is gathered of them.
    let read_from = args.store.read_from().await?;
    let mut keep = BTreeSet::new();
    for path in &args.keep_exported {
        let mut snapshot = Snapshot::open_here(&read_from).await?;
        let exported = exporter::exported_attempts(path, &mut snapshot).await;
        keep.extend(exported.map_err(|error| {
            Failure::of(&error).hint("--keep-exported takes what `rolltape export` wrote")
        })?);
    }
    // With other filters an empty plan is usual and says nothing about the name.
    let only_named = args.older_than.is_none() && keep.is_empty();
    let named = args.episode.clone().filter(|_| only_named);

    let document = match (segments, server_of(&args.store.location)) {
        (Some(folder), _) => {
            from_segments(&folder, &read_from, filter(&args, keep), args.dry_run).await?
        }
        (None, Some(server)) => through(&server, &args, &keep).await?,
        (None, None) => alone(&args, keep).await?,
    };
    warn_if_unknown(named.as_ref(), &document);
    match args.json {
        true => print::line(&json!(document).to_string())?,
        false => print_document(&document)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The server here that records to a file, and deletes from it by itself. A database is pruned
/// beside its servers.
fn server_of(store: &Location) -> Option<ServerPointer> {
    let name = matches!(store, Location::File(_)).then(|| pointer::absolute(store))?;
    pointer::running().into_iter().find(|server| server.store == name)
}

fn filter(args: &Args, keep: BTreeSet<AttemptId>) -> PruneFilter {
    let now = now();
    PruneFilter {
        episode: args.episode.clone(),
        attempt: args.attempt,
        silent_since: args.older_than.map(|age| now.saturating_sub(age)),
        keep,
        now,
        keeps_open: false,
    }
}

/// The folder of segments that is meant in place of a store.
fn segments_of(store: &Location) -> Option<SegmentFolder> {
    match store {
        Location::File(path) if SegmentFolder::is_at(path) => Some(SegmentFolder::at(path)),
        _ => None,
    }
}

/// Removes episodes from a folder of segments, or plans that. `gathered` knows what is in them.
async fn from_segments(
    folder: &SegmentFolder,
    gathered: &Location,
    filter: PruneFilter,
    is_dry: bool,
) -> Result<PruneDocument, Failure> {
    let plan = store::plan_prune(gathered, &filter).await?;
    if is_dry {
        return Ok(plan.into());
    }
    let attempts = plan.candidates.iter().map(|candidate| candidate.attempt.clone()).collect();
    let bytes = || folder_bytes(folder.path());
    let bytes_before = bytes();
    let removal = store::remove_from_folder(folder, &attempts).await;
    let removal = removal.map_err(|error| Failure::of(&error))?;
    let report = PruneReport {
        plan,
        bytes_before,
        bytes_after: bytes(),
        withheld: None,
        segments_replaced: removal.entries.len() as u64,
        segments_left: removal.in_use(),
    };
    Ok(report.into())
}

/// The length of all files in a folder.
fn folder_bytes(folder: &Path) -> u64 {
    let files = folder.read_dir().into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

/// Prunes a store that no server here records to, or plans that.
async fn alone(args: &Args, keep: BTreeSet<AttemptId>) -> Result<PruneDocument, Failure> {
    let filter = filter(args, keep);
    let store = &args.store.location;
    match args.dry_run {
        // A plan takes no lock.
        true => Ok(store::plan_prune(store, &filter).await?.into()),
        false => Ok(store::prune(store, &filter).await.map_err(failure)?.into()),
    }
}

/// Lets the server that records to the store prune it, or plan that.
async fn through(
    server: &ServerPointer,
    args: &Args,
    keep: &BTreeSet<AttemptId>,
) -> Result<PruneDocument, Failure> {
    let bearer = args.token.of_client(&server.control, &args.store.location)?;
    let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
    let base = http::base_url(&server.control);
    let client = Http::of(&base, &args.ca.read()?)?;
    let kept: Vec<String> = keep.iter().map(AttemptId::to_string).collect();
    let body = json!({
        "older_than_s": args.older_than.map(|age| age / SECOND),
        "episode_id": args.episode.as_ref().map(EpisodeId::as_str),
        "attempt": args.attempt,
        "keep": (!args.keep_exported.is_empty()).then_some(kept),
        "dry_run": args.dry_run,
    });

    let url = format!("{base}/prune");
    let (status, reply) = client.json(Method::POST, &url, &headers, &body).await?;
    if status != 200 {
        let reason = reply["error"]["message"].as_str().unwrap_or("no reason");
        let told = format!("the server that records to the store answered {status}: {reason}");
        return Err(http::with_hint(Failure::new(told), status));
    }
    serde_json::from_value(reply).map_err(|error| Failure::of(&error).context("the server's reply"))
}

/// Warns if the named episode does not exist. That is not a failure, but the name may be wrong.
fn warn_if_unknown(named: Option<&EpisodeId>, document: &PruneDocument) {
    let is_empty = document.pruned.is_empty() && kept_counts(document).iter().all(|one| one.1 == 0);
    if let Some(episode) = named.filter(|_| is_empty) {
        terminal::message(&format!("the store holds no such attempt of the episode `{episode}`"));
    }
}

fn failure(error: PruneError) -> Failure {
    use store::OpenError::{Database, InUse, OlderWriter};

    match error {
        error if error.is_full() => Failure::of(&error).hint(
            "deleting writes before it frees: make 100 MiB free and prune again; or \
             `rolltape backup --to` another disk, prune the copy there, and move it back",
        ),
        PruneError::Read(error) => error.into(),
        PruneError::Commit(error) => error.into(),
        PruneError::Open(InUse(..)) => Failure::of(&error).hint(
            "no such server is known to this user here: ask it, by `rolltape control POST /prune`, \
             or stop it, prune, and start it again",
        ),
        PruneError::Open(error) if !matches!(error, OlderWriter(_) | Database(..)) => error.into(),
        PruneError::Open(_) | PruneError::Database(_) => Failure::of(&error)
            .hint("if `rolltape serve` records to it, stop that, prune, and start it again"),
    }
}

fn print_document(document: &PruneDocument) -> Result<(), Failure> {
    if !document.pruned.is_empty() {
        let rows: Vec<_> = document.pruned.iter().map(table_row).collect();
        print::table(&["episode", "attempt", "calls", "bytes"], &rows)?;
    }
    let verb = if document.space.is_some() { "gone" } else { "would go" };
    print::line(&format!(
        "{verb}: {}, {}, about {} bytes",
        print::count(document.episodes, "episode"),
        print::count(document.calls, "call"),
        document.bytes
    ))?;

    for (reason, count, words) in kept_counts(document) {
        if count > 0 {
            let names = kept_names(document, reason);
            print::line(&format!("kept: {}, {words}{names}", print::count(count, "episode")))?;
        }
    }
    let Some(space) = &document.space else { return Ok(()) };
    print::line(&format!(
        "the store has {} bytes; it had {}",
        space.file_bytes_after, space.file_bytes_before
    ))?;
    if let Some(why) = &space.withheld {
        print::line(&format!("space that was not given back: {why}"))?;
    }
    if space.segments_replaced > 0 {
        let replaced = print::count(space.segments_replaced, "file");
        print::line(&format!("segments: {replaced} written anew without them"))?;
    }
    match &space.segments_left {
        Some(why) => print::line(&format!("left to the next `prune` or `seal`: {why}")),
        None => Ok(()),
    }
}

fn table_row(doomed: &PrunedAttempt) -> Vec<String> {
    let PrunedAttempt { episode_id, attempt, calls, bytes } = doomed;
    vec![episode_id.clone(), attempt.to_string(), calls.to_string(), bytes.to_string()]
}

/// The reasons for keeping attempts, with their numbers and their words for people.
fn kept_counts(document: &PruneDocument) -> [(&'static str, u64, &'static str); 5] {
    [
        ("exported", document.kept_exported, "exported"),
        ("open", document.kept_open, "not closed, and active within the last hour"),
        ("running", document.kept_running, "with a call under way"),
        ("leased", document.kept_leased, "leased by a reader of the feed"),
        ("needed", document.kept_needed, "needed by other episodes that are kept"),
    ]
}

/// The first names of those that are kept for a reason.
fn kept_names(document: &PruneDocument, reason: &str) -> String {
    let of_reason = document.kept.iter().filter(|kept| kept.reason == reason);
    let names: Vec<_> = of_reason
        .take(KEPT_PRINTED)
        .map(|kept| format!("{} {}", kept.episode_id, kept.attempt))
        .collect();
    if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
}
