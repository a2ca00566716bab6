//! `rolltape redact`: copies a store without the secrets in it, or takes them out of the store.

pub(super) mod body;
mod call;
mod copy;
mod ids;
mod in_place;
mod places;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use episode::{Call, CallId, Comment, GroupId, Provenance, Reward};
use serde_json::json;
use store::{AttemptRecord, Selection, Snapshot};

use self::body::SecretEditor;
use self::call::CallEditor;
use self::copy::{StoreCopy, WholeAttempt};
use self::ids::IdReader;
use crate::exit::{CommandResult, Failure};
use crate::options::episodes::SelectionArgs;
use crate::print;
use crate::terminal;
use crate::upkeep::secrets::{NAMED, RuleArgs, SecretFinder};

/// The label of an attempt that has other words than were recorded.
const LABEL: &str = "redacted";
/// Calls of which the ids are compared with the words.
const COMPARED_MAX: usize = 8;
/// Fewest characters of an answer that is compared.
const ANSWER_CHARS_MIN: usize = 8;

/// Copy episodes without the secrets in them, or take secrets out of the store
///
/// Secrets are what `rolltape scan` finds, what --match and --rules match, and what --span names,
/// wherever it stands: in requests, replies and token ids. In a text `[redacted KIND]` takes its
/// place; in ids as many others do, which are not trained.
///
/// With --to the store that is read stays as it is. With --in-place it is changed, and rewritten
/// so that the secret is in none of its pages; nobody may record to it meanwhile.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// The store to write; it must not exist
    #[arg(long, value_name = "FILE", required_unless_present = "in_place")]
    to: Option<PathBuf>,
    /// Change the store itself, which must be a file
    #[arg(long, conflicts_with = "to")]
    in_place: bool,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    how: RedactArgs,
    #[command(flatten)]
    filter: SelectionArgs,
}

/// The rules for secrets, and the reader of ids.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Secrets")]
pub(crate) struct RedactArgs {
    /// tokenizer.json or model folder, which tells what ids say
    ///
    /// It must be that of the model.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Leave out all ids, where no tokenizer tells what they say
    #[arg(long, conflicts_with = "tokenizer")]
    drop_ids: bool,
    /// Sampled tokens of a call that say a secret; repeatable
    ///
    /// They are those from START to before END of the call's first choice.
    #[arg(long = "span", value_name = "CALL:START-END", value_parser = span)]
    #[arg(requires = "tokenizer")]
    spans: Vec<NamedSpan>,
    #[command(flatten)]
    rules: RuleArgs,
}

/// Sampled tokens of the first choice of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedSpan {
    call: CallId,
    start: usize,
    end: usize,
}

/// Counts of what was written.
#[derive(Debug, Default)]
pub(super) struct Redacted {
    pub(super) episodes: u64,
    pub(super) calls: u64,
    pub(super) changed_episodes: u64,
    pub(super) changed_calls: u64,
    /// Different secrets, by their kinds.
    pub(super) secrets: BTreeMap<String, u64>,
    pub(super) bytes: u64,
}

fn span(text: &str) -> Result<NamedSpan, String> {
    let parsed = || {
        let (call, tokens) = text.rsplit_once(':')?;
        let (start, end) = tokens.split_once('-')?;
        let span = NamedSpan {
            call: call.parse().ok()?,
            start: start.parse().ok()?,
            end: end.parse().ok()?,
        };
        (span.start < span.end).then_some(span)
    };
    parsed().ok_or_else(|| "give a call's id and its sampled tokens, as CALL:12-20".to_owned())
}

/// Copies.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let Some(to) = args.to.clone() else { return in_place::run(args).await };
    let mut snapshot = Snapshot::open_here(args.filter.store.read_from().await?).await?;
    let selection = args.filter.selection();
    let work = redact(&mut snapshot, &selection, &args.how, (&to, CopiedAttempts::All));
    let report = terminal::waiting("looking for secrets", work).await?;
    tell(&to, &report, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Says what was written to a store.
fn tell(to: &Path, report: &Redacted, is_json: bool) -> Result<(), Failure> {
    if is_json {
        return print::line(&as_json(to, report));
    }
    print::line(&as_text(to, report))?;
    let lines = report.secrets.iter().map(|(kind, count)| format!("  {count} x {kind}"));
    lines.into_iter().try_for_each(|line| print::line(&line))
}

/// The attempts that are written, and what of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopiedAttempts {
    /// All of them, to be handed on: without addresses and names of tokens.
    All,
    /// Those that hold a secret, with all else that they have.
    Changed,
}

