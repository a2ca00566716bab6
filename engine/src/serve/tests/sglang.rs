//! `/generate` and the other routes of SGLang.

use super::*;

fn asked(changes: Value) -> Value {
    let sampling = json!({"max_new_tokens": 6, "ignore_eos": true, "sampling_seed": 5});
    merged(json!({"input_ids": [1, 2, 3], "sampling_params": sampling}), changes)
}

#[tokio::test]
async fn ids_come_out_as_completions_say_them() {
    let server = Server::plain().await;
    let changes = json!({"return_logprob": true, "top_logprobs_num": 2, "rid": "r1",
        "return_text_in_logprobs": true, "logprob_start_len": 0});
    let reply = server.post("/generate", &asked(changes)).await.json();
    assert_eq!(keys(&reply), "text output_ids meta_info");
    let expected = json!({"max_tokens": 6, "ignore_eos": true, "logprobs": 2,
        "return_token_ids": true, "prompt_logprobs": 2});
    let expected = server.text(expected).await.json()["choices"][0].clone();
    assert_eq!(reply["output_ids"], expected["token_ids"]);
    assert_eq!(reply["text"], expected["text"]);
    let meta = &reply["meta_info"];
    assert_eq!(meta["id"], "r1");
    assert_eq!(meta["finish_reason"], json!({"type": "length", "length": 6}));
    assert_eq!((&meta["prompt_tokens"], &meta["completion_tokens"]), (&json!(3), &json!(6)));
    assert_eq!(meta["weight_version"], "default");
    assert_eq!(meta["weight_versions"], json!([{"version": "default", "start": 0, "end": 6}]));
    let (logprobs, ids) = (&expected["logprobs"], &expected["token_ids"]);
    for index in 0..6 {
        let entry =
            json!([logprobs["token_logprobs"][index], ids[index], logprobs["tokens"][index]]);
        assert_eq!(meta["output_token_logprobs"][index], entry);
        let top = meta["output_top_logprobs"][index].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert!(top[0][0].as_f64() >= top[1][0].as_f64());
    }
    let input = meta["input_token_logprobs"].as_array().unwrap();
    assert_eq!((input.len(), &input[0][0], &input[0][1]), (3, &json!(null), &json!(1)));
    assert_eq!(input[1][0], expected["prompt_logprobs"][1]["2"]["logprob"]);
    assert_eq!(meta["input_top_logprobs"][0], json!(null));
    server.stop().await;
}

#[tokio::test]
async fn a_stream_has_all_so_far_in_each_event() {
    let server = Server::plain().await;
    let whole = server.post("/generate", &asked(json!({"return_logprob": true}))).await.json();
    let changes = json!({"return_logprob": true, "stream": true});
    let events = server.post("/generate", &asked(changes)).await.events();
    let last = events.last().unwrap();
    assert_eq!((&last["text"], &last["output_ids"]), (&whole["text"], &whole["output_ids"]));
    let scores = "output_token_logprobs";
    assert_eq!(last["meta_info"][scores], whole["meta_info"][scores]);
    let mut before = 0;
    for event in &events {
        let ids = event["output_ids"].as_array().unwrap();
        assert!(ids.len() >= before);
        assert_eq!(event["meta_info"][scores].as_array().unwrap().len(), ids.len());
        assert_eq!(event["meta_info"]["finish_reason"].is_null(), ids.len() < 6);
        before = ids.len();
    }
    server.stop().await;
}

