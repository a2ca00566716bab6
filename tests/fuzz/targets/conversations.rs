//! An answer of a model reads the same as a chat document and as a chat stream, on every wire. The
//! facts of a cut stream are the beginning of the facts of the whole.
#![no_main]

use bytes::Bytes;
use episode::{Choice, Route};
use fuzz::{DIALECTS, TRANSLATED, events};
use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use wire::{Collector, Dialect, Facts, ReplyTranslator, Request, answers, canonical, translate};

const REQUEST: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"input":"hi",
    "max_tokens":9,"include":["message.output_text.logprobs"],"stream":true}"#;

#[derive(Debug, Arbitrary)]
struct ModelAnswer {
    dialect: u8,
    route: bool,
    finish: Finish,
    texts: Vec<(Key, String)>,
    calls: Vec<Call>,
    /// The place where the stream is cut.
    cut: u8,
    tokens: Spelling,
    /// The deltas of the calls are interleaved.
    mixed: bool,
}

#[derive(Debug, Arbitrary, Clone, Copy, PartialEq)]
enum Key {
    Reasoning,
    Content,
}

#[derive(Debug, Arbitrary, Clone, Copy)]
enum Finish {
    Stop,
    Length,
    ToolCalls,
}

/// The place where a server puts its ids.
#[derive(Debug, Arbitrary, Clone, Copy)]
enum Spelling {
    /// A list beside the logprobs.
    Vllm,
    /// In the entries of the logprobs.
    Llamacpp,
    /// In an event of their own, at the end.
    Sglang,
}

#[derive(Debug, Arbitrary)]
struct Call {
    arguments: Vec<(String, Argument)>,
    pieces: u8,
}

#[derive(Debug, Arbitrary)]
enum Argument {
    Text(String),
    Number(i32),
    Float(i16),
    Flag(bool),
    List(Vec<String>),
    Nothing,
}

impl Call {
    fn arguments(&self) -> String {
        let value = |argument: &Argument| match argument {
            Argument::Text(text) => json!(text),
            Argument::Number(number) => json!(number),
            Argument::Float(number) => json!(f64::from(*number) / 8.0),
            Argument::Flag(flag) => json!(flag),
            Argument::List(texts) => json!(texts),
            Argument::Nothing => Value::Null,
        };
        let members = self.arguments.iter().map(|(key, argument)| (key.clone(), value(argument)));
        Value::Object(Map::from_iter(members)).to_string()
    }

    fn pieces(&self) -> Vec<String> {
        let letters: Vec<char> = self.arguments().chars().collect();
        let length = usize::from(self.pieces).max(1);
        letters.chunks(length).map(|piece| piece.iter().collect()).collect()
    }
}

impl ModelAnswer {
    fn text(&self, key: Key) -> String {
        self.texts.iter().filter(|(k, _)| *k == key).map(|(_, text)| text.as_str()).collect()
    }

    fn finish(&self) -> &'static str {
        match self.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }

    fn reasoning(&self) -> &'static str {
        if self.dialect.is_multiple_of(2) { "reasoning" } else { "reasoning_content" }
    }

    fn document(&self) -> Value {
        let calls = self.calls.iter().enumerate().map(|(index, call)| {
            json!({ "id": format!("c{index}"), "type": "function",
                "function": { "name": format!("f{index}"), "arguments": call.arguments() } })
        });
        let mut message = json!({
            "role": "assistant",
            "content": self.text(Key::Content),
            self.reasoning(): self.text(Key::Reasoning),
        });
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        let mut choice = json!({ "index": 0, "message": message, "finish_reason": self.finish() });
        let ids: Vec<u32> = (0..self.deltas().len()).map(|id| id as u32).collect();
        self.tokens(&mut choice, &ids);
        let mut chat = chat(json!([choice]));
        chat["prompt_token_ids"] = json!([7, 8]);
        chat["usage"] = self.usage();
        if matches!(self.tokens, Spelling::Sglang) {
            chat["sglext"] = json!({ "output_ids": [ids] });
        }
        chat
    }

    fn usage(&self) -> Value {
        json!({ "prompt_tokens": 2, "completion_tokens": self.deltas().len() })
    }

    /// The ids and logprobs of a choice, as its server spells them.
    fn tokens(&self, choice: &mut Value, ids: &[u32]) {
        let entry = |id: &u32| match self.tokens {
            Spelling::Llamacpp => json!({ "token": "t", "logprob": -0.5, "id": id }),
            _ => json!({ "token": "t", "logprob": -0.5 }),
        };
        let entries: Vec<Value> = ids.iter().map(entry).collect();
        choice["logprobs"] = json!({ "content": entries });
        if matches!(self.tokens, Spelling::Vllm) {
            choice["token_ids"] = json!(ids);
        }
    }

    fn deltas(&self) -> Vec<Value> {
        let texts = self.texts.iter().map(|(key, text)| match key {
            Key::Reasoning => json!({ self.reasoning(): text }),
            Key::Content => json!({ "content": text }),
        });
        let mut deltas: Vec<Value> = texts.collect();
        let mut pieces = Vec::new();
        for (index, call) in self.calls.iter().enumerate() {
            let begin = json!({ "tool_calls": [{ "index": index, "id": format!("c{index}"),
                "type": "function",
                "function": { "name": format!("f{index}"), "arguments": "" } }] });
            let piece = |(turn, piece): (usize, String)| {
                let call = json!({ "index": index, "function": { "arguments": piece } });
                (turn + 1, json!({ "tool_calls": [call] }))
            };
            pieces.push((0, begin));
            pieces.extend(call.pieces().into_iter().enumerate().map(piece));
        }
        if self.mixed {
            pieces.sort_by_key(|(turn, _)| *turn);
        }
        deltas.extend(pieces.into_iter().map(|(_, delta)| delta));
        deltas
    }

    fn stream(&self) -> Vec<Value> {
        let mut first = chat(json!([{ "index": 0, "delta": { "role": "assistant" } }]));
        first["prompt_token_ids"] = json!([7, 8]);
        let mut chunks = vec![first];
        let deltas = self.deltas();
        let ids: Vec<u32> = (0..deltas.len()).map(|id| id as u32).collect();
        for (id, delta) in ids.iter().zip(deltas) {
            let mut choice = json!({ "index": 0, "delta": delta, "finish_reason": null });
            self.tokens(&mut choice, &[*id]);
            chunks.push(chat(json!([choice])));
        }
        let last = json!({ "index": 0, "delta": {}, "finish_reason": self.finish() });
        chunks.push(chat(json!([last])));
        if matches!(self.tokens, Spelling::Sglang) {
            chunks.push(json!({ "choices": [], "sglext": { "output_ids": [ids] } }));
        }
        let mut counted = chat(json!([]));
        counted["usage"] = self.usage();
        chunks.push(counted);
        chunks
    }
}

