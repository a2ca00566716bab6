//! Replies of models that reason: forms and calls after the reasoning, its budget and its count.

use super::talk::{strange_tools, templated, user};
use super::wires::named;
use super::*;

/// A template that opens the reasoning, closes it where it is not wanted, or leaves it to the
/// model.
const TEMPLATE: &str = "{% for m in messages %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}<|im_start|>assistant\n{% if enable_thinking is defined %}\
    {{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}\
    {# <tool_call> #}";

async fn thinker() -> (Server, tempfile::TempDir) {
    let folder = templated(TEMPLATE);
    let options = EngineOptions {
        seed: Some(1),
        served_model_name: Some("tiny".to_owned()),
        ..EngineOptions::default()
    };
    (Server::of(folder.path(), options).await, folder)
}

fn thinking(is_on: bool) -> Value {
    json!({"chat_template_kwargs": {"enable_thinking": is_on}})
}

#[tokio::test]
async fn a_form_begins_after_the_reasoning() {
    let (server, _folder) = thinker().await;
    let tight = json!({"json": {"enum": [7, 8]}, "disable_any_whitespace": true});
    let forms = [
        (json!({"structured_outputs": {"choice": ["left", "right"]}}), "left right"),
        (json!({"structured_outputs": {"regex": "[ab]{2}"}}), "aa ab ba bb"),
        (json!({"structured_outputs": tight}), "7 8"),
        (json!({"structured_outputs": {"grammar": "root ::= \"yes\" | \"no\""}}), "yes no"),
    ];
    for (form, fitting) in forms {
        let fits = |text: &str| fitting.split(' ').any(|one| one == text);
        let asked = merged(
            form,
            json!({"max_tokens": 80, "thinking_token_budget": 8,
            "temperature": 1.5, "return_token_ids": true}),
        );

        // The prompt has opened it: first the thought, which the budget ends.
        let open = server.chat(merged(asked.clone(), thinking(true))).await.json();
        let message = &open["choices"][0]["message"];
        assert!(!message["reasoning"].as_str().unwrap().is_empty(), "{open}");
        assert!(fits(message["content"].as_str().unwrap()), "{open}");
        let streamed = merged(merged(asked.clone(), thinking(true)), json!({"stream": true}));
        let events = server.chat(streamed).await.events();
        let content = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(Some(&*content.collect::<String>()), message["content"].as_str());

        // The prompt has closed it, and there is no second one.
        let closed = server.chat(merged(asked.clone(), thinking(false))).await.json();
        let message = &closed["choices"][0]["message"];
        assert!(message["reasoning"].is_null(), "{closed}");
        assert!(fits(message["content"].as_str().unwrap()), "{closed}");

        // The model may choose.
        let free = server.chat(asked).await.json();
        assert!(fits(free["choices"][0]["message"]["content"].as_str().unwrap()), "{free}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_reply_goes_on_inside_the_thought_that_it_continues() {
    let (server, _folder) = thinker().await;
    for (content, thinks) in [("<think>\nTwo and", true), ("<think>Two</think>\n\nSo: ", false)] {
        let messages = [user("what is <think>?"), json!({"role": "assistant", "content": content})];
        let asked = json!({"messages": messages, "continue_final_message": true,
            "add_generation_prompt": false, "max_tokens": 80, "thinking_token_budget": 8,
            "structured_outputs": {"choice": ["left", "right"]}, "temperature": 1.5});
        let reply = server.chat(asked.clone()).await.json();
        let message = &reply["choices"][0]["message"];
        assert!(["left", "right"].contains(&message["content"].as_str().unwrap()), "{reply}");
        assert_eq!(message["reasoning"].is_string(), thinks, "{reply}");
        let counted = &reply["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert_eq!(counted.as_u64().unwrap() >= 8, thinks, "{reply}");

        let events = server.chat(merged(asked, json!({"stream": true}))).await.events();
        for part in ["content", "reasoning"] {
            let texts = events.iter().filter_map(|e| e["choices"][0]["delta"][part].as_str());
            let whole = message[part].as_str().unwrap_or_default();
            assert_eq!(texts.collect::<String>(), whole, "{part}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_closing_tag_in_a_form_is_content() {
    let (server, _folder) = thinker().await;
    let form = json!({"structured_outputs": {"choice": ["hm</think>yes"]}, "max_tokens": 80});
    let whole = server.chat(merged(form.clone(), thinking(false))).await.json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning"], &message["content"]),
        (&json!(null), &json!("hm</think>yes"))
    );
    let streamed = merged(merged(form, thinking(false)), json!({"stream": true}));
    let events = server.chat(streamed).await.events();
    let content = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!(content.collect::<String>(), "hm</think>yes");
    server.stop().await;
}

#[tokio::test]
async fn a_demanded_call_is_made_whatever_is_thought() {
    let (server, _folder) = thinker().await;
    let named = json!({"type": "function", "function": {"name": "word"}});
    let cases = [json!("required"), named].map(|choice| {
        json!({"tools": strange_tools(), "tool_choice": choice, "parallel_tool_calls": false,
            "max_tokens": 300, "temperature": 1.5})
    });
    for asked in cases {
        for (seed, mode) in (0..).zip([json!({}), thinking(true), thinking(false)]) {
            let body = merged(merged(asked.clone(), mode), json!({"seed": seed}));
            let reply = server.chat(body).await.json();
            let message = &reply["choices"][0]["message"];
            assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1, "{reply}");
        }
    }
    // The markup of a call that was cut is no content, whole or in a stream.
    for max_tokens in 1..12 {
        let asked = json!({"tools": strange_tools(), "tool_choice": "required", "seed": 1,
            "max_tokens": max_tokens, "chat_template_kwargs": {"enable_thinking": false}});
        let reply = server.chat(asked.clone()).await.json();
        assert_eq!(reply["choices"][0]["message"]["content"], "", "{reply}");
        let events = server.chat(merged(asked, json!({"stream": true}))).await.events();
        let content = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(content.collect::<String>(), "");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_budget_bounds_the_reasoning_and_usage_counts_it() {
    let (server, _folder) = thinker().await;
    let asked = merged(
        thinking(true),
        json!({"max_tokens": 60, "ignore_eos": true, "thinking_token_budget": 10,
            "temperature": 1.0, "logprobs": true}),
    );
    let reply = server.chat(asked.clone()).await.json();
    let details = &reply["usage"]["completion_tokens_details"];
    let counted = details["reasoning_tokens"].as_u64().unwrap();
    // The tiny model's closing tag has several tokens, of which all but the last are inside.
    assert!((10..20).contains(&counted), "{details}");
    assert!(!reply["choices"][0]["message"]["content"].as_str().unwrap().is_empty());
    // The tag was the only choice there was.
    let entries = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries[counted as usize]["logprob"], 0.0);

    let stream = json!({"stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let events = server.chat(merged(asked.clone(), stream)).await.events();
    assert_eq!(&events.last().unwrap()["usage"]["completion_tokens_details"], details);
    let none = server.chat(merged(asked.clone(), json!({"thinking_token_budget": 0}))).await;
    assert_eq!(none.json()["choices"][0]["message"]["reasoning"], Value::Null);
    let free = merged(asked.clone(), json!({"thinking_token_budget": -1}));
    let free = server.chat(free).await.json();
    assert_eq!(free["usage"]["completion_tokens_details"]["reasoning_tokens"], 60);
    for wrong in [json!(-2), json!(1.5), json!("x")] {
        let refused = server.chat(merged(asked.clone(), json!({"thinking_token_budget": wrong})));
        let error = refused.await.json()["error"].clone();
        assert_eq!(error["param"], "thinking_token_budget", "{error}");
    }
    server.stop().await;
}

#[tokio::test]
async fn all_wires_count_reasoning_and_the_cache() {
    let (server, _folder) = thinker().await;
    let long = "a b c d e f g h i j k l m n o p q r s t u v w x y z ".repeat(4);
    let messages = json!({"max_tokens": 40, "model": "tiny", "messages": [user(&long)],
        "thinking": {"type": "enabled", "budget_tokens": 5}});
    let first = server.post("/v1/messages", &messages).await.json();
    let usage = &first["usage"];
    assert!(usage["cache_creation_input_tokens"].as_u64().unwrap() >= 16, "{first}");
    assert_eq!(usage["cache_read_input_tokens"], 0);

    // What was created is read by the next one, and the first event says so.
    let events = server.post("/v1/messages", &merged(messages, json!({"stream": true}))).await;
    let start = named(&events)[0]["message"]["usage"].clone();
    assert_eq!(start["cache_read_input_tokens"], usage["cache_creation_input_tokens"]);
    assert_eq!(start["cache_creation_input_tokens"], 0);
    assert_eq!(start["input_tokens"], usage["input_tokens"]);

    let asked = json!({"model": "tiny", "input": "x", "max_output_tokens": 20});
    let reply = server.post("/v1/responses", &asked).await.json();
    assert!(reply["usage"]["output_tokens_details"]["reasoning_tokens"].is_u64(), "{reply}");
    let chat = server.chat(json!({"max_tokens": 2})).await.json();
    assert!(chat["usage"]["completion_tokens_details"]["reasoning_tokens"].is_u64(), "{chat}");
    server.stop().await;
}
