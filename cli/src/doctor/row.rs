//! The result of one probe.

use episode::{Fidelity, Outcome, Route, TokenCounts};
use proxy::ClientReply;
use serde_json::{Value, json};
use wire::{Difference, Probe, error_text, token_counts};

/// Longest error text that is shown, in characters.
const ERROR_CHARS_MAX: usize = 160;

/// One probe and its result.
#[derive(Debug, Clone)]
pub(super) struct ProbeRow {
    pub(super) probe: Probe,
    pub(super) served: ServedAs,
    pub(super) status: Option<u16>,
    /// Number of sampled ids, if the server reported them.
    pub(super) ids: Option<usize>,
    pub(super) fidelity: Fidelity,
    /// Number of sampled tokens with a logprob.
    pub(super) logprobs: usize,
    pub(super) prompt_ids: Option<usize>,
    pub(super) versions: Vec<String>,
    /// The token counts in the reply that the agent gets.
    pub(super) counts: TokenCounts,
    /// True if these counts are those of the ids; `None` if either is missing.
    pub(super) counts_agree: Option<bool>,
    pub(super) hidden: HiddenReply,
    pub(super) finish_reason: Option<String>,
    /// The error, if there is no complete reply.
    pub(super) error: Option<String>,
    /// The reason why not everything was asked for.
    pub(super) unasked: Option<String>,
    /// True if the server refused the added fields and answered without them.
    pub(super) declined: bool,
    /// True if the server fails with the added fields and answers without them.
    pub(super) refused_asked: bool,
}

/// The form in which the call went upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServedAs {
    Native,
    Translated,
    NotOffered,
}

/// The comparison of the hidden reply (without what was asked for) with plain replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HiddenReply {
    /// There are no replies to compare.
    Unknown,
    NothingAsked,
    Equal,
    /// The same text in the same kinds of frames, split at other places.
    Chunked,
    NotRepeatable,
    Differs(Difference),
}

/// The name of a probe: `chat, streamed, with a tool`.
pub(super) fn name(probe: Probe) -> String {
    let streamed = if probe.streams { ", streamed" } else { "" };
    let tool = if probe.tools { ", with a tool" } else { "" };
    format!("{}{streamed}{tool}", probe.route.as_str())
}

/// The names of rows. A wire whose rows are all there is named once.
pub(super) fn names(rows: &[&ProbeRow]) -> String {
    let mut names = Vec::new();
    for route in [Route::Chat, Route::Completions, Route::Responses, Route::Messages] {
        let of_route: Vec<Probe> =
            rows.iter().map(|row| row.probe).filter(|probe| probe.route == route).collect();
        // Completions take no tools, so they have half as many probes.
        let all = if route == Route::Completions { 2 } else { 4 };
        let word = route.as_str();

        match of_route.as_slice() {
            [] => {}
            probes if probes.len() == all => names.push(word.to_owned()),
            [a, b] if a.tools && b.tools => names.push(format!("{word} with a tool")),
            [a, b] if !a.tools && !b.tools => names.push(format!("{word} without a tool")),
            [a, b] if a.streams && b.streams => names.push(format!("{word}, streamed")),
            [a, b] if !a.streams && !b.streams => names.push(format!("{word}, not streamed")),
            probes => names.extend(probes.iter().map(|probe| name(*probe))),
        }
    }
    names.join("; ")
}

/// Compares a reported count with the number of ids; `None` if either is missing.
fn equal(reported: Option<u64>, ids: Option<usize>) -> Option<bool> {
    Some(reported? == ids? as u64)
}

impl ProbeRow {
    /// A row without a result.
    pub(super) fn new(probe: Probe) -> Self {
        Self {
            probe,
            served: ServedAs::Native,
            status: None,
            ids: None,
            fidelity: Fidelity::default(),
            logprobs: 0,
            prompt_ids: None,
            versions: Vec::new(),
            counts: TokenCounts::default(),
            counts_agree: None,
            hidden: HiddenReply::Unknown,
            finish_reason: None,
            error: None,
            unasked: None,
            declined: false,
            refused_asked: false,
        }
    }

