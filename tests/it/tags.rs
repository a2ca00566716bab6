//! Episodes: how they are named, closed and rewarded.

use episode::{Outcome, RewardScope, TagSource};
use kit::{Step, Upstream, World, exchange, post, tape};

async fn start() -> (Upstream, World) {
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::reply("200 OK", "application/json", &tape("vllm/chat.asked.json"))]
    })
    .await;
    let world = World::start(upstream.address).await;
    (upstream, world)
}

#[tokio::test]
async fn path_and_headers_tag_and_do_not_reach_the_upstream() {
    let (upstream, world) = start().await;
    let headers = [
        ("X-Group-Id", "g1"),
        ("x-task-id", "t1"),
        ("x-episode-tag", "split=train"),
        ("authorization", "Bearer secret-key"),
    ];
    let path = "/e/run-1/a/2/v1/chat/completions";
    exchange(world.data, ("POST", path), &headers, b"{}").await;
    exchange(world.data, ("POST", "/v1/chat/completions"), &[("x-episode-id", "run-2")], b"{}")
        .await;
    exchange(world.data, ("POST", "/v1/chat/completions"), &[], b"{}").await;
    let head = &upstream.seen()[0].head;
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1"));
    assert!(head.contains("Bearer secret-key") && !head.contains("x-group-id"), "{head}");

    let recorded = world.recorded().await;
    assert_eq!(recorded.len(), 3);
    let tagged = &recorded.iter().find(|(e, ..)| e.id.as_str() == "run-1").unwrap().0;
    assert_eq!((tagged.attempt, tagged.source), (2, TagSource::Path));
    assert_eq!(tagged.group.as_ref().unwrap().as_str(), "g1");
    assert_eq!(tagged.labels, [("split".to_owned(), "train".to_owned())]);
    assert!(recorded.iter().any(|(e, ..)| e.source == TagSource::Auto));
    let file = std::fs::read(world.store()).unwrap();
    assert!(!file.windows(10).any(|w| w == b"secret-key"), "keys are never stored");
    world.stop().await;
}

#[tokio::test]
async fn tags_that_disagree_are_a_400() {
    let (upstream, world) = start().await;
    let headers = [("x-episode-id", "b")];
    let reply = exchange(world.data, ("POST", "/e/a/v1/chat/completions"), &headers, b"{}").await;
    assert_eq!(reply.status, 400);
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("named twice"));
    assert!(upstream.seen().is_empty());
    world.stop().await;
}

