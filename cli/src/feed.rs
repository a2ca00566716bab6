//! `rolltape feed`: what is finished, from a server that runs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use hyper::Method;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Done, Failure};
use crate::feed_http::{Told, Upstairs};
use crate::manner::ControlToken;

/// Pause before a server that is gone is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long a reply is waited for with --follow, in seconds.
const WAIT_S: u32 = 30;
/// A message of Arrow's streams: these bytes, a length, so many bytes of metadata.
const ARROW_MARK: [u8; 4] = [0xff; 4];
/// The end of a stream: the same with a length of 0.
const ARROW_END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Read finished episodes off a server that runs, as rows
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server's control listener
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8081",
        env = "ROLLTAPE_CONTROL_URL"
    )]
    control: String,
    #[command(flatten)]
    token: ControlToken,
    /// Go on until stopped
    #[arg(long)]
    follow: bool,
    /// Ack what was written out, so that it is not handed to this consumer again
    #[arg(long, requires = "consumer")]
    ack: bool,
    /// Where rows go; - is stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// How rows are written
    #[arg(long, value_enum, default_value_t)]
    format: Form,
    #[command(flatten)]
    asked: Asked,
}

/// How rows are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One JSON object a line
    #[default]
    Ndjson,
    /// A stream of Arrow's IPC format
    Arrow,
}

/// The parameters of the feed, each under its own name: docs/feed.md tells of them.
#[derive(Debug, Clone, Default, clap::Args)]
struct Asked {
    /// The name of who trains; what is handed out is leased to it
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// The position to read on from; `end` for what is finished from now on
    #[arg(long, value_name = "POSITION")]
    cursor: Option<String>,
    /// Items in one reply at most
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Seconds until what is not acked is handed out again
    #[arg(long, value_name = "S")]
    lease_s: Option<u32>,
    /// What is handed out together: episode, group
    #[arg(long, value_name = "UNIT")]
    unit: Option<String>,
    /// Attempts that make a group, where it was announced without
    #[arg(long, value_name = "N")]
    group_size: Option<u32>,
    /// Seconds after which a group is handed out as it is
    #[arg(long, value_name = "S")]
    group_wait_s: Option<u32>,
    /// What becomes of such a group: deliver, drop
    #[arg(long, value_name = "FATE")]
    group_late: Option<String>,
    /// Only attempts that were given a reward
    #[arg(long)]
    rewarded: bool,
    /// Only this episode
    #[arg(long, value_name = "ID")]
    episode: Option<String>,
    /// Only this group
    #[arg(long, value_name = "ID")]
    group: Option<String>,
    /// Only this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Only these trajectories: main, subagent, compaction, retry, sibling, auxiliary, fork
    #[arg(long, value_name = "KIND,...")]
    kind: Option<String>,
    /// The worst verdict that will do: exact, usable
    #[arg(long, value_name = "VERDICT")]
    verdict: Option<String>,
    /// Only episodes with at least this reward
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// Only rows whose oldest policy version is at most so many behind
    #[arg(long, value_name = "N")]
    max_staleness: Option<u32>,
    /// The version that staleness is counted from [default: the newest known]
    #[arg(long, value_name = "V")]
    at_version: Option<u32>,
    /// Only rows that train tokens of this policy version and later ones
    #[arg(long, value_name = "V")]
    min_version: Option<u32>,
    /// Only rows that train tokens of this policy version and earlier ones
    #[arg(long, value_name = "V")]
    max_version: Option<u32>,
    /// Only rows whose policy versions differ by at most so many
    #[arg(long, value_name = "N")]
    max_version_span: Option<u32>,
    /// Compare the attempts of each group: none, grpo, dr-grpo, rloo
    #[arg(long, value_name = "RULE")]
    advantage: Option<String>,
    /// Show the numbers of its group in every row
    #[arg(long)]
    group_stats: bool,
    /// Fill the returns of turns
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,
}

impl Asked {
    /// The parameters that were given, as pairs of a query.
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let text = |name, value: &Option<String>| value.clone().map(|value| (name, value));
        let number = |name, value: Option<u32>| value.map(|value| (name, value.to_string()));
        let real = |name, value: Option<f64>| value.map(|value| (name, value.to_string()));
        let flag = |name, value: bool| value.then(|| (name, "true".to_owned()));
        let all = [
            text("consumer", &self.consumer),
            number("limit", self.limit),
            number("lease_s", self.lease_s),
            text("unit", &self.unit),
            number("group_size", self.group_size),
            number("group_wait_s", self.group_wait_s),
            text("group_late", &self.group_late),
            flag("rewarded", self.rewarded),
            text("episode", &self.episode),
            text("group", &self.group),
            text("task", &self.task),
            text("kind", &self.kind),
            text("verdict", &self.verdict),
            real("min_reward", self.min_reward),
            number("max_staleness", self.max_staleness),
            number("at_version", self.at_version),
            number("min_version", self.min_version),
            number("max_version", self.max_version),
            number("max_version_span", self.max_version_span),
            text("advantage", &self.advantage),
            flag("group_stats", self.group_stats),
            real("gamma", self.gamma),
        ];
        all.into_iter().flatten().collect()
    }
}

