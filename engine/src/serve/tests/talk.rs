//! Conversations: sampled replies in later prompts, reasoning, tool calls, open messages.

use super::*;

pub(super) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// Copies the tiny model with another chat template.
pub(super) fn templated(source: &str) -> tempfile::TempDir {
    let tiny = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(tiny).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    folder
}

#[tokio::test]
async fn the_next_prompt_starts_with_the_last_and_what_was_sampled() {
    let server = Server::plain().await;
    // Hot enough for tokens that the tokenizer would not choose.
    let asked = json!({"temperature": 2.0, "return_token_ids": true, "max_tokens": 30});
    let (mut torn, mut plain) = (0, 0);
    for seed in 0..8 {
        let mut messages = vec![user("Hello")];
        let mut known: Vec<u64> = Vec::new();
        for turn in 0..4 {
            let body =
                merged(asked.clone(), json!({"messages": messages, "seed": seed * 10 + turn}));
            // Either way of replying remembers.
            let (reply, choice) = match turn % 2 {
                0 => {
                    let reply = server.chat(body).await.json();
                    let choice = reply["choices"][0].clone();
                    let text = choice["message"]["content"].clone();
                    (reply, (text, ids(&choice["token_ids"])))
                }
                _ => streamed(&server, body).await,
            };
            let prompt = ids(&reply["prompt_token_ids"]);
            assert!(prompt.starts_with(&known), "seed {seed}, turn {turn}");
            let (prefix, len) = (&reply["prefix"], json!(known.len()));
            assert_eq!((&prefix["reused_tokens"], &prefix["remembered_tokens"]), (&len, &len));
            // Special tokens are among what is sampled, and a client is not shown their text.
            assert!(prefix["reason"].is_null() || prefix["reason"] == "respelled", "{prefix}");
            plain += usize::from(turn > 0 && prefix["reason"].is_null());
            known = [prompt, choice.1].concat();
            messages.push(json!({"role": "assistant", "content": choice.0}));
            messages.push(user("and"));
        }
        torn += usize::from(retokenized(&known) != known);
    }
    assert!(plain > 4, "{plain}");
    assert!(torn > 0, "every reply was in the tokenizer's own tokens, which shows nothing");
    server.stop().await;
}

/// Decodes ids and encodes the text again.
fn retokenized(known: &[u64]) -> Vec<u64> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    let tokenizer = template::Tokenizer::load(&folder).unwrap();
    let known: Vec<u32> = known.iter().map(|id| u32::try_from(*id).unwrap()).collect();
    let text = tokenizer.decode(&known, false);
    tokenizer.encode(&text, false).unwrap().into_iter().map(u64::from).collect()
}

async fn streamed(server: &Server, body: Value) -> (Value, (Value, Vec<u64>)) {
    let events = server.chat(merged(body, json!({"stream": true}))).await.events();
    let (mut text, mut sampled) = (String::new(), Vec::new());
    for event in &events[1..] {
        let choice = &event["choices"][0];
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        sampled.extend(ids(&choice["token_ids"]));
        assert!(event.get("prefix").is_none());
    }
    (events[0].clone(), (json!(text), sampled))
}

#[tokio::test]
async fn without_it_prompts_are_what_the_tokenizer_says() {
    let options = EngineOptions { seed: Some(1), prefix_exact_chat: false, ..Default::default() };
    let server = Server::start(options).await;
    let reply = server.chat(json!({"max_tokens": 4})).await.json();
    assert!(reply.get("prefix").is_none());
    server.stop().await;
}

#[tokio::test]
async fn calls_that_come_back_in_other_words_keep_their_tokens() {
    let server = Server::plain().await;
    let asked = json!({"messages": [user(QUESTION)], "tools": tools(), "temperature": 0,
        "return_token_ids": true});
    let first = server.chat(asked.clone()).await.json();
    let message = &first["choices"][0]["message"];
    let known = [ids(&first["prompt_token_ids"]), ids(&first["choices"][0]["token_ids"])].concat();
    let spaced = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let spaced = spaced.replace('{', "{ ").replace(':', " :  ");
    let mut call = message["tool_calls"][0].clone();
    call["function"]["arguments"] = json!(spaced);
    let called = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let history = json!([user(QUESTION), called,
        {"role": "tool", "tool_call_id": call["id"], "content": "higher"}]);
    let second = server.chat(merged(asked, json!({"messages": history}))).await.json();
    assert!(ids(&second["prompt_token_ids"]).starts_with(&known));
    assert_eq!(second["prefix"]["reused_tokens"], known.len());
    server.stop().await;
}