#[tokio::test]
async fn a_closed_episode_takes_no_more_calls() {
    let (upstream, world) = start().await;
    let path = "/e/a/v1/chat/completions";
    assert_eq!(post(world.data, path, "{}").await.status, 200);
    assert_eq!(
        post(world.control, "/episodes/a/close", r#"{"status":"completed"}"#).await.status,
        200
    );
    let late = post(world.data, path, "{}").await;
    assert_eq!((late.status, late.json()["error"]["type"].as_str()), (409, Some("episode_closed")));
    assert_eq!(upstream.seen().len(), 1, "a late call costs the upstream nothing");
    let next = post(world.data, "/e/a/a/1/v1/chat/completions", "{}").await;
    assert_eq!(next.status, 200, "a re-run uses a new attempt");
    let recorded = world.recorded().await;
    let (first, calls, _) = &recorded[0];
    assert_eq!(first.status.as_deref(), Some("completed"));
    let outcomes: Vec<_> = calls.iter().map(|c| c.ended.as_ref().unwrap().outcome).collect();
    assert_eq!(outcomes, [Outcome::Complete, Outcome::Refused]);
    world.stop().await;
}

#[tokio::test]
async fn rewards_are_appended_and_null_is_not_zero() {
    let (_upstream, world) = start().await;
    post(world.data, "/e/a/v1/chat/completions", "{}").await;
    let call = world.calls().await[0].begun.call_id;
    for body in [
        r#"{"value":0.25}"#.to_owned(),
        r#"{"value":null,"source":"judge"}"#.to_owned(),
        format!(r#"{{"value":1,"name":"step","call_id":"{call}"}}"#),
        format!(r#"{{"value":2,"scope":"trajectory","call_id":"{call}"}}"#),
        format!(r#"{{"value":3,"call_id":"{call}","choice":1,"start":2,"end":4}}"#),
    ] {
        assert_eq!(post(world.control, "/episodes/a/rewards", &body).await.status, 200);
    }
    let recorded = world.recorded().await;
    let rewards = &recorded[0].2;
    let values: Vec<_> = rewards.iter().map(|r| r.value).collect();
    assert_eq!(values, [Some(0.25), None, Some(1.0), Some(2.0), Some(3.0)]);
    assert_eq!(rewards[2].scope, RewardScope::Call(call));
    assert_eq!(rewards[3].scope, RewardScope::Trajectory { call, choice: 0 });
    let tokens = RewardScope::Tokens { call, choice: 1, start: 2, end: 4 };
    assert_eq!(rewards[4].scope, tokens);

    let elsewhere = r#"{"value":1,"call_id":"01a1fc0e-0000-7000-8000-000000000000"}"#;
    for (path, body, status) in [
        ("/episodes/none/rewards", r#"{"value":1}"#, 404),
        ("/episodes/a/rewards", "{}", 400),
        ("/episodes/a/rewards", "[", 400),
        ("/episodes/a/rewards", elsewhere, 404),
        ("/episodes/a/rewards", r#"{"value":1,"scope":"turn"}"#, 400),
        ("/episodes/a/rewards", r#"{"value":1,"start":0,"end":1}"#, 400),
        ("/episodes/a/rewards", r#"{"value":1,"choice":-1}"#, 400),
        ("/episodes/a/close", r#"{"status":"weird"}"#, 400),
        ("/episodes/a%20b/rewards", r#"{"value":1}"#, 400),
        ("/episodes/a/rewards", r#"{"value":1,"call":"x"}"#, 400),
        ("/episodes/a/rewards?atempt=1", r#"{"value":1}"#, 400),
        ("/episodes/a/rewards", r#"{"value":NaN}"#, 400),
        ("/episodes/a/close", r#"{"state":"failed"}"#, 400),
        ("/episodes/a/close", r#"{"status":"failed","attempt":1}"#, 400),
        ("/episodes/a/key", r#"{"ttl":60}"#, 400),
        ("/episodes", r#"{"episode_id":"run-9","group":"g1"}"#, 400),
        ("/episodes", r#"{"episode_id":"run-9","labels":["a"]}"#, 400),
        ("/version", r#"{"version":1,"sum":"x"}"#, 400),
        ("/feed/leases/l/ack", r#"{"episode":[]}"#, 400),
        ("/feed/leases/l/ack", r#"{"episodes":[{"episode_id":"a","try":1}]}"#, 400),
        ("/feed/leases/l/nack", r#"{"lease_s":1}"#, 400),
        ("/feed/leases/l/renew", r#"{"delay_s":1}"#, 400),
        ("/episodes/a/rewards?attempt=x", r#"{"value":1}"#, 400),
        ("/nothing", "", 404),
    ] {
        let reply = post(world.control, path, body).await;
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text());
    }
    let reply = post(world.data, "/episodes/a/rewards", r#"{"value":9}"#).await;
    assert_ne!(reply.status, 404, "the data listener relays; it does not reward");
    let told = post(world.control, "/episodes/a/close", r#"{"state":"failed"}"#).await.text();
    assert!(told.contains("`state` is not a field") && told.contains("`status`"), "{told}");
    let recorded = world.recorded().await;
    assert_eq!(recorded[0].2.len(), 5, "what is refused changes nothing");
    assert!(recorded.iter().all(|(episode, ..)| episode.id.as_str() != "run-9"));
    assert!(recorded[0].0.closed_at.is_none());
    world.stop().await;
}

#[tokio::test]
async fn a_reward_of_tokens_that_were_not_sampled_is_refused() {
    let (_upstream, world) = start().await;
    post(world.data, "/e/a/v1/chat/completions", "{}").await;
    let call = world.calls().await[0].clone();
    let sampled = call.ended.as_ref().unwrap().choices[0].token_ids.as_ref().unwrap().len();
    let give = |end: usize| {
        let id = call.begun.call_id;
        let body = format!(r#"{{"value":1,"call_id":"{id}","start":0,"end":{end}}}"#);
        let control = world.control;
        async move { post(control, "/episodes/a/rewards", &body).await }
    };
    let refused = give(sampled + 1).await;
    assert_eq!(refused.status, 400);
    let why = format!("`end` is {sampled} at most");
    assert!(refused.text().contains(&why), "{}", refused.text());
    assert_eq!(give(sampled).await.status, 200);
    assert_eq!(world.recorded().await[0].2.len(), 1);
    world.stop().await;
}
