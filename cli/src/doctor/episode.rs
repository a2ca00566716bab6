//! `rolltape doctor --episode`: what is wrong with a recorded episode, and why its history forked.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use ::episode::{Call, CallId, EpisodeId};
use exporter::{Cause, Diagnosis, DropReason, Finding, Fork, Reason, TrainerGap};
use serde_json::{Map, Value, json};
use store::{Selection, Snapshot};

use super::Args;
use crate::exit::{CommandResult, Failure};
use crate::print;

/// Width of a page, in characters.
const WIDTH: usize = 100;
/// Advice for a server that samples by defaults which it does not report.
const DEFAULTS_REMEDY: &str = "start vLLM with --generation-config vllm and \
    VLLM_SERVER_DEV_MODE=1, or SGLang with --sampling-defaults openai, or force the sampling with \
    --force-sampling";
/// Most calls that are listed for a reason.
const CALLS_MAX: usize = 8;

/// Reads the episode, diagnoses it, and prints the report.
pub(super) async fn run(id: &EpisodeId, args: &Args) -> CommandResult {
    let mut snapshot = Snapshot::open(args.store.clone().read_from().await?).await?;
    let filter = Selection { episode: Some(id.clone()), ..Selection::default() };
    let attempts = snapshot.summaries(&filter).await?;
    // Attempts are in order: the last one that fits is the newest.
    let Some(summary) = attempts
        .into_iter()
        .rfind(|summary| args.attempt.is_none_or(|attempt| summary.episode.attempt == attempt))
    else {
        let attempt = args.attempt.map(|n| format!(" with attempt {n}")).unwrap_or_default();
        return Err(Failure::new(format!("no episode `{id}`{attempt} in the store"))
            .hint("`rolltape episodes` lists the episodes of the store"));
    };

    let record = summary.episode;
    let (episode_id, attempt) = (record.id.to_string(), record.attempt);
    let calls = snapshot.calls(&record).await?;
    let annotations = snapshot.annotations(&record).await?;
    let gaps = exporter::trainer_gaps(&calls, &annotations);
    let numbers = number_calls(&calls);
    let hidden: BTreeSet<String> = calls.iter().flat_map(hidden_parameters).collect();
    // With the tokenizer the texts of forks are exact; without it they are guessed from messages.
    let diagnosis = match args.upstream_args.tokenizer() {
        Some(path) => {
            exporter::diagnose_with_tokenizer(&path, record, calls).map_err(|e| Failure::of(&e))?
        }
        None => exporter::diagnose(record, calls),
    };

    let report = EpisodeReport { episode_id, attempt, numbers, hidden, diagnosis, gaps };
    if args.json {
        print::line(&report.as_json().to_string())?;
    } else {
        report.page().iter().try_for_each(|text| print::line(text))?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The numbers of calls, as in `rolltape show`.
fn number_calls(calls: &[Call]) -> BTreeMap<String, usize> {
    calls.iter().zip(1..).map(|(call, n)| (call.begun.call_id.to_string(), n)).collect()
}

/// The sampling parameters of a call that the server chose and does not report.
fn hidden_parameters(call: &Call) -> Vec<String> {
    let text = call.ended.as_ref().and_then(|ended| ended.sampled_with.as_deref());
    let used: Map<String, Value> =
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let unknown = used.into_iter().filter(|(_, used)| used["source"] == "unknown");
    unknown.map(|(name, _)| name).collect()
}

/// The diagnosis of an episode.
struct EpisodeReport {
    episode_id: String,
    attempt: u32,
    /// Numbers of calls, by call id.
    numbers: BTreeMap<String, usize>,
    /// Sampling parameters that the server chose and did not report.
    hidden: BTreeSet<String>,
    diagnosis: Diagnosis,
    /// Differences between a trainer's logprobs and the recorded ones.
    gaps: Vec<TrainerGap>,
}

impl EpisodeReport {
    /// True if nothing is to be changed.
    fn is_clean(&self) -> bool {
        self.diagnosis.verdict == "exact"
            && self.diagnosis.forks.iter().all(|fork| fork.cause.is_meant())
    }

    fn page(&self) -> Vec<String> {
        let mut page = self.heading();
        for finding in &self.diagnosis.findings {
            page.extend(self.finding(finding));
        }
        page.extend(self.gaps.iter().map(gap_line));

        let costs = CauseCost::of_all(&self.diagnosis.forks);
        page.extend(cost_table(&costs));
        page.extend(changes(&costs));

        for (fork, number) in self.diagnosis.forks.iter().zip(1..) {
            page.push(String::new());
            page.extend(self.fork(number, fork));
        }
        page
    }

    fn heading(&self) -> Vec<String> {
        let found = &self.diagnosis;
        let mut calls = print::count(found.calls, "call");
        for (why, count) in &found.dropped {
            let why = match why {
                DropReason::OtherRoute => "sampled nothing",
                DropReason::Lost => "never ended",
                DropReason::NoReply => "got no answer",
            };
            calls += &format!(", {count} of which {why}");
        }

        // Tokens of a reply that was cut off are sampled, but not trained.
        let tokens =
            format!("{} sampled, {} to be trained", found.sampled_tokens, found.trainable_tokens);
        let weights = if found.versioned { "named" } else { "not named by the server" };
        [
            ("episode", format!("{} attempt {}", self.episode_id, self.attempt)),
            ("verdict", found.verdict.to_owned()),
            ("calls", calls),
            ("tokens", tokens),
            ("weights", weights.to_owned()),
            ("rows", print::count(found.trajectories, "trajectory").replace("ys", "ies")),
            ("forks", found.forks.len().to_string()),
        ]
        .map(|(property, value)| format!("{property:<8}  {value}"))
        .into()
    }

    /// A reason with its calls and its meaning.
    fn finding(&self, finding: &Finding) -> Vec<String> {
        let mut calls: Vec<String> = finding
            .calls
            .iter()
            .take(CALLS_MAX)
            .map(|call| self.number(&call.to_string()))
            .collect();
        let more = finding.calls.len() - calls.len();
        if more > 0 {
            let last = calls.pop().unwrap_or_default();
            calls.push(format!("{last} and {more} more"));
        }
        let about = match calls.is_empty() {
            true => String::new(),
            false => format!(" ({})", calls.join(", ")),
        };

        let text = format!("{}{about}: {}", finding.reason.as_str(), self.meaning(finding.reason));
        print::wrapped("- ", &text, WIDTH)
    }

    /// The meaning of a reason, with the advice for it if there is one.
    fn meaning(&self, reason: Reason) -> String {
        let meaning = reason.meaning();
        if reason != Reason::SamplingUnknown || self.hidden.is_empty() {
            return meaning.to_owned();
        }
        let hidden: Vec<&str> = self.hidden.iter().map(String::as_str).collect();
        format!("{meaning}: {}; {DEFAULTS_REMEDY}", hidden.join(", "))
    }

    fn fork(&self, number: usize, fork: &Fork) -> Vec<String> {
        let place = match (fork.position, fork.in_sampled) {
            (Some(at), Some(true)) => format!(" at token {at}, which the model had sampled"),
            (Some(at), _) => format!(" at token {at}, in the prompt"),
            (None, _) => String::new(),
        };
        let mut page = vec![format!(
            "fork {number}: {} ({}) leaves {}{place}",
            self.number(&fork.call_id),
            fork.kind,
            self.number(&fork.parent_call_id)
        )];

        let cause = format!("{}: {}", fork.cause.as_str(), fork.cause.meaning());
        page.extend(print::wrapped("  cause   ", &cause, WIDTH));
        if !fork.also.is_empty() {
            // Differences that are not the cause are worth a look, but nothing more.
            let also: Vec<&str> = fork.also.iter().map(|cause| cause.as_str()).collect();
            page.extend(print::wrapped("  also    ", &also.join(", "), WIDTH));
        }

        // Without ids there is no position, and so no cost.
        if let (Some(prefill), Some(lost), Some(sampled)) =
            (fork.prefill_tokens, fork.lost_tokens, fork.lost_sampled_tokens)
        {
            page.push(format!(
                "  cost    {prefill} tokens to prefill again; {lost} left behind, {sampled} of \
                 them sampled"
            ));
        }

        if !fork.text_source.is_empty() {
            page.push(format!("  text    by {}", fork.text_source));
            // Quoted, because spaces and line breaks are what often differs.
            let sides = [
                ("before", &fork.text_before),
                ("known", &fork.text_known),
                ("sent", &fork.text_sent),
            ];
            page.extend(sides.map(|(side, text)| format!("  {side:<7} {text:?}")));
        }
        page
    }

    /// A call's number, or its id if it has none.
    fn number(&self, call_id: &str) -> String {
        match self.numbers.get(call_id) {
            Some(number) => format!("#{number}"),
            None => call_id.to_owned(),
        }
    }

    fn as_json(&self) -> Value {
        let found = &self.diagnosis;
        let reasons = found.findings.iter().map(|finding| {
            // All calls, unlike on the page: a program can shorten the list itself.
            let calls: Vec<String> = finding.calls.iter().map(CallId::to_string).collect();
            json!({
                "reason": finding.reason,
                "meaning": self.meaning(finding.reason),
                "calls": calls,
            })
        });

        json!({
            "episode_id": self.episode_id,
            "attempt": self.attempt,
            "verdict": found.verdict,
            "reasons": reasons.collect::<Vec<_>>(),
            "calls": found.calls,
            "dropped": found.dropped,
            "trajectories": found.trajectories,
            "sampled_tokens": found.sampled_tokens,
            "trainable_tokens": found.trainable_tokens,
            "versions_named": found.versioned,
            "forks": found.forks,
            "trainer_logprobs": self.gaps,
            "well": self.is_clean(),
        })
    }
}

/// Differences between a trainer's logprobs and the recorded ones.
fn gap_line(gap: &TrainerGap) -> String {
    let TrainerGap { version, tokens, mean_abs, max_abs, .. } = gap;
    let sampled_by = gap.sampled_by.as_deref().unwrap_or("unknown");
    format!(
        "trainer   {version} on {} of version {sampled_by}: logprobs {mean_abs:.4} apart, at most \
         {max_abs:.4}",
        print::count(*tokens, "token"),
    )
}

/// The cost of all forks with one cause.
struct CauseCost {
    cause: Cause,
    forks: u64,
    prefill_tokens: u64,
    lost_sampled_tokens: u64,
}

impl CauseCost {
    /// The costs of forks by cause, the highest first.
    fn of_all(forks: &[Fork]) -> Vec<Self> {
        let mut by_cause: BTreeMap<Cause, Self> = BTreeMap::new();
        for fork in forks {
            let cause = fork.cause;
            let cost = by_cause.entry(cause).or_insert_with(|| Self {
                cause,
                forks: 0,
                prefill_tokens: 0,
                lost_sampled_tokens: 0,
            });
            cost.forks += 1;
            cost.prefill_tokens += u64::from(fork.prefill_tokens.unwrap_or(0));
            cost.lost_sampled_tokens += u64::from(fork.lost_sampled_tokens.unwrap_or(0));
        }

        let mut costs: Vec<Self> = by_cause.into_values().collect();
        costs.sort_by_key(|cost| Reverse((cost.prefill_tokens, cost.forks)));
        costs
    }
}

fn cost_table(costs: &[CauseCost]) -> Vec<String> {
    if costs.is_empty() {
        return Vec::new();
    }
    let rows: Vec<_> = costs
        .iter()
        .map(|cost| {
            vec![
                cost.cause.as_str().to_owned(),
                cost.forks.to_string(),
                cost.prefill_tokens.to_string(),
                cost.lost_sampled_tokens.to_string(),
            ]
        })
        .collect();

    let mut page = vec![String::new()];
    page.extend(print::table_text(&["cause", "forks", "prefill", "lost sampled"], &rows));
    page
}

/// Advice on the causes that are not meant.
fn changes(costs: &[CauseCost]) -> Vec<String> {
    let mut page = Vec::new();
    for cause in costs.iter().map(|cost| cost.cause).filter(|cause| !cause.is_meant()) {
        if page.is_empty() {
            page.extend([String::new(), "to change:".to_owned()]);
        }
        let text = format!("{}: {}", cause.as_str(), cause.advice());
        page.extend(print::wrapped("- ", &text, WIDTH));
    }
    page
}

#[cfg(test)]
mod tests {
    use ::episode::CallId;

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
            continued: None,
        }
    }

    fn report(verdict: &'static str, findings: Vec<Finding>, forks: Vec<Fork>) -> EpisodeReport {
        let diagnosis = Diagnosis {
            verdict,
            findings,
            forks,
            calls: 3,
            dropped: [(DropReason::Lost, 1)].into(),
            trajectories: 2,
            sampled_tokens: 60,
            trainable_tokens: 50,
            versioned: true,
        };
        let numbers = (1..=20).map(|n| (id(n).to_string(), n as usize)).collect();
        EpisodeReport {
            episode_id: "e".to_owned(),
            attempt: 0,
            numbers,
            hidden: BTreeSet::new(),
            diagnosis,
            gaps: vec![TrainerGap {
                version: "7".to_owned(),
                sampled_by: None,
                tokens: 2,
                mean: 0.0,
                mean_abs: 0.25,
                max_abs: 0.5,
            }],
        }
    }

    #[test]
    fn defaults_that_the_server_hides_have_a_remedy() {
        let findings = vec![Finding { reason: Reason::SamplingUnknown, calls: vec![id(1)] }];
        let told = |hidden: &[&str]| {
            let report = report("usable", findings.clone(), Vec::new());
            let hidden = hidden.iter().map(|name| (*name).to_owned()).collect();
            let report = EpisodeReport { hidden, ..report };
            (report.page().join(" "), report.as_json()["reasons"][0]["meaning"].to_string())
        };
        let (page, meaning) = told(&["min_p", "top_k"]);
        assert!(meaning.contains(": min_p, top_k; start vLLM"), "{meaning}");
        assert!(page.contains("--generation-config vllm"), "{page}");
        assert!(meaning.contains("--generation-config vllm"), "{meaning}");
        assert!(!told(&[]).0.contains("--generation-config"));
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
        has("500 tokens to prefill again; 40 left behind, 30 of them sampled");
        has("trainer   7 on 2 tokens of version unknown: logprobs 0.2500 apart, at most 0.5000");
        has(r#"  known   "09:15\n""#);
        assert!(!page.iter().any(|line| line.contains("other_agent: nothing")), "{page:#?}");
        assert!(page.iter().all(|line| line.chars().count() <= WIDTH), "{page:#?}");
    }

    #[test]
    fn an_exact_episode_with_forks_on_purpose_is_clean() {
        let of = |verdict, causes: &[Cause]| {
            report(verdict, Vec::new(), causes.iter().copied().map(fork).collect()).is_clean()
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
