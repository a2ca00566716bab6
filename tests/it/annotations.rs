//! Annotations: a trainer's numbers over HTTP into the store, and out again beside the tokens.

use kit::{Reply, World, exchange, post, start_engine};
use serde_json::{Value, json};

/// Two turns of a chat in the episode `run`; the row that an export makes of them.
async fn two_turns(world: &World) -> Value {
    let mut messages = Vec::new();
    for text in ["One", "Two"] {
        messages.push(json!({ "role": "user", "content": text }));
        let body = json!({ "model": "tiny", "messages": messages, "seed": 1, "max_tokens": 8 });
        let reply = post(world.data, "/e/run/v1/chat/completions", &body.to_string()).await;
        messages.push(wire::answers(episode::Route::Chat, &reply.body).remove(0).message);
    }
    post(world.control, "/episodes/run/close", "").await;
    exported(world, None).await.remove(0)
}

/// The rows of an export, as of a time.
async fn exported(world: &World, as_of: Option<i64>) -> Vec<Value> {
    let out = world.store().with_file_name("rows.jsonl");
    let rewards = exporter::RewardOptions { as_of, ..Default::default() };
    let options = exporter::Options { out: out.clone().into(), rewards, ..Default::default() };
    exporter::export(world.snapshot().await, &options).await.unwrap();
    lines(&out)
}

fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn say(world: &World, said: &Value) -> Reply {
    let body = json!({ "annotations": [said] });
    post(world.control, "/annotations", &body.to_string()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_s_numbers_are_beside_their_tokens() {
    let world = World::start(start_engine().await).await;
    let row = two_turns(&world).await;
    let ids = row["input_ids"].as_array().unwrap();
    let mask: Vec<bool> = row["loss_mask"].as_array().unwrap().iter().map(|m| *m == 1).collect();
    let numbers: Vec<f64> = (0..ids.len()).map(|at| at as f64 / 4.0).collect();
    let said = |version: u32, streams: Value| {
        let named = json!({ "trajectory_id": "run/0/0", "version": version, "token_ids": ids });
        let mut said = named.as_object().unwrap().clone();
        said.insert("streams".to_owned(), streams);
        Value::Object(said)
    };
    let first = json!({ "entropies": numbers, "trainer_logprobs": numbers });
    let told = say(&world, &said(7, first)).await.json();
    let trained = mask.iter().filter(|trained| **trained).count();
    assert_eq!(told["kept"], 2 * trained);
    assert_eq!(told["not_sampled"], 2 * (ids.len() - trained));
    let between = now();
    assert_eq!(say(&world, &said(8, json!({ "trainer_logprobs": numbers }))).await.status, 200);

    let stream = |name: &str, version: &str| {
        let values =
            numbers.iter().zip(&mask).map(|(n, m)| if *m { json!(n) } else { json!(null) });
        json!({ "name": name, "version": version, "values": values.collect::<Vec<_>>() })
    };
    let newest = json!([stream("entropies", "7"), stream("trainer_logprobs", "8")]);
    assert_eq!(exported(&world, None).await[0]["annotations"], newest);
    let statements = lines(&world.store().with_file_name("rows.annotations.ndjson"));
    let told: Vec<_> = statements.iter().map(|s| (&s["name"], &s["version"])).collect();
    let expected = [("entropies", "7"), ("trainer_logprobs", "7"), ("trainer_logprobs", "8")];
    let expected = expected.map(|(name, version)| (json!(name), json!(version)));
    assert_eq!(told.len(), 6, "of two turns: {told:?}");
    assert!(
        expected.iter().all(|(n, v)| told.iter().filter(|t| (t.0, t.1) == (n, v)).count() == 2)
    );
    let then = exported(&world, Some(between)).await;
    assert_eq!(then[0]["annotations"][1]["version"], "7");
    assert_eq!(exported(&world, Some(0)).await[0]["annotations"], json!(null));

    let turn = &row["turns"][1];
    let page = format!("/calls/{}/tokens", turn["call_id"].as_str().unwrap());
    let page = exchange(world.control, ("GET", &page), &[], b"").await.json();
    let streams = page["annotations"].as_array().unwrap();
    let from = page["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!((streams.len(), &streams[2]["version"]), (3, &json!("8")));
    assert_eq!(streams[0]["values"][from], numbers[from]);
    assert_eq!(streams[0]["values"].as_array().unwrap().len(), ids.len());
    world.stop().await;
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_micros() as i64
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_meant_is_refused_whole() {
    let world = World::start(start_engine().await).await;
    let row = two_turns(&world).await;
    let ids = row["input_ids"].as_array().unwrap();
    let good = json!({ "trajectory_id": "run/0/0", "version": "v", "token_ids": ids[..1],
        "streams": { "a": [1] } });
    let with = |field: &str, value: Value| {
        let mut changed = good.clone();
        changed[field] = value;
        changed
    };
    for (said, status, why) in [
        (with("token_ids", json!([9999])), 400, "`run/0`: token 0 of trajectory 0 is "),
        (with("start", json!(1000)), 400, "the last one here would be 1001"),
        (with("trajectory_id", json!("run/0/7")), 400, "there is no trajectory 7"),
        (with("trajectory_id", json!("run/3/0")), 404, "run"),
        (with("trajectory_id", json!("run")), 400, "is not EPISODE/ATTEMPT/NUMBER"),
        (with("streams", json!({ "a": [1, 2] })), 400, "`a` has 2 numbers for 1 tokens"),
        (with("streams", json!({ "a": ["x"] })), 400, "`a` is not a list of numbers and nulls"),
        (with("streams", json!({ "a": [1e300] })), 400, "`a` is not a list of numbers and nulls"),
        (with("streams", json!({})), 400, "`streams` names no stream"),
        (with("version", json!(1.5)), 400, "`version` is not a label"),
        (with("verson", json!(1)), 400, "verson"),
    ] {
        // One that is good comes with it, and is not kept either.
        let body = json!({ "annotations": [good, said] }).to_string();
        let reply = post(world.control, "/annotations", &body).await;
        let told = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!((reply.status, told.contains(why)), (status, true), "{why}: {told}");
    }
    assert_eq!(exported(&world, None).await[0]["annotations"], json!(null));
    world.stop().await;
}