/// Writes the selected attempts to a new store without secrets.
///
/// # Errors
/// [`Failure`] when a secret would be left; then nothing is written.
pub(super) async fn redact(
    snapshot: &mut Snapshot,
    selection: &Selection,
    how: &RedactArgs,
    (to, written): (&Path, CopiedAttempts),
) -> Result<Redacted, Failure> {
    let finder = how.rules.finder()?;
    let reader = how.tokenizer.as_deref().map(IdReader::open).transpose()?;
    let attempts = snapshot.episodes(selection).await?;
    if attempts.is_empty() {
        return Err(Failure::new("no episode matches")
            .hint("`rolltape episodes` lists what the store holds"));
    }
    let copy = StoreCopy::begin(to).await?;
    let values = known_values(snapshot, &attempts, how, (&finder, reader.as_ref())).await?;

    let mut report = Redacted::default();
    for kind in values.values() {
        *report.secrets.entry(kind.clone()).or_default() += 1;
    }
    let finder = finder.knowing(values)?;
    let editor = SecretEditor { finder: &finder, ids: reader.as_ref() };
    let mut editor = CallEditor::new(editor, how.drop_ids);
    for version in snapshot.versions().await? {
        copy.version(version).await?;
    }
    for record in attempts {
        let (whole, is_changed) =
            redacted(snapshot, record, (&mut editor, &mut report), written).await?;
        if is_changed || written == CopiedAttempts::All {
            copy.attempt(whole).await?;
        }
    }
    report.bytes = copy.finish().await?;
    Ok(report)
}

/// The secrets of all attempts, with their kinds.
async fn known_values(
    snapshot: &mut Snapshot,
    attempts: &[AttemptRecord],
    how: &RedactArgs,
    (finder, ids): (&SecretFinder, Option<&IdReader>),
) -> Result<BTreeMap<Vec<u8>, String>, Failure> {
    let editor = SecretEditor { finder, ids };
    let mut values = BTreeMap::new();
    let mut spans: Vec<&NamedSpan> = how.spans.iter().collect();

    for attempt in attempts {
        let calls = snapshot.calls(attempt).await?;
        match ids {
            Some(reader) => check_tokenizer(reader, &calls)?,
            None if !how.drop_ids && calls.iter().any(has_ids) => return Err(unread(attempt)),
            None => {}
        }
        for said in snapshot.comments(attempt).await?.iter().filter_map(|one| one.text.as_ref()) {
            values.extend(finder.values_of(said.as_bytes()));
        }
        for call in &calls {
            each_text(&editor, call, |text| values.extend(finder.values_of(text)));
            let named = spans.extract_if(.., |span| span.call == call.begun.call_id);
            for span in named.collect::<Vec<_>>() {
                let said = text_of(span, call, ids)?;
                values.insert(said.into_bytes(), NAMED.to_owned());
            }
        }
    }
    match spans.first() {
        Some(span) => Err(Failure::new(format!("no call `{}` is copied", span.call))
            .hint("`rolltape show EPISODE --json` lists the calls of an episode")),
        None => Ok(values),
    }
}

/// Calls `look` with all texts of a call.
fn each_text(editor: &SecretEditor<'_>, call: &Call, mut look: impl FnMut(&[u8])) {
    let begun = &call.begun;
    editor.each_text(&begun.request.read(), &mut look);
    look(begun.path.as_bytes());
    let Some(ended) = &call.ended else { return };
    editor.each_text(&ended.reply.read(), &mut look);
    let Some(reader) = editor.ids else { return };
    ended.prompts.iter().for_each(|ids| look(reader.text(ids).0.as_bytes()));
    for ids in ended.choices.iter().filter_map(|choice| choice.token_ids.as_deref()) {
        look(reader.text(ids).0.as_bytes());
    }
}

/// The text of a span of tokens.
fn text_of(span: &NamedSpan, call: &Call, reader: Option<&IdReader>) -> Result<String, Failure> {
    let ended = call.ended.as_ref();
    let ids = ended.and_then(|ended| ended.choices.first()?.token_ids.as_deref());
    let Some((ids, reader)) = ids.zip(reader) else {
        return Err(Failure::new(format!("call `{}` has no token ids", span.call)));
    };
    match ids.get(span.start..span.end) {
        Some(ids) => Ok(reader.text(ids).0),
        None => Err(Failure::new(format!("call `{}` sampled {} tokens", span.call, ids.len()))),
    }
}

