//! What trainers call.

use std::io::{BufRead, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::*;
use crate::update::tests::{Named, Truth, file_of, folder_of, tiny, variant};

#[tokio::test]
async fn a_label_changes_between_tokens_and_each_token_keeps_its_own() {
    let server = Server::plain().await;
    assert_eq!(server.get("/weight_info").await.json()["weight_version"], "default");
    let renamed = server.post("/update_weight_version", &json!({"new_version": "step_1"})).await;
    assert_eq!(renamed.json(), json!({"success": true, "new_version": "step_1"}));
    assert_eq!(server.get("/weight_info").await.json()["weight_version"], "step_1");
    let reply = server.text(json!({"return_weight_versions": true, "max_tokens": 4})).await.json();
    let spans = &reply["choices"][0]["weight_versions"];
    assert_eq!(*spans, json!([{"version": "step_1", "start": 0, "end": 4}]));
    for body in [json!({}), json!({"new_version": ""}), json!({"new_version": []})] {
        let refused = server.post("/update_weight_version", &body).await;
        assert_eq!((refused.status, refused.body.contains("new_version")), (400, true));
    }
    assert_eq!(server.get("/update_weight_version").await.status, 405);
    server.stop().await;
}

/// Where the process of the test below finds its model.
const MODEL: &str = "ROLLTAPE_TEST_ENGINE_MODEL";

/// What it says when it listens, in front of its address.
const READY: &str = "engine at ";

/// Serves until it is killed; run by the test below.
#[tokio::test]
#[ignore = "a process of another test"]
async fn process() {
    let Some(model) = std::env::var_os(MODEL) else { return };
    let engine = Engine::load(Path::new(&model), EngineOptions::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "\n{READY}{}", listener.local_addr().unwrap()).unwrap();
    out.flush().unwrap();
    crate::serve(listener, engine, std::future::pending()).await.unwrap();
}

/// The process, and where it listens.
fn engine_process(model: &Path) -> (std::process::Child, std::net::SocketAddr) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["serve::tests::rl::process", "--exact", "--ignored", "--nocapture"])
        .env(MODEL, model)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = |line: std::io::Result<String>| line.unwrap().strip_prefix(READY)?.parse().ok();
    let address = lines.into_iter().find_map(ready).unwrap();
    (child, address)
}

#[tokio::test]
async fn an_engine_that_is_killed_in_an_update_begins_with_the_weights_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(tiny()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
    let post = |path: &str, body: &[u8]| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
             content-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    };
    let (mut child, address) = engine_process(folder.path());
    let before = send(address, get("/weight_info").into_bytes()).await.json();
    send(address, post("/start_weight_update", b"")).await;
    let all = variant(1);
    let half: Named = all.iter().take(20).map(|(name, it)| (name.clone(), it.clone())).collect();
    let piece = file_of(&half, safetensors::Dtype::F32);
    let taken = send(address, post("/update_weights", &piece)).await;
    assert_eq!(taken.json()["tensors"], 20, "{}", taken.body);
    // The rest is on its way when the process dies.
    let rest = post("/update_weights", &file_of(&all, safetensors::Dtype::F32));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&rest[..rest.len() / 2]).await.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let (mut child, address) = engine_process(folder.path());
    assert_eq!(send(address, get("/weight_info").into_bytes()).await.json(), before);
    // The trainer begins its update anew.
    let whole = post("/update_weights?weight_version=7", &file_of(&all, safetensors::Dtype::F32));
    assert_eq!(send(address, whole).await.json()["weight_version"], "7");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Waits until so many tokens were sampled.
