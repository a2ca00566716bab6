//! `rolltape doctor`: what an upstream gives, and what it would take to have it give more; or what
//! is wrong with a recorded episode, and why its history forked (`episode`); or whether a GPU
//! computes what it should (`gpu`).
//!
//! The walk: `run` finds out who the upstream is, `examine` sends every probe and makes a [`Row`]
//! of it, `advice` says what is missing, `notes` what else to know, and `report`
//! prints it.

mod advice;
mod episode;
mod gpu;
mod notes;
mod profile;
mod report;
mod row;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::episode::{EpisodeId, Outcome, Route};
use bytes::Bytes;
use proxy::{Client, NoReply, Question, Reply, Upstream};
use tokio::time::timeout;
use wire::{Dialect, Likeness, Probe, Sampler, Server, likeness};

use crate::at::At;
use crate::exit::{Done, Failure};
use crate::manner::{LogprobsName, Speech};
use advice::Advice;
use report::Report;
use row::{Hidden, Row};

/// How long one probe may take, all its calls together.
const PROBE_WAIT: Duration = Duration::from_secs(60);
/// Work that is done sooner is not told of.
const QUIET_WAIT: Duration = Duration::from_secs(2);
/// How long the upstream may take to say who it is.
const WHO_WAIT: Duration = Duration::from_secs(10);

