//! Updates in place: the bits of staged ones, no token from half of them, and what a failure
//! leaves.

use std::path::Path;

use safetensors::Dtype;

use super::super::hybrid;
use super::*;
use crate::UpdateMode;
use crate::update::tests::mixture;

const START: &str = "/start_weight_update";
const UPDATE: &str = "/update_weights";
const FINISH: &str = "/finish_weight_update";

fn in_place() -> EngineOptions {
    let update_mode = UpdateMode::InPlace;
    EngineOptions { seed: Some(1), update_mode, ..EngineOptions::default() }
}

/// Starts an update in place.
async fn start(server: &Server) {
    let started = server.post(START, &json!({"mode": "in_place"})).await;
    assert_eq!(started.status, 200, "{}", started.body);
}

/// Makes files of the tensors of a variant: the first `count`, and the others.
fn cut(number: u32, count: usize) -> [Vec<u8>; 2] {
    let mut first = variant(number);
    let middle = first.keys().nth(count).unwrap().clone();
    let second = first.split_off(&middle);
    [first, second].map(|named| file_of(&named, Dtype::F32))
}

/// Returns the label, the checksum as the weights are read back, and a reply.
async fn served(server: &Server) -> (Value, Value, Value) {
    let read = server.post("/weight_checker", &json!({"action": "checksum"})).await.json();
    let info = server.get("/weight_info").await.json();
    assert_eq!(info["checksum"], read["checksum"]);
    let reply = server.text(json!({"max_tokens": 9, "logprobs": 2, "ignore_eos": true})).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    (info["weight_version"].clone(), read["checksums"].clone(), reply.json()["choices"].clone())
}

/// Pushes weights to a model of `folder`, staged and in place, whole and a part, and compares.
async fn pushed_both_ways(folder: &Path, whole: &Named) {
    let some: Named = whole.iter().step_by(3).map(|(n, t)| (n.clone(), t.clone())).collect();
    let mut found = Vec::new();
    for mode in [UpdateMode::Staged, UpdateMode::InPlace] {
        let server = Server::of(folder, EngineOptions { update_mode: mode, ..in_place() }).await;
        let before = served(&server).await;
        assert_eq!(server.post_text(START, "").await.status, 200);
        let push = server.post_bytes(UPDATE, &file_of(&some, Dtype::BF16)).await;
        assert_eq!(push.status, 200, "{}", push.body);
        let done = server.post(FINISH, &json!({"weight_version": "some"})).await;
        assert_eq!(done.status, 200, "{}", done.body);
        let part = served(&server).await;
        let path = format!("{UPDATE}?weight_version=all");
        let push = server.post_bytes(&path, &file_of(whole, Dtype::F32)).await;
        assert_eq!(push.status, 200, "{}", push.body);
        let all = served(&server).await;
        assert!(before.1 != part.1 && part.1 != all.1);
        found.push([part, all]);
        server.stop().await;
    }
    assert_eq!(found[0], found[1]);
}

#[tokio::test]
async fn weights_in_place_have_the_bits_of_staged_ones() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    pushed_both_ways(&tiny(), &variant(1)).await;
    pushed_both_ways(&hybrid::folder(), &hybrid::weights(0.5)).await;
    for named in mixture(0.5) {
        // The part has a tensor of all experts, or single ones.
        pushed_both_ways(&models.join("tiny-moe"), &named).await;
    }
}

