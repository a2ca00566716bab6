//! Adapters over the wire.

use super::*;

pub(super) const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

fn taped(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join("tests/tapes/engine/lora").join(name).display().to_string()
}

pub(super) fn named(name: &str, folder: &str) -> Value {
    json!({"lora_name": name, "lora_path": taped(folder), "load_inplace": false})
}

async fn with_both() -> Server {
    let server = Server::plain().await;
    for (name, folder) in [("policy-v1", "every"), ("policy-v2", "some")] {
        let reply = server.post(LOAD, &named(name, folder)).await;
        let said = format!("Success: LoRA adapter '{name}' added successfully.");
        assert_eq!((reply.status, reply.body), (200, said));
    }
    server
}

fn asked(model: &str) -> Value {
    json!({"model": model, "max_tokens": 12, "ignore_eos": true, "logprobs": 0,
        "return_token_ids": true, "return_weight_versions": true})
}

#[tokio::test]
async fn an_adapter_is_a_model_with_a_parent() {
    let server = with_both().await;
    let list = server.get("/v1/models").await.json();
    let data = list["data"].as_array().unwrap();
    let facts = |model: &Value| json!([model["id"], model["parent"], model["max_model_len"]]);
    assert_eq!(facts(&data[0]), json!(["tiny", null, 1024]));
    assert_eq!(facts(&data[1]), json!(["policy-v1", "tiny", null]));
    assert_eq!(facts(&data[2]), json!(["policy-v2", "tiny", null]));
    assert_eq!(data[1]["root"], taped("every"));
    let one = server.get("/v1/models/policy-v2").await.json();
    assert_eq!(one["parent"], "tiny");
    server.stop().await;
}

