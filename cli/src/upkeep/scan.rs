//! `rolltape scan`: looks for secrets in what was recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use episode::{Call, Comment};
use serde_json::json;
use store::{AttemptRecord, MessageRow, Snapshot};
use viewer::TokenTexts;

use crate::exit::{CommandResult, Failure};
use crate::options::episodes::SelectionArgs;
use crate::print;
use crate::terminal;
use crate::upkeep::redact::body::SecretEditor;
use crate::upkeep::secrets::{FoundSecret, IDS_AGAIN, RuleArgs, SecretFinder};

/// Look for secrets in texts, bodies and ids: keys of usual services, passwords in URLs
///
/// Exits with 1 if one is found. Only its beginning is printed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// Read ids as well, by this tokenizer.json or model folder
    ///
    /// Ids may say what no text does: what a server cut off, and what a template left out.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Print one JSON object per secret and episode
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    rules: RuleArgs,
    #[command(flatten)]
    filter: SelectionArgs,
}

/// A place of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SecretPlace {
    /// In a message.
    Message,
    /// In the bytes of a request or a reply.
    Body,
    /// In the text of token ids.
    Ids,
    /// In what a person said of it.
    Comment,
}

/// The places of a secret in one attempt.
#[derive(Debug)]
struct SecretPlaces {
    first_call: String,
    places: BTreeSet<SecretPlace>,
    times: u64,
}

/// The secrets of one attempt.
type Secrets = BTreeMap<FoundSecret, SecretPlaces>;

/// Scans.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let texts = match &args.tokenizer {
        Some(path) => Some(TokenTexts::read(path).map_err(|error| Failure::of(&error))?),
        None => None,
    };
    let mut snapshot = Snapshot::open_here(args.filter.store.read_from().await?).await?;
    let attempts = snapshot.episodes(&args.filter.selection()).await?;

    let finder = args.rules.finder()?;
    let (mut found, mut has_ids) = (0, false);
    for attempt in &attempts {
        let messages = viewer::messages(&mut snapshot, attempt).await;
        let messages = messages.map_err(|error| Failure::of(&error))?;
        let calls = snapshot.calls(attempt).await?;
        has_ids |= calls.iter().any(has_some_ids);

        let comments = snapshot.comments(attempt).await?;
        let secrets = secrets(&finder, &messages, (&calls, &comments), texts.as_ref());
        found += secrets.len() as u64;
        secrets.iter().try_for_each(|(secret, places)| match args.json {
            true => print::line(&as_json(attempt, secret, places)),
            false => print::line(&as_text(attempt, secret, places)),
        })?;
    }

    if has_ids && texts.is_none() {
        terminal::remark("ids are not read: --tokenizer names the file that reads them");
    }
    let scanned = print::count(attempts.len() as u64, "attempt");
    terminal::remark(&format!("{} in {scanned}", print::count(found, "secret")));
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The secrets of one attempt, with their places.
fn secrets(
    finder: &SecretFinder,
    messages: &[MessageRow],
    (calls, comments): (&[Call], &[Comment]),
    texts: Option<&TokenTexts>,
) -> Secrets {
    let mut found = Secrets::new();
    let mut note = |times: BTreeMap<FoundSecret, u64>, call: &str, place: SecretPlace| {
        for (secret, times) in times {
            let places = found.entry(secret).or_insert_with(|| SecretPlaces {
                first_call: call.to_owned(),
                places: BTreeSet::new(),
                times: 0,
            });
            places.places.insert(place);
            places.times += times;
        }
    };

    for message in messages {
        let texts = [&message.content, &message.reasoning, &message.tool_calls];
        for text in texts.into_iter().flatten() {
            note(times_in(finder, text.as_bytes()), &message.call_id, SecretPlace::Message);
        }
    }
    for comment in comments {
        let call = comment.call.map_or_else(|| "none".to_owned(), |call| call.to_string());
        let text = comment.text.as_deref().unwrap_or_default();
        note(times_in(finder, text.as_bytes()), &call, SecretPlace::Comment);
    }
    let mut before: &[u32] = &[];
    for call in calls {
        let id = call.begun.call_id.to_string();
        let ended = call.ended.as_ref();
        for body in
            [Some(&call.begun.request), ended.map(|ended| &ended.reply)].into_iter().flatten()
        {
            note(times_in_body(finder, &body.read()), &id, SecretPlace::Body);
        }

        let Some((ended, texts)) = ended.zip(texts) else { continue };
        for prompt in &ended.prompts {
            let text = texts.text(new_ids(before, prompt));
            note(times_in(finder, text.as_bytes()), &id, SecretPlace::Ids);
            before = prompt;
        }
        for ids in ended.choices.iter().filter_map(|choice| choice.token_ids.as_ref()) {
            note(times_in(finder, texts.text(ids).as_bytes()), &id, SecretPlace::Ids);
        }
    }
    found
}

