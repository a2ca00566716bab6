//! Two proxies before one fleet, on one database: they agree on the place of a thread, and a drain
//! of one loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kit::{ScriptedEngine, post, try_post};
use postgres_kit::Server;
use proxy::{Proxy, Recorder};
use serde_json::{Value, json};
use store::{Durability, Location, Selection, Snapshot, Store, Writer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::fleet::{config, engines};
use crate::wait::until;

const SESSIONS: usize = 24;
const TURNS: usize = 6;
/// Names of the engines. By their scores each is the best for six sessions, so few orders in which
/// the sessions come reach the bound of an engine; names of chance, such as ports, would let the
/// proxies differ now and then.
const NAMES: [&str; 4] = ["a08", "b08", "c08", "d08"];

/// A proxy that records into a database.
struct Twin {
    data: SocketAddr,
    control: SocketAddr,
    stop: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    writer: Writer,
}

impl Twin {
    async fn start(at: &Location, engines: &[ScriptedEngine]) -> Self {
        let (store, writer) = Store::open(at.clone(), Durability::Power).await.unwrap();
        let mut config = config(engines);
        for (engine, name) in config.fleet.engines.iter_mut().zip(NAMES) {
            name.clone_into(&mut engine.name);
        }
        let settings = kit::settings(&config, &store);
        let proxy = Arc::new(Proxy::start(config, store).await.unwrap());
        let (stop, stopped) = watch::channel(false);
        let when = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (data, control_at) = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
        let watching = proxy::watch_upstream(Arc::clone(&proxy), when(stopped.clone()));
        let serving = proxy::serve_data(Arc::clone(&proxy), listener, when(stopped.clone()));
        let recorder = Recorder::new(proxy);
        let listeners = vec![
            tokio::spawn(watching),
            tokio::spawn(serving),
            tokio::spawn(control::serve_control(recorder, settings, socket, when(stopped))),
        ];
        Self { data, control: control_at, stop, listeners, writer }
    }

    /// Drains: calls in flight end, and what is queued is written.
    async fn drain(self) {
        self.stop.send_replace(true);
        for listener in self.listeners {
            listener.await.unwrap();
        }
        self.writer.finish().await;
    }
}

/// The engine that answered each request, as an agent was told.
type Told = BTreeMap<String, String>;

/// A session whose turns go to the proxies in turns; to the other one if that takes none.
async fn session(twins: [SocketAddr; 2], number: usize) -> Told {
    let path = format!("/e/s{number}/v1/chat/completions");
    let mut messages = vec![json!({ "role": "user", "content": format!("task {number}") })];
    let mut told = Told::new();
    for turn in 0..TURNS {
        for try_number in 0.. {
            assert!(try_number < 20, "no proxy answers");
            let request = format!("{number}.{turn}.{try_number}");
            let body = json!({ "model": "m", "user": request, "messages": messages }).to_string();
            let reply = try_post(twins[(turn + try_number) % 2], &path, &body).await;
            if let Some(reply) = reply.filter(|reply| reply.status == 200 && reply.whole) {
                let engine = reply.json()["system_fingerprint"].as_str().unwrap().to_owned();
                told.insert(request, engine);
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        messages.push(json!({ "role": "assistant", "content": "ok" }));
        messages.push(json!({ "role": "user", "content": format!("turn {turn}") }));
    }
    told
}

/// The number that an agent gave a request.
fn number_of(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["user"].as_str().unwrap().to_owned()
}

/// Whole calls in the database.
async fn recorded(at: &Location) -> BTreeSet<String> {
    let mut snapshot = Snapshot::open(at).await.unwrap();
    let mut whole = BTreeSet::new();
    for episode in snapshot.episodes(&Selection::default()).await.unwrap() {
        for call in snapshot.calls(&episode).await.unwrap() {
            let end = call.ended.as_ref();
            if end.is_some_and(|end| end.outcome == episode::Outcome::Complete) {
                whole.insert(number_of(&call.begun.request.read()));
            }
        }
    }
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_place_alike_and_one_s_drain_loses_nothing() {
    let Some(server) = Server::shared() else { return };
    let at: Location = server.database().parse().unwrap();
    let engines = engines(4, Duration::from_millis(100)).await;
    let (one, other) = (Twin::start(&at, &engines).await, Twin::start(&at, &engines).await);
    let twins = [one.data, other.data];

    let mut sessions = JoinSet::new();
    for number in 0..SESSIONS {
        sessions.spawn(session(twins, number));
    }
    let asked = || engines.iter().map(|engine| engine.chats().len()).sum::<usize>();
    until("as many calls as sessions", async || (asked() > SESSIONS).then_some(())).await;
    let drained = tokio::spawn(one.drain());
    let mut acked = BTreeSet::new();
    let mut stayed = 0;
    while let Some(told) = sessions.join_next().await {
        let told = told.unwrap();
        assert_eq!(told.len(), TURNS);
        let places: BTreeSet<&String> = told.values().collect();
        stayed += usize::from(places.len() == 1);
        acked.extend(told.into_keys());
    }
    drained.await.unwrap();

    // Only near the bound of its share does an engine count threads that the other proxy does not.
    assert!(stayed * 10 >= SESSIONS * 8, "{stayed} of {SESSIONS} sessions on one engine");
    let mut begun: BTreeMap<String, usize> = BTreeMap::new();
    for engine in &engines {
        engine.chats().iter().for_each(|chat| {
            *begun.entry(number_of(&chat.body)).or_default() += 1;
        });
    }
    assert!(begun.values().all(|count| *count == 1), "a generation was sent twice");
    let recorded = recorded(&at).await;
    assert!(acked.is_subset(&recorded), "{:?}", acked.difference(&recorded));

    // Who is left takes what comes, and closes what the other one began.
    let closed = post(other.control, "/episodes/s0/close", "").await;
    assert_eq!(closed.status, 200, "{}", closed.text());
    other.drain().await;
}
