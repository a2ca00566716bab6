//! Weights that a trainer broadcasts through an emulated driver and NCCL, by the calls and in
//! the packing of TRL's and vLLM's clients.
//!
//! The trainer is member 0 of a group of two and calls the same library as the engine. Trainers
//! die, stall and stay away here; what is served is whole all the time, and the next trainer is
//! served.

mod in_place;
mod on_device;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use kernels::cuda::{Device, DeviceOptions, Memory};
use kernels::nccl::{self, Communicator};
use safetensors::Dtype;
use tokio::task::{JoinHandle, spawn_blocking};

use super::*;
use crate::update::nccl::tests::{pickled, store};
use crate::update::tests::{Named, bytes, file_of, variant};

const INIT: &str = "/init_weight_transfer_engine";
const START: &str = "/start_weight_update";
const UPDATE: &str = "/update_weights";
const FINISH: &str = "/finish_weight_update";

/// Bytes of a packed broadcast: enough for several tensors, and few enough for several broadcasts.
const PACKED: usize = 100_000;

/// Time after which a call that must not hang is checked.
const LONG: Duration = Duration::from_secs(60);

fn given_up_after(patience: Duration) -> impl FnMut() -> bool {
    let deadline = Instant::now() + patience;
    move || Instant::now() > deadline
}

/// The trainer's side.
struct Trainer {
    device: Device,
    member: Communicator,
}

/// Makes a name of a group, and the `init_info` to join it.
fn invitation() -> ([u8; nccl::ID_BYTES], Value) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let id = nccl::unique_id().unwrap();
    std::thread::spawn(move || store(&listener, &pickled(&id)));
    let info = json!({"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1,
        "world_size": 2, "packed": true, "packed_buffer_size_bytes": PACKED});
    (id, info)
}