/// Find out what an upstream reports, or what is wrong with a recorded episode
///
/// With --upstream: sends a few small requests on each wire, as the proxy would, and prints what
/// came back; where a tool is offered, its call is forced. Nothing is recorded. Ends with 0 when
/// every route that samples tells its tokens exactly, with 1 when one does not or the upstream
/// cannot be asked, with 2 on wrong usage.
///
/// With --episode: prints the verdict on the episode, the calls behind each reason, and for each
/// place where a history was left the cause, the cost, and what to change. Ends with 0 when the
/// verdict is exact and nothing is to be changed, with 1 when something was found or the store
/// cannot be read, with 2 on wrong usage.
///
/// With --gpu: prints what the engine finds on this machine's GPU, compares every kernel with plain
/// loops on fresh random inputs, measures, and has NCCL form and leave a group of this GPU alone.
/// Ends with 0 when all are right, with 1 when one is not or there is no GPU that can be used, with
/// 2 on wrong usage. With --profile it times the operations of a decode step instead.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("patient").required(true).multiple(true)))]
pub(crate) struct Args {
    /// An OpenAI-compatible server, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL", env = "ROLLTAPE_UPSTREAM", group = "patient")]
    upstream: Option<Upstream>,
    /// A recorded episode, looked at in place of an upstream
    #[arg(long, value_name = "ID", group = "patient")]
    episode: Option<EpisodeId>,
    /// Which run of the episode; the newest if not given
    #[arg(long, requires = "episode")]
    attempt: Option<u32>,
    #[command(flatten)]
    gpu: gpu::GpuArgs,
    #[command(flatten)]
    at: At,
    /// The model to ask; the first that the upstream lists if absent
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    speech: Speech,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// What is asked, and of whom.
struct Patient {
    client: Client,
    dialect: Dialect,
    server: Server,
    sampler: Sampler,
    model: String,
    logprob_kind: String,
}

/// Looks at the one or the other.
pub(crate) async fn run(args: Args) -> Done {
    if args.gpu.is_asked() {
        return gpu::run(&args.gpu, args.json).await;
    }
    match (&args.episode, &args.upstream) {
        (Some(id), _) => episode::run(id, &args).await,
        (None, Some(upstream)) => ask(upstream, &args).await,
        (None, None) => {
            Err(Failure::new("nothing to look at").hint("give --upstream, --episode or --gpu"))
        }
    }
}

/// Asks and tells.
async fn ask(upstream: &Upstream, args: &Args) -> Done {
    let mut patient = Patient::meet(upstream, args).await?;
    let probes = Probe::all();
    let mut rows = Vec::with_capacity(probes.len());
    let begun = Instant::now();
    for (number, probe) in probes.iter().enumerate() {
        if begun.elapsed() > QUIET_WAIT {
            eprintln!("probe {} of {}: {}", number + 1, probes.len(), row::name(*probe));
        }
        rows.push(patient.examine(*probe).await);
    }
    let advice = Advice::new(&advice::Case {
        dialect: patient.dialect,
        server: &patient.server,
        sampler: &patient.sampler,
        logprob_kind: &patient.logprob_kind,
        rows: &rows,
        mode_named: args.speech.logprobs_mode.is_some(),
        vocabulary: args.speech.has_tokenizer(),
        processed: matches!(args.speech.logprobs_mode, Some(LogprobsName::Processed)),
    });
    let report = Report {
        upstream: upstream.to_string(),
        dialect: patient.dialect,
        server: &patient.server,
        sampler: &patient.sampler,
        model: &patient.model,
        logprob_kind: &patient.logprob_kind,
        rows: &rows,
        advice: &advice,
    };
    if args.json {
        report.as_json()?
    } else {
        report.draw()?
    }
    Ok(if advice.missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Patient {
    /// Finds out who the upstream is.
    async fn meet(upstream: &Upstream, args: &Args) -> Result<Self, Failure> {
        let config = args.speech.config(upstream.clone(), false)?;
        let client = Client::new(config.clone()).map_err(|e| Failure::of(&e))?;
        let unreached = |told: String| {
            Failure::new(told).hint("start the server, or give its address with --upstream")
        };
        if timeout(WHO_WAIT, client.is_recorder()).await.unwrap_or(false) {
            let told =
                format!("{upstream} is a rolltape that records, and would record the questions");
            return Err(Failure::new(told).hint("ask the server behind it"));
        }
        let (status, models) = match timeout(WHO_WAIT, client.get("/v1/models")).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(unreached(error.to_string())),
            Err(_) => return Err(unreached(format!("{upstream} does not answer"))),
        };
        let mut server = Server::default();
        server.take_models(&models);
        let Some(model) = args.model.clone().or_else(|| server.models.first().cloned()) else {
            let told = format!("{upstream} lists no model (status {status})");
            return Err(Failure::new(told).hint(match status {
                401 | 403 => "give its key with --upstream-key-env NAME",
                _ => "name one with --model, and the server with --dialect",
            }));
        };
        let dialect = client.dialect().await.map_err(|e| Failure::of(&e))?;
        for path in Server::paths(dialect) {
            if let Ok(Ok((200, document))) = timeout(WHO_WAIT, client.get(path)).await {
                server.take(&document);
            }
        }
        let mut sampler = Sampler::of(dialect);
        for path in Sampler::paths(dialect) {
            if let Ok(Ok((200, page))) = timeout(WHO_WAIT, client.get(path)).await
                && sampler.take(&page)
            {
                break;
            }
        }
        let told = sampler.logprob_kind().filter(|_| config.logprob_kind.is_none());
        let logprob_kind = told.unwrap_or_else(|| config.logprob_kind_of(dialect)).to_owned();
        Ok(Self { client, dialect, server, sampler, model, logprob_kind })
    }

    /// Sends one probe, as often as it takes.
    async fn examine(&mut self, probe: Probe) -> Row {
        let mut row = Row::new(probe);
        if timeout(PROBE_WAIT, self.calls(probe, &mut row)).await.is_err() {
            row.failed(format!("no answer in {} s", PROBE_WAIT.as_secs()));
        }
        row
    }

    /// A server that seldom answers as before must not be laid at the door of hiding: a difference
    /// is one when it comes back.
    async fn calls(&mut self, probe: Probe, row: &mut Row) {
        if let Some(offer) = probe.offer(&self.model)
            && let Ok(reply) = self.send(probe, &offer, false).await
            && reply.ended.outcome == Outcome::Refused
        {
            row.saw(&reply, &self.model);
            return;
        }
        row.hidden = self.round(probe, row).await;
        if matches!(row.hidden, Hidden::Differs(_)) && !self.round(probe, row).await.differs() {
            row.hidden = Hidden::NotRepeatable;
        }
    }

    /// Calls as an agent is served, between two calls that ask for nothing: what only a first call
    /// meets, such as an empty cache, is then no difference between asking and not.
    async fn round(&mut self, probe: Probe, row: &mut Row) -> Hidden {
        let first = self.call(probe, false).await;
        let asked = match self.call(probe, true).await {
            Ok(asked) => asked,
            Err(error) => {
                row.failed(error.to_string());
                return Hidden::Unknown;
            }
        };
        row.saw(&asked, &self.model);
        let plain = first.as_ref().is_ok_and(|reply| reply.ended.outcome == Outcome::Complete);
        row.refused_asked = !row.answered() && plain;
        if !row.answered() {
            return Hidden::Unknown;
        }
        self.server.heard(&asked.ended.reply);
        if !asked.asked {
            return Hidden::NothingAsked;
        }
        match (first, self.call(probe, false).await) {
            (Ok(first), Ok(second)) => hidden(probe.route, [&asked, &first, &second]),
            _ => Hidden::Unknown,
        }
    }

    async fn call(&self, probe: Probe, asks: bool) -> Result<Reply, NoReply> {
        self.send(probe, &probe.body(&self.model), asks).await
    }

    async fn send(&self, probe: Probe, body: &Bytes, asks: bool) -> Result<Reply, NoReply> {
        let question = Question { route: probe.route, path: probe.path(), body, asks };
        self.client.call(question).await
    }
}

/// Whether a reply with what was asked for taken out is the agent's own.
fn hidden(route: Route, replies: [&Reply; 3]) -> Hidden {
    let [asked, first, second] = replies.map(|reply| &reply.ended.reply);
    let unasked = likeness(route, first, second);
    match (unasked, likeness(route, first, asked)) {
        (Likeness::Differs(_), _) => Hidden::NotRepeatable,
        (_, Likeness::Differs(difference)) => Hidden::Differs(difference),
        (_, Likeness::Equal) => Hidden::Equal,
        (_, Likeness::Chunked) => Hidden::Chunked,
    }
}

#[cfg(test)]
mod tests {
    use ::episode::{CallId, Ended, TokenCounts};

    use super::*;

    pub(super) fn reply(text: &str) -> Reply {
        let ended = Ended {
            call_id: CallId(uuid::Uuid::nil()),
            ended_at: 0,
            first_byte_at: None,
            status: Some(200),
            outcome: Outcome::Complete,
            error: None,
            reply: Bytes::from(text.to_owned()),
            model: None,
            prompts: Vec::new(),
            choices: Vec::new(),
            usage: TokenCounts::default(),
            sampled_with: None,
            logprob_kind: "unknown".to_owned(),
            translated: None,
            unasked: None,
            stamps: ::episode::Stamps::default(),
        };
        Reply { ended, asked: true, declined: false }
    }

    #[test]
    fn hiding_is_judged_only_where_replies_repeat() {
        let of = |texts: [&str; 3]| {
            let replies = texts.map(reply);
            hidden(Route::Chat, [&replies[0], &replies[1], &replies[2]])
        };
        assert_eq!(of([r#"{"a":1}"#, r#"{"a":1}"#, r#"{"a":1}"#]), Hidden::Equal);
        assert_eq!(of([r#"{"a":1}"#, r#"{"a":1}"#, r#"{"a":2}"#]), Hidden::NotRepeatable);
        assert!(matches!(of([r#"{"a":2}"#, r#"{"a":1}"#, r#"{"a":1}"#]), Hidden::Differs(_)));
    }
}
