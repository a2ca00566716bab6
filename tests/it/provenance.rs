//! Who gave a reward, from where and over which records; and what `verify` says where these were
//! changed.

use episode::{ChainHead, Giver, Provenance};
use kit::{Reply, Step, Upstream, World, exchange, post, sql};
use proxy::Config;
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKEN: &str = "the-token-of-this-listener";
const REWARDS: &str = "/episodes/a/rewards";

async fn upstream() -> Upstream {
    Upstream::start("openai", |_| vec![Step::reply("200 OK", "application/json", b"{}")]).await
}

fn config(upstream: &Upstream) -> Config {
    Config::new(format!("http://{}", upstream.address).parse().unwrap())
}

async fn call(world: &World) {
    let body = r#"{"model": "m", "messages": []}"#;
    assert_eq!(post(world.data, "/e/a/v1/chat/completions", body).await.status, 200);
}

async fn reward(world: &World, body: &str, more: &[(&str, &str)]) -> Reply {
    let bearer = format!("Bearer {TOKEN}");
    let mut headers = vec![("content-type", "application/json"), ("authorization", &bearer)];
    headers.extend(more);
    exchange(world.control, ("POST", REWARDS), &headers, body.as_bytes()).await
}

async fn provenances(world: &World) -> Vec<Provenance> {
    let recorded = world.recorded().await;
    recorded.into_iter().flat_map(|(_, _, rewards)| rewards).map(|r| r.provenance).collect()
}

async fn chain(world: &World) -> ChainHead {
    let mut snapshot = world.snapshot().await;
    let record = snapshot.episodes(&store::Selection::default()).await.unwrap().remove(0);
    snapshot.chain(&record).await.unwrap()
}

async fn damage(folder: &TempDir) -> Vec<String> {
    let report = store::verify(folder.path().join("test.db").as_path()).await.unwrap();
    report.damage.iter().map(ToString::to_string).collect()
}

