//! What is wrong with a recorded episode, and why its history forked.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ::episode::{Call, CallId, EpisodeId};
use exporter::{Cause, Diagnosis, Dropped, Fork};
use serde_json::{Value, json};
use store::{Selection, Snapshot, Summary};

use super::Args;
use crate::exit::{Done, Failure};
use crate::print;

/// Columns that a page has.
const WIDTH: usize = 100;
/// Calls that are named of each reason.
const CALLS_MAX: usize = 8;

/// Reads and tells.
pub(super) async fn run(id: &EpisodeId, args: &Args) -> Done {
    let mut snapshot = Snapshot::open(&args.at.store).await?;
    let only = Selection { episode: Some(id.clone()), ..Selection::default() };
    let attempts = snapshot.summaries(&only).await?;
    let wanted = |s: &&Summary| args.attempt.is_none_or(|attempt| s.episode.attempt == attempt);
    let Some(summary) = attempts.into_iter().rfind(|s| wanted(&s)) else {
        let attempt = args.attempt.map(|n| format!(" with attempt {n}")).unwrap_or_default();
        return Err(Failure::new(format!("no episode `{id}`{attempt} in the store"))
            .hint("`rolltape episodes` lists what it holds"));
    };
    let record = summary.episode;
    let name = (record.id.to_string(), record.attempt);
    let calls = snapshot.calls(&record).await?;
    let numbers = numbers(&calls);
    let found = match args.speech.tokenizer() {
        Some(path) => exporter::diagnose_with(path, record, calls).map_err(|e| Failure::of(&e))?,
        None => exporter::diagnose(record, calls),
    };
    let report = Report { name, numbers, found };
    if args.json {
        print::line(&report.as_json().to_string())?;
    } else {
        report.page().iter().try_for_each(|text| print::line(text))?;
    }
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Calls as `rolltape show` numbers them.
fn numbers(calls: &[Call]) -> BTreeMap<String, usize> {
    calls.iter().zip(1..).map(|(call, n)| (call.begun.call_id.to_string(), n)).collect()
}

/// Everything that was found.
struct Report {
    name: (String, u32),
    numbers: BTreeMap<String, usize>,
    found: Diagnosis,
}

impl Report {
    /// Whether nothing is to be changed.
    fn is_well(&self) -> bool {
        self.found.verdict == "exact" && self.to_change().next().is_none()
    }

    fn to_change(&self) -> impl Iterator<Item = &Fork> {
        self.found.forks.iter().filter(|fork| !fork.cause.is_meant())
    }

    fn page(&self) -> Vec<String> {
        let mut page = self.head();
        for finding in &self.found.findings {
            let calls: Vec<String> = finding.calls.iter().map(|call| self.number(call)).collect();
            let more = calls.len().saturating_sub(CALLS_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let about = calls[..calls.len().min(CALLS_MAX)].join(", ");
            let about = if about.is_empty() { about } else { format!(" ({about}{more})") };
            let text = format!("{}{about}: {}", finding.reason.as_str(), finding.reason.meaning());
            page.extend(print::wrapped("- ", &text, WIDTH));
        }
        page.extend(self.sums());
        for (number, fork) in self.found.forks.iter().enumerate() {
            page.push(String::new());
            page.extend(self.fork(number + 1, fork));
        }
        page
    }

    fn head(&self) -> Vec<String> {
        let found = &self.found;
        let (id, attempt) = &self.name;
        let mut calls = print::count(found.calls, "call");
        for (why, count) in &found.dropped {
            let why = match why {
                Dropped::OtherRoute => "sampled nothing",
                Dropped::Lost => "never ended",
                Dropped::NoReply => "brought no answer",
            };
            calls += &format!(", {count} of which {why}");
        }
        let weights = if found.versioned { "named" } else { "not named by the server" };
        let lines = [
            ("episode", format!("{id} attempt {attempt}")),
            ("verdict", found.verdict.to_owned()),
            ("calls", calls),
            (
                "tokens",
                format!(
                    "{} sampled, {} to be trained",
                    found.sampled_tokens, found.trainable_tokens
                ),
            ),
            ("weights", weights.to_owned()),
            ("rows", print::count(found.trajectories, "trajectory").replace("ys", "ies")),
            ("forks", found.forks.len().to_string()),
        ];
        lines.map(|(what, said)| format!("{what:<8}  {said}")).into()
    }

    /// What forks cost together, by their causes, and what to change, the dearest first.
    fn sums(&self) -> Vec<String> {
        let mut sums: BTreeMap<Cause, [u64; 3]> = BTreeMap::new();
        for fork in &self.found.forks {
            let cost = [Some(1), fork.prefill_tokens, fork.lost_sampled_tokens];
            let sum = sums.entry(fork.cause).or_default();
            sum.iter_mut().zip(cost).for_each(|(sum, n)| *sum += u64::from(n.unwrap_or(0)));
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, [count, prefill, _])| std::cmp::Reverse((*prefill, *count)));
        if sums.is_empty() {
            return Vec::new();
        }
        let row = |(cause, numbers): &(Cause, [u64; 3])| {
            let numbers = numbers.map(|n| n.to_string());
            [&[cause.as_str().to_owned()][..], &numbers].concat()
        };
        let head = ["cause", "forks", "prefill", "lost sampled"];
        let mut page = vec![String::new()];
        page.extend(print::columns(&head, &sums.iter().map(row).collect::<Vec<_>>()));
        let advised = sums.iter().filter(|(cause, _)| !cause.is_meant());
        let advice = advised.map(|(cause, _)| format!("{}: {}", cause.as_str(), cause.advice()));
        let mut advice = advice.peekable();
        if advice.peek().is_some() {
            page.extend([String::new(), "to change:".to_owned()]);
            page.extend(advice.flat_map(|text| print::wrapped("- ", &text, WIDTH)));
        }
        page
    }

    fn fork(&self, number: usize, fork: &Fork) -> Vec<String> {
        let call = |id: &str| match self.numbers.get(id) {
            Some(number) => format!("#{number}"),
            None => id.to_owned(),
        };
        let place = match (fork.position, fork.in_sampled) {
            (Some(at), Some(true)) => format!(" at token {at}, which the model had sampled"),
            (Some(at), _) => format!(" at token {at}, in the prompt"),
            (None, _) => String::new(),
        };
        let mut page = vec![format!(
            "fork {number}: {} ({}) leaves {}{place}",
            call(&fork.call_id),
            fork.kind,
            call(&fork.parent_call_id)
        )];
        let text = format!("{}: {}", fork.cause.as_str(), fork.cause.meaning());
        page.extend(print::wrapped("  cause   ", &text, WIDTH));
        if !fork.also.is_empty() {
            let also: Vec<&str> = fork.also.iter().map(|cause| cause.as_str()).collect();
            page.extend(print::wrapped("  also    ", &also.join(", "), WIDTH));
        }
        if let (Some(prefill), Some(lost), Some(sampled)) =
            (fork.prefill_tokens, fork.lost_tokens, fork.lost_sampled_tokens)
        {
            page.push(format!(
                "  cost    {prefill} tokens to read again; {lost} left behind, {sampled} of them \
                 sampled"
            ));
        }
        if !fork.text_source.is_empty() {
            page.push(format!("  text    by {}", fork.text_source));
            let sides = [
                ("before", &fork.text_before),
                ("known", &fork.text_known),
                ("sent", &fork.text_sent),
            ];
            page.extend(sides.map(|(side, text)| format!("  {side:<7} {text:?}")));
        }
        page
    }

    fn number(&self, call: &CallId) -> String {
        let id = call.to_string();
        self.numbers.get(&id).map_or(id, |number| format!("#{number}"))
    }

    fn as_json(&self) -> Value {
        let found = &self.found;
        let findings: Vec<Value> = found
            .findings
            .iter()
            .map(|finding| {
                let calls: Vec<String> = finding.calls.iter().map(CallId::to_string).collect();
                json!({ "reason": finding.reason, "meaning": finding.reason.meaning(),
                    "calls": calls })
            })
            .collect();
        json!({
            "episode_id": self.name.0,
            "attempt": self.name.1,
            "verdict": found.verdict,
            "reasons": findings,
            "calls": found.calls,
            "dropped": found.dropped,
            "trajectories": found.trajectories,
            "sampled_tokens": found.sampled_tokens,
            "trainable_tokens": found.trainable_tokens,
            "versions_named": found.versioned,
            "forks": found.forks,
            "well": self.is_well(),
        })
    }
}

#[cfg(test)]
mod tests {
    use ::episode::CallId;
    use exporter::{Finding, Reason};

    use super::*;

    fn id(n: u128) -> CallId {
        CallId(uuid::Uuid::from_u128(n))
    }

    fn fork(cause: Cause) -> Fork {
        Fork {
            episode_id: "e".to_owned(),
            attempt: 0,
            call_id: id(2).to_string(),
            trajectory_id: "e/0/1".to_owned(),
            parent_call_id: id(1).to_string(),
            parent_trajectory_id: "e/0/0".to_owned(),
            kind: "fork",
            position: Some(7),
            in_sampled: Some(false),
            prefill_tokens: Some(500),
            lost_tokens: Some(40),
            lost_sampled_tokens: Some(30),
            cause,
            also: vec![Cause::MessageRespelled],
            advice: cause.advice(),
            text_before: "it is ".to_owned(),
            text_known: "09:15\n".to_owned(),
            text_sent: "10:02\n".to_owned(),
            text_source: "messages",
            ids_known: vec![1],
            ids_sent: vec![2],
        }
    }

    fn report(verdict: &'static str, findings: Vec<Finding>, forks: Vec<Fork>) -> Report {
        let found = Diagnosis {
            verdict,
            findings,
            forks,
            calls: 3,
            dropped: [(Dropped::Lost, 1)].into(),
            trajectories: 2,
            sampled_tokens: 60,
            trainable_tokens: 50,
            versioned: true,
        };
        let numbers = (1..=20).map(|n| (id(n).to_string(), n as usize)).collect();
        Report { name: ("e".to_owned(), 0), numbers, found }
    }

    #[test]
    fn a_page_names_the_calls_the_cost_and_what_to_change() {
        let calls = (1..=10).map(id).collect();
        let findings = vec![Finding { reason: Reason::ClientGone, calls }];
        let forks = vec![fork(Cause::NonceOrDate), fork(Cause::OtherAgent)];
        let page = report("usable", findings, forks).page();
        let has = |text: &str| assert!(page.iter().any(|l| l.contains(text)), "{text}\n{page:#?}");
        has("verdict   usable");
        has("3 calls, 1 of which never ended");
        has("- client_gone (#1, #2, #3, #4, #5, #6, #7, #8 and 2 more): the agent left");
        has("nonce_or_date      1      500            30");
        has("- nonce_or_date: fix the date for the episode");
        has("fork 1: #2 (fork) leaves #1 at token 7, in the prompt");
        has("500 tokens to read again; 40 left behind, 30 of them sampled");
        has(r#"  known   "09:15\n""#);
        assert!(!page.iter().any(|line| line.contains("other_agent: nothing")), "{page:#?}");
        assert!(page.iter().all(|line| line.chars().count() <= WIDTH), "{page:#?}");
    }

    #[test]
    fn an_episode_is_well_when_it_is_exact_and_leaves_its_history_on_purpose_only() {
        let of = |verdict, causes: &[Cause]| {
            report(verdict, Vec::new(), causes.iter().copied().map(fork).collect()).is_well()
        };
        assert!(of("exact", &[]) && of("exact", &[Cause::Compaction, Cause::Branched]));
        assert!(!of("exact", &[Cause::Compaction, Cause::Unknown]));
        assert!(!of("usable", &[]));
    }

    #[test]
    fn machines_read_the_same() {
        let findings = vec![Finding { reason: Reason::LostCall, calls: vec![id(3)] }];
        let found = report("usable", findings, vec![fork(Cause::Seam)]).as_json();
        assert_eq!(found["reasons"][0]["reason"], "lost_call");
        assert_eq!(found["reasons"][0]["calls"][0], id(3).to_string());
        assert_eq!((&found["dropped"]["lost"], &found["well"]), (&json!(1), &json!(false)));
        assert_eq!(found["forks"][0]["cause"], "seam");
        assert_eq!(found["forks"][0]["also"], json!(["message_respelled"]));
        assert_eq!(found["forks"][0]["position"], 7);
    }
}