#[tokio::test]
async fn replies_of_an_adapter_name_it_and_the_weights_below() {
    let server = with_both().await;
    let mut texts = Vec::new();
    for model in ["tiny", "policy-v1", "policy-v2"] {
        let reply = server.text(asked(model)).await.json();
        assert_eq!(reply["model"], model);
        let versions = &reply["choices"][0]["weight_versions"];
        let expected = match model {
            "tiny" => json!([{"version": "default", "start": 0, "end": 12}]),
            name => json!([{"version": name, "base_version": "default", "start": 0, "end": 12}]),
        };
        assert_eq!(*versions, expected);
        texts.push(reply["choices"][0].clone());
        let chat = server.chat(json!({"model": model, "max_tokens": 2})).await.json();
        assert_eq!(chat["model"], model);
        let stream = json!({"model": model, "max_tokens": 2, "stream": true});
        let events = server.chat(stream).await.events();
        assert_eq!(events[0]["model"], model);
    }
    assert_ne!(texts[0]["logprobs"], texts[1]["logprobs"]);
    assert_ne!(texts[1]["logprobs"], texts[2]["logprobs"]);
    // All at once, each says what it says alone.
    let (base, first, second) = tokio::join!(
        server.text(asked("tiny")),
        server.text(asked("policy-v1")),
        server.text(asked("policy-v2"))
    );
    for (alone, together) in texts.iter().zip([base, first, second]) {
        assert_eq!(*alone, together.json()["choices"][0]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_prefix_is_shared_only_within_an_adapter() {
    let server = with_both().await;
    let prompt: Vec<u32> = (0..40).collect();
    let cached = async |model: &str| {
        let changes = json!({"prompt": prompt, "model": model, "max_tokens": 1});
        let reply = server.text(changes).await.json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!(cached("tiny").await, 0);
    assert_eq!(cached("policy-v1").await, 0);
    assert_eq!(cached("policy-v2").await, 0);
    assert_eq!(cached("policy-v1").await, 32);
    // Another adapter of the same name is another adapter.
    let again = merged(named("policy-v1", "some"), json!({"load_inplace": true}));
    assert_eq!(server.post(LOAD, &again).await.status, 200);
    assert_eq!(cached("policy-v1").await, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_label_never_stands_for_two_adapters() {
    let server = with_both().await;
    let version = async || {
        let reply = server.text(asked("policy-v1")).await.json();
        reply["choices"][0]["weight_versions"][0]["version"].clone()
    };
    assert_eq!(version().await, "policy-v1");
    let again = merged(named("policy-v1", "some"), json!({"load_inplace": true}));
    assert_eq!(server.post(LOAD, &again).await.status, 200);
    assert_eq!(version().await, "policy-v1#v2");
    server.post(UNLOAD, &json!({"lora_name": "policy-v1"})).await;
    server.post(LOAD, &named("policy-v1", "every")).await;
    assert_eq!(version().await, "policy-v1#v3");
    server.stop().await;
}

#[tokio::test]
async fn an_adapter_that_is_unloaded_ends_what_it_began() {
    let server = with_both().await;
    let long = merged(asked("policy-v1"), json!({"max_tokens": 900, "logprobs": null}));
    let alone = server.text(long.clone()).await.json()["choices"][0].clone();
    let running = async {
        let reply = server.text(long.clone()).await;
        (reply.status, reply.json()["choices"][0].clone())
    };
    let unloading = async {
        while server.stats.running.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let reply = server.post(UNLOAD, &json!({"lora_name": "policy-v1"})).await;
        let said = "Success: LoRA adapter 'policy-v1' removed successfully.";
        assert_eq!((reply.status, reply.body.as_str()), (200, said));
    };
    let ((status, choice), ()) = tokio::join!(running, unloading);
    assert_eq!((status, &choice), (200, &alone));
    let gone = server.text(asked("policy-v1")).await;
    assert_eq!(gone.status, 404);
    let why = "The model `policy-v1` does not exist. `tiny` is served here.";
    assert_eq!(gone.json()["error"]["message"], why);
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_loaded_is_refused_as_vllm_does() {
    let server = with_both().await;
    let cases = [
        (LOAD, named("policy-v1", "every"), 400, "The lora adapter 'policy-v1' has already been"),
        (
            LOAD,
            json!({"lora_name": "a"}),
            400,
            "Both 'lora_name' and 'lora_path' must be provided.",
        ),
        (LOAD, named("a", "absent"), 404, "Loading lora a failed: No adapter found for "),
        (LOAD, json!({"lora_name": "a", "lora_path": taped("..")}), 404, "Loading lora a failed"),
        (LOAD, named("tiny", "every"), 400, "`lora_name` must be another name than the model's"),
        (UNLOAD, json!({"lora_name": "b"}), 404, "The lora adapter 'b' cannot be found."),
        (UNLOAD, json!({}), 400, "'lora_name' needs to be provided to unload a LoRA adapter."),
    ];
    for (path, body, status, message) in cases {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, status, "{body}");
        let found = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(found.starts_with(message), "{found}");
    }
    assert_eq!(server.get(LOAD).await.status, 405);
    assert_eq!(server.get("/v1/models").await.json()["data"].as_array().unwrap().len(), 3);
    server.stop().await;
}

#[tokio::test]
async fn there_are_no_more_adapters_than_the_server_has_room_for() {
    let one = EngineOptions { max_loras: 1, max_lora_rank: 3, ..EngineOptions::default() };
    let server = Server::start(one).await;
    let large = server.post(LOAD, &named("a", "every")).await;
    let message = large.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("its rank is 4, more than `max_lora_rank` = 3 allows"), "{message}");
    assert_eq!(server.post(LOAD, &named("a", "some")).await.status, 200);
    // The one that was used longest ago is read from its folder again when it is named.
    assert_eq!(server.post(LOAD, &named("b", "some")).await.status, 200);
    for name in ["a", "b"] {
        let asked = json!({"model": name, "prompt": "system", "max_tokens": 2});
        assert_eq!(server.post("/v1/completions", &asked).await.status, 200, "{name}");
    }
    // Room for those that still serve is bounded, too.
    for _ in 0..5 {
        server.post(UNLOAD, &json!({"lora_name": "a"})).await;
        assert_eq!(server.post(LOAD, &named("a", "some")).await.status, 200);
        assert_eq!(server.text(asked("a")).await.status, 200);
    }
    server.stop().await;
    let none = Server::start(EngineOptions { max_loras: 0, ..EngineOptions::default() }).await;
    let refused = none.post(LOAD, &named("a", "some")).await;
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("`--max-loras 0`"), "{}", refused.body);
    none.stop().await;
}

#[tokio::test]
async fn an_adapter_that_gave_way_says_the_same_under_its_label() {
    let two = EngineOptions { max_loras: 2, ..EngineOptions::default() };
    let server = Server::start(two).await;
    let mut alone = Vec::new();
    let adapters = [("a", "every"), ("b", "some"), ("c", "every"), ("d", "some")];
    for (name, folder) in adapters {
        assert_eq!(server.post(LOAD, &named(name, folder)).await.status, 200, "{name}");
        alone.push(server.text(asked(name)).await.json()["choices"][0].clone());
    }
    assert_eq!(server.get("/v1/models").await.json()["data"].as_array().unwrap().len(), 5);

    // More than the engine has room for, again and again and at the same time.
    for _ in 0..2 {
        for ((name, _), expected) in adapters.iter().zip(&alone) {
            let reply = server.text(asked(name)).await.json();
            assert_eq!(reply["choices"][0], *expected, "{name}");
        }
    }
    let calls = adapters.map(|(name, _)| {
        let body = merged(json!({"prompt": [1, 2, 3], "seed": 5}), asked(name));
        server.begin("/v1/completions", &body)
    });
    for (call, expected) in calls.into_iter().zip(&alone) {
        let reply = call.await.unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["choices"][0], *expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn an_adapter_whose_files_changed_while_it_gave_way_is_refused() {
    let one = EngineOptions { max_loras: 1, ..EngineOptions::default() };
    let server = Server::start(one).await;
    let folder = tempfile::tempdir().unwrap();
    let copied = |from: &str| {
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            std::fs::copy(PathBuf::from(taped(from)).join(file), folder.path().join(file)).unwrap();
        }
    };
    copied("every");
    let load = json!({"lora_name": "a", "lora_path": folder.path()});
    assert_eq!(server.post(LOAD, &load).await.status, 200);
    assert_eq!(server.post(LOAD, &named("b", "some")).await.status, 200);

    copied("some");
    let refused = server.text(asked("a")).await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert!(refused.body.contains("have changed since it was loaded"), "{}", refused.body);
    // The other one is not disturbed, and the name can be loaded again or given up.
    assert_eq!(server.text(asked("b")).await.status, 200);
    let again = merged(load, json!({"load_inplace": true}));
    assert_eq!(server.post(LOAD, &again).await.status, 200);
    assert_eq!(server.text(asked("a")).await.status, 200);
    assert_eq!(server.post(UNLOAD, &json!({"lora_name": "b"})).await.status, 200);
    assert_eq!(server.text(asked("b")).await.status, 404);
    server.stop().await;
}
