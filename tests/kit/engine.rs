//! An engine of a fleet, scripted: it answers chats, has a label of its weights, dies and comes
//! back. A double, because a real engine cannot be killed between two bytes on demand.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::upstream::{Seen, read_request};

/// The state of a scripted engine.
#[derive(Debug, Default)]
struct State {
    port: u16,
    /// Odd while it lives, even while it is dead.
    life: u64,
    label: String,
    /// The number that its label must have at least for its calls to be right.
    newest: u64,
    seen: Vec<Seen>,
    /// Chats that came while it had an older label than the newest.
    stale: usize,
    /// Statuses that are answered to the next chats in place of a reply.
    refusals: Vec<u16>,
    /// Chats that are cut off after they came whole.
    cuts: usize,
    refuses_weights: bool,
    /// Time until a push of weights is answered.
    push_takes: Duration,
    latency: Duration,
}

/// A scripted engine.
#[derive(Debug)]
pub struct ScriptedEngine {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    tasks: Mutex<JoinSet<()>>,
    /// A socket on its port while it is dead, so that nobody else gets it. Connections are refused.
    kept: Mutex<Option<TcpSocket>>,
}

impl ScriptedEngine {
    /// Starts an engine that takes `latency` for a chat.
    pub async fn start(latency: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (port, label) = (address.port(), "0".to_owned());
        let state = State { port, life: 1, label, latency, ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let engine = Self { address, state, tasks: Mutex::default(), kept: Mutex::default() };
        engine.serve(listener);
        engine
    }

    fn serve(&self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        lock(&self.tasks).spawn(async move {
            // The connections end with this task.
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(converse(socket, Arc::clone(&state)));
                while connections.try_join_next().is_some() {}
            }
        });
    }

    /// Dies: its connections break off, and it takes no more.
    pub async fn kill(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("a fresh socket takes options");
        socket.bind(self.address).expect("the port is its own");
        *lock(&self.kept) = Some(socket);
        lock(&self.state).life += 1;
    }

    /// Comes back with the weights that it had at first.
    pub async fn revive(&self) {
        let socket = lock(&self.kept).take().expect("it is dead");
        let listener = socket.listen(128).expect("the port is its own");
        let mut state = lock(&self.state);
        state.label = "0".to_owned();
        state.life += 1;
        drop(state);
        self.serve(listener);
    }

    /// The number of its life; odd numbers are lives, even ones the times between.
    pub fn life(&self) -> u64 {
        lock(&self.state).life
    }

    /// The label of its weights.
    pub fn label(&self) -> String {
        lock(&self.state).label.clone()
    }

    /// From now on chats are counted as stale if its label is a lower number than this. While a
    /// push is under way it may have the next one already.
    pub fn expect_label(&self, label: u64) {
        lock(&self.state).newest = label;
    }

    /// Chats that came while it had an older label than the newest.
    pub fn stale(&self) -> usize {
        lock(&self.state).stale
    }

    /// Answers the next chat with an error status.
    pub fn refuse_next(&self, status: u16) {
        lock(&self.state).refusals.push(status);
    }

    /// Cuts the next chat off once it has come whole.
    pub fn cut_next(&self) {
        lock(&self.state).cuts += 1;
    }

    /// Sets whether pushes of weights are refused.
    pub fn refuse_weights(&self, refuses: bool) {
        lock(&self.state).refuses_weights = refuses;
    }

    /// Sets the time that a push of weights takes. The new weights sample from its beginning.
    pub fn slow_down_pushes(&self, takes: Duration) {
        lock(&self.state).push_takes = takes;
    }

    /// Everything that it was asked, but for looks at it.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state).seen.clone()
    }

    /// The chats that it was asked.
    pub fn chats(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path == CHAT).collect()
    }
}

const CHAT: &str = "/v1/chat/completions";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics here")
}

/// An answer: a status and a document; `None` to break off.
type Answer = Option<(u16, Value)>;

async fn converse(mut socket: TcpStream, state: Arc<Mutex<State>>) {
    let mut held = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut held).await {
        let (answer, latency) = answer(&mut lock(&state), &request);
        tokio::time::sleep(latency).await;
        let Some((status, body)) = answer else { return };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        if socket.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.is_err() {
            return;
        }
    }
}

fn answer(state: &mut State, request: &Seen) -> (Answer, Duration) {
    let path = request.path.split('?').next().unwrap_or_default();
    let soon = |status: u16, body: Value| (Some((status, body)), Duration::ZERO);
    match path {
        "/health" => return soon(200, json!({})),
        "/v1/models" => {
            let models = json!({ "object": "list", "data": [{ "id": "m", "owned_by": "vllm" }] });
            return soon(200, models);
        }
        "/weight_info" => return soon(200, json!({ "weight_version": state.label })),
        "/server_info" => return soon(404, json!({})),
        _ => state.seen.push(request.clone()),
    }
    match path {
        CHAT => chat(state),
        "/update_weights" | "/finish_weight_update" if state.refuses_weights => {
            soon(400, json!({ "error": "a tensor is missing" }))
        }
        "/update_weights" => {
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            if let Some(label) = body.get("weight_version").and_then(Value::as_str) {
                label.clone_into(&mut state.label);
            }
            (Some((200, json!({ "message": "updated" }))), state.push_takes)
        }
        "/get_world_size" => soon(200, json!({ "world_size": 2 })),
        _ => soon(200, json!({ "path": request.path })),
    }
}

fn chat(state: &mut State) -> (Answer, Duration) {
    if state.label.parse().is_ok_and(|label: u64| label < state.newest) {
        state.stale += 1;
    }
    if let Some(status) = state.refusals.pop() {
        return (Some((status, json!({ "error": { "message": "busy" } }))), Duration::ZERO);
    }
    if state.cuts > 0 {
        state.cuts -= 1;
        return (None, Duration::ZERO);
    }
    let choice = json!({
        "index": 0, "message": { "role": "assistant", "content": "ok" }, "finish_reason": "stop",
        "token_ids": [1, 2], "logprobs": null,
    });
    let reply = json!({
        "id": "c", "object": "chat.completion", "model": "m", "choices": [choice],
        "system_fingerprint": format!("{}/{}", state.port, state.life),
        "prompt_token_ids": [3, 4], "usage": { "prompt_tokens": 2, "completion_tokens": 2 },
    });
    (Some((200, reply)), state.latency)
}