async fn sampled(server: &Server, count: u64) {
    for _ in 0..20_000 {
        if server.stats.generated_tokens.load(Ordering::Relaxed) >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{count} tokens were never sampled");
}

/// A prompt that no other number has.
fn prompt(number: u32) -> Vec<u32> {
    (0..20 + number % 30).map(|i| (i * (number + 3) * 13 + number) % 380).collect()
}

fn long(number: u32, tokens: usize) -> Value {
    json!({"prompt": prompt(number), "seed": number, "max_tokens": tokens, "ignore_eos": true,
        "logprobs": 0, "return_token_ids": true, "return_weight_versions": true})
}

/// Version, start and end.
type Spans = Vec<(u32, usize, usize)>;

/// The ids of a reply, the bits of their logprobs, and its spans.
fn read(choices: &[&Value]) -> (Vec<u32>, Vec<u32>, Spans) {
    let (mut ids, mut bits, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    for choice in choices {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        ids.extend(list(&choice["token_ids"]).iter().map(|id| id.as_u64().unwrap() as u32));
        let logprobs = list(&choice["logprobs"]["token_logprobs"]);
        bits.extend(logprobs.iter().map(|number| (number.as_f64().unwrap() as f32).to_bits()));
        for span in list(&choice["weight_versions"]) {
            let number = |name: &str| span[name].as_u64().unwrap() as usize;
            let version = span["version"].as_str().unwrap().parse().unwrap_or(0);
            spans.push((version, number("start"), number("end")));
        }
    }
    (ids, bits, spans)
}

/// Every token's logprob is what the weights of its version say, to the bit.
fn check(truth: &mut Truth, prompt: &[u32], choices: &[&Value], tokens: usize) -> usize {
    let (ids, bits, spans) = read(choices);
    assert_eq!((ids.len(), bits.len()), (tokens, tokens));
    let text = [prompt, &ids].concat();
    let mut at = 0;
    for (version, start, end) in &spans {
        assert!(*start == at && end > start, "{spans:?}");
        let scores = truth.scores(*version as usize % 3, &text);
        assert_eq!(bits[*start..*end], scores[prompt.len() - 1 + start..][..end - start]);
        at = *end;
    }
    assert_eq!(at, tokens);
    spans.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_change_while_64_streams_run_and_every_token_has_its_version() {
    const STREAMS: u32 = 64;
    const TOKENS: usize = 90;
    let server = Server::plain().await;
    let folders: Vec<_> = (0..3).map(|number| folder_of(&variant(number))).collect();
    let body = |number| merged(long(number, TOKENS), json!({"stream": true}));
    let calls: Vec<_> =
        (0..STREAMS).map(|number| server.begin("/v1/completions", &body(number))).collect();
    // The label of an update says which of the three weights it has.
    for number in 1..=8_u32 {
        sampled(&server, u64::from(number) * 550).await;
        let mode = if number % 4 == 3 { "recompute" } else { "keep" };
        // Two of eight come while nothing is paused.
        let pauses = number % 4 != 0;
        if pauses {
            let paused = server.post_text(&format!("/pause?mode={mode}"), "").await;
            assert_eq!(paused.json(), json!({"status": "paused"}));
        }
        let folder = folders[number as usize % 3].path();
        let updated = server.post("/update_weights", &json!({"weight_dir": folder})).await;
        assert_eq!(updated.json()["weight_version"], number.to_string(), "{}", updated.body);
        if pauses {
            assert_eq!(server.post_text("/resume", "").await.json(), json!({"status": "resumed"}));
        }
    }
    let (mut truth, mut spans) = (Truth::new(3), 0);
    for (number, call) in calls.into_iter().enumerate() {
        let answer = call.await.unwrap();
        assert_eq!(answer.status, 200);
        let events = answer.events();
        let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
        assert_eq!(choices.last().unwrap()["finish_reason"], "length");
        spans += check(&mut truth, &prompt(number as u32), &choices, TOKENS);
    }
    assert!(spans > 64 * 5, "{spans} spans: updates missed the streams");
    server.stop().await;
}

#[tokio::test]
async fn weights_that_are_not_whole_are_refused_by_name_and_the_old_ones_serve() {
    let server = Server::plain().await;
    let before = server.text(json!({"max_tokens": 9})).await.json()["choices"].clone();
    let checksums = server.post("/weight_checker", &json!({"action": "checksum"})).await.json();
    let info = server.get("/weight_info").await.json();
    assert_eq!(info["checksum"], checksums["checksum"]);
    const NAME: &str = "model.layers.0.mlp.up_proj.weight";
    let changed = |change: fn(&mut Named)| {
        let mut named = variant(1);
        change(&mut named);
        folder_of(&named)
    };
    let half = folder_of(&variant(1));
    let file = half.path().join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let shards = folder_of(&variant(1));
    let index = json!({"weight_map": {NAME: "model-2.safetensors"}}).to_string();
    std::fs::write(shards.path().join("model.safetensors.index.json"), index).unwrap();
    let cases = [
        (changed(|named| drop(named.remove(NAME))), NAME),
        (changed(|named| named.get_mut(NAME).unwrap().0.reverse()), NAME),
        (changed(|named| named.get_mut(NAME).unwrap().1[7] = f32::INFINITY), NAME),
        (
            changed(|named| drop(named.insert("model.new".into(), (vec![1], vec![1.0])))),
            "model.new",
        ),
        (half, "is not a whole safetensors file"),
        (shards, "model-2.safetensors"),
        (tempfile::tempdir().unwrap(), "model.safetensors"),
    ];
    for (folder, expected) in &cases {
        let path = folder.path();
        for body in [json!({"weight_dir": path}), json!({"update_info": {"path": path}})] {
            let refused = server.post("/update_weights", &body).await;
            assert_eq!(refused.status, 400);
            assert!(refused.body.contains(expected), "{}", refused.body);
        }
    }
    for body in [json!({}), json!({"update_info": {"path": 5}}), json!({"weight_dir": []})] {
        assert_eq!(server.post("/update_weights", &body).await.status, 400);
    }
    let again = server
        .post(
            "/weight_checker",
            &json!({"action": "compare",
        "baseline": checksums["checksums"]}),
        )
        .await
        .json();
    assert_eq!(again, json!({"match": true, "mismatches": []}));
    assert_eq!(server.get("/weight_info").await.json(), info);
    assert_eq!(server.text(json!({"max_tokens": 9})).await.json()["choices"], before);
    server.stop().await;
}

#[tokio::test]
async fn updates_come_in_pieces_and_again_when_an_answer_was_lost() {
    let server = Server::plain().await;
    let first = server.get("/weight_info").await.json();
    let pieces = |number: u32| {
        let named = variant(number);
        let names: Vec<&String> = named.keys().collect();
        let piece = |part: &[&String]| {
            let part = part.iter().map(|name| ((*name).clone(), named[*name].clone())).collect();
            file_of(&part, safetensors::Dtype::F32)
        };
        names.chunks(10).map(piece).collect::<Vec<_>>()
    };
    let start = || server.post_text("/start_weight_update", "{\"is_checkpoint_format\": true}");
    assert_eq!(server.post_text("/finish_weight_update", "").await.status, 409);
    assert_eq!(start().await.json(), json!({"message": "Weight update started"}));
    for (index, piece) in pieces(1).iter().enumerate() {
        let taken = server.post_bytes("/update_weights", piece).await;
        let tensors = (10 * (index + 1)).min(variant(1).len());
        assert_eq!(taken.json(), json!({"message": "Weights updated", "tensors": tensors}));
        assert_eq!(server.post_bytes("/update_weights", piece).await.status, 200);
    }
    // Another tensor under a name that has come is not the same piece again.
    let twice = server.post_bytes("/update_weights", &pieces(2)[0]).await;
    assert!(twice.status == 400 && twice.body.contains("came twice"), "{}", twice.body);
    let broken = server.post_bytes("/update_weights", &pieces(1)[0][..99]).await;
    assert_eq!(broken.status, 400);
    // What was refused is owed until it comes.
    let owed = server.post_text("/finish_weight_update", "").await;
    assert!(owed.status == 409 && owed.body.contains("was refused"), "{}", owed.body);
    assert_eq!(server.post_bytes("/update_weights", &pieces(1)[0]).await.status, 200);
    // Nothing of it serves yet.
    assert_eq!(server.get("/weight_info").await.json(), first);
    let finish = json!({"weight_version": "trl-policy-v7"});
    let done = server.post("/finish_weight_update", &finish).await.json();
    assert_eq!(done["message"], "Weight update finished");
    assert_eq!(done["weight_version"], "trl-policy-v7");
    let one = server.get("/weight_info").await.json();
    assert_eq!(
        (&one["weight_version"], &one["checksum"]),
        (&json!("trl-policy-v7"), &done["checksum"])
    );
    assert_eq!(server.post("/finish_weight_update", &finish).await.json(), done);
    // The same weights as a folder have the same checksum; the same call again changes nothing.
    let folder = folder_of(&variant(1));
    let body = json!({"weight_dir": folder.path(), "version": 8});
    let eight = server.post("/update_weights", &body).await.json();
    assert_eq!((&eight["weight_version"], &eight["checksum"]), (&json!("8"), &done["checksum"]));
    assert_eq!(server.post("/update_weights", &body).await.json(), eight);
    // A label stands for one set of weights.
    let folder = folder_of(&variant(2));
    let body = json!({"weight_dir": folder.path(), "version": "8"});
    let refused = server.post("/update_weights", &body).await;
    assert!(refused.status == 409 && refused.body.contains("other weights"), "{}", refused.body);
    let old = server.get("/weight_info?version=trl-policy-v7").await.json();
    assert_eq!(old["checksum"], done["checksum"]);
    assert_eq!(server.get("/weight_info?version=nothing").await.status, 400);
    // What was begun and given up leaves nothing behind.
    start().await;
    server.post_bytes("/update_weights", &pieces(2)[0]).await;
    start().await;
    let done = server.post_text("/finish_weight_update", "").await.json();
    assert_eq!((&done["weight_version"], &done["checksum"]), (&json!("3"), &eight["checksum"]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_calls_end_or_wait_as_the_mode_says() {
    let server = Server::plain().await;
    let states = |paused: bool| json!({ "is_paused": paused });
    for mode in ["keep", "recompute", "wait", "abort"] {
        let before = server.stats.generated_tokens.load(Ordering::Relaxed);
        let running = server.begin("/v1/completions", &long(1, 300));
        sampled(&server, before + 20).await;
        let paused = server.post_text(&format!("/pause?mode={mode}"), "").await;
        assert_eq!((paused.status, paused.json()), (200, json!({"status": "paused"})));
        assert_eq!(server.get("/is_paused").await.json(), states(true));
        let stood = server.stats.generated_tokens.load(Ordering::Relaxed);
        match mode {
            "keep" | "recompute" => {
                let waiting = server.begin("/v1/completions", &long(2, 5));
                tokio::time::sleep(Duration::from_millis(50)).await;
                assert!(!running.is_finished() && !waiting.is_finished());
                let now = server.stats.generated_tokens.load(Ordering::Relaxed);
                assert_eq!(now, stood, "tokens were sampled during a pause");
                server.post_text("/resume", "").await;
                assert_eq!(waiting.await.unwrap().status, 200);
            }
            _ => {
                let refused = server.post("/v1/completions", &long(2, 5)).await;
                assert_eq!(refused.status, 503);
                assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
                assert!(refused.body.contains("generation is paused"), "{}", refused.body);
                server.post_text("/resume", "").await;
            }
        }
        let reply = running.await.unwrap().json();
        let (ids, ..) = read(&[&reply["choices"][0]]);
        let finish = reply["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
        match mode {
            "abort" => assert!(finish == "abort" && ids.len() < 300, "{finish}"),
            _ => assert_eq!((finish.as_str(), ids.len()), ("length", 300), "{mode}"),
        }
        assert_eq!(server.get("/is_paused").await.json(), states(false));
    }
    assert_eq!(server.post_text("/pause?mode=other", "").await.status, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_can_be_aborted_while_generation_is_paused() {
    let server = Server::plain().await;
    let body = |id: &str| merged(long(1, 300), json!({ "request_id": id }));
    let calls = ["a", "b", "c"].map(|id| server.begin("/v1/completions", &body(id)));
    sampled(&server, 30).await;
    server.post_text("/pause?mode=keep", "").await;
    let aborted = server.post("/abort_requests", &json!({"request_ids": ["cmpl-b", "x"]})).await;
    assert_eq!(aborted.json(), json!({"status": "aborted", "aborted": 1}));
    let [a, b, c] = calls;
    assert_eq!(b.await.unwrap().json()["choices"][0]["finish_reason"], "abort");
    assert!(!a.is_finished() && !c.is_finished());
    let aborted = server.post_text("/abort_requests", "").await;
    assert_eq!(aborted.json(), json!({"status": "aborted", "aborted": 2}));
    for call in [a, c] {
        assert_eq!(call.await.unwrap().json()["choices"][0]["finish_reason"], "abort");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_sleeps_at_two_levels_and_says_so() {
    let server = Server::plain().await;
    let reply = server.text(json!({"max_tokens": 9})).await.json()["choices"].clone();
    let sleeping = |is: bool| json!({ "is_sleeping": is });
    let slept = server.post_text("/sleep", "").await;
    assert_eq!(slept.json(), json!({"status": "sleeping", "level": 1}));
    assert_eq!(server.get("/is_sleeping").await.json(), sleeping(true));
    let refused = server.text(json!({})).await;
    assert!(refused.status == 503 && refused.body.contains("/wake_up"), "{}", refused.body);
    assert_eq!(server.get("/health").await.status, 200);
    let woken = server.post_text("/wake_up?tags=weights", "").await;
    assert_eq!(woken.json(), json!({"status": "sleeping", "tags": ["weights"]}));
    assert_eq!(server.text(json!({})).await.status, 503);
    let woken = server.post_text("/wake_up?tags=kv_cache", "").await;
    assert_eq!(woken.json(), json!({"status": "awake", "tags": ["kv_cache"]}));
    assert_eq!(server.text(json!({"max_tokens": 9})).await.json()["choices"], reply);
    // Level two has no weights left: all of them must come before it serves again.
    let running = server.begin("/v1/completions", &long(1, 300));
    sampled(&server, 40).await;
    assert_eq!(server.post_text("/sleep?level=2&mode=keep", "").await.status, 200);
    assert_eq!(server.post("/weight_checker", &json!({})).await.status, 400);
    assert_eq!(server.post_text("/wake_up", "").await.json()["status"], "awake");
    let refused = server.text(json!({})).await;
    assert!(refused.status == 503 && refused.body.contains("update"), "{}", refused.body);
    let some: Named = variant(0).into_iter().take(5).collect();
    let some = file_of(&some, safetensors::Dtype::F32);
    let partial = server.post_bytes("/update_weights", &some).await;
    assert!(partial.status == 400 && partial.body.contains("all"), "{}", partial.body);
    let whole = file_of(&variant(0), safetensors::Dtype::F32);
    let whole = server.post_bytes("/update_weights?weight_version=back", &whole).await;
    assert_eq!(whole.json()["weight_version"], "back", "{}", whole.body);
    assert_eq!(server.text(json!({"max_tokens": 9})).await.json()["choices"], reply);
    // What slept with it goes on.
    let reply = running.await.unwrap().json();
    let mut truth = Truth::new(3);
    assert_eq!(check(&mut truth, &prompt(1), &[&reply["choices"][0]], 300), 2);
    for path in ["/sleep?level=3", "/wake_up?tags=all", "/sleep?mode=x"] {
        assert_eq!(server.post_text(path, "").await.status, 400);
    }
    assert_eq!(
        server.post_text("/release_kv_cache_memory", "").await.json(),
        json!({"status": "kv_cache_released"})
    );
    assert_eq!(server.text(json!({})).await.status, 503);
    server.post_text("/pause?mode=wait", "").await;
    server.post_text("/wake_up?tags=kv_cache", "").await;
    assert_eq!(server.get("/is_paused").await.json(), json!({"is_paused": true}));
    server.post_text("/resume", "").await;
    assert_eq!(server.text(json!({})).await.status, 200);
    assert_eq!(server.post_text("/sleep?level=0", "").await.status, 200);
    assert_eq!(server.text(json!({})).await.status, 503);
    server.post_text("/wake_up", "").await;
    assert_eq!(server.text(json!({})).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn trainers_find_what_they_ask_for() {
    let server = Server::plain().await;
    assert_eq!(
        server.get("/get_world_size?include_dp=true").await.json(),
        json!({"world_size": 1})
    );
    let config = server.get("/server_info?config_format=json").await.json()["vllm_config"].clone();
    assert_eq!(config["model_config"]["dtype"], "torch.float32");
    assert_eq!(config["model_config"]["logprobs_mode"], "processed_logprobs");
    assert_eq!(config["parallel_config"]["data_parallel_size"], 1);
    assert!(config["weight_transfer_config"].is_object());
    assert!(server.get("/server_info").await.json()["vllm_config"].is_string());
    let reset = server.post_text("/reset_prefix_cache?reset_running_requests=true", "").await;
    assert_eq!(reset.json(), json!({"success": true}));
    let ready = server.post("/init_weight_transfer_engine", &json!({"init_info": {}})).await;
    assert_eq!(ready.json(), json!({"message": "Weight transfer initialized"}));
    let gone = server.post_text("/shutdown_weight_transfer_engine", "").await;
    assert_eq!(gone.json(), json!({"message": "Weight transfer shut down"}));
    let info = json!({"update_info": {"names": [], "dtype_names": [], "shapes": []}});
    assert_eq!(server.post("/update_weights", &info).await.status, 400);
    for (path, body) in
        [("/collective_rpc", json!({})), ("/weight_checker", json!({"action": "reset"}))]
    {
        assert_eq!(server.post(path, &body).await.status, 501);
    }
    assert_eq!(server.post("/weight_checker", &json!({"action": "compare"})).await.status, 400);
    assert_eq!(server.get("/pause").await.status, 405);
    server.stop().await;
}

#[tokio::test]
async fn a_forgotten_prefix_is_computed_again() {
    let server = Server::plain().await;
    let body = merged(long(40, 3), json!({}));
    let cached = async || {
        let reply = server.post("/v1/completions", &body).await.json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    assert_eq!(cached().await, 0);
    assert_eq!(cached().await, 16);
    server.post_text("/reset_prefix_cache", "").await;
    assert_eq!(cached().await, 0);
    assert_eq!(cached().await, 16);
    // Other weights have other keys and values; the same ones under another label do not.
    server.post("/update_weight_version", &json!({"new_version": "x"})).await;
    assert_eq!(cached().await, 16);
    let folder = folder_of(&variant(1));
    server.post("/update_weights", &json!({"weight_dir": folder.path()})).await;
    assert_eq!(cached().await, 0);
    server.stop().await;
}