fn chat(choices: Value) -> Value {
    json!({ "id": "chatcmpl-1", "created": 7, "model": "m", "choices": choices })
}

fn bytes(chunks: &[Value]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| format!("data: {chunk}\n\n").into_bytes()).collect()
}

fuzz_target!(|input: &[u8]| {
    let Ok(answer) = ModelAnswer::arbitrary_take_rest(Unstructured::new(input)) else { return };
    let document = answer.document().to_string().into_bytes();
    let chunks = answer.stream();
    let stream = bytes(&chunks);
    let plain = answers(Route::Chat, &document);
    let told = answers(Route::Chat, &stream);
    assert_eq!(canonical(&plain[0].message), canonical(&told[0].message));

    let dialect = DIALECTS[usize::from(answer.dialect) % DIALECTS.len()];
    let route = TRANSLATED[usize::from(answer.route)];
    let whole = answers(route, &translator(dialect, route).document(200, &document).body);
    let mut translator = translator(dialect, route);
    let mut shown = Vec::new();
    events(&stream)
        .iter()
        .for_each(|event| shown.extend_from_slice(&translator.event(&event.read())));
    shown.extend_from_slice(&translator.end());
    assert_eq!(answers(route, &shown), whole);
    assert_eq!(canonical(&whole[0].message), canonical(&plain[0].message));

    let all = facts(&chunks);
    same(&all.choices, &facts(&[answer.document()]).choices);
    let cut = usize::from(answer.cut) % (chunks.len() + 1);
    begins(&facts(&chunks[..cut]), &all);
});

fn translator(dialect: Dialect, route: Route) -> ReplyTranslator {
    let request = Request::read(&Bytes::from_static(REQUEST.as_bytes())).expect("it is an object");
    translate(dialect, route, &request).expect("it is plain").1
}

fn facts(chunks: &[Value]) -> Facts {
    let mut collector = Collector::new(Route::Chat, None, None);
    chunks.iter().for_each(|chunk| collector.take(chunk.to_string().as_bytes()));
    collector.facts()
}

fn same(streamed: &[Choice], whole: &[Choice]) {
    assert_eq!(streamed.len(), whole.len());
    for (streamed, whole) in streamed.iter().zip(whole) {
        // No token at all is an empty list in a document, and no list in a stream.
        let ids = |choice: &Choice| choice.token_ids.clone().unwrap_or_default();
        assert_eq!(ids(streamed), ids(whole));
        assert_eq!(streamed.logprobs, whole.logprobs);
        assert_eq!(streamed.finish_reason, whole.finish_reason);
    }
}

/// The facts of a cut stream are the beginning of those of the whole.
fn begins(part: &Facts, all: &Facts) {
    assert!(part.prompts.is_empty() || part.prompts == all.prompts);
    assert!(part.choices.len() <= all.choices.len() && part.unread == 0);
    for (part, all) in part.choices.iter().zip(&all.choices) {
        assert_eq!(part.index, all.index);
        let ids = part.token_ids.as_deref().unwrap_or_default();
        assert!(all.token_ids.as_deref().unwrap_or_default().starts_with(ids));
        assert!(all.logprobs.starts_with(&part.logprobs));
        assert!(part.finish_reason.is_none() || part.finish_reason == all.finish_reason);
    }
}
