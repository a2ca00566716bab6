//! Rows from llama.cpp, which reports prompts as text and leaves end tokens out.

use std::collections::BTreeSet;
use std::sync::Mutex;

use episode::{CallEnd, Fidelity};
use exporter::{Options, export};
use kit::{Seen, Step, Upstream, World, post, tape};
use serde_json::{Value, json};

/// The prompt of the case `verbose_stream`.
const RENDERED: &str = "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nSay \
    something. Find the secret number from 1 to 7. You have 3 guesses.<|im_end|>\n\
    <|im_start|>assistant\n";
/// Number of ids that the server read.
const PROMPT_TOKENS: u32 = 44;

fn json(value: &Value) -> Vec<Step> {
    vec![Step::reply("200 OK", "application/json", value.to_string().as_bytes())]
}

/// The answer of llama.cpp in the middle of a call: a real stream, a template that renders
/// `rendered`, and a tokenizer that makes `tokens` ids of the prompt.
fn answer(seen: &Seen, rendered: &str, tokens: u32) -> Vec<Step> {
    let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
    match seen.path.as_str() {
        "/apply-template" => json(&json!({ "prompt": rendered })),
        "/tokenize" if body["content"] == "<|im_end|>" => json(&json!({ "tokens": [390] })),
        "/tokenize" if body["content"] == RENDERED => {
            json(&json!({ "tokens": (0..tokens).collect::<Vec<u32>>() }))
        }
        "/tokenize" => json(&json!({ "tokens": [1, 2, 3] })),
        _ => {
            let stream = tape("llamacpp/real/chat_stream.asked.sse");
            vec![Step::stream_head(), Step::chunk(&stream), Step::chunk(b"")]
        }
    }
}

async fn server(rendered: &'static str, tokens: u32) -> Upstream {
    server_of(move |seen| answer(seen, rendered, tokens)).await
}

async fn server_of(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Upstream {
    let upstream = Upstream::start("llamacpp", script).await;
    upstream.tells(tape("llamacpp/props.json"));
    upstream
}

async fn call(upstream: &Upstream) -> (CallEnd, BTreeSet<&'static str>, String) {
    let world = World::start(upstream.address).await;
    let body = String::from_utf8(tape("llamacpp/real/chat_stream.request.json")).unwrap();
    let reply = post(world.data, "/e/a/v1/chat/completions", &body).await;
    let ended = world.ended_call().await.ended.unwrap();
    let out = tempfile::tempdir().unwrap();
    let options = Options { out: out.path().to_owned().into(), ..Options::default() };
    let report = export(world.snapshot().await, &options).await.unwrap();
    let reasons = report.notes.reasons.keys().map(|reason| reason.as_str()).collect();
    world.stop().await;
    (ended, reasons, reply.text())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_chat_has_its_prompt_and_its_end() {
    let upstream = server(RENDERED, PROMPT_TOKENS).await;
    let (ended, reasons, shown) = call(&upstream).await;
    assert_eq!(ended.prompts, [(0..PROMPT_TOKENS).collect::<Vec<u32>>()]);
    let choice = &ended.choices[0];
    let ids = [391, 386, 19, 329, 19, 329, 392, 390];
    assert_eq!(choice.token_ids.as_deref(), Some(&ids[..]), "with the end token");
    let (end, told) = choice.logprobs.split_last().unwrap();
    assert!(end.is_nan() && told.iter().all(|logprob| logprob.is_finite()));
    assert_eq!(choice.fidelity, Fidelity::Mapped);
    assert!(reasons.contains("logprob_missing") && reasons.contains("mapped"), "{reasons:?}");
    assert!(!reasons.contains("token_count_differs"), "{reasons:?}");
    assert!(!shown.contains("__verbose") && !shown.contains("logprob"), "{shown}");
    let asked: Vec<String> = upstream.seen().into_iter().map(|seen| seen.path).collect();
    let times = |path: &str| asked.iter().filter(|asked| *asked == path).count();
    assert_eq!((times("/apply-template"), times("/tokenize")), (1, 2), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_whose_connection_is_closed_is_asked_again() {
    let asked = Mutex::new(BTreeSet::new());
    let upstream = server_of(move |seen| {
        let is_question = ["/apply-template", "/tokenize"].contains(&seen.path.as_str());
        let is_first = asked.lock().unwrap().insert(seen.body.clone());
        match is_question && is_first {
            // As by a server that gives up an idle connection just then.
            true => vec![Step::Cut],
            false => answer(seen, RENDERED, PROMPT_TOKENS),
        }
    })
    .await;
    let (ended, reasons, _) = call(&upstream).await;
    assert_eq!(ended.prompts, [(0..PROMPT_TOKENS).collect::<Vec<u32>>()]);
    assert!(!reasons.contains("no_token_ids"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_is_what_the_reply_says_not_the_template() {
    let (ended, _, _) = call(&server("the time is 12:01", PROMPT_TOKENS).await).await;
    assert_eq!(ended.prompts, [(0..PROMPT_TOKENS).collect::<Vec<u32>>()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_of_another_length_than_was_read_is_left_out() {
    let (ended, reasons, _) = call(&server(RENDERED, PROMPT_TOKENS + 1).await).await;
    assert!(ended.prompts.is_empty() && ended.usage.prompt == Some(u64::from(PROMPT_TOKENS)));
    assert!(reasons.contains("no_token_ids"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_token_that_is_not_known_is_not_made_up() {
    let upstream = server(RENDERED, PROMPT_TOKENS).await;
    let props = String::from_utf8(tape("llamacpp/props.json")).unwrap();
    upstream.tells(props.replace(r#""eos_token":"<|im_end|>","#, "").into_bytes());
    let (ended, reasons, _) = call(&upstream).await;
    let choice = &ended.choices[0];
    assert_eq!(choice.token_ids.as_ref().unwrap().len(), 7);
    assert_eq!(choice.fidelity, Fidelity::Exact);
    assert!(reasons.contains("token_count_differs"), "{reasons:?}");
}