    /// Records that there is no complete reply.
    pub(super) fn fail(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Records the reply to a call with the added fields. `model` is the model of the request: a
    /// server that does not have it may answer with the status of an unknown path.
    pub(super) fn record(&mut self, reply: &ClientReply, model: &str) {
        let ended = &reply.ended;
        self.status = ended.status;
        self.unasked.clone_from(&ended.unasked);
        self.declined = reply.declined;

        let no_route = matches!(ended.status, Some(404 | 405 | 501));
        // A 404 may be about the route or about the model; only the error's text tells.
        let names_model = String::from_utf8_lossy(&ended.reply.read()).contains(model);
        self.served = match (ended.translated.is_some(), no_route && !names_model) {
            (_, true) => ServedAs::NotOffered,
            (true, false) => ServedAs::Translated,
            (false, false) => ServedAs::Native,
        };

        if ended.outcome != Outcome::Complete {
            let error = ended.error.clone().unwrap_or_else(|| error_text(&ended.reply.read()));
            let status = ended.status.filter(|status| *status >= 400).map(|s| s.to_string());
            self.error = Some(shorten(&format!("{} {error}", status.unwrap_or_default())));
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

        // Read from the agent's reply: it has no ids, so the counts cannot come from them.
        self.counts = token_counts(self.probe.route, &ended.reply.read());
        let prompt = equal(self.counts.prompt, self.prompt_ids);
        let sampled = equal(self.counts.completion, self.ids);
        self.counts_agree = sampled.map(|equal| equal && prompt.unwrap_or(true));
    }

    /// True if there is a complete reply.
    pub(super) fn answered(&self) -> bool {
        self.served != ServedAs::NotOffered && self.error.is_none()
    }

    /// True if a reply began without an error and then failed.
    pub(super) fn broke_off(&self) -> bool {
        self.error.is_some() && self.status.is_some_and(|status| status < 400)
    }

    /// True if the server has the route, even if it fails.
    pub(super) fn offered(&self) -> bool {
        self.served != ServedAs::NotOffered
    }

    /// True if such calls have everything that a trainer needs.
    pub(super) fn is_exact(&self) -> bool {
        self.has_ids() && self.has_logprobs() && self.prompt_ids.is_some() && self.counts_fit()
    }

    pub(super) fn has_ids(&self) -> bool {
        self.ids.is_some() && self.fidelity == Fidelity::Exact
    }

    pub(super) fn has_logprobs(&self) -> bool {
        self.ids == Some(self.logprobs)
    }

    /// True if the server does not report which weights sampled the tokens.
    pub(super) fn is_unversioned(&self) -> bool {
        self.answered() && self.ids.is_some() && self.versions.is_empty()
    }

    pub(super) fn counts_fit(&self) -> bool {
        self.counts_agree != Some(false)
    }

    /// The row as JSON.
    pub(super) fn as_json(&self) -> Value {
        let difference = match &self.hidden {
            HiddenReply::Differs(found) => json!({
                "at": found.at, "unasked": found.one, "hidden": found.other }),
            _ => Value::Null,
        };

        json!({
            "wire": self.probe.route.as_str(),
            "stream": self.probe.streams,
            "tools": self.probe.tools,
            "how": self.served.as_str(),
            "status": self.status,
            "ids": self.ids,
            // Without ids there is nothing whose origin could be named.
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

impl ServedAs {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Translated => "as chat",
            Self::NotOffered => "not there",
        }
    }
}

impl HiddenReply {
    pub(super) fn differs(&self) -> bool {
        matches!(self, Self::Differs(_))
    }

    /// The word of the report.
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

fn shorten(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &one_line[..end]),
        None => one_line,
    }
}

#[cfg(test)]
mod tests {
    use episode::{CallEnd, Choice, VersionSpan};

    use episode::Body;

    use super::*;
    use crate::doctor::prober::tests::reply;

    const CHAT: Probe = Probe { route: Route::Chat, streams: false, tools: false };

    fn recorded(change: impl FnOnce(&mut CallEnd)) -> ProbeRow {
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
        let mut row = ProbeRow::new(CHAT);
        row.record(&reply, "the-model");
        row
    }

    #[test]
    fn a_row_is_exact_when_nothing_is_missing() {
        assert!(recorded(|_| {}).is_exact());
        assert!(!recorded(|e| e.prompts.clear()).is_exact());
        assert!(!recorded(|e| e.prompts[0].push(9)).is_exact());
        assert!(!recorded(|e| e.choices[0].token_ids = None).is_exact());
        assert!(!recorded(|e| e.choices[0].token_ids = Some(vec![4])).is_exact());
        assert!(!recorded(|e| e.choices[0].logprobs[1] = f32::NAN).is_exact());
        assert!(!recorded(|e| e.choices[0].fidelity = Fidelity::Mapped).is_exact());
        assert!(recorded(|e| e.choices[0].versions.clear()).is_exact());
        assert_eq!(recorded(|e| e.reply = Body::default()).counts_agree, None);
    }

    #[test]
    fn a_model_that_is_not_there_is_no_route_that_is_not_there() {
        let refused = |text: &'static str| {
            recorded(|e| {
                e.status = Some(404);
                e.outcome = Outcome::Refused;
                e.reply = text.into();
            })
        };
        assert_eq!(refused(r#"{"detail":"Not Found"}"#).served, ServedAs::NotOffered);
        let row = refused(r#"{"error":{"message":"The model `the-model` does not exist."}}"#);
        assert_eq!(row.served, ServedAs::Native);
        assert_eq!(row.error.as_deref(), Some("404 The model `the-model` does not exist."));
    }
}