/// The secrets of a text, and how often each is there.
fn times_in(finder: &SecretFinder, text: &[u8]) -> BTreeMap<FoundSecret, u64> {
    let mut times = BTreeMap::new();
    for secret in finder.find(text) {
        *times.entry(secret).or_default() += 1;
    }
    times
}

/// The secrets of a body, also of texts that it has in pieces: those of a stream of events, and
/// tokens that are listed one by one.
fn times_in_body(finder: &SecretFinder, body: &[u8]) -> BTreeMap<FoundSecret, u64> {
    let mut times = BTreeMap::<FoundSecret, u64>::new();
    let editor = SecretEditor { finder, ids: None };
    // A text is in the whole of its body as well.
    editor.each_text(body, |text| {
        for (secret, count) in times_in(finder, text) {
            let most = times.entry(secret).or_default();
            *most = count.max(*most);
        }
    });
    let plain = times.keys().filter(|one| !one.is_escaped()).map(|one| one.secret.clone());
    let plain: BTreeSet<Vec<u8>> = plain.collect();
    // What JSON escapes in the whole is plain in its text.
    times.retain(|one, _| !one.is_escaped() || !plain.contains(&one.secret));
    times
}

/// The ids of a prompt that the one before it has not, and some in front of them.
fn new_ids<'a>(before: &[u32], prompt: &'a [u32]) -> &'a [u32] {
    let same = before.iter().zip(prompt).take_while(|(one, other)| one == other).count();
    &prompt[same.saturating_sub(IDS_AGAIN)..]
}

fn has_some_ids(call: &Call) -> bool {
    call.ended.as_ref().is_some_and(|ended| {
        !ended.prompts.is_empty() || ended.choices.iter().any(|choice| choice.token_ids.is_some())
    })
}

impl SecretPlace {
    fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Body => "body",
            Self::Ids => "ids",
            Self::Comment => "comment",
        }
    }
}

impl SecretPlaces {
    fn words(&self) -> Vec<&'static str> {
        self.places.iter().map(|place| place.as_str()).collect()
    }
}

fn as_text(attempt: &AttemptRecord, secret: &FoundSecret, found: &SecretPlaces) -> String {
    let (id, number) = (&attempt.id, attempt.attempt);
    let (kind, told, places) = (&secret.kind, secret.told(), found.words().join(", "));
    let times = print::count(found.times, "time");
    format!("{id}/{number}: {kind} {told}, {times} in {places}, first in call {}", found.first_call)
}

fn as_json(attempt: &AttemptRecord, secret: &FoundSecret, found: &SecretPlaces) -> String {
    json!({
        "episode_id": attempt.id.to_string(),
        "attempt": attempt.attempt,
        "kind": secret.kind,
        "begins": secret.told(),
        "places": found.words(),
        "times": found.times,
        "first_call": found.first_call,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_pieces_of_a_stream_is_found_once() {
        let finder = SecretFinder::usual().unwrap();
        let key = format!("sk-ant-api03-{}", "a1B2c3D4e5".repeat(4));
        let stream = |event: fn(&str) -> String| {
            let pieces = key.as_bytes().chunks(7);
            pieces.map(|piece| event(std::str::from_utf8(piece).unwrap())).collect::<String>()
        };
        let said = |text: &str| {
            format!(
                "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
            )
        };
        let listed = |text: &str| format!("data: {{\"logprobs\":[{{\"token\":\"{text}\"}}]}}\n\n");
        for body in [stream(said), stream(listed), format!("{{\"a\":\"{key}\"}}")] {
            let found = times_in_body(&finder, body.as_bytes());
            let found: Vec<_> = found.iter().map(|(one, times)| (&*one.kind, *times)).collect();
            assert_eq!(found, [("Anthropic key", 1)], "{body}");
        }
        let escaped = key.replace('a', "\\u0061");
        let found = times_in_body(&finder, format!("{{\"a\":\"{escaped}\"}}").as_bytes());
        assert_eq!(found.keys().map(|one| &*one.kind).collect::<Vec<_>>(), ["Anthropic key"]);
    }

    #[test]
    fn what_is_new_of_a_prompt_is_read_with_what_stands_before_it() {
        let before: Vec<u32> = (0..300).collect();
        let mut longer = before.clone();
        longer.extend([7, 8]);
        assert_eq!(new_ids(&before, &longer), &longer[300 - IDS_AGAIN..]);
        assert_eq!(new_ids(&[], &longer), longer);
        assert_eq!(new_ids(&[9], &longer), longer);
    }
}
