//! `rolltape feed`: reads finished episodes from a running server.
//!
//! Rows are written item by item as they arrive. An item is acked once it is at its target: synced
//! in a file, or read out of a pipe. Items that are not acked at the end are given back, however
//! the reading ends.

mod client;
mod items;
mod query;
mod sink;
mod waiting;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use episode::AttemptId;
use hyper::body::Incoming;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use self::client::{FeedClient, next_bytes};
use self::items::{FeedFormat, ItemSplitter, ReceivedItem, RowEncoder};
use self::query::FeedArgs;
use self::sink::FeedOutput;
use crate::exit::{CommandResult, Failure};
use crate::http;
use crate::options::control::ServerToAsk;
use crate::terminal;

/// Pause before a server that cannot be reached is asked again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest wait of one request with --follow, in seconds. What is waited for is said that often at
/// most.
const WAIT_S: u32 = 30;
/// The wait of the first request: its reader is soon told what is waited for.
const FIRST_WAIT_S: u32 = 2;
/// The default length of a lease, in seconds.
const LEASE_S: u32 = 300;
/// Longest wait for a pipe's reader, and for the server, at the end.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Stream finished episodes from a running server, as rows
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// Keep reading until interrupted
    #[arg(long)]
    follow: bool,
    /// File to write; - is stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Encoding of the rows
    #[arg(long, value_enum, value_name = "ENCODING", default_value_t)]
    format: FeedFormat,
    /// Ack what was written
    ///
    /// Then this consumer does not get it again.
    #[arg(long, requires = "consumer")]
    ack: bool,
    #[command(flatten)]
    query: FeedArgs,
    #[command(flatten)]
    server: ServerToAsk,
}

/// A reason to stop reading.
enum Stop {
    /// Nothing is ready, and --follow was not given.
    NothingReady,
    /// A signal arrived.
    Signal,
    /// The reader of the output has left.
    OutputClosed,
    /// The reply broke off.
    BrokenOff(Failure),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::Failed(error.into())
        }
    }
}

/// The items of one reply that are not acked.
#[derive(Default)]
struct LeasedItems {
    lease: Option<String>,
    /// Attempts of the items that are written.
    written: Vec<AttemptId>,
    /// Position and attempts of the item that is being written.
    writing: Option<(i64, BTreeSet<AttemptId>)>,
}

/// A reader of the feed and its progress.
struct FeedReader<'a> {
    args: &'a Args,
    server: &'a FeedClient,
    sink: FeedOutput,
    encoder: RowEncoder,
    leased: LeasedItems,
    /// Position of the last item that was written; unused if a consumer is named.
    cursor: Option<String>,
    /// True once the server has answered.
    connected: bool,
    /// The sentence printed last about what is waited for.
    said: Option<String>,
}

/// Reads until nothing is ready, or with --follow until a signal arrives.
pub(crate) async fn run(args: Args) -> CommandResult {
    let server = FeedClient::new(&args.server)?;
    let mut reader = FeedReader {
        sink: FeedOutput::open(&args.out)?,
        encoder: RowEncoder::new(args.format),
        leased: LeasedItems::default(),
        cursor: args.query.lease.cursor.clone(),
        connected: false,
        said: None,
        args: &args,
        server: &server,
    };

    // Until here a signal may end the process at once: nothing is leased yet.
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = tokio::select! {
        stop = reader.read_all() => stop,
        _ = tokio::signal::ctrl_c() => Stop::Signal,
        _ = terminate.recv() => Stop::Signal,
    };

    // Also after a failure: what was written is acked, the rest is given back.
    let has_output = match stop {
        Stop::OutputClosed => false,
        // That a server has no rows is known of one that answers.
        Stop::Failed(_) => reader.connected,
        Stop::NothingReady | Stop::Signal | Stop::BrokenOff(_) => true,
    };
    let finished = reader.finish(has_output).await;
    if args.query.lease.consumer.is_none() && reader.connected {
        // The user continues from here with --cursor.
        let cursor = reader.cursor.as_deref().unwrap_or("0");
        terminal::message(&format!("cursor {cursor}"));
    }
    match stop {
        Stop::BrokenOff(failure) | Stop::Failed(failure) => Err(failure),
        Stop::NothingReady | Stop::Signal | Stop::OutputClosed => {
            finished.map(|()| ExitCode::SUCCESS)
        }
    }
}

