//! `rolltape feed`: what is finished, from a server that runs.
//!
//! Rows go on item by item as they come. An item is acked when it is where it was to go: synced in
//! a file, or read out of a pipe. Whatever ends the reading, what is not acked by then is given
//! back.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use hyper::body::Incoming;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::exit::{Done, Failure};
use crate::feed_asked::Asked;
use crate::feed_http::{Told, Upstairs, more};
use crate::feed_items::{Attempt, Cutter, Form, ItemRows, Writer};
use crate::feed_sink::Sink;
use crate::http;
use crate::manner::ControlToken;

/// Pause before a server that is gone is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long a reply is waited for with --follow, in seconds.
const WAIT_S: u32 = 30;
/// How long a lease lasts unless told, in seconds.
const LEASE_S: u32 = 300;
/// How long a reader of ours that reads no more is waited for at the end.
const LAST_WAIT: Duration = Duration::from_secs(2);

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

/// Why no more is read.
enum End {
    /// Nothing is left.
    Dry,
    /// A signal says so.
    Told,
    /// Nobody reads what is written.
    Closed,
    /// The reply ended early.
    BrokenOff(Failure),
    Failed(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            Self::Closed
        } else {
            Self::Failed(error.into())
        }
    }
}

/// What was handed out in one reply and is not acked.
#[derive(Default)]
struct Held {
    lease: Option<String>,
    /// Of the items that were written whole.
    written: Vec<Attempt>,
    /// The item that is being written.
    writing: Option<(i64, BTreeSet<Attempt>)>,
}

/// One that reads, and how far it is.
struct Reader<'a> {
    args: &'a Args,
    server: &'a Upstairs,
    sink: Sink,
    writer: Writer,
    held: Held,
    cursor: Option<String>,
    /// Whether the server has answered once.
    begun: bool,
}

/// Reads until nothing is left, or with --follow until a signal ends it.
pub(crate) async fn run(args: Args) -> Done {
    let server = Upstairs::new(&args.control, args.token.read()?);
    let mut reader = Reader {
        sink: Sink::open(&args.out)?,
        writer: Writer::default(),
        held: Held::default(),
        cursor: args.asked.cursor.clone(),
        begun: false,
        args: &args,
        server: &server,
    };
    let mut stopped = signal(SignalKind::terminate())?;
    let end = tokio::select! {
        end = reader.read() => end,
        _ = tokio::signal::ctrl_c() => End::Told,
        _ = stopped.recv() => End::Told,
    };
    let left = reader.leave(matches!(end, End::Closed)).await;
    if args.asked.consumer.is_none() && reader.begun {
        eprintln!("cursor {}", reader.cursor.as_deref().unwrap_or("0"));
    }
    match end {
        End::BrokenOff(failure) | End::Failed(failure) => Err(failure),
        End::Dry | End::Told | End::Closed => left.map(|()| ExitCode::SUCCESS),
    }
}