#[tokio::test]
async fn thoughts_are_told_from_answers() {
    // The block is open in the prompt and is never closed, so all that is said is thought.
    let folder = templated(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
         <|im_start|>assistant\n<think>{# </think> #}",
    );
    let server = Server::of(folder.path(), EngineOptions { seed: Some(1), ..Default::default() });
    let server = server.await;
    let asked = json!({"max_tokens": 12, "ignore_eos": true, "return_token_ids": true});
    let whole = server.chat(asked.clone()).await.json();
    let message = &whole["choices"][0]["message"];
    assert!(message["content"].is_null());
    let thought = message["reasoning"].as_str().unwrap();
    assert!(!thought.is_empty());
    let events = server.chat(merged(asked.clone(), json!({"stream": true}))).await.events();
    let pieces = events.iter().filter_map(|e| e["choices"][0]["delta"]["reasoning"].as_str());
    assert_eq!(pieces.collect::<String>(), thought);
    let hidden = server.chat(merged(asked, json!({"include_reasoning": false}))).await.json();
    let choice = &hidden["choices"][0];
    assert!(choice["message"]["reasoning"].is_null());
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 12);
    server.stop().await;
}

#[tokio::test]
async fn a_reply_can_go_on_with_the_last_message() {
    let server = Server::plain().await;
    let open = json!({"messages": [user("Hello"), {"role": "assistant", "content": "So the"}],
        "continue_final_message": true, "return_token_ids": true, "max_tokens": 2});
    let refused = server.chat(open.clone()).await;
    assert_eq!(refused.json()["error"]["param"], "continue_final_message");
    let reply = server.chat(merged(open, json!({"add_generation_prompt": false}))).await.json();
    let plain = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nSo the";
    let text = json!({"prompt": plain, "return_token_ids": true, "max_tokens": 1,
        "add_special_tokens": false});
    let text = server.post("/v1/completions", &text).await.json();
    assert_eq!(reply["prompt_token_ids"], text["choices"][0]["prompt_token_ids"]);
    server.stop().await;
}

