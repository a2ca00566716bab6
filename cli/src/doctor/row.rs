//! What one probe showed.

use std::collections::BTreeSet;

use episode::{Fidelity, Outcome, Route, TokenCounts};
use proxy::Reply;
use serde_json::{Value, json};
use wire::{Difference, Probe, counts, error_text};

/// Longest word of the server that is shown, in characters.
const ERROR_CHARS_MAX: usize = 160;

/// One probe and what came of it.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) probe: Probe,
    pub(super) how: How,
    pub(super) status: Option<u16>,
    /// Sampled ids, where the server told them.
    pub(super) ids: Option<usize>,
    pub(super) fidelity: Fidelity,
    /// Sampled tokens with a logprob.
    pub(super) logprobs: usize,
    pub(super) prompt_ids: Option<usize>,
    pub(super) versions: Vec<String>,
    /// The counts that the agent is told.
    pub(super) counts: TokenCounts,
    /// Whether the counts that the agent is told are those of the ids; `None` where either is not
    /// told.
    pub(super) counts_agree: Option<bool>,
    pub(super) hidden: Hidden,
    pub(super) finish_reason: Option<String>,
    /// What went wrong.
    pub(super) error: Option<String>,
    /// Why the server was not asked for all.
    pub(super) unasked: Option<String>,
    /// Whether the server refused to be asked, and answered without.
    pub(super) declined: bool,
    /// Whether the server fails when it is asked, and answers when it is not.
    pub(super) refused_asked: bool,
}

/// How the call went upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Native,
    Translated,
    NotOffered,
}

/// Whether the reply with what was asked for taken out is the one that nobody asked more of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hidden {
    /// There is nothing to compare.
    Unknown,
    NothingAsked,
    Equal,
    /// The same words in the same kinds of frames, cut at other places.
    Chunked,
    NotRepeatable,
    Differs(Difference),
}

/// `chat, streamed, with a tool`.
pub(super) fn name(probe: Probe) -> String {
    let streamed = if probe.streams { ", streamed" } else { "" };
    let tool = if probe.tools { ", with a tool" } else { "" };
    format!("{}{streamed}{tool}", probe.route.as_str())
}

/// The rows by name: a wire alone where all of its rows are meant.
pub(super) fn names(rows: &[&Row]) -> String {
    let mut named = Vec::new();
    for route in [Route::Chat, Route::Completions, Route::Responses, Route::Messages] {
        let of_route: Vec<_> = rows.iter().filter(|row| row.probe.route == route).collect();
        let all = if route == Route::Completions { 2 } else { 4 };
        let pick = |key: fn(&Row) -> bool| of_route.iter().map(|r| key(r)).collect::<BTreeSet<_>>();
        let only = |set: &BTreeSet<bool>, yes| set.len() == 1 && set.contains(&yes);
        let (streams, tools) = (pick(|row| row.probe.streams), pick(|row| row.probe.tools));
        match of_route.len() {
            0 => {}
            n if n == all => named.push(route.as_str().to_owned()),
            2 if only(&tools, true) => named.push(format!("{} with a tool", route.as_str())),
            2 if only(&tools, false) => named.push(format!("{} without a tool", route.as_str())),
            2 if only(&streams, true) => named.push(format!("{}, streamed", route.as_str())),
            2 if only(&streams, false) => named.push(format!("{}, not streamed", route.as_str())),
            _ => named.extend(of_route.iter().map(|row| name(row.probe))),
        }
    }
    named.join("; ")
}

impl Row {
    /// A row of which nothing is known yet.
    pub(super) fn new(probe: Probe) -> Self {
        Self {
            probe,
            how: How::Native,
            status: None,
            ids: None,
            fidelity: Fidelity::default(),
            logprobs: 0,
            prompt_ids: None,
            versions: Vec::new(),
            counts: TokenCounts::default(),
            counts_agree: None,
            hidden: Hidden::Unknown,
            finish_reason: None,
            error: None,
            unasked: None,
            declined: false,
            refused_asked: false,
        }
    }

    /// There is no whole reply.
    pub(super) fn failed(&mut self, why: String) {
        self.error = Some(why);
    }

    /// Takes the reply to the call that was asked as an agent's is. `model` is the one that was
    /// named: a server that does not know it may say so with the status of an unknown path.
    pub(super) fn saw(&mut self, reply: &Reply, model: &str) {
        let ended = &reply.ended;
        self.status = ended.status;
        self.unasked.clone_from(&ended.unasked);
        self.declined = reply.declined;
        let no_route = matches!(ended.status, Some(404 | 405 | 501));
        let names_model = String::from_utf8_lossy(&ended.reply).contains(model);
        self.how = match (ended.translated.is_some(), no_route && !names_model) {
            (_, true) => How::NotOffered,
            (true, false) => How::Translated,
            (false, false) => How::Native,
        };
        if ended.outcome != Outcome::Complete {
            let told = ended.error.clone().unwrap_or_else(|| error_text(&ended.reply));
            let status = ended.status.filter(|status| *status >= 400).map(|s| s.to_string());
            self.error = Some(short(&format!("{} {told}", status.unwrap_or_default())));
            return;
        }
        self.prompt_ids = ended.prompts.first().map(Vec::len);
        if let Some(choice) = ended.choices.first() {
            self.ids = choice.token_ids.as_ref().map(Vec::len);
            self.fidelity = choice.fidelity;
            self.logprobs = choice.logprobs.iter().filter(|logprob| !logprob.is_nan()).count();
            self.versions = choice.versions.iter().map(|span| span.version.clone()).collect();
            self.finish_reason.clone_from(&choice.finish_reason);
        }
        // Counted from the reply that the agent is shown, which has no ids, so that none of them is
        // our own count.
        self.counts = counts(self.probe.route, &ended.reply);
        let same = |told: Option<u64>, ids: Option<usize>| Some(told? == ids? as u64);
        let prompt = same(self.counts.prompt, self.prompt_ids);
        let sampled = same(self.counts.completion, self.ids);
        self.counts_agree = sampled.map(|same| same && prompt.unwrap_or(true));
    }