impl FeedReader<'_> {
    async fn read_all(&mut self) -> Stop {
        loop {
            match self.read_reply().await {
                Ok(true) => {}
                Ok(false) => return Stop::NothingReady,
                // Complete items are written and acked; the server hands out the others again.
                Err(Stop::BrokenOff(failure)) if self.args.follow => {
                    terminal::message(&failure.to_string());
                    if let Err(stop) = self.ack().await {
                        return stop;
                    }
                    self.give_back().await;
                }
                Err(stop) => return stop,
            }
        }
    }

    /// Reads one reply and writes its items. False if nothing is left.
    async fn read_reply(&mut self) -> Result<bool, Stop> {
        let follow = self.args.follow;
        let reply = match self.server.feed(&self.query_string()).await {
            // A server that restarts is waited for, but one that never answered is an error.
            Err(_) if follow && self.connected => {
                sleep(RETRY_AFTER).await;
                return Ok(true);
            }
            reply => reply?,
        };
        self.connected = true;

        if let Some(body) = reply.rows {
            self.leased = LeasedItems { lease: reply.lease, ..LeasedItems::default() };
            self.write_under_lease(body).await?;
            self.ack().await?;
            self.leased = LeasedItems::default();
            self.said = None;
            self.advance(reply.cursor);
            return Ok(true);
        }
        self.tell(reply.waiting.sentence());
        self.advance(reply.cursor);
        Ok(follow)
    }

    /// Says what is waited for, unless that was said last.
    fn tell(&mut self, waiting: Option<String>) {
        let closing = || Some("waiting for episodes to be closed".to_owned());
        let sentence = waiting.or_else(|| closing().filter(|_| self.args.follow));
        if sentence != self.said {
            sentence.iter().for_each(|sentence| terminal::message(sentence));
            self.said = sentence;
        }
    }

    /// Moves the cursor. The server keeps that of a named consumer.
    fn advance(&mut self, cursor: Option<String>) {
        if self.args.query.lease.consumer.is_none() && cursor.is_some() {
            self.cursor = cursor;
        }
    }

    /// Writes a reply and renews its lease meanwhile.
    async fn write_under_lease(&mut self, body: Incoming) -> Result<(), Stop> {
        let lease = self.leased.lease.clone().filter(|_| self.args.ack);
        let Some(lease) = lease else { return self.write_items(body).await };
        let (server, lease_s) = (self.server, self.args.query.lease.lease_s.unwrap_or(LEASE_S));
        let half = Duration::from_secs(lease_s.into()) / 2;

        tokio::select! {
            result = self.write_items(body) => result,
            never = server.renew(&lease, lease_s, half) => match never {},
        }
    }

    /// Writes items as they arrive, and waits until they are at their target.
    async fn write_items(&mut self, mut body: Incoming) -> Result<(), Stop> {
        let mut splitter = ItemSplitter::new(self.args.format);
        while let Some(bytes) = next_bytes(&mut body).await.map_err(Stop::BrokenOff)? {
            for item in splitter.take(bytes)? {
                self.write(item).await?;
            }
        }
        if let Some(item) = splitter.end().map_err(Stop::BrokenOff)? {
            self.write(item).await?;
        }
        Ok(self.sink.settle(self.args.ack).await?)
    }

    async fn write(&mut self, item: ReceivedItem) -> Result<(), Stop> {
        let bytes = self.encoder.encode(item.rows)?;
        self.leased.writing = Some((item.position, item.attempts));
        self.sink.put(bytes).await?;
        self.mark_written();
        Ok(())
    }

    /// Marks the item that was being written as written.
    fn mark_written(&mut self) {
        let Some((position, attempts)) = self.leased.writing.take() else { return };
        self.leased.written.extend(attempts);
        self.advance(Some(position.to_string()));
    }

    /// Acks the items that are written. An expired lease is reported, but it is not an error: the
    /// server hands out its items again.
    async fn ack(&mut self) -> Result<(), Stop> {
        let LeasedItems { lease: Some(lease), written, .. } = &self.leased else { return Ok(()) };
        if !self.args.ack || written.is_empty() {
            return Ok(());
        }

        loop {
            match self.server.ack(lease, written).await {
                Ok(200) => return Ok(()),
                Ok(409) => {
                    terminal::message(&format!(
                        "lease {lease} had ended; its items are handed out again"
                    ));
                    return Ok(());
                }
                Ok(status) if !self.args.follow || status < 500 => {
                    let sentence = format!("the ack of lease {lease} was answered {status}");
                    return Err(Failure::new(sentence).into());
                }
                Err(error) if !self.args.follow => return Err(error.into()),
                _ => sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Gives back the items that are not acked. If that fails, the server hands them out again when
    /// the lease expires.
    async fn give_back(&mut self) {
        let lease = std::mem::take(&mut self.leased).lease;
        if let Some(lease) = lease.filter(|_| self.args.ack) {
            let _ = self.server.nack(&lease).await;
        }
    }

    /// Ends the output and acks its items.
    async fn end_output(&mut self) -> Result<(), Stop> {
        // A signal may have interrupted a write.
        self.sink.flush().await?;
        self.mark_written();

        self.sink.put(self.encoder.end()?).await?;
        self.sink.settle(self.args.ack).await?;
        self.ack().await
    }

    /// Ends the output, acks its items and gives the rest back. Without an output, as if its
    /// reader has left, nothing more is acked: nobody knows what was read.
    async fn finish(&mut self, has_output: bool) -> Result<(), Failure> {
        let ended = match has_output {
            true => timeout(LAST_WAIT, self.end_output()).await.unwrap_or(Ok(())),
            false => Ok(()),
        };
        let _ = timeout(LAST_WAIT, self.give_back()).await;

        match ended {
            Err(Stop::Failed(failure)) => Err(failure),
            _ => Ok(()),
        }
    }

    fn query_string(&self) -> String {
        let mut pairs = self.args.query.pairs();
        pairs.extend(self.cursor.clone().map(|cursor| ("cursor", cursor)));
        if self.args.follow {
            let wait_s = if self.connected { WAIT_S } else { FIRST_WAIT_S };
            pairs.push(("wait_s", wait_s.to_string()));
        }
        if self.args.format == FeedFormat::Arrow {
            pairs.push(("format", "arrow".to_owned()));
        }

        pairs
            .iter()
            .map(|(name, value)| format!("{name}={}", http::escaped(value)))
            .collect::<Vec<_>>()
            .join("&")
    }
}