#[tokio::test]
async fn a_batch_answers_a_list_prompt_by_prompt() {
    let server = Server::plain().await;
    let one = server.post("/generate", &asked(json!({}))).await.json();
    let sampling = json!({"max_new_tokens": 6, "ignore_eos": true, "sampling_seed": 5});
    let short = json!({"max_new_tokens": 2, "ignore_eos": true, "sampling_seed": 5, "n": 2});
    let batch = json!({"input_ids": [[1, 2, 3], [4, 5]], "sampling_params": [sampling, short],
        "rid": "b", "return_logprob": [false, true], "logprob_start_len": [-1, 1]});
    let replies = server.post("/generate", &batch).await.json();
    let replies = replies.as_array().unwrap();
    assert_eq!(replies.len(), 3);
    assert_eq!(replies[0]["output_ids"], one["output_ids"]);
    assert_eq!(replies[0]["meta_info"]["id"], "b_0");
    assert!(replies[0]["meta_info"].get("output_token_logprobs").is_none());
    for (index, reply) in replies[1..].iter().enumerate() {
        assert_eq!((&reply["index"], &reply["meta_info"]["id"]), (&json!(index), &json!("b_1")));
        assert_eq!(reply["output_ids"].as_array().unwrap().len(), 2);
    }
    // The scores of a prompt are with its first choice.
    assert_eq!(replies[1]["meta_info"]["input_token_logprobs"], json!([[null, 5, null]]));
    let texts = json!({"text": ["Hello", "Hello"], "sampling_params": {"temperature": 0}});
    let replies = server.post("/generate", &texts).await.json();
    assert_eq!(replies[0]["output_ids"], replies[1]["output_ids"]);
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_is_scored_without_a_reply() {
    let server = Server::plain().await;
    let score = json!({"input_ids": [1, 2, 3, 4], "sampling_params": {"max_new_tokens": 0},
        "return_logprob": true, "logprob_start_len": 1});
    let reply = server.post("/generate", &score).await.json();
    let meta = &reply["meta_info"];
    assert_eq!((&reply["output_ids"], &reply["text"]), (&json!([]), &json!("")));
    assert_eq!(
        (&meta["completion_tokens"], &meta["output_token_logprobs"]),
        (&json!(0), &json!([]))
    );
    assert_eq!(meta["finish_reason"], json!({"type": "length", "length": 0}));
    let input = meta["input_token_logprobs"].as_array().unwrap();
    let ids: Vec<&Value> = input.iter().map(|entry| &entry[1]).collect();
    assert_eq!(ids, [&json!(2), &json!(3), &json!(4)]);
    let scored = server.text(json!({"prompt": [1, 2, 3, 4], "prompt_logprobs": 0})).await.json();
    let expected = &scored["choices"][0]["prompt_logprobs"];
    assert_eq!(input[1][0], expected[2]["3"]["logprob"]);
    assert_eq!(input[2][0], expected[3]["4"]["logprob"]);
    server.stop().await;
}

#[tokio::test]
async fn tokens_that_need_no_score_come_from_the_cache() {
    let server = Server::plain().await;
    let score = async |ids: &[u32], start: usize| {
        let score = json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 0},
            "return_logprob": true, "top_logprobs_num": 2, "logprob_start_len": start});
        server.post("/generate", &score).await.json()["meta_info"].clone()
    };
    let ids: Vec<u32> = (0..70).map(|at| 1 + at * 7 % 90).collect();
    let whole = score(&ids, 0).await;
    assert_eq!(whole["cached_tokens"], 0);

    // Of pages of 16, those before the token whose logits are needed.
    for (start, cached) in [(0, 0), (15, 0), (16, 16), (40, 32), (69, 64)] {
        let rest = score(&ids, start).await;
        assert_eq!(rest["cached_tokens"], cached, "{start}");
        for name in ["input_token_logprobs", "input_top_logprobs"] {
            let expected = &whole[name].as_array().unwrap()[start + 1..];
            assert_eq!(rest[name].as_array().unwrap()[1..], *expected, "{name} from {start}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn how_a_reply_ended_is_said_in_its_own_form() {
    let server = Server::plain().await;
    let greedy = json!({"sampling_params": {"temperature": 0, "max_new_tokens": 8,
        "ignore_eos": true}});
    let ids = server.post("/generate", &asked(greedy)).await.json()["output_ids"].clone();
    let stopped = json!({"sampling_params": {"temperature": 0, "max_new_tokens": 8,
        "ignore_eos": true, "stop_token_ids": [ids[2]]}});
    let reply = server.post("/generate", &asked(stopped)).await.json();
    let reason = &reply["meta_info"]["finish_reason"];
    assert_eq!(*reason, json!({"type": "stop", "matched": ids[2]}));
    let formed = json!({"sampling_params": {"regex": "(yes|no)", "max_new_tokens": 8}});
    let reply = server.post("/generate", &asked(formed)).await.json();
    assert!(["yes", "no"].contains(&reply["text"].as_str().unwrap()), "{reply}");
    server.stop().await;
}

#[tokio::test]
async fn what_has_no_counterpart_is_refused_by_name() {
    let server = Server::plain().await;
    let cases = [
        (json!({"sampling_params": {"beam_width": 2}}), "`beam_width` is not supported"),
        (json!({"return_hidden_states": true}), "`return_hidden_states` is not supported"),
        (json!({"text": "a"}), "`text` and `input_ids` cannot both be given"),
        (json!({"input_ids": null}), "`text` or `input_ids` is missing"),
        (json!({"input_ids": [[1], [2]], "stream": true}), "`stream` is for one prompt"),
        (json!({"input_ids": [[1], [2]], "lora_path": ["a"]}), "`lora_path` must have one entry"),
        (json!({"lora_path": "absent"}), "The model `absent` does not exist."),
        (json!({"return_logprob": true, "logprob_start_len": 3}), "`logprob_start_len` must be -1"),
        (json!({"sampling_params": {"regex": "a", "ebnf": "b"}}), "prescribes a second form"),
    ];
    for (changes, message) in cases {
        let reply = server.post("/generate", &asked(changes.clone())).await;
        let found = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(found.contains(message), "{changes}: {found}");
    }
    assert_eq!(server.get("/generate").await.status, 405);
    server.stop().await;
}

#[tokio::test]
async fn adapters_and_aborts_have_sglang_s_names_too() {
    let server = Server::plain().await;
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/tapes/engine/lora/some");
    let named = json!({"lora_name": "a", "lora_path": folder});
    let reply = server.post("/load_lora_adapter", &named).await.json();
    assert_eq!(
        (&reply["success"], &reply["loaded_adapters"]),
        (&json!(true), &json!({"a": folder}))
    );
    let reply = server.post("/generate", &asked(json!({"lora_path": "a"}))).await.json();
    assert_eq!(reply["meta_info"]["weight_version"], "a");
    let reply = server.post("/unload_lora_adapter", &json!({"lora_name": "a"})).await.json();
    assert_eq!(reply["loaded_adapters"], json!({}));
    let info = server.get("/model_info").await.json();
    assert_eq!(info["weight_version"], "default");
    let long = json!({"rid": "long", "sampling_params": {"max_new_tokens": 1000,
        "ignore_eos": true}});
    let aborting = async {
        while server.stats.running.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        server.post("/abort_request", &json!({"rid": "long"})).await.status
    };
    let body = asked(long);
    let (reply, status) = tokio::join!(server.post("/generate", &body), aborting);
    assert_eq!(status, 200);
    assert_eq!(reply.json()["meta_info"]["finish_reason"]["type"], "abort");
    server.stop().await;
}

#[tokio::test]
async fn a_call_is_aborted_while_generation_stands_still() {
    let server = Server::plain().await;
    let long =
        json!({"rid": "long", "sampling_params": {"max_new_tokens": 900, "ignore_eos": true}});
    let reply = server.begin("/generate", &asked(long));
    while server.stats.running.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.post("/pause_generation", &json!({"mode": "in_place"})).await.status, 200);
    assert_eq!(server.post("/abort_request", &json!({"rid": "long"})).await.status, 200);
    assert_eq!(reply.await.unwrap().json()["meta_info"]["finish_reason"]["type"], "abort");
    server.stop().await;
}

/// Copies the tiny model and changes one weight.
fn changed_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tiny = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    let mut bytes = std::fs::read(tiny.join("model.safetensors")).unwrap();
    // The last number of the last tensor: another sign.
    *bytes.last_mut().unwrap() ^= 0x80;
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[tokio::test]
async fn weights_come_from_disk_while_generation_stands_still() {
    let server = Server::plain().await;
    let folder = changed_model();
    for mode in ["abort", "retract", "in_place"] {
        let paused = server.post("/pause_generation", &json!({"mode": mode})).await;
        assert_eq!((paused.status, &paused.json()["status"]), (200, &json!("ok")), "{mode}");
        let body = json!({"model_path": folder.path(), "weight_version": format!("{mode}-1")});
        let updated = server.post("/update_weights_from_disk", &body).await;
        assert_eq!((updated.status, &updated.json()["success"]), (200, &json!(true)), "{mode}");
        assert_eq!(server.post("/continue_generation", &json!({})).await.status, 200);
        let reply = server.post("/generate", &asked(json!({}))).await.json();
        assert_eq!(reply["meta_info"]["weight_version"], format!("{mode}-1"));
    }
    assert_eq!(server.post("/flush_cache", &json!({})).await.status, 200);
    let absent = json!({"model_path": "/absent"});
    let refused = server.post("/update_weights_from_disk", &absent).await;
    assert_eq!((refused.status, &refused.json()["success"]), (400, &json!(false)));
    let unknown = server.post("/pause_generation", &json!({"mode": "later"})).await;
    assert_eq!(unknown.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn health_generate_is_answered_once_a_token_was_sampled() {
    let server = Server::plain().await;
    let sampled = async || {
        let metrics = server.get("/metrics").await.body;
        let line = metrics.lines().find(|line| line.starts_with("vllm:generation_tokens_total"));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(sampled().await, 0.0);
    assert_eq!(server.get("/health_generate").await.status, 200);
    assert_eq!(sampled().await, 1.0);

    // An engine that is paused samples nothing, while `/health` says that it is there.
    assert_eq!(server.post("/pause_generation", &json!({"mode": "in_place"})).await.status, 200);
    let waiting = std::time::Duration::from_millis(200);
    assert!(tokio::time::timeout(waiting, server.get("/health_generate")).await.is_err());
    assert_eq!(server.get("/health").await.status, 200);
    let info = server.get("/get_server_info").await.json();
    assert!(info["vllm_config"].is_string(), "{info}");
    server.stop().await;
}
