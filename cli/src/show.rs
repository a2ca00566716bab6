//! `rolltape show`: an episode as a tree of turns.

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;

use episode::{Call, CallId, EpisodeId, Kind, Outcome};
use exporter::Link;
use serde_json::{Value, json};
use store::{Selection, Snapshot, Summary};

use crate::at::At;
use crate::exit::{Done, Failure};
use crate::show_versions::{Weights, by};
use crate::words;
use crate::{print, show_call};

/// Longest piece of a message that is shown, in characters.
const TEXT_CHARS_MAX: usize = 60;

/// Draw an episode as a tree of turns
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The episode
    episode: EpisodeId,
    /// Which run of the episode; the newest if not given
    #[arg(long)]
    attempt: Option<u32>,
    #[command(flatten)]
    at: At,
    /// One JSON object a turn
    #[arg(long)]
    json: bool,
    /// One call of the episode whole, as one JSON object
    #[arg(long, value_name = "CALL", value_parser = words::call_id)]
    call: Option<CallId>,
}

/// Draws.
pub(crate) async fn run(args: Args) -> Done {
    let mut snapshot = Snapshot::open(&args.at.store).await?;
    let only = Selection { episode: Some(args.episode.clone()), ..Selection::default() };
    let attempts = snapshot.summaries(&only).await?;
    let wanted = |s: &&Summary| args.attempt.is_none_or(|attempt| s.episode.attempt == attempt);
    let Some(summary) = attempts.iter().rfind(wanted) else {
        return Err(Failure::new(format!("no episode `{}` in the store", args.episode))
            .hint("`rolltape episodes` lists what it holds"));
    };
    if let Some(call_id) = args.call {
        return show_call::run(&mut snapshot, &args.episode, call_id).await;
    }
    let weights = Weights(snapshot.versions().await?);
    let calls = snapshot.calls(&summary.episode).await?;
    let (links, _) = exporter::links(&calls);
    let tree = Tree::new(&calls, &links);
    if args.json {
        let line = |link: &Link| print::line(&tree.as_json(link, &weights).to_string());
        links.iter().try_for_each(line)?;
    } else {
        print::line(&head(summary))?;
        tree.draw()?;
        weights.lines(&calls).iter().try_for_each(|line| print::line(line))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn head(summary: &Summary) -> String {
    let episode = &summary.episode;
    let mut parts = vec![format!("{} attempt {}", episode.id, episode.attempt)];
    parts.extend(episode.group.as_ref().map(|group| format!("group {group}")));
    parts.extend(episode.task.as_ref().map(|task| format!("task {task}")));
    parts.push(print::count(summary.calls, "call"));
    parts.push(format!("{} sampled tokens", summary.completion_tokens));
    parts.push(format!("reward {}", print::reward(summary.reward)));
    parts.join(" | ")
}

/// A turn: a call and one of its choices.
type Key = (CallId, u32);

/// Turns by what they continue.
struct Tree<'a> {
    calls: HashMap<CallId, (usize, &'a Call)>,
    children: BTreeMap<Option<Key>, Vec<&'a Link>>,
    /// Calls that no turn stands for: plain exchanges, and those without a token or an end.
    bare: Vec<&'a Call>,
}

impl<'a> Tree<'a> {
    fn new(calls: &'a [Call], links: &'a [Link]) -> Self {
        let mut children: BTreeMap<Option<Key>, Vec<&Link>> = BTreeMap::new();
        for link in links {
            children.entry(link.parent).or_default().push(link);
        }
        let drawn = |call: &&Call| links.iter().any(|l| l.call_id == call.begun.call_id);
        Self {
            calls: calls.iter().enumerate().map(|(n, c)| (c.begun.call_id, (n + 1, c))).collect(),
            children,
            bare: calls.iter().filter(|call| !drawn(call)).collect(),
        }
    }

    fn draw(&self) -> Result<(), Failure> {
        self.draw_below(None, "")?;
        for call in &self.bare {
            let ended = call.ended.as_ref();
            let status = ended.and_then(|e| e.status).map_or("-".to_owned(), |s| s.to_string());
            let (number, _) = self.calls[&call.begun.call_id];
            print::line(&format!(
                "#{number} {} {} -> {status} {}",
                call.begun.method,
                call.begun.path,
                ended.map_or("no end: the recorder died", |e| e.outcome.as_str())
            ))?;
        }
        Ok(())
    }

    /// A history without forks stays flush left; only forks indent.
    fn draw_below(&self, parent: Option<Key>, indent: &str) -> Result<(), Failure> {
        let mut parent = parent;
        loop {
            let children = self.children.get(&parent).map_or(&[][..], Vec::as_slice);
            match children {
                [] => return Ok(()),
                [only] => {
                    print::line(&format!("{indent}{}", self.turn(only)))?;
                    parent = Some((only.call_id, only.choice));
                }
                many => {
                    for (at, child) in many.iter().enumerate() {
                        let last = at + 1 == many.len();
                        let (branch, below) = if last { ("`- ", "   ") } else { ("|- ", "|  ") };
                        print::line(&format!("{indent}{branch}{}", self.turn(child)))?;
                        let key = Some((child.call_id, child.choice));
                        self.draw_below(key, &format!("{indent}{below}"))?;
                    }
                    return Ok(());
                }
            }
        }
    }

    fn turn(&self, link: &Link) -> String {
        let (number, call) = self.calls[&link.call_id];
        let (heard, said) = words(call, link.choice);
        let choice = if link.choice > 0 { format!(".{}", link.choice) } else { String::new() };
        let reasons: Vec<_> = link.reasons.iter().map(|reason| reason.as_str()).collect();
        let notes =
            if reasons.is_empty() { String::new() } else { format!("  ! {}", reasons.join(", ")) };
        let (kind, cue) = link.kind;
        let kind = match kind {
            Kind::Main => String::new(),
            other => format!(" {} ({})", other.as_str(), cue.as_str()),
        };
        format!(
            "#{number}{choice}{kind} +{} prompt +{} sampled{}{}  {heard} -> {said}{notes}",
            link.new_prompt,
            link.sampled,
            by(call, link.choice),
            timing(call)
        )
    }

    fn as_json(&self, link: &Link, weights: &Weights) -> Value {
        let (_, call) = self.calls[&link.call_id];
        let (heard, said) = words(call, link.choice);
        let reasons: Vec<_> = link.reasons.iter().map(|reason| reason.as_str()).collect();
        json!({
            "call_id": link.call_id.to_string(),
            "choice": link.choice,
            "parent": link.parent.map(|(call, choice)| json!({
                "call_id": call.to_string(), "choice": choice })),
            "kind": link.kind.0.as_str(),
            "kind_reason": link.kind.1.as_str(),
            "new_prompt_tokens": link.new_prompt,
            "sampled_tokens": link.sampled,
            "trained_tokens": link.trained,
            "versions": weights.spans(call, link.choice),
            "outcome": call.ended.as_ref().map(|e| e.outcome.as_str()),
            "heard": heard,
            "said": said,
            "reasons": reasons,
        })
    }
}

fn timing(call: &Call) -> String {
    match &call.ended {
        None => String::new(),
        Some(ended) => {
            let ms = (ended.ended_at - call.begun.started_at) as f64 / 1e3;
            let outcome = match ended.outcome {
                Outcome::Complete => String::new(),
                other => format!(" {}", other.as_str()),
            };
            format!(" {ms:.0} ms{outcome}")
        }
    }
}

/// The newest message that the model was given, and what it answered.
fn words(call: &Call, choice: u32) -> (String, String) {
    let sent = wire::conversation(call.begun.route, &call.begun.request);
    let heard = sent.and_then(|c| c.messages.last().map(message)).unwrap_or_default();
    let reply = call.ended.as_ref().map(|e| wire::answers(call.begun.route, &e.reply));
    let answer = reply.unwrap_or_default().into_iter().find(|answer| answer.index == choice);
    let said = answer.map(|answer| message(&answer.message)).unwrap_or_default();
    (heard, said)
}

fn message(message: &Value) -> String {
    let role = message.get("role").and_then(Value::as_str).unwrap_or("?");
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let calls: Vec<String> = calls.filter_map(tool_call).collect();
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    };
    let said = if calls.is_empty() { format!("{role}: {content}") } else { calls.join(" ") };
    short(&said)
}

fn tool_call(call: &Value) -> Option<String> {
    let function = call.get("function")?;
    let arguments = function.get("arguments").and_then(Value::as_str).unwrap_or("");
    Some(format!("{}({arguments})", function.get("name")?.as_str()?))
}

fn short(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &one_line[..end]),
        None => one_line,
    }
}
