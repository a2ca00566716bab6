//! An episode's turns as a tree, drawn or as JSON.

use std::collections::{BTreeMap, HashMap};

use episode::{Call, CallId, Outcome, TrajectoryKind};
use exporter::ChoiceLink;
use serde_json::{Value, json};

use super::messages::exchange;
use super::versions::{VersionTable, versions_suffix};
use crate::exit::Failure;
use crate::print;

/// A turn: a call and one of its choices.
type TurnId = (CallId, u32);

/// An episode's turns, by the turn that each continues.
pub(super) struct TurnTree<'a> {
    calls: HashMap<CallId, NumberedCall<'a>>,
    children: BTreeMap<Option<TurnId>, Vec<&'a ChoiceLink>>,
    /// Calls without a turn: plain exchanges, and calls without a token or an end.
    bare: Vec<&'a Call>,
}

/// A call and its number in the drawing, from 1.
struct NumberedCall<'a> {
    number: usize,
    call: &'a Call,
}

impl<'a> TurnTree<'a> {
    pub(super) fn new(calls: &'a [Call], links: &'a [ChoiceLink]) -> Self {
        let mut children: BTreeMap<Option<TurnId>, Vec<&ChoiceLink>> = BTreeMap::new();
        for link in links {
            children.entry(link.parent).or_default().push(link);
        }

        let numbered = calls
            .iter()
            .zip(1..)
            .map(|(call, number)| (call.begun.call_id, NumberedCall { number, call }))
            .collect();
        let bare = calls
            .iter()
            .filter(|call| links.iter().all(|link| link.call_id != call.begun.call_id))
            .collect();
        Self { calls: numbered, children, bare }
    }

    /// Prints the tree, then the calls without a turn.
    pub(super) fn draw(&self) -> Result<(), Failure> {
        self.draw_below(None, "")?;

        for call in &self.bare {
            let ended = call.ended.as_ref();
            let status = ended.and_then(|e| e.status).map_or("-".to_owned(), |s| s.to_string());
            print::line(&format!(
                "#{} {} {} -> {status} {}",
                self.calls[&call.begun.call_id].number,
                call.begun.method,
                call.begun.path,
                ended.map_or("no end: the recorder died", |e| e.outcome.as_str())
            ))?;
        }
        Ok(())
    }

    /// Draws the turns below `parent`. A history without forks stays flush left; only forks indent.
    fn draw_below(&self, mut parent: Option<TurnId>, indent: &str) -> Result<(), Failure> {
        loop {
            let children = self.children.get(&parent).map_or(&[][..], Vec::as_slice);
            match children {
                [] => return Ok(()),
                // A loop, not a recursion: a history may have thousands of turns.
                [only] => {
                    print::line(&format!("{indent}{}", self.turn_line(only)))?;
                    parent = Some((only.call_id, only.choice));
                }
                forks => return self.draw_forks(forks, indent),
            }
        }
    }

    fn draw_forks(&self, forks: &[&ChoiceLink], indent: &str) -> Result<(), Failure> {
        for (at, child) in forks.iter().enumerate() {
            let is_last = at + 1 == forks.len();
            let (branch, below) = if is_last { ("`- ", "   ") } else { ("|- ", "|  ") };
            print::line(&format!("{indent}{branch}{}", self.turn_line(child)))?;
            self.draw_below(Some((child.call_id, child.choice)), &format!("{indent}{below}"))?;
        }
        Ok(())
    }

    fn turn_line(&self, link: &ChoiceLink) -> String {
        let NumberedCall { number, call } = &self.calls[&link.call_id];
        let choice = if link.choice > 0 { format!(".{}", link.choice) } else { String::new() };
        let kind = match link.kind {
            (TrajectoryKind::Main, _) => String::new(),
            (kind, reason) => format!(" {} ({})", kind.as_str(), reason.as_str()),
        };
        let versions = versions_suffix(call, link.choice);
        let (heard, said) = exchange(call, link.choice);

        let reasons: Vec<_> = link.reasons.iter().map(|reason| reason.as_str()).collect();
        let notes = match reasons.is_empty() {
            true => String::new(),
            false => format!("  ! {}", reasons.join(", ")),
        };
        format!(
            "#{number}{choice}{kind} +{} prompt +{} sampled{versions}{}  {heard} -> {said}{notes}",
            link.new_prompt,
            link.sampled,
            timing(call)
        )
    }

    /// A turn as one JSON object.
    pub(super) fn turn_json(&self, link: &ChoiceLink, versions: &VersionTable) -> Value {
        let call = self.calls[&link.call_id].call;
        let (heard, said) = exchange(call, link.choice);
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
            "versions": versions.spans_json(call, link.choice),
            "outcome": call.ended.as_ref().map(|e| e.outcome.as_str()),
            "heard": heard,
            "said": said,
            "reasons": reasons,
        })
    }
}

/// A call's duration, and its outcome if that is not `complete`.
fn timing(call: &Call) -> String {
    let Some(ended) = &call.ended else { return String::new() };
    let ms = (ended.ended_at - call.begun.started_at) as f64 / 1e3;
    match ended.outcome {
        Outcome::Complete => format!(" {ms:.0} ms"),
        other => format!(" {ms:.0} ms {}", other.as_str()),
    }
}