/// An attempt without secrets, and whether it differs from what was recorded, which a label says.
async fn redacted(
    snapshot: &mut Snapshot,
    mut record: AttemptRecord,
    (editor, report): (&mut CallEditor<'_>, &mut Redacted),
    written: CopiedAttempts,
) -> Result<(WholeAttempt, bool), Failure> {
    let (mut calls, mut changed) = (Vec::new(), 0);
    let mut loses_ids = false;
    for call in snapshot.calls(&record).await? {
        let new = editor.redact(&call)?;
        loses_ids |= editor.drops_ids && has_ids(&call);
        changed += u64::from(new.is_changed);
        calls.push(new.call);
    }
    report.episodes += 1;
    report.calls += calls.len() as u64;
    report.changed_calls += changed;
    let mut is_changed = changed > 0 || (loses_ids && written == CopiedAttempts::Changed);

    let (mut rewards, annotations) =
        (snapshot.rewards(&record).await?, snapshot.annotations(&record).await?);
    // A copy is handed on; addresses of graders and names of tokens are nobody else's.
    let mut comments = snapshot.comments(&record).await?;
    if written == CopiedAttempts::All {
        let of_rewards = rewards.iter_mut().map(|Reward { provenance, .. }| provenance);
        let of_comments = comments.iter_mut().map(|Comment { provenance, .. }| provenance);
        of_rewards.chain(of_comments).for_each(|provenance| *provenance = handed_on(provenance));
    }
    let labels = record.labels.iter_mut().map(|(_, value)| value);
    let of_comments =
        comments.iter_mut().flat_map(|one| one.text.iter_mut().chain([&mut one.author]));
    for text in labels.chain(of_comments) {
        if let Some(new) = editor.editor.text(text) {
            (*text, is_changed) = (new, true);
        }
    }
    let group_size = match &record.group {
        Some(group) => group_size(snapshot, group).await?,
        None => None,
    };
    report.changed_episodes += u64::from(is_changed);
    if is_changed {
        record.labels.retain(|(name, _)| name != LABEL);
        record.labels.push((LABEL.to_owned(), print::count(changed, "call")));
    }
    let whole = WholeAttempt { record, group_size, calls, rewards, annotations, comments };
    Ok((whole, is_changed))
}

/// The part of a provenance that is handed on.
fn handed_on(provenance: &Provenance) -> Provenance {
    Provenance { by: provenance.by, ..Provenance::default() }
}

async fn group_size(snapshot: &mut Snapshot, group: &GroupId) -> Result<Option<u32>, Failure> {
    let counts: HashMap<_, _> = snapshot.group_counts(std::slice::from_ref(group)).await?;
    Ok(counts.get(group).and_then(|counts| counts.size))
}

fn has_ids(call: &Call) -> bool {
    call.ended.as_ref().is_some_and(|ended| {
        !ended.prompts.is_empty() || ended.choices.iter().any(|choice| choice.token_ids.is_some())
    })
}

fn unread(attempt: &AttemptRecord) -> Failure {
    let of = format!("episode `{}` attempt {} has token ids", attempt.id, attempt.attempt);
    Failure::new(format!("{of}, which may say a secret"))
        .hint("--tokenizer names the model's folder, which reads them; --drop-ids leaves them out")
}

/// Refuses a tokenizer that reads other words in the ids than the server sent: it would find
/// nothing.
fn check_tokenizer(reader: &IdReader, calls: &[Call]) -> Result<(), Failure> {
    let mut compared = 0;
    for call in calls {
        let Some(ended) = &call.ended else { continue };
        let Some(ids) = ended.choices.first().and_then(|choice| choice.token_ids.as_deref()) else {
            continue;
        };
        let answers = wire::answers(call.begun.route, &ended.reply.read());
        let said = answers.first().and_then(|answer| answer.message["content"].as_str());
        let Some(said) = said.map(str::trim).filter(|said| said.len() >= ANSWER_CHARS_MIN) else {
            continue;
        };
        if reader.text(ids).0.contains(said) {
            return Ok(());
        }
        compared += 1;
        if compared == COMPARED_MAX {
            break;
        }
    }

    match compared {
        0 => Ok(()),
        _ => Err(Failure::new("--tokenizer reads other words in the ids than the server sent")
            .hint("give the folder of the model that answered")),
    }
}

fn as_text(to: &Path, report: &Redacted) -> String {
    format!(
        "{}: {} with {}, of which {} are changed; {} bytes",
        to.display(),
        print::count(report.episodes, "episode"),
        print::count(report.calls, "call"),
        report.changed_calls,
        report.bytes
    )
}

fn as_json(to: &Path, report: &Redacted) -> String {
    json!({
        "file": to.display().to_string(),
        "episodes": report.episodes,
        "calls": report.calls,
        "changed_episodes": report.changed_episodes,
        "changed_calls": report.changed_calls,
        "secrets": report.secrets,
        "bytes": report.bytes,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_call_and_its_tokens() {
        let call = "01a21a3c-9777-73ec-8913-845c8b9a8d87";
        let found = span(&format!("{call}:12-20")).unwrap();
        assert_eq!((found.call.to_string().as_str(), found.start, found.end), (call, 12, 20));
        for wrong in
            [call.to_owned(), format!("{call}:20-12"), format!("{call}:3-3"), "x:1-2".to_owned()]
        {
            assert!(span(&wrong).is_err(), "{wrong}");
        }
    }
}
