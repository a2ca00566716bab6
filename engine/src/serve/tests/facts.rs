//! Logprobs of prompts and replies, echoes, and other facts about tokens.

use super::*;

use crate::LogprobsMode;

/// Starts a server in a logprobs mode.
async fn server(logprobs_mode: LogprobsMode) -> Server {
    let options = EngineOptions { seed: Some(1), logprobs_mode, ..EngineOptions::default() };
    Server::start(options).await
}

/// A prompt of 90 tokens.
fn long_prompt() -> Vec<u32> {
    (0..90).map(|i| (i * 37 + 5) % 380).collect()
}

#[tokio::test]
async fn a_prompt_is_scored_as_if_it_had_been_sampled() {
    let server = server(LogprobsMode::RawLogprobs).await;
    // A greedy reply, then the same text as a prompt.
    let asked = json!({"prompt": [1, 2, 3], "temperature": 0, "max_tokens": 40, "logprobs": 2,
        "ignore_eos": true, "return_token_ids": true});
    let reply = server.text(asked).await.json()["choices"][0].clone();
    let sampled: Vec<u32> = serde_json::from_value(reply["token_ids"].clone()).unwrap();
    let prompt = [&[1, 2, 3], sampled.as_slice()].concat();
    let scored = json!({"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 2});
    let scores = server.text(scored).await.json()["choices"][0]["prompt_logprobs"].clone();
    assert_eq!(scores.as_array().unwrap().len(), prompt.len());
    assert!(scores[0].is_null());
    for (index, id) in sampled.iter().enumerate() {
        let entry = &scores[index + 3][id.to_string()];
        assert_eq!(keys(entry), "logprob rank decoded_token");
        // Bit for bit: one was computed alone, the other in a chunk.
        assert_eq!(entry["logprob"], reply["logprobs"]["token_logprobs"][index]);
        assert_eq!((&entry["rank"], scores[index + 3].as_object().unwrap().len()), (&json!(1), 2));
    }
    server.stop().await;
}

#[tokio::test]
async fn scores_of_a_prompt_do_not_depend_on_its_chunks() {
    let prompt = long_prompt();
    let asked = json!({"prompt": prompt, "max_tokens": 2, "prompt_logprobs": 3, "n": 2, "seed": 4});
    let mut all = Vec::new();
    for max_num_batched_tokens in [Some(7), None] {
        let options = EngineOptions { max_num_batched_tokens, ..EngineOptions::default() };
        let server = Server::start(options).await;
        // The second time the prompt is in the cache.
        for _ in 0..2 {
            let choices = server.text(asked.clone()).await.json()["choices"].clone();
            assert_eq!(choices[0]["prompt_logprobs"], choices[1]["prompt_logprobs"]);
            assert_eq!(choices[0]["prompt_logprobs"].as_array().unwrap().len(), prompt.len());
            all.push(choices);
        }
        server.stop().await;
    }
    assert!(all.iter().all(|choices| *choices == all[0]));
}

#[tokio::test]
async fn chat_scores_its_prompt_too() {
    let server = Server::plain().await;
    let asked = json!({"max_tokens": 1, "prompt_logprobs": 0, "return_token_ids": true});
    let reply = server.chat(asked).await.json();
    let scores = reply["prompt_logprobs"].as_array().unwrap();
    let ids = reply["prompt_token_ids"].as_array().unwrap();
    assert_eq!(scores.len(), ids.len());
    for (score, id) in scores.iter().zip(ids).skip(1) {
        assert_eq!(score.as_object().unwrap().keys().collect::<Vec<_>>(), [&id.to_string()]);
    }
    assert!(server.chat(json!({"max_tokens": 1})).await.json()["prompt_logprobs"].is_null());
    server.stop().await;
}

#[tokio::test]
async fn an_echo_has_the_text_and_the_scores_of_the_prompt() {
    let server = Server::plain().await;
    let plain = json!({"prompt": "Hello", "max_tokens": 4, "ignore_eos": true, "logprobs": 1});
    let alone = server.text(plain.clone()).await.json()["choices"][0].clone();
    let echo = merged(plain, json!({"echo": true, "n": 2}));
    let reply = server.text(echo.clone()).await.json();
    let choice = &reply["choices"][0];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    assert_eq!(text(&choice["text"]), format!("Hello{}", text(&alone["text"])));
    let prompt = reply["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let (whole, part) = (&choice["logprobs"][list], &alone["logprobs"][list]);
        let whole = whole.as_array().unwrap();
        assert_eq!(whole.len(), prompt + 4, "{list}");
        if list != "text_offset" {
            assert_eq!(json!(whole[prompt..]), *part, "{list}");
        }
    }
    assert!(choice["logprobs"]["token_logprobs"][0].is_null());
    assert!(choice["logprobs"]["top_logprobs"][0].is_null());
    // As in vLLM, the scores of a prompt that is repeated are told as scores of a prompt too.
    assert_eq!(choice["prompt_logprobs"].as_array().unwrap().len(), prompt);
    let events = server.text(merged(echo.clone(), json!({"stream": true}))).await.events();
    let ids = events[0]["choices"][0]["prompt_token_ids"].as_array().unwrap();
    assert_eq!(ids.len(), prompt);
    for index in 0..2 {
        let own = events.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == index);
        let own: Vec<&Value> = own.collect();
        let streamed: String = own.iter().map(|choice| text(&choice["text"])).collect();
        assert_eq!(streamed, text(&reply["choices"][index]["text"]));
        let tokens = own.iter().flat_map(|c| c["logprobs"]["token_logprobs"].as_array().unwrap());
        let whole = &reply["choices"][index]["logprobs"]["token_logprobs"];
        assert!(tokens.eq(whole.as_array().unwrap()));
    }
    // The prompt alone, from its ids.
    let only = json!({"prompt": [40, 41, 42], "echo": true, "max_tokens": 0, "logprobs": 0});
    for stream in [false, true] {
        let answer = server.text(merged(only.clone(), json!({"stream": stream}))).await;
        let reply = if stream { answer.events()[0].clone() } else { answer.json() };
        let choice = &reply["choices"][0];
        let decoded = server.post("/detokenize", &json!({"tokens": [40, 41, 42]})).await.json();
        assert_eq!(choice["text"], decoded["prompt"]);
        assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 3);
    }
    let ids = merged(echo, json!({"return_token_ids": true}));
    let choice = &server.text(ids).await.json()["choices"][0];
    assert_eq!(choice["text"], alone["text"]);
    server.stop().await;
}