    /// Whether there is a whole reply to look into.
    pub(super) fn answered(&self) -> bool {
        self.how != How::NotOffered && self.error.is_none()
    }

    /// Whether a reply that began well did not end well.
    pub(super) fn broke_off(&self) -> bool {
        self.error.is_some() && self.status.is_some_and(|status| status < 400)
    }

    /// Whether the wire is there, in whatever state.
    pub(super) fn offered(&self) -> bool {
        self.how != How::NotOffered
    }

    /// Whether a trainer has all it needs of such calls.
    pub(super) fn is_exact(&self) -> bool {
        self.has_ids() && self.has_logprobs() && self.prompt_ids.is_some() && self.counts_fit()
    }

    pub(super) fn has_ids(&self) -> bool {
        self.ids.is_some() && self.fidelity == Fidelity::Exact
    }

    pub(super) fn has_logprobs(&self) -> bool {
        self.ids == Some(self.logprobs)
    }

    /// Whether it is not said which weights sampled the tokens.
    pub(super) fn is_unversioned(&self) -> bool {
        self.answered() && self.ids.is_some() && self.versions.is_empty()
    }

    pub(super) fn counts_fit(&self) -> bool {
        self.counts_agree != Some(false)
    }

    /// The row as JSON.
    pub(super) fn as_json(&self) -> Value {
        let difference = match &self.hidden {
            Hidden::Differs(found) => json!({
                "at": found.at, "unasked": found.one, "hidden": found.other }),
            _ => Value::Null,
        };
        json!({
            "wire": self.probe.route.as_str(),
            "stream": self.probe.streams,
            "tools": self.probe.tools,
            "how": self.how.as_str(),
            "status": self.status,
            "ids": self.ids,
            "fidelity": self.ids.map(|_| self.fidelity.as_str()),
            "logprobs": self.logprobs,
            "prompt_ids": self.prompt_ids,
            "versions": self.versions,
            "usage": { "prompt": self.counts.prompt, "completion": self.counts.completion },
            "usage_agrees": self.counts_agree,
            "hidden_reply": self.hidden.as_str(),
            "difference": difference,
            "finish_reason": self.finish_reason,
            "error": self.error,
            "unasked": self.unasked,
            "refused_asked": self.refused_asked,
            "declined": self.declined,
            "exact": self.is_exact(),
        })
    }
}

impl How {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Translated => "as chat",
            Self::NotOffered => "not there",
        }
    }
}

impl Hidden {
    pub(super) fn differs(&self) -> bool {
        matches!(self, Self::Differs(_))
    }

    /// The word for it.
    pub(super) fn as_str(&self) -> Option<&'static str> {
        match self {
            Self::Unknown => None,
            Self::NothingAsked => Some("nothing asked"),
            Self::Equal => Some("equal"),
            Self::Chunked => Some("other chunks"),
            Self::NotRepeatable => Some("not repeatable"),
            Self::Differs(_) => Some("differs"),
        }
    }
}

fn short(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &one_line[..end]),
        None => one_line,
    }
}

#[cfg(test)]
mod tests {
    use episode::{Choice, Ended, VersionSpan};

    use super::*;
    use crate::doctor::tests::reply;

    const CHAT: Probe = Probe { route: Route::Chat, streams: false, tools: false };

    fn seen(change: impl FnOnce(&mut Ended)) -> Row {
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        let mut reply = reply(usage);
        reply.ended.prompts = vec![vec![1, 2, 3]];
        reply.ended.choices = vec![Choice {
            token_ids: Some(vec![4, 5]),
            logprobs: vec![-0.5, -0.25],
            versions: vec![VersionSpan { version: "7".to_owned(), start: 0, end: 2 }],
            ..Choice::default()
        }];
        change(&mut reply.ended);
        let mut row = Row::new(CHAT);
        row.saw(&reply, "the-model");
        row
    }

    #[test]
    fn a_row_is_exact_when_nothing_is_missing() {
        assert!(seen(|_| {}).is_exact());
        assert!(!seen(|e| e.prompts.clear()).is_exact());
        assert!(!seen(|e| e.prompts[0].push(9)).is_exact());
        assert!(!seen(|e| e.choices[0].token_ids = None).is_exact());
        assert!(!seen(|e| e.choices[0].token_ids = Some(vec![4])).is_exact());
        assert!(!seen(|e| e.choices[0].logprobs[1] = f32::NAN).is_exact());
        assert!(!seen(|e| e.choices[0].fidelity = Fidelity::Mapped).is_exact());
        assert!(seen(|e| e.choices[0].versions.clear()).is_exact());
        assert_eq!(seen(|e| e.reply = bytes::Bytes::new()).counts_agree, None);
    }

    #[test]
    fn a_model_that_is_not_there_is_no_route_that_is_not_there() {
        let refused = |text: &'static str| {
            seen(|e| {
                e.status = Some(404);
                e.outcome = Outcome::Refused;
                e.reply = bytes::Bytes::from_static(text.as_bytes());
            })
        };
        assert_eq!(refused(r#"{"detail":"Not Found"}"#).how, How::NotOffered);
        let row = refused(r#"{"error":{"message":"The model `the-model` does not exist."}}"#);
        assert_eq!(row.how, How::Native);
        assert_eq!(row.error.as_deref(), Some("404 The model `the-model` does not exist."));
    }
}
