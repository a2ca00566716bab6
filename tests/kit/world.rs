//! A proxy with its store, in a folder of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use control::Settings;
use engine::{Engine, EngineOptions};
use episode::{Call, Reward, RewardRange};
use proxy::{Config, Proxy, Recorder};
use rusqlite::Connection;
use store::{AttemptRecord, Durability, Selection, Snapshot, Store, Writer};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use viewer::Viewer;

/// How long a second connection waits for the writer.
const BUSY_WAIT: Duration = Duration::from_secs(2);

/// A running proxy.
#[derive(Debug)]
pub struct World {
    /// Where agents call.
    pub data: SocketAddr,
    /// Where harnesses call.
    pub control: SocketAddr,
    /// Items of the feed of which rows were made.
    items: Arc<AtomicUsize>,
    folder: TempDir,
    stop: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    writer: Writer,
}

impl World {
    /// Starts a proxy in front of `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        Self::start_with(Config::new(
            format!("http://{upstream}").parse().expect("a socket address is a good upstream"),
        ))
        .await
    }

    /// Starts a proxy with bounds of the test's own.
    pub async fn start_with(config: Config) -> Self {
        Self::start_in(tempfile::tempdir().expect("a temporary folder"), config).await
    }

    /// The same with the store that is in `folder`, where there is one.
    pub async fn start_in(folder: TempDir, config: Config) -> Self {
        Self::start_guarded(folder, config, None).await
    }

    /// The same with a token that the control listener requires, where there is one.
    pub async fn start_guarded(folder: TempDir, config: Config, token: Option<String>) -> Self {
        Self::start_controlled(folder, config, |settings| Settings { token, ..settings }).await
    }

    /// The same with ranges that rewards must be in.
    pub async fn start_ranged(
        folder: TempDir,
        config: Config,
        reward_ranges: Vec<RewardRange>,
    ) -> Self {
        let with = |settings| Settings { reward_ranges, ..settings };
        Self::start_controlled(folder, config, with).await
    }

    async fn start_controlled(
        folder: TempDir,
        config: Config,
        change: impl FnOnce(Settings) -> Settings,
    ) -> Self {
        let (store, writer) = Store::open(&folder.path().join("test.db"), Durability::Power)
            .await
            .expect("a new store opens");
        let items = Arc::new(AtomicUsize::new(0));
        let settings = change(settings(&config, &store));
        let settings = Settings { feed_items: Arc::clone(&items), ..settings };
        let is_fleet = !config.fleet.engines.is_empty();
        let proxy = Proxy::start(config, store).await.expect("a good configuration");
        let proxy = Arc::new(proxy);
        let (stop, stopped) = watch::channel(false);
        let (data, data_at) = listen().await;
        let (control, control_at) = listen().await;
        let mut listeners =
            vec![tokio::spawn(proxy::serve_data(Arc::clone(&proxy), data, when(stopped.clone())))];
        if is_fleet {
            let watch = proxy::watch_upstream(Arc::clone(&proxy), when(stopped.clone()));
            listeners.push(tokio::spawn(watch));
        }
        let served = control::serve_control(Recorder::new(proxy), settings, control, when(stopped));
        listeners.push(tokio::spawn(served));
        Self { data: data_at, control: control_at, items, folder, stop, listeners, writer }
    }

    /// Items of the feed of which rows were made so far.
    pub fn items(&self) -> usize {
        self.items.load(Ordering::Relaxed)
    }

    /// Where the store is.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("test.db")
    }

    /// What is on disk now.
    pub async fn snapshot(&self) -> Snapshot {
        Snapshot::open(&self.store()).await.expect("the store reads")
    }

    /// All episodes with their calls and rewards, as on disk now.
    pub async fn recorded(&self) -> Vec<(AttemptRecord, Vec<Call>, Vec<Reward>)> {
        let mut snapshot = self.snapshot().await;
        let mut all = Vec::new();
        for episode in snapshot.episodes(&Selection::default()).await.expect("episodes read") {
            let calls = snapshot.calls(&episode).await.expect("calls read");
            let rewards = snapshot.rewards(&episode).await.expect("rewards read");
            all.push((episode, calls, rewards));
        }
        all
    }

    /// All calls, in the order in which they began.
    pub async fn calls(&self) -> Vec<Call> {
        self.recorded().await.into_iter().flat_map(|(_, calls, _)| calls).collect()
    }

    /// Waits until the one recorded call has ended, and gives it.
    pub async fn ended_call(&self) -> Call {
        for _ in 0..3000 {
            if let Some(call) = self.calls().await.pop().filter(|call| call.ended.is_some()) {
                return call;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("no call ended within half a minute");
    }

    /// Stops the proxy as a signal does and waits until everything is on disk.
    pub async fn stop(self) -> TempDir {
        self.stop.send_replace(true);
        for listener in self.listeners {
            listener.await.expect("a listener does not panic");
        }
        self.writer.finish().await;
        self.folder
    }
}

/// The settings of the control listener of a proxy.
pub fn settings(config: &Config, store: &Store) -> Settings {
    Settings {
        head_wait: config.head_wait,
        body_wait: config.body_wait,
        idle_wait: config.idle_wait,
        descriptors_max: config.descriptors_max,
        ..Settings::new(Viewer::new(store.location().clone(), None))
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    (listener, address)
}

async fn when(mut stopped: watch::Receiver<bool>) {
    // An error means that the world was dropped: that is a stop, too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// The engine with the tiny model, alone.
pub async fn start_engine() -> SocketAddr {
    start_engine_of("tiny").await
}

/// The engine with a model of the folder `engine/models`, alone.
pub async fn start_engine_of(model: &str) -> SocketAddr {
    start_engine_with(model, EngineOptions::default()).await
}

/// The same with options of the test's own.
pub async fn start_engine_with(model: &str, options: EngineOptions) -> SocketAddr {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/models").join(model);
    let engine = Engine::load(&folder, options).expect("the tiny model is served");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("the tiny model is served");
    let address = listener.local_addr().expect("the tiny model is served");
    tokio::spawn(engine::serve(listener, engine, engine::Access::open(), std::future::pending()));
    address
}

/// A connection to the store at `path`, as any other process may have one.
pub fn sql(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("the store opens");
    connection.busy_timeout(BUSY_WAIT).expect("the store opens");
    connection
}

/// A recorded file.
pub fn tape(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tapes").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