async fn exported(world: &World) -> Vec<Value> {
    let out = world.store().with_file_name("rows.jsonl");
    let options = exporter::Options { out: out.clone().into(), ..Default::default() };
    exporter::export(world.snapshot().await, &options).await.unwrap();
    let text = std::fs::read_to_string(&out).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_reward_says_who_gave_it_and_over_which_records() {
    let upstream = upstream().await;
    let folder = tempfile::tempdir().unwrap();
    let world = World::start_guarded(folder, config(&upstream), Some(TOKEN.to_owned())).await;
    call(&world).await;
    assert_eq!(reward(&world, r#"{"value": 0.5}"#, &[]).await.status, 200);
    let first = chain(&world).await;
    call(&world).await;
    assert_eq!(reward(&world, r#"{"value": 1}"#, &[]).await.status, 200);

    let given = provenances(&world).await;
    assert_eq!((first.calls, given[0].over), (1, Some(first)));
    assert_eq!(given[1].over, Some(chain(&world).await));
    assert_eq!(given[1].over.unwrap().calls, 2);
    for given in &given {
        assert_eq!(
            (given.by, given.from.as_deref()),
            (Some(Giver::ControlToken), Some("127.0.0.1"))
        );
        let key = given.key.as_deref().unwrap();
        assert!(key.starts_with("control-") && !key.contains("token"), "{key}");
    }
    assert!(damage(&world.stop().await).await.is_empty());
}

#[tokio::test]
async fn no_request_chooses_what_is_said_of_it() {
    let upstream = upstream().await;
    let world = World::start(upstream.address).await;
    call(&world).await;
    for field in ["given_by", "given_from", "key_name", "over_calls", "over_chain", "at"] {
        let reply = reward(&world, &json!({ "value": 1, field: "x" }).to_string(), &[]).await;
        assert_eq!(reply.status, 400, "{field}");
    }
    let forged = [("x-forwarded-for", "10.9.8.7"), ("forwarded", "for=10.9.8.7")];
    assert_eq!(reward(&world, r#"{"value": 1, "source": "judge"}"#, &forged).await.status, 200);

    let given = provenances(&world).await;
    assert_eq!(given.len(), 1);
    assert_eq!((given[0].by, given[0].key.as_deref()), (Some(Giver::ControlOpen), None));
    assert_eq!(given[0].from.as_deref(), Some("127.0.0.1"));
    world.stop().await;
}

#[tokio::test]
async fn a_value_outside_its_range_is_refused_with_the_range() {
    let upstream = upstream().await;
    let ranges = vec!["reward=0..1".parse().unwrap()];
    let folder = tempfile::tempdir().unwrap();
    let world = World::start_ranged(folder, config(&upstream), ranges).await;
    call(&world).await;
    for (body, said) in [
        (r#"{"value": 1.5}"#, "not in its range 0..1"),
        (r#"{"value": NaN}"#, "not a JSON object"),
        (r#"{"value": -Infinity}"#, "not a JSON object"),
        (r#"{"value": 1e999, "name": "other"}"#, "number out of range"),
    ] {
        let reply = reward(&world, body, &[]).await;
        let told = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(reply.status == 400 && told.contains(said), "{body}: {told}");
    }
    for body in [r#"{"value": 1}"#, r#"{"value": null}"#, r#"{"value": 7, "name": "other"}"#] {
        assert_eq!(reward(&world, body, &[]).await.status, 200, "{body}");
    }
    assert_eq!(provenances(&world).await.len(), 3);
    world.stop().await;
}

#[tokio::test]
async fn a_changed_call_and_a_reward_over_other_records_are_named() {
    let upstream = upstream().await;
    let world = World::start(upstream.address).await;
    for _ in 0..3 {
        call(&world).await;
    }
    assert_eq!(reward(&world, r#"{"value": 1}"#, &[]).await.status, 200);
    let calls: Vec<String> =
        world.calls().await.iter().map(|call| call.begun.call_id.to_string()).collect();
    let folder = world.stop().await;
    assert!(damage(&folder).await.is_empty());
    let sql = |statement: &str| {
        let changed = sql(&folder.path().join("test.db")).execute(statement, ()).unwrap();
        assert_eq!(changed, 1, "{statement}");
    };

    // A byte of a call's record.
    let of_second = "WHERE call_id = (SELECT call_id FROM call ORDER BY call_key LIMIT 1 OFFSET 1)";
    sql(&format!("UPDATE call SET path = path || 'x' {of_second}"));
    let found = damage(&folder).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(&calls[1]) && found[0].contains("the chain breaks at this call"));
    sql(&format!("UPDATE call SET path = rtrim(path, 'x') {of_second}"));
    assert!(damage(&folder).await.is_empty());

    // A reward over another digest.
    sql("UPDATE reward SET over_chain = zeroblob(16)");
    let found = damage(&folder).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("`reward` 1: it was given over other records"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_rows_carry_the_chain_and_the_provenance() {
    let world = World::start(kit::start_engine().await).await;
    let messages = json!([{ "role": "user", "content": "One" }]);
    let body = json!({ "model": "tiny", "messages": messages, "seed": 1, "max_tokens": 4 });
    post(world.data, "/e/a/v1/chat/completions", &body.to_string()).await;
    assert_eq!(reward(&world, r#"{"value": 1, "source": "judge"}"#, &[]).await.status, 200);

    let head = chain(&world).await;
    let row = exported(&world).await.remove(0);
    let document = |name: &str| match &row[name] {
        Value::String(text) => serde_json::from_str(text).unwrap(),
        other => other.clone(),
    };
    let told = json!({ "calls": 1, "digest": head.to_string() });
    assert_eq!(document("metadata")["chain"], told);
    let rewards = document("rewards");
    let named = ["given_by", "given_from", "key_name", "over_calls", "over_chain", "source"];
    let found: Vec<&Value> = named.iter().map(|name| &rewards[0][name]).collect();
    let expected = json!(["control_open", "127.0.0.1", null, 1, head.to_string(), "judge"]);
    assert_eq!(json!(found), expected);
    world.stop().await;
}