impl Trainer {
    /// Waits until the engine and a trainer are in one group.
    async fn join(server: &Server, changes: Value) -> Trainer {
        let (id, info) = invitation();
        let leading = spawn_blocking(move || {
            let device = Device::open(&DeviceOptions::default()).unwrap();
            let member = Communicator::new(&device, &id, 0, 2, &mut given_up_after(LONG)).unwrap();
            Trainer { device, member }
        });
        let answer = server.post(INIT, &json!({"init_info": merged(info, changes)})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        leading.await.unwrap()
    }

    /// Broadcasts one after another.
    async fn send(mut self, parts: Vec<Vec<u8>>) -> Trainer {
        let sending = spawn_blocking(move || {
            for part in parts {
                let memory = Memory::of(&self.device, &part).unwrap();
                self.member.broadcast(&memory, &mut given_up_after(LONG)).unwrap();
            }
            self
        });
        sending.await.unwrap()
    }

    /// Makes a whole update by a client's calls, and returns the answer to the finish.
    async fn push(self, server: &Server, number: u32, label: &str) -> (Trainer, Value) {
        let named = variant(number);
        let updating = begun(server, &named, json!({})).await;
        let trainer = self.send(packed(&named, Dtype::F32)).await;
        assert_eq!(said_of(updating).await.status, 200);
        let finish = server.post(FINISH, &json!({"weight_version": label})).await;
        assert_eq!(finish.status, 200, "{}", finish.body);
        (trainer, finish.json())
    }
}

/// The announcement of tensors.
fn announced(named: &Named, dtype: &str) -> Value {
    let names: Vec<&String> = named.keys().collect();
    let shapes: Vec<&Vec<usize>> = named.values().map(|(shape, _)| shape).collect();
    json!({"names": names, "dtype_names": vec![dtype; names.len()], "shapes": shapes})
}

/// Starts an update, and waits until the engine waits for its tensors.
async fn begun(server: &Server, named: &Named, changes: Value) -> JoinHandle<Answer> {
    assert_eq!(server.post_text(START, "").await.status, 200);
    let info = merged(announced(named, "float32"), changes);
    server.begin(UPDATE, &json!({ "update_info": info }))
}

async fn said_of(call: JoinHandle<Answer>) -> Answer {
    tokio::time::timeout(LONG, call).await.expect("the call hangs").unwrap()
}

/// Packs tensors as vLLM's client does: one behind the other, until the bytes do not fit.
fn packed(named: &Named, dtype: Dtype) -> Vec<Vec<u8>> {
    let (mut parts, mut part) = (Vec::new(), Vec::new());
    for (_, values) in named.values() {
        part.extend(bytes(values, dtype));
        if part.len() > PACKED {
            parts.push(std::mem::take(&mut part));
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    assert!(parts.len() > 2 && parts.len() < named.len(), "{} broadcasts", parts.len());
    parts
}

/// Returns the label, the checksum of the weights as they are read back, and the bits of replies.
async fn served(server: &Server) -> (Value, Value, Vec<Value>) {
    let bodies: Vec<Value> = (0..3).map(numbered).collect();
    let replies = alone(server, &bodies).await;
    let info = server.get("/weight_info").await.json();
    (info["weight_version"].clone(), checked(server).await, replies)
}

/// Returns the same of an engine that got a variant as a body.
async fn served_from_a_body(number: u32, dtype: Dtype, label: &str) -> (Value, Value, Vec<Value>) {
    let server = Server::start(deterministic()).await;
    let file = file_of(&variant(number), dtype);
    let push = server.post_bytes(&format!("{UPDATE}?weight_version={label}"), &file).await;
    assert_eq!(push.status, 200, "{}", push.body);
    let found = served(&server).await;
    server.stop().await;
    found
}

#[tokio::test]
async fn what_a_trainer_broadcasts_is_served_like_a_body() {
    let _emulated = exclusive_gpu_async().await;
    let expected = [
        served_from_a_body(1, Dtype::F32, "a").await,
        served_from_a_body(2, Dtype::BF16, "b").await,
    ];
    let server = Server::start(deterministic()).await;
    let before = served(&server).await;
    assert!(before.2 != expected[0].2 && expected[0].2 != expected[1].2);
    let trainer = Trainer::join(&server, json!({})).await;
    let (trainer, _) = trainer.push(&server, 1, "a").await;
    assert_eq!(served(&server).await, expected[0]);
    // The group stays; tensor by tensor and in halves, as the update itself says.
    let named = variant(2);
    let halves = json!({"dtype_names": vec!["torch.bfloat16"; named.len()], "packed": false});
    let updating = begun(&server, &named, halves).await;
    let parts = named.values().map(|(_, values)| bytes(values, Dtype::BF16)).collect();
    let trainer = trainer.send(parts).await;
    assert_eq!(said_of(updating).await.status, 200);
    // Until the finish the weights of before serve.
    assert_eq!(served(&server).await, expected[0]);
    let finish = server.post(FINISH, &json!({"weight_version": "b"})).await;
    assert_eq!(finish.status, 200, "{}", finish.body);
    assert_eq!(served(&server).await, expected[1]);
    drop(trainer);
    server.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_the_group_stays_in_step() {
    let _emulated = exclusive_gpu_async().await;
    let expected = served_from_a_body(1, Dtype::F32, "a").await;
    let server = Server::start(deterministic()).await;
    let before = served(&server).await;
    let mut trainer = Trainer::join(&server, json!({})).await;
    let named = variant(1);
    let name = named.keys().nth(3).unwrap().clone();
    // As many bytes as there are, but of another shape; and a tensor that nobody knows.
    let mut turned = named.clone();
    turned.get_mut(&name).unwrap().0.insert(0, 1);
    let mut renamed = named.clone();
    let strange = renamed.remove(&name).unwrap();
    renamed.insert("model.strange".to_owned(), strange);
    for (wrong, blamed) in [(&turned, name.as_str()), (&renamed, "model.strange")] {
        let updating = begun(&server, wrong, json!({})).await;
        trainer = trainer.send(packed(wrong, Dtype::F32)).await;
        let refused = said_of(updating).await;
        assert!(refused.status == 400 && refused.body.contains(blamed), "{}", refused.body);
        assert_eq!(server.post_text(FINISH, "").await.status, 409);
        assert_eq!(served(&server).await, before);
    }
    // One call that is to be a whole model, and lacks a tensor.
    let mut lacking = named.clone();
    lacking.remove(&name);
    let info = announced(&lacking, "float32");
    let body = json!({"update_info": info, "weight_version": "a"});
    let updating = server.begin(UPDATE, &body);
    trainer = trainer.send(packed(&lacking, Dtype::F32)).await;
    let refused = said_of(updating).await;
    assert!(refused.status == 400 && refused.body.contains("of all tensors"), "{}", refused.body);
    assert_eq!(served(&server).await, before);
    let (_trainer, _) = trainer.push(&server, 1, "a").await;
    assert_eq!(served(&server).await, expected);
    server.stop().await;
}

/// Checks that a second trainer can push weights.
async fn the_next_one_is_served(server: Server) {
    let before = served(&server).await;
    let trainer = Trainer::join(&server, json!({})).await;
    let (trainer, done) = trainer.push(&server, 2, "next").await;
    let info = server.get("/weight_info").await.json();
    assert_eq!(info["weight_version"], "next");
    assert_eq!(info["checksum"], done["checksum"]);
    assert!(served(&server).await.2 != before.2);
    drop(trainer);
    server.stop().await;
}

#[tokio::test]
async fn a_trainer_that_never_comes_is_not_waited_for_for_ever() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let before = served(&server).await;
    // Its store is there, but it never joins; and nobody is there at all.
    let (_, silent) = invitation();
    let nobody = merged(silent.clone(), json!({"master_port": 1}));
    for (info, expected) in [(silent, "waited for in vain"), (nobody, "cannot read the trainer's")]
    {
        let info = merged(info, json!({"timeout": 0.5}));
        let answer = said_of(server.begin(INIT, &json!({ "init_info": info }))).await;
        assert!(answer.status == 504 && answer.body.contains(expected), "{}", answer.body);
        assert!(answer.body.contains("in vain for 0.5 seconds"), "{}", answer.body);
    }
    let info = announced(&variant(1), "float32");
    let update = server.post(UPDATE, &json!({ "update_info": info })).await;
    assert!(update.status == 400 && update.body.contains("no transport"), "{}", update.body);
    assert_eq!(served(&server).await, before);
    the_next_one_is_served(server).await;
}

#[tokio::test]
async fn a_trainer_that_dies_between_broadcasts_is_told_of_at_once() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let before = served(&server).await;
    let trainer = Trainer::join(&server, json!({})).await;
    let named = variant(1);
    let updating = begun(&server, &named, json!({})).await;
    let first = packed(&named, Dtype::F32).remove(0);
    drop(trainer.send(vec![first]).await);
    let answer = said_of(updating).await;
    assert!(answer.status == 504 && answer.body.contains("the trainer is gone"), "{}", answer.body);
    // What was begun is not whole, and the group is no more.
    assert_eq!(server.post_text(FINISH, "").await.status, 409);
    let again = server.post(UPDATE, &json!({"update_info": announced(&named, "float32")})).await;
    assert!(again.status == 400 && again.body.contains("no transport"), "{}", again.body);
    assert_eq!(served(&server).await, before);
    the_next_one_is_served(server).await;
}

#[tokio::test]
async fn a_trainer_that_stalls_is_given_up_after_its_time() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let before = served(&server).await;
    let trainer = Trainer::join(&server, json!({"timeout": 600})).await;
    let named = variant(1);
    let updating = begun(&server, &named, json!({"timeout": 5})).await;
    let trainer = trainer.send(packed(&named, Dtype::F32).into_iter().take(2).collect()).await;
    let answer = said_of(updating).await;
    assert_eq!(answer.status, 504, "{}", answer.body);
    assert!(answer.body.contains("in vain for 5 seconds"), "{}", answer.body);
    assert_eq!(served(&server).await, before);
    the_next_one_is_served(server).await;
    // It is still there, and would have gone on.
    drop(trainer);
}

#[tokio::test]
async fn the_engine_serves_while_a_trainer_stalls() {
    let _emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..3).map(numbered).collect();
    let expected = alone(&server, &bodies).await;
    let trainer = Trainer::join(&server, json!({})).await;
    let updating = begun(&server, &variant(1), json!({})).await;
    let trainer = trainer.send(packed(&variant(1), Dtype::F32).into_iter().take(1).collect()).await;
    assert_eq!(alone(&server, &bodies).await, expected);
    assert!(!updating.is_finished());
    // A trainer that waits to join is replaced as well, and so is one in the middle of an update.
    let (_, silent) = invitation();
    let joining = server.begin(INIT, &json!({ "init_info": silent }));
    let answer = said_of(updating).await;
    assert!(answer.status == 409 && answer.body.contains("a later call"), "{}", answer.body);
    let next = Trainer::join(&server, json!({})).await;
    assert_eq!(said_of(joining).await.status, 409);
    drop(next);
    the_next_one_is_served(server).await;
    drop(trainer);
}

#[tokio::test]
async fn an_engine_that_stops_does_not_wait_for_a_trainer() {
    let _emulated = exclusive_gpu_async().await;
    for caller_leaves in [false, true] {
        let server = Server::start(deterministic()).await;
        let trainer = Trainer::join(&server, json!({})).await;
        let updating = begun(&server, &variant(1), json!({})).await;
        let first = packed(&variant(1), Dtype::F32).remove(0);
        let trainer = trainer.send(vec![first]).await;
        // The engine has what was sent, and waits for more.
        assert_eq!(server.get("/weight_info").await.status, 200);
        if caller_leaves {
            updating.abort();
            tokio::time::timeout(LONG, server.stop()).await.expect("the engine does not end");
        } else {
            tokio::time::timeout(LONG, server.stop()).await.expect("the engine does not end");
            let answer = said_of(updating).await;
            assert!(answer.status == 503 && answer.body.contains("stopping"), "{}", answer.body);
        }
        drop(trainer);
    }
}
