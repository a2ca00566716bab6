//! Random requests and replies, valid and broken: the agent gets the same reply through rolltape as
//! from the upstream itself.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use kit::{Reply, Step, Upstream, World, exchange};
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRunner};
use tokio::runtime::Runtime;

const ROUTES: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"];

/// The next answer of the upstream.
#[derive(Debug, Clone)]
struct Script {
    status: &'static str,
    kind: &'static str,
    /// Chunks of a chunked body; a sized body if there is only one.
    pieces: Vec<Vec<u8>>,
    /// Cuts the connection before the end of the body.
    cut: bool,
}

/// Text that looks like a server's, often broken.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let json = prop_oneof![
        Just(r#"{"choices":[{"index":0,"delta":{"content":"é\u2028"},"finish_reason":null}]}"#),
        Just(r#"{"choices":[{"delta":{},"logprobs":null,"token_ids":null}],"usage":{}}"#),
        Just(r#"{"choices":[],"usage":{"prompt_tokens":1e0,"completion_tokens":-1}}"#),
        Just(r#"{"error":{"message":"boom"}}"#),
        Just(r#"{ "id" : 12345678901234567890, "x":1.50E+2 ,"x":null}"#),
        Just(r#"{"type":"response.completed","response":{"output":[]}}"#),
        Just(r#"{"type":"message_stop"}"#),
        Just(r#"{"choices":[{"#),
        Just("[DONE]"),
        Just("nonsense \u{1f600}"),
    ];
    let framed = (json.clone(), 0..6u8).prop_map(|(json, form)| match form {
        0 => format!("data: {json}\n\n"),
        1 => format!("event: message\r\ndata:{json}\r\n\r\n"),
        2 => format!(": alive\n\ndata: {json}\n"),
        3 => format!("event: response.completed\ndata: {json}\n\n"),
        4 => format!("data: {json}\ndata: more\n\n"),
        _ => json.to_owned(),
    });
    prop_oneof![
        8 => framed.prop_map(String::into_bytes),
        1 => json.prop_map(|json| json.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

fn scripts() -> impl Strategy<Value = Script> {
    let status = prop_oneof![
        6 => Just("200 OK"),
        1 => Just("400 Bad Request"),
        1 => Just("429 Too Many Requests"),
        1 => Just("500 Internal Server Error"),
        1 => Just("502 Bad Gateway"),
    ];
    let kind = prop_oneof![
        Just("text/event-stream"),
        Just("text/event-stream; charset=utf-8"),
        Just("application/json"),
        Just("text/html"),
    ];
    let pieces = proptest::collection::vec(fragment(), 1..8);
    (status, kind, pieces, prop::bool::weighted(0.15))
        .prop_map(|(status, kind, pieces, cut)| Script { status, kind, pieces, cut })
}

/// Bodies of agents, valid and not.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(br#"{"model":"m","messages":[{"role":"user","content":"\u00e9\/"}]}"#.to_vec()),
        Just(br#"{"model":"m","stream":true,"input":"a","messages":[], "seed": 1E+2}"#.to_vec()),
        Just(br#"{"prompt":[1,2],"logprobs":"x","stream":null}"#.to_vec()),
        Just(b"{\"messages\":".to_vec()),
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 0..60),
    ]
}

impl Script {
    fn steps(&self) -> Vec<Step> {
        let [only] = self.pieces.as_slice() else { return self.chunked() };
        if self.cut {
            return self.chunked();
        }
        vec![Step::reply(self.status, self.kind, only)]
    }

    fn chunked(&self) -> Vec<Step> {
        let head = format!(
            "HTTP/1.1 {}\r\ncontent-type: {}\r\nx-kept: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            self.status, self.kind
        );
        let mut steps = vec![Step::Send(head.into_bytes())];
        let filled = self.pieces.iter().filter(|piece| !piece.is_empty());
        steps.extend(filled.map(|piece| Step::chunk(piece)));
        steps.push(if self.cut { Step::Cut } else { Step::chunk(b"") });
        steps
    }
}

/// The two replies, where they must agree. A reply that the upstream cut has no clean end on
/// either side, and what was not a whole event yet is not shown.
fn agree(direct: &Reply, through: &Reply) -> Result<(), TestCaseError> {
    if direct.whole {
        prop_assert_eq!(through.status, direct.status);
        prop_assert_eq!(Bytes::from(through.body.clone()), Bytes::from(direct.body.clone()));
        prop_assert_eq!(through.header("content-type"), direct.header("content-type"));
        prop_assert_eq!(through.header("x-kept"), direct.header("x-kept"));
        prop_assert!(through.whole);
    } else if through.header("x-rolltape-error").is_some() {
        // A document that broke off is told as such, in place of half of it.
        prop_assert_eq!(through.status, 502);
    } else {
        prop_assert_eq!(through.status, direct.status);
        prop_assert!(direct.body.starts_with(&through.body));
        prop_assert!(!through.whole);
    }
    Ok(())
}

#[test]
fn agents_get_through_rolltape_what_they_get_direct() {
    let runtime = Runtime::new().unwrap();
    let script: Arc<Mutex<Option<Script>>> = Arc::default();
    let played = Arc::clone(&script);
    let upstream = runtime.block_on(Upstream::start("openai", move |_| {
        played.lock().unwrap().as_ref().unwrap().steps()
    }));
    let world = runtime.block_on(World::start(upstream.address));

    let mut runner = TestRunner::new(Runs { cases: 400, ..Runs::default() });
    let cases = (scripts(), bodies(), 0..ROUTES.len());
    let ran = runner.run(&cases, |(answer, body, route)| {
        *script.lock().unwrap() = Some(answer);
        let (direct, through) = runtime.block_on(async {
            let path = ROUTES[route];
            let tagged = format!("/e/a{path}");
            let direct = exchange(upstream.address, ("POST", path), &[], &body).await;
            (direct, exchange(world.data, ("POST", &tagged), &[], &body).await)
        });
        let seen = upstream.seen();
        prop_assert_eq!(&seen[seen.len() - 1].body, &body, "the request is the agent's own");
        agree(&direct, &through)
    });
    ran.unwrap();
    let calls = runtime.block_on(world.calls());
    assert_eq!(calls.len() * 2, upstream.seen().len(), "each call is recorded once");
    assert!(calls.iter().all(|call| call.ended.is_some()));
}