#[tokio::test]
async fn a_reply_with_an_echo_begins_with_the_assistant_s_message() {
    let server = Server::plain().await;
    let open = json!({"messages": [user("Hello"), {"role": "assistant", "content": "So the"}],
        "continue_final_message": true, "add_generation_prompt": false, "max_tokens": 4, "n": 2});
    let content = |choice: &Value| choice["message"]["content"].as_str().unwrap().to_owned();
    let plain = server.chat(open.clone()).await.json();
    let asked = merged(open, json!({"echo": true}));
    let echoed = server.chat(asked.clone()).await.json();
    let events = server.chat(merged(asked, json!({"stream": true}))).await.events();
    for index in 0..2 {
        let expected = format!("So the{}", content(&plain["choices"][index]));
        assert_eq!(content(&echoed["choices"][index]), expected);
        let choices = events.iter().map(|event| &event["choices"][0]);
        let pieces = choices.filter(|choice| choice["index"] == index);
        let streamed: String =
            pieces.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(streamed, expected);
    }
    // What a user said is no part of a reply.
    let asked = json!({"echo": true, "max_tokens": 4});
    let (echo, none) = (server.chat(asked).await, server.chat(json!({"max_tokens": 4})).await);
    assert_eq!(echo.json()["choices"], none.json()["choices"]);
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_text_is_refused_by_its_place() {
    let server = Server::plain().await;
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let content = json!([{"type": "text", "text": "What is this?"}, image]);
    let refused = server.chat(json!({"messages": [{"role": "user", "content": content}]})).await;
    assert_eq!(refused.status, 400);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("messages[0].content[1].type"), "{message}");
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let agents = json!({"messages": [{"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts}, {"role": "assistant", "content": null},
        user("Go on.")], "max_completion_tokens": 2});
    assert_eq!(server.chat(agents).await.status, 200);
    server.stop().await;
}

/// Two tools whose arguments the tiny model would not sample by chance.
pub(super) fn strange_tools() -> Value {
    let tool = |name: &str, schema: Value| {
        let function = json!({"name": name, "parameters": schema});
        json!({"type": "function", "function": function})
    };
    let pair = json!({"type": "object", "properties": {"of": {"$ref": "#/$defs/digit"}},
        "required": ["of"], "additionalProperties": false,
        "$defs": {"digit": {"enum": [7, 8]}}});
    let word = json!({"type": "object", "properties": {"w": {"enum": ["é\"", "b"]}},
        "required": ["w"], "additionalProperties": false});
    json!([tool("a \"pair\"", pair), tool("word", word)])
}

#[tokio::test]
async fn calls_that_are_required_are_made() {
    let server = Server::plain().await;
    let asked = json!({"tools": strange_tools(), "max_tokens": 300, "temperature": 1.5,
        "logprobs": true});
    let named = json!({"type": "function", "function": {"name": "word"}});
    for (choice, seed) in [(json!("required"), 1), (json!("required"), 2), (named.clone(), 3)] {
        let body = merged(asked.clone(), json!({"tool_choice": choice, "seed": seed}));
        let whole = server.chat(body.clone()).await.json();
        let reply = &whole["choices"][0];
        if reply["finish_reason"] == "length" {
            // A reply that goes on calling is cut somewhere.
            continue;
        }
        let reason = if choice == named { "stop" } else { "tool_calls" };
        assert_eq!(reply["finish_reason"], reason, "{whole}");
        let calls = reply["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(reply["message"]["content"], "", "{whole}");
        for call in calls {
            let function = &call["function"];
            let text = function["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(text).unwrap();
            match function["name"].as_str().unwrap() {
                "word" => assert!([json!("é\""), json!("b")].contains(&arguments["w"])),
                name => {
                    assert_eq!(name, "a \"pair\"");
                    assert!([json!(7), json!(8)].contains(&arguments["of"]));
                }
            }
        }
        if choice == named {
            assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("word")));
        }
        let events = server.chat(merged(body, json!({"stream": true}))).await.events();
        let pieces = events.iter().flat_map(|event| {
            event["choices"][0]["delta"]["tool_calls"].as_array().cloned().unwrap_or_default()
        });
        let first: Vec<Value> = pieces.filter(|piece| piece["index"] == 0).collect();
        // The name comes alone, and arguments in entries of their own.
        assert_eq!(first[0]["function"], json!({"name": calls[0]["function"]["name"]}));
        let arguments = first[1..].iter().map(|piece| piece["function"]["arguments"].as_str());
        let arguments: String = arguments.map(Option::unwrap).collect();
        assert_eq!(json!(arguments), calls[0]["function"]["arguments"]);
        let ends = events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str());
        assert_eq!(ends.collect::<Vec<_>>(), [reason]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_demanded_call_that_was_cut_is_the_same_whole_and_streamed() {
    let server = Server::plain().await;
    let named = json!({"type": "function", "function": {"name": "word"}});
    for choice in [named, json!("required")] {
        let body = json!({"tools": strange_tools(), "tool_choice": choice, "max_tokens": 30});
        let whole = server.chat(body.clone()).await.json()["choices"][0].clone();
        let events = server.chat(merged(body, json!({"stream": true}))).await.events();
        let pieces = events.iter().flat_map(|event| {
            event["choices"][0]["delta"]["tool_calls"].as_array().cloned().unwrap_or_default()
        });
        let text = |name: &str, piece: &Value| {
            piece["function"][name].as_str().unwrap_or_default().to_owned()
        };
        let first: Vec<Value> = pieces.filter(|piece| piece["index"] == 0).collect();
        let streamed: String = first.iter().map(|piece| text("arguments", piece)).collect();
        assert_eq!(whole["finish_reason"], "length", "{whole}");
        let call = &whole["message"]["tool_calls"][0];
        assert_eq!(
            (text("name", call), text("arguments", call)),
            (text("name", &first[0]), streamed)
        );
        assert_eq!(whole["message"]["content"], "");
    }
    server.stop().await;
}

#[tokio::test]
async fn one_call_is_one_and_impossible_choices_are_refused() {
    let server = Server::plain().await;
    let tools = strange_tools();
    for seed in 0..4 {
        let one = json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false,
            "max_tokens": 300, "temperature": 1.5, "seed": seed});
        let reply = server.chat(one).await.json();
        assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{reply}");
        assert_eq!(reply["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    }
    let schema = |schema: Value| {
        let function = json!({"name": "f", "parameters": schema});
        json!([{"type": "function", "function": function}])
    };
    let cases = [
        ("tool_choice", json!({"tool_choice": "required"})),
        ("tool_choice", json!({"tool_choice": "some", "tools": tools})),
        (
            "tool_choice",
            json!({"tool_choice": {"type": "function", "function": {"name": "x"}},
            "tools": tools}),
        ),
        ("tool_choice", json!({"tool_choice": "required", "tools": schema(json!({"type": "no"}))})),
        (
            "tool_choice",
            json!({"tool_choice": "required", "tools": tools,
            "response_format": {"type": "json_object"}}),
        ),
        ("tools", json!({"tools": schema(json!([1]))})),
    ];
    for (param, changes) in cases {
        let answer = server.chat(changes.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
    server.stop().await;
}
