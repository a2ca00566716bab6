//! `rolltape doctor`: diagnoses an upstream, a recorded episode, or a GPU.
//!
//! An upstream: [`prober`] finds out what it is and sends every probe, a [`row`] records what came
//! back, [`prompt_ids`] has how it treats a prompt as ids, [`advice`] says what is missing,
//! [`notes`] what else to know, and [`report`] prints it.
//! [`episode`] examines a recorded episode, [`gpu`] and [`profile`] the engine on a GPU.

mod advice;
mod episode;
mod findings;
mod gpu;
mod notes;
mod prober;
mod profile;
mod prompt_ids;
mod report;
mod row;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::episode::EpisodeId;
use proxy::Upstream;
use wire::Probe;

use self::advice::Advice;
use self::findings::{Findings, GivenOptions};
use self::prober::Prober;
use self::report::UpstreamReport;
use self::row::ProbeRow;
use crate::exit::{CommandResult, Failure};
use crate::options::parse::upstream;
use crate::options::store::StoreArgs;
use crate::options::upstream::{UpstreamArgs, UpstreamLogprobsName};
use crate::terminal;

/// Progress is printed only after this time.
const QUIET_WAIT: Duration = Duration::from_secs(2);

/// Diagnose an upstream, a recorded episode, or a GPU
///
/// With --upstream: sends a few small requests on each wire, as the proxy would, and prints what
/// the server reports. If a tool is offered, its call is forced. Nothing is recorded. Exits with 0
/// if every sampling route reports its tokens exactly, with 1 if one does not or the upstream
/// cannot be reached, with 2 on wrong usage.
///
/// With --episode: prints the verdict on the episode, the calls behind each reason, and for each
/// fork of the history its cause, its cost and what to change. Exits with 0 if the verdict is exact
/// and nothing is to be changed, with 1 if something was found or the store cannot be read, with 2
/// on wrong usage.
///
/// With --gpu: prints what the engine finds on this machine's GPU, compares every kernel with plain
/// loops on new random inputs, measures them, and lets NCCL form a group of this GPU alone. Exits
/// with 0 if all are right, with 1 if one is wrong or no GPU is usable, with 2 on wrong usage. With
/// --profile it times the operations of steps instead.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Target")]
#[command(group(clap::ArgGroup::new("target").required(true).multiple(true)))]
pub(crate) struct Args {
    /// OpenAI-compatible server to examine
    ///
    /// Such as http://127.0.0.1:8000.
    #[arg(long, value_name = "URL", env = "ROLLTAPE_UPSTREAM", group = "target")]
    #[arg(value_parser = upstream)]
    upstream: Option<Upstream>,
    /// Recorded episode to examine
    #[arg(long, value_name = "ID", group = "target")]
    episode: Option<EpisodeId>,
    /// Attempt of the episode [default: the newest]
    #[arg(long, value_name = "N", requires = "episode")]
    attempt: Option<u32>,
    /// Model to ask [default: the upstream's first]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    gpu: gpu::GpuArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    upstream_args: UpstreamArgs,
}

/// Examines what the options name.
pub(crate) async fn run(args: Args) -> CommandResult {
    if args.gpu.is_given() {
        return gpu::run(&args.gpu, args.json).await;
    }
    match (&args.episode, &args.upstream) {
        (Some(id), _) => episode::run(id, &args).await,
        (None, Some(upstream)) => examine_upstream(upstream, &args).await,
        (None, None) => {
            Err(Failure::new("nothing to examine").hint("give --upstream, --episode or --gpu"))
        }
    }
}

/// Probes an upstream and prints the report.
async fn examine_upstream(upstream: &Upstream, args: &Args) -> CommandResult {
    let mut prober = Prober::identify(upstream, args.model.as_deref(), &args.upstream_args).await?;
    let rows = send_probes(&mut prober).await;
    let prompt_ids = prober.prompt_ids(&rows).await;

    let findings = Findings {
        upstream: upstream.to_string(),
        dialect: prober.dialect,
        server: prober.server,
        sampler: prober.sampler,
        model: prober.model,
        logprob_kind: prober.logprob_kind,
        rows,
        prompt_ids,
        given: GivenOptions {
            logprobs_mode: args.upstream_args.tokens.logprobs_mode.is_some(),
            processed: matches!(
                args.upstream_args.tokens.logprobs_mode,
                Some(UpstreamLogprobsName::Processed)
            ),
            tokenizer: args.upstream_args.tokenizer().is_some(),
            continues: args.upstream_args.continues(),
        },
    };
    let advice = Advice::new(&findings);

    let report = UpstreamReport { findings: &findings, advice: &advice };
    match args.json {
        true => report.print_json()?,
        false => report.print_page()?,
    }
    // Missing versions alone do not change the code: many servers have none.
    Ok(if advice.missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn send_probes(prober: &mut Prober) -> Vec<ProbeRow> {
    let probes = Probe::all();
    let mut rows = Vec::with_capacity(probes.len());
    let started = Instant::now();

    for (number, probe) in probes.iter().enumerate() {
        if started.elapsed() > QUIET_WAIT {
            let (all, name) = (probes.len(), row::name(*probe));
            terminal::message(&format!("probe {} of {all}: {name}", number + 1));
        }
        rows.push(prober.probe(*probe).await);
    }
    rows
}
