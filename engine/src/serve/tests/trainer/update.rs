//! Updates of weights, and their labels in replies.

use std::collections::BTreeSet;

use super::*;

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

/// Streams of which as many run as are wanted. Those that ended are replaced, so that a machine of
/// any speed samples from some when an update comes.
#[derive(Default)]
struct Streams {
    calls: Vec<JoinHandle<Answer>>,
    prompt_tokens: u64,
}

impl Streams {
    const TOKENS: usize = 180;

    /// Begins streams until `count` run, and waits until each has a token and all together
    /// `tokens` more.
    async fn keep(&mut self, server: &Server, count: usize, tokens: u64) {
        let ended = self.calls.iter().filter(|call| call.is_finished()).count();
        for number in self.calls.len()..count + ended {
            let body = merged(long(number as u32, Streams::TOKENS), json!({"stream": true}));
            self.calls.push(server.begin("/v1/completions", &body));
            self.prompt_tokens += prompt(number as u32).len() as u64;
        }
        let begun = || server.stats.prompt_tokens.load(Ordering::Relaxed);
        until("all streams begin", || begun() >= self.prompt_tokens).await;
        let enough = (generated(server) + tokens).min(self.owed());
        sampled(server, enough).await;
    }

    /// The tokens of all streams.
    fn owed(&self) -> u64 {
        (self.calls.len() * Streams::TOKENS) as u64
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_token_of_64_streams_has_its_version() {
    const STREAMS: usize = 64;
    let server = Server::plain().await;
    let folders: Vec<_> = (0..3).map(|number| folder_of(&variant(number))).collect();
    let (mut streams, mut met) = (Streams::default(), Vec::new());
    // The label of an update says which of the three weights it has.
    for number in 1..=200_u32 {
        streams.keep(&server, STREAMS, 550).await;
        let mode = if met.len() % 4 == 2 { "recompute" } else { "keep" };
        // Two of eight come while nothing is paused.
        let pauses = met.len() % 4 != 3;
        if pauses {
            let paused = server.post_text(&format!("/pause?mode={mode}"), "").await;
            assert_eq!(paused.json(), json!({"status": "paused"}));
        }
        let folder = folders[number as usize % 3].path();
        let updated = server.post("/update_weights", &json!({"weight_dir": folder})).await;
        assert_eq!(updated.json()["weight_version"], number.to_string(), "{}", updated.body);
        // Each stream had a token before, and some have another one to come.
        met.extend((generated(&server) < streams.owed()).then_some(number));
        if pauses {
            assert_eq!(server.post_text("/resume", "").await.json(), json!({"status": "resumed"}));
        }
        if met.len() == 8 {
            break;
        }
    }

    let (mut truth, mut begun) = (Truth::new(3), BTreeSet::new());
    for (number, call) in streams.calls.into_iter().enumerate() {
        let answer = call.await.unwrap();
        assert_eq!(answer.status, 200);
        let events = answer.events();
        let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
        assert_eq!(choices.last().unwrap()["finish_reason"], "length");
        check(&mut truth, &prompt(number as u32), &choices, Streams::TOKENS);
        begun.extend(read(&choices).2.iter().skip(1).map(|span| span.0));
    }
    // Each of these updates came amid a stream.
    assert_eq!(met.len(), 8);
    assert!(met.iter().all(|number| begun.contains(number)), "{met:?}, {begun:?}");
    server.stop().await;
}

#[tokio::test]
async fn weights_that_are_not_whole_are_refused_by_name() {
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
