//! `/v1/completions`, whole and streamed.

use super::*;

#[tokio::test]
async fn completions_have_the_form_of_vllm() {
    let server = Server::plain().await;
    let asked = json!({"prompt": [[1, 2, 3], [4, 5]], "n": 2, "logprobs": 0, "max_tokens": 3,
        "return_token_ids": true, "ignore_eos": true});
    let reply = server.text(asked.clone()).await.json();
    assert_eq!(
        keys(&reply),
        "id object created model choices service_tier system_fingerprint usage \
         kv_transfer_params ec_transfer_params metrics"
    );
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert_eq!(
        keys(&choices[2]),
        "index text logprobs finish_reason stop_reason token_ids prompt_logprobs \
         prompt_token_ids routed_experts weight_versions"
    );
    assert_eq!(choices[2]["prompt_token_ids"], json!([4, 5]));
    let logprobs = &choices[2]["logprobs"];
    assert_eq!(keys(logprobs), "text_offset token_logprobs tokens top_logprobs");
    for list in ["text_offset", "token_logprobs", "tokens", "top_logprobs"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 3, "{list}");
    }
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 1);
    assert_eq!(reply["usage"]["prompt_tokens"], 5);
    let events = server.text(merged(asked, json!({"stream": true}))).await.events();
    assert_eq!(keys(&events[0]), "id object created model choices kv_transfer_params");
    assert_eq!(
        keys(&events[0]["choices"][0]),
        "index text logprobs finish_reason stop_reason prompt_token_ids token_ids weight_versions"
    );
    for choice in choices {
        let own = |event: &&Value| event["choices"][0]["index"] == choice["index"];
        let own: Vec<&Value> = events.iter().filter(own).map(|e| &e["choices"][0]).collect();
        let ids: Vec<Value> =
            own.iter().flat_map(|c| c["token_ids"].as_array().unwrap().clone()).collect();
        assert_eq!(json!(ids), choice["token_ids"]);
        assert_eq!(own[0]["prompt_token_ids"], choice["prompt_token_ids"]);
        assert!(own[1]["prompt_token_ids"].is_null());
        let text: String = own.iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(json!(text), choice["text"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn text_and_ids_are_the_same_prompt() {
    let server = Server::plain().await;
    let text = server.text(json!({"prompt": "Hello", "return_token_ids": true})).await.json();
    let ids = text["choices"][0]["prompt_token_ids"].clone();
    let again = server.text(json!({"prompt": ids})).await.json();
    assert_eq!(again["choices"][0]["text"], text["choices"][0]["text"]);
    assert!(text["usage"]["completion_tokens"].as_u64().unwrap() <= 16);
    let list = server.text(json!({"prompt": ["Hello", "Hello"], "n": 2})).await.json();
    assert_eq!(list["choices"][3]["index"], 3);
    assert_eq!(list["choices"][0]["text"], list["choices"][2]["text"]);
    server.stop().await;
}

#[tokio::test]
async fn a_stop_text_cuts_the_reply_and_is_named() {
    let server = Server::plain().await;
    let long = json!({"max_tokens": 30, "ignore_eos": true});
    let text = server.text(long.clone()).await.json()["choices"][0]["text"].clone();
    let text = text.as_str().unwrap();
    let letters: Vec<(usize, char)> = text.char_indices().collect();
    let (from, to) = (letters[letters.len() / 2].0, letters[letters.len() / 2 + 3].0);
    let stop = &text[from..to];
    let asked = merged(long, json!({"stop": [stop], "return_token_ids": true}));
    let choice = server.text(asked.clone()).await.json()["choices"][0].clone();
    assert_eq!(choice["text"], text[..text.find(stop).unwrap()]);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
    let events = server.text(merged(asked.clone(), json!({"stream": true}))).await.events();
    let streamed: String =
        events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(choice["text"], streamed);
    let whole = server.text(merged(asked, json!({"include_stop_str_in_output": true}))).await;
    assert!(whole.json()["choices"][0]["text"].as_str().unwrap().ends_with(stop));
    server.stop().await;
}