impl Reader<'_> {
    async fn read(&mut self) -> End {
        loop {
            match self.reply().await {
                Ok(true) => {}
                Ok(false) => return End::Dry,
                // The rows that came are written; the others come again.
                Err(End::BrokenOff(failure)) if self.args.follow => {
                    eprintln!("{failure}");
                    if let Err(end) = self.ack().await {
                        return end;
                    }
                    self.give_back().await;
                }
                Err(end) => return end,
            }
        }
    }

    /// Reads one reply and writes it out; false when nothing is left.
    async fn reply(&mut self) -> Result<bool, End> {
        let follow = self.args.follow;
        let reply = match self.server.feed(&self.query()).await {
            Err(_) if follow && self.begun => {
                sleep(AGAIN_AFTER).await;
                return Ok(true);
            }
            reply => reply?,
        };
        self.begun = true;
        if let Told::Rows(body) = reply.told {
            self.held = Held { lease: reply.lease, ..Held::default() };
            self.hold(body).await?;
            self.ack().await?;
            self.held = Held::default();
        } else if !follow {
            self.note(reply.cursor);
            return Ok(false);
        }
        self.note(reply.cursor);
        Ok(true)
    }

    /// A reader with a name has no cursor of its own.
    fn note(&mut self, cursor: Option<String>) {
        if self.args.asked.consumer.is_none() && cursor.is_some() {
            self.cursor = cursor;
        }
    }

    /// Writes a reply out, and holds on to its lease as long as that lasts.
    async fn hold(&mut self, body: Incoming) -> Result<(), End> {
        let lease = self.held.lease.clone().filter(|_| self.args.ack);
        let (server, lease_s) = (self.server, self.args.asked.lease_s.unwrap_or(LEASE_S));
        let Some(lease) = lease else { return self.pass_on(body).await };
        let half = Duration::from_secs(lease_s.into()) / 2;
        tokio::select! {
            end = self.pass_on(body) => end,
            never = server.renew(&lease, lease_s, half) => match never {},
        }
    }

    /// Writes rows item by item as they come, and waits until they are where they were to go.
    async fn pass_on(&mut self, mut body: Incoming) -> Result<(), End> {
        let mut cutter = Cutter::new(self.args.format);
        while let Some(bytes) = more(&mut body).await.map_err(End::BrokenOff)? {
            for item in cutter.take(bytes)? {
                self.write(item).await?;
            }
        }
        if let Some(item) = cutter.end().map_err(End::BrokenOff)? {
            self.write(item).await?;
        }
        Ok(self.sink.arrive(self.args.ack).await?)
    }

    async fn write(&mut self, item: ItemRows) -> Result<(), End> {
        let bytes = self.writer.bytes(item.rows)?;
        self.held.writing = Some((item.position, item.attempts));
        self.sink.put(bytes).await?;
        self.written();
        Ok(())
    }

    /// The item that was being written is.
    fn written(&mut self) {
        let Some((position, attempts)) = self.held.writing.take() else { return };
        self.held.written.extend(attempts);
        self.note(Some(position.to_string()));
    }

    /// Acks what was written whole. A lease that has ended is told and no error: what it held comes
    /// again.
    async fn ack(&mut self) -> Result<(), End> {
        let Held { lease: Some(lease), written, .. } = &self.held else { return Ok(()) };
        if !self.args.ack || written.is_empty() {
            return Ok(());
        }
        loop {
            match self.server.ack(lease, written).await {
                Ok(200) => return Ok(()),
                Ok(409) => {
                    eprintln!("lease {lease} had ended; what it held is handed out again");
                    return Ok(());
                }
                Ok(status) if !self.args.follow || status < 500 => {
                    let sentence = format!("the ack of lease {lease} was answered {status}");
                    return Err(Failure::new(sentence).into());
                }
                Err(error) if !self.args.follow => return Err(error.into()),
                _ => sleep(AGAIN_AFTER).await,
            }
        }
    }

    /// Gives back what is not acked. Where that cannot be said it comes again when the lease ends.
    async fn give_back(&mut self) {
        if let Some(lease) = std::mem::take(&mut self.held).lease.filter(|_| self.args.ack) {
            let _ = self.server.nack(&lease).await;
        }
    }

    /// Ends what was written, and acks it.
    async fn end(&mut self) -> Result<(), End> {
        self.sink.flush().await?;
        self.written();
        self.sink.put(self.writer.end()?).await?;
        self.sink.arrive(self.args.ack).await?;
        self.ack().await
    }

    /// Ends, acks what was written and gives the rest back, however the reading ended. Of what was
    /// written for a reader that has left nobody knows whether it was read.
    async fn leave(&mut self, closed: bool) -> Result<(), Failure> {
        let mut left = Ok(());
        if !closed {
            left = timeout(LAST_WAIT, self.end()).await.unwrap_or(Ok(()));
        }
        let _ = timeout(LAST_WAIT, self.give_back()).await;
        match left {
            Err(End::Failed(failure)) => Err(failure),
            _ => Ok(()),
        }
    }

    fn query(&self) -> String {
        let mut pairs = self.args.asked.pairs();
        pairs.extend(self.cursor.clone().map(|cursor| ("cursor", cursor)));
        if self.args.follow {
            pairs.push(("wait_s", WAIT_S.to_string()));
        }
        if self.args.format == Form::Arrow {
            pairs.push(("format", "arrow".to_owned()));
        }
        let pairs = pairs.iter().map(|(name, value)| format!("{name}={}", http::escaped(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}