#[tokio::test]
async fn a_folder_in_place_is_served_like_a_staged_one() {
    let folder = folder_of(&variant(1));
    let staged = Server::plain().await;
    let body = json!({"weight_dir": folder.path(), "weight_version": "1"});
    let done = staged.post(UPDATE, &body).await.json();
    let expected = served(&staged).await;
    staged.stop().await;

    let server = Server::plain().await;
    let body = merged(body, json!({"mode": "in_place"}));
    let answer = server.post(UPDATE, &body).await;
    assert_eq!(answer.json()["checksum"], done["checksum"], "{}", answer.body);
    assert_eq!(served(&server).await, expected);
    // A caller that lost the answer gets it again.
    assert_eq!(server.post(UPDATE, &body).await.json(), answer.json());
    assert_eq!(server.stats.updates.repeated.load(Ordering::Relaxed), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_sampled_from_half_of_the_new_weights() {
    const TOKENS: usize = 900;
    let (server, mut truth) = (Server::plain().await, Truth::new(3));
    let folder = folder_of(&variant(0));
    let first = json!({"weight_dir": folder.path(), "weight_version": "0"});
    for pushed in 1..=2_u32 {
        assert_eq!(server.post(UPDATE, &first).await.status, 200);
        let before = generated(&server);
        let reply = server.begin("/v1/completions", &long(pushed, TOKENS));
        sampled(&server, before + 10).await;
        start(&server).await;
        let [some, others] = cut(pushed, 9);
        assert_eq!(server.post_bytes(UPDATE, &some).await.status, 200);

        // What runs stands still, and what comes waits.
        let stopped = generated(&server);
        assert!(stopped < before + TOKENS as u64, "the reply was too fast");
        let late = server.begin("/v1/completions", &long(7, 20));
        waiting_calls(&server, 1).await;
        let wait = server.post_text("/pause?mode=wait", "").await;
        assert_eq!(wait.status, 409, "{}", wait.body);
        let asleep = server.post_text("/sleep?level=1", "").await;
        assert!(asleep.status == 409 && asleep.body.contains("finish it first"), "{}", asleep.body);
        assert_eq!(server.post_bytes(UPDATE, &others).await.status, 200);
        assert_eq!(generated(&server), stopped);

        let done = server.post(FINISH, &json!({"weight_version": pushed.to_string()})).await;
        assert_eq!(done.status, 200, "{}", done.body);
        assert!(done.json()["pause_us"].as_u64().unwrap() > 0);
        for (call, number, tokens) in [(reply, pushed, TOKENS), (late, 7, 20)] {
            let reply = call.await.unwrap().json();
            let spans = check(&mut truth, &prompt(number), &[&reply["choices"][0]], tokens);
            assert_eq!(spans, if number == 7 { 1 } else { 2 });
        }
    }
    server.stop().await;
}

/// Lets an update in place fail after its first tensors. Returns the answer of the call that
/// failed.
async fn torn(server: &Server) -> Answer {
    start(server).await;
    let [some, _] = cut(1, 9);
    assert_eq!(server.post_bytes(UPDATE, &some).await.status, 200);
    let mut wrong: Named = variant(1).into_iter().skip(9).collect();
    wrong.last_entry().unwrap().get_mut().1[5] = f32::NAN;
    server.post_bytes(UPDATE, &file_of(&wrong, Dtype::F32)).await
}

#[tokio::test]
async fn a_failure_in_the_middle_leaves_no_weights_until_all_come() {
    let server = Server::plain().await;
    let whole = file_of(&variant(1), Dtype::F32);
    let pushed = server.post_bytes(&format!("{UPDATE}?weight_version=a"), &whole).await;
    assert_eq!(pushed.status, 200);
    let expected = served(&server).await;
    for mode in ["in_place", "staged", "in_place"] {
        let before = generated(&server);
        let running = server.begin("/v1/completions", &long(1, 900));
        sampled(&server, before + 3).await;
        let failed = torn(&server).await;
        assert!(failed.status == 400 && failed.body.contains("NaN"), "{}", failed.body);
        assert!(failed.body.contains("has no weights until an update of all"), "{}", failed.body);

        // What ran ends, and says so; what comes is refused.
        let ended = ends("the reply", running).await.unwrap();
        assert!(ended.status == 500 && ended.body.contains("ended half-way"), "{}", ended.body);
        let refused = server.text(json!({})).await;
        assert!(refused.status == 503 && refused.body.contains("half-way"), "{}", refused.body);
        let finish = server.post_text(FINISH, "").await;
        assert!(finish.status == 409 && finish.body.contains("no update"), "{}", finish.body);
        // A part is not enough now.
        server.post(START, &json!({"mode": mode})).await;
        let [some, others] = cut(1, 4);
        assert_eq!(server.post_bytes(UPDATE, &some).await.status, 200);
        let part = server.post_text(FINISH, "").await;
        assert!(part.status == 400 && part.body.contains("all tensors"), "{}", part.body);
        if mode == "staged" {
            // What was refused at its end is still open.
            assert_eq!(server.post_bytes(UPDATE, &others).await.status, 200);
            assert_eq!(server.post(FINISH, &json!({"weight_version": "a"})).await.status, 200);
        } else {
            let path = format!("{UPDATE}?weight_version=a&mode=in_place");
            let known = server.post_bytes(&path, &whole).await;
            assert!(known.status == 409 && known.body.contains("a label that is new"));
            assert_eq!(server.post_text(START, "").await.status, 200);
            assert_eq!(server.post_bytes(UPDATE, &whole).await.status, 200);
            assert_eq!(server.post(FINISH, &json!({"weight_version": "a"})).await.status, 200);
        }
        assert_eq!(served(&server).await, expected, "{mode}");
    }
    // Nothing is owed any more: a part is an update again.
    start(&server).await;
    assert_eq!(server.post_bytes(UPDATE, &cut(2, 4)[0]).await.status, 200);
    assert_eq!(server.post_text(FINISH, "").await.status, 200);
    served(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn an_update_in_place_that_is_dropped_leaves_no_weights() {
    let server = Server::plain().await;
    for path in [START, "/shutdown_weight_transfer_engine", UPDATE] {
        start(&server).await;
        assert_eq!(server.post_bytes(UPDATE, &cut(1, 9)[0]).await.status, 200);
        // An update of one call that is refused drops the one before it, too.
        let dropped = match path {
            UPDATE => server.post_bytes(&format!("{UPDATE}?weight_version=x"), b"nothing").await,
            _ => server.post_text(path, "").await,
        };
        assert_eq!(dropped.status, if path == UPDATE { 400 } else { 200 }, "{}", dropped.body);
        assert_eq!(server.text(json!({})).await.status, 503);
        let whole = file_of(&variant(1), Dtype::F32);
        let path = format!("{UPDATE}?weight_version=w");
        assert_eq!(server.post_bytes(&path, &whole).await.status, 200);
        assert_eq!(served(&server).await.0, "w");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_refused_before_it_is_written_changes_nothing() {
    let server = Server::start(in_place()).await;
    let before = served(&server).await;
    let whole = variant(1);
    let name = whole.keys().nth(3).unwrap().clone();
    let mut odd = whole.clone();
    odd.get_mut(&name).unwrap().0.insert(0, 1);
    let mut infinite = whole.clone();
    infinite.get_mut(&name).unwrap().1[0] = f32::INFINITY;
    let mut lacking = whole.clone();
    lacking.remove(&name);
    for named in [&odd, &infinite, &lacking] {
        let body = server.post_bytes(UPDATE, &file_of(named, Dtype::F32)).await;
        assert_eq!(body.status, 400, "{}", body.body);
        assert!(!body.body.contains("half-way"), "{}", body.body);
        assert_eq!(served(&server).await, before);
    }
    // The headers of a folder are read before its first tensor.
    for named in [&odd, &lacking] {
        let folder = folder_of(named);
        let body = json!({"weight_dir": folder.path()});
        let refused = server.post(UPDATE, &body).await;
        assert!(refused.status == 400 && refused.body.contains(&name), "{}", refused.body);
        assert_eq!(served(&server).await, before);
    }
    let folder = folder_of(&whole);
    let known = json!({"weight_dir": folder.path(), "weight_version": "default"});
    let refused = server.post(UPDATE, &known).await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    let mode = server.post(START, &json!({"mode": "else"})).await;
    assert!(mode.status == 400 && mode.body.contains("`in_place`"), "{}", mode.body);
    // Between a start and a finish, what was refused is owed.
    assert_eq!(server.post_text(START, "").await.status, 200);
    assert_eq!(server.post_bytes(UPDATE, &file_of(&odd, Dtype::F32)).await.status, 400);
    assert_eq!(server.post_text(FINISH, "").await.status, 409);
    assert_eq!(served(&server).await, before);
    server.stop().await;
}

#[tokio::test]
async fn a_label_of_other_weights_leaves_the_update_open() {
    let server = Server::plain().await;
    start(&server).await;
    assert_eq!(server.post_bytes(UPDATE, &cut(1, 9)[0]).await.status, 200);
    let taken = server.post(FINISH, &json!({"weight_version": "default"})).await;
    assert_eq!(taken.status, 409, "{}", taken.body);
    let waiting = server.begin("/v1/completions", &long(1, 5));
    waiting_calls(&server, 1).await;
    let done = server.post(FINISH, &json!({"weight_version": "b"})).await.json();
    assert_eq!(served(&server).await.0, "b");
    assert_eq!(waiting.await.unwrap().status, 200);
    // The answer may have been lost.
    assert_eq!(server.post(FINISH, &json!({"weight_version": "b"})).await.json(), done);
    server.stop().await;
}

#[tokio::test]
async fn an_engine_that_stops_amid_an_update_in_place_ends() {
    let server = Server::plain().await;
    start(&server).await;
    assert_eq!(server.post_bytes(UPDATE, &cut(1, 9)[0]).await.status, 200);
    ends("the server", server.stop()).await;
}

#[tokio::test]
async fn handles_of_cuda_ipc_are_refused_with_the_other_ways() {
    let server = Server::plain().await;
    for field in ["ipc_handles", "ipc_handles_pickled"] {
        let info = json!({"names": [], "dtype_names": [], "shapes": [], field: "gAQu"});
        let refused = server.post(UPDATE, &json!({"update_info": info})).await;
        assert!(refused.status == 501 && refused.body.contains("NCCL"), "{}", refused.body);
    }
    server.stop().await;
}