#[tokio::test]
async fn both_logprobs_come_with_each_token() {
    for mode in [LogprobsMode::RawLogprobs, LogprobsMode::ProcessedLogprobs] {
        let server = server(mode).await;
        let asked = json!({"max_tokens": 8, "ignore_eos": true, "temperature": 0.7, "top_k": 5,
            "return_both_logprobs": true, "seed": 3});
        let chat = server.chat(merged(asked.clone(), json!({"logprobs": true}))).await.json();
        for entry in chat["choices"][0]["logprobs"]["content"].as_array().unwrap() {
            let raw = mode == LogprobsMode::RawLogprobs;
            let own = if raw { "raw_logprob" } else { "processed_logprob" };
            assert_eq!(entry["logprob"], entry[own]);
            assert!(entry["rank"].as_u64().unwrap() <= 5);
            assert!(entry["raw_logprob"] != entry["processed_logprob"]);
        }
        let text = server.text(merged(asked, json!({"logprobs": 0}))).await.json();
        let lists = &text["choices"][0]["logprobs"];
        for list in ["raw_logprobs", "processed_logprobs", "ranks"] {
            assert_eq!(lists[list].as_array().unwrap().len(), 8, "{list}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn the_whole_vocabulary_is_shown_where_the_server_allows_it() {
    let options = EngineOptions { max_logprobs: usize::MAX, ..EngineOptions::default() };
    let server = Server::start(options).await;
    let asked = json!({"max_tokens": 1, "logprobs": -1, "return_tokens_as_token_ids": true});
    let top = server.text(asked).await.json()["choices"][0]["logprobs"]["top_logprobs"][0].clone();
    assert_eq!(top.as_object().unwrap().len(), 393);
    let sum: f64 = top.as_object().unwrap().values().map(|l| l.as_f64().unwrap().exp()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    let asked = json!({"max_tokens": 1, "logprobs": 1, "logprob_token_ids": [9, 5, 300],
        "return_tokens_as_token_ids": true, "logit_bias": {"77": 100}});
    let top = server.text(asked).await.json()["choices"][0]["logprobs"]["top_logprobs"][0].clone();
    assert_eq!(keys(&top), "token_id:77 token_id:9 token_id:5 token_id:300");
    server.stop().await;
}

#[tokio::test]
async fn what_shapes_sampling_is_obeyed() {
    let server = Server::plain().await;
    let ids = async |changes: Value| {
        let asked = json!({"max_tokens": 30, "ignore_eos": true, "return_token_ids": true});
        let reply = server.text(merged(asked, changes)).await.json();
        serde_json::from_value::<Vec<u32>>(reply["choices"][0]["token_ids"].clone()).unwrap()
    };
    let allowed = ids(json!({"allowed_token_ids": [7, 8, 9], "temperature": 2})).await;
    assert!(allowed.iter().all(|id| (7..=9).contains(id)) && allowed.len() == 30);
    let biased = ids(json!({"logit_bias": {"123": 100}})).await;
    assert_eq!(biased, [123; 30]);
    let unlike = ids(json!({"allowed_token_ids": [7, 8, 9], "presence_penalty": 2,
        "frequency_penalty": 2, "temperature": 0}))
    .await;
    assert!([7, 8, 9].iter().all(|id| unlike.contains(id)), "{unlike:?}");
    let plain = ids(json!({"temperature": 0})).await;
    let word = server.post("/detokenize", &json!({"tokens": [plain[0]]})).await.json();
    let without = ids(json!({"temperature": 0, "bad_words": [word["prompt"]]})).await;
    assert!(!without.contains(&plain[0]));
    // Without a seed replies differ; -1 is none.
    let free = json!({"seed": -1, "temperature": 2});
    assert_ne!(ids(free.clone()).await, ids(free).await);
    server.stop().await;
}

#[tokio::test]
async fn an_end_waits_for_the_least_number_of_tokens() {
    let server = Server::plain().await;
    let early = json!({"logit_bias": {"390": 100}, "max_tokens": 20, "return_token_ids": true});
    let reply = server.text(early.clone()).await.json()["choices"][0].clone();
    assert_eq!((&reply["token_ids"], &reply["finish_reason"]), (&json!([390]), &json!("stop")));
    let late = merged(early, json!({"min_tokens": 6}));
    let ids = server.text(late.clone()).await.json()["choices"][0]["token_ids"].clone();
    let ids: Vec<u32> = serde_json::from_value(ids).unwrap();
    assert_eq!(ids.iter().position(|id| *id == 390), Some(6));
    let ignored = merged(late, json!({"ignore_eos": true}));
    let reply = server.text(ignored).await.json()["choices"][0].clone();
    assert_eq!(reply["finish_reason"], "length");
    assert_ne!(reply["token_ids"][5], json!(390));
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_is_cut_on_the_side_that_is_asked_for() {
    let server = Server::plain().await;
    let ids = async |changes: Value| {
        let asked = json!({"prompt": [1, 2, 3, 4], "max_tokens": 1, "return_token_ids": true});
        let reply = server.text(merged(asked, changes)).await.json();
        reply["choices"][0]["prompt_token_ids"].clone()
    };
    assert_eq!(ids(json!({"truncate_prompt_tokens": 2})).await, json!([3, 4]));
    let right = json!({"truncate_prompt_tokens": 3, "truncation_side": "right"});
    assert_eq!(ids(right).await, json!([1, 2, 3]));
    assert_eq!(ids(json!({"truncate_prompt_tokens": 9})).await, json!([1, 2, 3, 4]));
    let most = ids(json!({"prompt": vec![5; 4000], "truncate_prompt_tokens": -1})).await;
    assert_eq!(most.as_array().unwrap().len(), 1023);
    server.stop().await;
}

#[tokio::test]
async fn a_reply_has_the_id_that_the_caller_gave() {
    let server = Server::plain().await;
    let asked = json!({"max_tokens": 1, "request_id": "mine"});
    assert_eq!(server.text(asked.clone()).await.json()["id"], "cmpl-mine");
    assert_eq!(server.chat(asked).await.json()["id"], "chatcmpl-mine");
    server.stop().await;
}

#[tokio::test]
async fn usage_tells_what_came_from_the_cache() {
    let server = Server::plain().await;
    let cached = async |changes: Value| {
        let asked = json!({"prompt": long_prompt(), "max_tokens": 2, "ignore_eos": true});
        let usage = server.text(merged(asked, changes)).await.json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(json!({})).await, 0);
    // Five whole pages; the rest of the 90 tokens is computed.
    assert_eq!(cached(json!({})).await, 80);
    assert_eq!(cached(json!({"cache_salt": "other"})).await, 0);
    assert_eq!(cached(json!({"cache_salt": "other"})).await, 80);
    // A prompt that is scored is computed whole.
    assert_eq!(cached(json!({"prompt_logprobs": 0})).await, 0);
    let asked = json!({"prompt": long_prompt(), "max_tokens": 2, "stream": true,
        "stream_options": {"include_usage": true}});
    let usage = server.text(asked).await.events().last().unwrap()["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"], json!({"cached_tokens": 80}));
    server.stop().await;
}
