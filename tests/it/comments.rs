//! Comments: what people say over HTTP into the store, and out again beside the turns.

use kit::{World, exchange, post, start_engine};
use serde_json::{Value, json};

async fn said(world: &World, path: &str) -> Value {
    exchange(world.control, ("GET", path), &[], b"").await.json()
}

/// One turn of a chat in the episode `run`; the id of its call.
async fn one_turn(world: &World) -> String {
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "One" }],
        "seed": 1, "max_tokens": 8 });
    post(world.data, "/e/run/v1/chat/completions", &body.to_string()).await;
    let tree = said(world, "/episodes/run/tree").await;
    tree["turns"][0]["call_id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_say_is_kept_with_who_said_it_and_exported() {
    let world = World::start(start_engine().await).await;
    let call = one_turn(&world).await;
    let comments = json!([
        { "episode_id": "run", "text": "<b>good</b>\n\u{1b}[31m", "author": "ada" },
        { "episode_id": "run", "attempt": 0, "call_id": call, "score": -0.5 },
    ]);
    let body = json!({ "comments": comments }).to_string();
    let told = post(world.control, "/annotations", &body).await;
    assert_eq!(told.json(), json!({ "status": "ok", "comments": 2 }));

    let shown = said(&world, "/episodes/run/tree").await["comments"].clone();
    let fields = |at: usize| {
        let one = &shown[at];
        json!([one["call_id"], one["text"], one["score"], one["author"], one["given_by"]])
    };
    let first = json!([null, "<b>good</b>\n\u{1b}[31m", null, "ada", "control_open"]);
    assert_eq!((fields(0), fields(1)), (first, json!([call, null, -0.5, "api", "control_open"])));
    assert_eq!(shown[0]["given_from"], "127.0.0.1");

    post(world.control, "/episodes/run/close", "").await;
    let out = world.store().with_file_name("rows.jsonl");
    let options = exporter::Options { out: out.clone().into(), ..Default::default() };
    exporter::export(world.snapshot().await, &options).await.unwrap();
    let table = std::fs::read_to_string(out.with_file_name("rows.comments.ndjson")).unwrap();
    let rows: Vec<Value> = table.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[0]["text"]), (2, &shown[0]["text"]));
    assert_eq!((&rows[1]["call_id"], &rows[1]["score"]), (&json!(call), &json!(-0.5)));
    assert!(!out.with_file_name("rows.annotations.ndjson").exists());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comment_that_says_nothing_or_of_nothing_is_refused() {
    let world = World::start(start_engine().await).await;
    let call = one_turn(&world).await;
    let good = json!({ "episode_id": "run", "text": "good" });
    for (field, value, status, why) in [
        ("text", json!(" "), 400, "has a `text`, a `score`, or both"),
        ("text", json!("x".repeat(17_000)), 400, "at most 16384 bytes"),
        ("author", json!(""), 400, "`author` has 1 to 200 bytes"),
        ("score", json!("high"), 400, "score"),
        ("call_id", json!("x"), 400, "`call_id`"),
        ("call_id", json!("00000000-0000-0000-0000-000000000007"), 404, "00000007"),
        ("episode_id", json!("nothere"), 404, "nothere"),
        ("attempt", json!(3), 404, "attempt 3"),
        ("txt", json!("x"), 400, "txt"),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let body = json!({ "comments": [good, bad] }).to_string();
        let told = post(world.control, "/annotations", &body).await;
        assert_eq!(told.status, status, "{bad}");
        assert!(told.text().contains(why), "{why}: {}", told.text());
    }
    for body in [json!({}), json!({ "comments": [], "annotations": [] }), json!({ "comments": [] })]
    {
        let told = post(world.control, "/annotations", &body.to_string()).await;
        assert_eq!(told.status, 400, "{body}");
    }
    assert_eq!(said(&world, "/episodes/run/tree").await["comments"], json!([]), "of {call}");
    world.stop().await;
}