/// Reads until nothing is left, or with --follow until a signal ends it.
pub(crate) async fn run(args: Args) -> Done {
    let server = Upstairs::new(&args.control, args.token.read()?);
    let mut out = Out::open(&args.out)?;
    let mut stopped = signal(SignalKind::terminate())?;
    let mut cursor = args.asked.cursor.clone();
    let read = tokio::select! {
        read = read(&args, &server, &mut out, &mut cursor) => read,
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = stopped.recv() => Ok(()),
    };
    // What was written so far is a whole stream, whatever ended it.
    out.end(args.format)?;
    read?;
    if args.asked.consumer.is_none() {
        eprintln!("cursor {}", cursor.as_deref().unwrap_or("0"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(
    args: &Args,
    server: &Upstairs,
    out: &mut Out,
    cursor: &mut Option<String>,
) -> Result<(), Failure> {
    loop {
        let reply = match server.feed(&query(args, cursor.as_deref())).await {
            Err(_) if args.follow && out.begun => {
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            }
            reply => reply?,
        };
        if args.asked.consumer.is_none() && reply.cursor.is_some() {
            cursor.clone_from(&reply.cursor);
        }
        match reply.told {
            Told::Rows(rows) => {
                out.write(args.format, &rows)?;
                if let (true, Some(lease)) = (args.ack, &reply.lease) {
                    ack(args, server, lease).await?;
                }
            }
            Told::Nothing if args.follow => out.begun = true,
            Told::Nothing => return Ok(()),
        }
    }
}

/// A lease that has ended is told and no error: what it held comes again.
async fn ack(args: &Args, server: &Upstairs, lease: &str) -> Result<(), Failure> {
    let page = format!("/feed/leases/{lease}/ack");
    loop {
        match server.tell(Method::POST, &page, &Value::Null).await {
            Ok((200, _)) => return Ok(()),
            Ok((409, _)) => {
                eprintln!("lease {lease} had ended; what it held is handed out again");
                return Ok(());
            }
            Ok((status, _)) if !args.follow || status < 500 => {
                return Err(Failure::new(format!(
                    "the ack of lease {lease} was answered {status}"
                )));
            }
            Err(error) if !args.follow => return Err(error),
            _ => tokio::time::sleep(AGAIN_AFTER).await,
        }
    }
}

fn query(args: &Args, cursor: Option<&str>) -> String {
    let mut pairs = args.asked.pairs();
    pairs.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
    if args.follow {
        pairs.push(("wait_s", WAIT_S.to_string()));
    }
    if args.format == Form::Arrow {
        pairs.push(("format", "arrow".to_owned()));
    }
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// Where rows go.
struct Out {
    file: Option<File>,
    /// Whether a stream of Arrow's has its beginning.
    headed: bool,
    /// Whether the server has answered once.
    begun: bool,
}

impl Out {
    fn open(path: &Path) -> Result<Self, Failure> {
        let file = match path == Path::new("-") {
            true => None,
            false => Some(File::create(path).map_err(|error| {
                Failure::new(format!("cannot write `{}`: {error}", path.display()))
            })?),
        };
        Ok(Self { file, headed: false, begun: false })
    }

    /// Writes a reply out, so that it may be acked. Streams of Arrow's become one.
    fn write(&mut self, form: Form, rows: &[u8]) -> Result<(), Failure> {
        self.begun = true;
        let rows = match form {
            Form::Ndjson => rows,
            Form::Arrow => inner(rows, !self.headed)?,
        };
        self.headed = true;
        self.put(rows)
    }

    fn end(&mut self, form: Form) -> Result<(), Failure> {
        if form == Form::Arrow && self.headed { self.put(&ARROW_END) } else { Ok(()) }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.file {
            Some(file) => {
                file.write_all(bytes)?;
                file.sync_data()?;
            }
            None => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()?;
            }
        }
        Ok(())
    }
}

/// A stream of Arrow's without its end, and without its schema unless it is wanted.
fn inner(stream: &[u8], with_schema: bool) -> Result<&[u8], Failure> {
    let bad = || Failure::new("the server did not send a stream of Arrow's");
    let body = stream.strip_suffix(&ARROW_END).ok_or_else(bad)?;
    if with_schema {
        return Ok(body);
    }
    let rest = body.strip_prefix(&ARROW_MARK).ok_or_else(bad)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(bad)?;
    rest.get(u32::from_le_bytes(*length) as usize..).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_arrow_are_joined() {
        let schema = [&ARROW_MARK[..], &4u32.to_le_bytes(), b"head"].concat();
        let stream = [&schema[..], b"batch", &ARROW_END].concat();
        assert_eq!(inner(&stream, true).unwrap(), [&schema[..], b"batch"].concat());
        assert_eq!(inner(&stream, false).unwrap(), b"batch");
        for bad in [&b"rows"[..], &stream[..stream.len() - 1], &ARROW_END[..]] {
            assert!(inner(bad, false).is_err());
        }
    }

    #[test]
    fn every_parameter_has_its_own_name() {
        let asked = Asked {
            consumer: Some("t".into()),
            min_reward: Some(-0.5),
            rewarded: true,
            max_staleness: Some(4),
            ..Asked::default()
        };
        let pair = |name, value: &str| (name, value.to_owned());
        let expected = [
            pair("consumer", "t"),
            pair("rewarded", "true"),
            pair("min_reward", "-0.5"),
            pair("max_staleness", "4"),
        ];
        assert_eq!(asked.pairs(), expected);
    }
}
