//! The floors: a bare hyper pass-through, and the same with one SQLite writer. Neither parses.
//!
//! The recording floor commits each call (WAL, `synchronous = FULL`, group commit) before the last
//! frame of its reply leaves.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rusqlite::Connection;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Records that wait for the writer.
const QUEUE_MAX: usize = 4096;
/// Records of one commit.
const GROUP_MAX: usize = 256;

/// A call as it is recorded, and the sender that is told when it is on disk.
struct FloorRecord {
    request: Bytes,
    reply: Vec<Bytes>,
    done: oneshot::Sender<()>,
}

/// A proxy that has nothing but its connections and its writer.
#[derive(Clone)]
struct Floor {
    client: Client<HttpConnector, Full<Bytes>>,
    upstream: String,
    writer: Option<SyncSender<FloorRecord>>,
}

/// Serves a floor on `listen` for as long as the process lives.
pub(crate) fn serve(
    listen: SocketAddr,
    upstream: SocketAddr,
    store: Option<PathBuf>,
) -> std::io::Result<()> {
    let writer = store.map(|path| {
        let (sender, records) = sync_channel(QUEUE_MAX);
        std::thread::spawn(move || {
            write(&path, &records).expect("the floor's store can be written")
        });
        sender
    });

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(tcp);
        let floor = Floor { client, upstream: format!("http://{upstream}"), writer };
        let listener = TcpListener::bind(listen).await?;

        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let floor = floor.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request| {
                    let floor = floor.clone();
                    async move { floor.answer(request).await }
                });
                let http = hyper::server::conn::http1::Builder::new();
                // The load generator closes its connections at the end of a run.
                let _ = http.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    })
}

impl Floor {
    async fn answer(&self, request: Request<Incoming>) -> hyper::Result<Response<RecordingBody>> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = format!("{}{path}", self.upstream).parse::<Uri>().unwrap_or_default();
        let request = Request::from_parts(head, Full::new(body.clone()));

        let Ok(reply) = self.client.request(request).await else {
            let mut reply = Response::new(RecordingBody::default());
            *reply.status_mut() = StatusCode::BAD_GATEWAY;
            return Ok(reply);
        };
        let writer = self.writer.clone();
        Ok(reply.map(|incoming| RecordingBody {
            incoming: Some(incoming),
            request: body,
            writer,
            ..RecordingBody::default()
        }))
    }
}

/// A reply on its way, which is recorded if there is a writer.
#[derive(Default)]
struct RecordingBody {
    /// The upstream's body, until it has ended.
    incoming: Option<Incoming>,
    request: Bytes,
    reply: Vec<Bytes>,
    writer: Option<SyncSender<FloorRecord>>,
    /// The last frame so far, which waits for the next or for the disk.
    held: Option<Bytes>,
    on_disk: Option<oneshot::Receiver<()>>,
}

impl Body for RecordingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        while let Some(incoming) = &mut self.incoming {
            match ready!(Pin::new(incoming).poll_frame(cx)) {
                Some(Ok(frame)) if self.writer.is_none() => return Poll::Ready(Some(Ok(frame))),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.reply.push(data.clone());
                    if let Some(before) = self.held.replace(data) {
                        return Poll::Ready(Some(Ok(Frame::data(before))));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.finish(),
            }
        }

        if let Some(on_disk) = &mut self.on_disk {
            // Without an answer the writer has ended, and the load sees it by its missing records.
            let _ = ready!(Pin::new(on_disk).poll(cx));
            self.on_disk = None;
        }
        Poll::Ready(self.held.take().map(|last| Ok(Frame::data(last))))
    }
}

impl RecordingBody {
    /// Hands the record to the writer.
    fn finish(&mut self) {
        self.incoming = None;
        let Some(writer) = self.writer.take() else { return };
        let (done, on_disk) = oneshot::channel();
        let record = FloorRecord {
            request: std::mem::take(&mut self.request),
            reply: std::mem::take(&mut self.reply),
            done,
        };
        if writer.send(record).is_ok() {
            self.on_disk = Some(on_disk);
        }
    }
}

/// Writes records in groups until the process ends.
fn write(path: &Path, records: &Receiver<FloorRecord>) -> rusqlite::Result<()> {
    let mut sqlite = Connection::open(path)?;
    sqlite.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE calls (id INTEGER PRIMARY KEY, request BLOB, reply BLOB)",
    )?;

    while let Ok(first) = records.recv() {
        let group: Vec<_> =
            std::iter::once(first).chain(records.try_iter().take(GROUP_MAX - 1)).collect();

        let transaction = sqlite.transaction()?;
        {
            let mut insert =
                transaction.prepare_cached("INSERT INTO calls (request, reply) VALUES (?1, ?2)")?;
            for record in &group {
                insert.execute((record.request.as_ref(), record.reply.concat()))?;
            }
        }
        transaction.commit()?;

        for record in group {
            // An agent that has left needs no word.
            let _ = record.done.send(());
        }
    }
    Ok(())
}
