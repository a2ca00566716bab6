//! The life of a store: checked, pruned and copied while the proxy serves real calls.

use std::collections::BTreeSet;

use exporter::Options;
use kit::{Step, Upstream, World, post, tape};
use store::{PruneFilter, Selection, backup, plan_prune, prune, verify};

const HOUR_US: i64 = 3_600_000_000;

async fn chat(world: &World, episode: &str, words: &str) {
    let path = format!("/e/{episode}/v1/chat/completions");
    let body = serde_json::json!({ "messages": [{ "role": "user", "content": words }] });
    assert_eq!(post(world.data, &path, &body.to_string()).await.status, 200);
}

#[tokio::test]
async fn a_store_in_use_is_verified_and_copied_then_pruned() {
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::reply("200 OK", "application/json", &tape("vllm/chat.asked.json"))]
    })
    .await;
    let world = World::start(upstream.address).await;
    for episode in ["keep", "drop"] {
        for words in ["one", "one two", "one two three"] {
            chat(&world, episode, words).await;
        }
    }
    let store = world.store();
    let copy = store.with_file_name("copy.db");
    let (copied, ()) = tokio::join!(backup(&store, &copy), chat(&world, "keep", "more"));
    copied.unwrap();
    for path in [&store, &copy] {
        let report = verify(path).await.unwrap();
        assert!(report.is_clean(), "{report:#?}");
        assert_eq!(report.episodes, 2);
    }
    let out = store.with_file_name("out");
    let selection = Selection { episode: Some("keep".parse().unwrap()), ..Selection::default() };
    let options = Options { out: out.clone().into(), selection, ..Options::default() };
    exporter::export(world.snapshot().await, &options).await.unwrap();
    let before = world.calls().await;
    let _folder = world.stop().await;

    let mut snapshot = store::Snapshot::open(&store).await.unwrap();
    let keep: BTreeSet<_> = exporter::exported_attempts(&out, &mut snapshot).await.unwrap();
    drop(snapshot);
    let now = before[0].begun.started_at + 2 * HOUR_US;
    let which = PruneFilter { keep, now, ..PruneFilter::default() };
    let plan = plan_prune(&store, &which).await.unwrap();
    assert_eq!((plan.candidates.len(), plan.candidates[0].attempt.episode.as_str()), (1, "drop"));
    assert_eq!(prune(&store, &which).await.unwrap().plan, plan);
    assert!(verify(&store).await.unwrap().is_clean());
    let mut snapshot = store::Snapshot::open(&store).await.unwrap();
    for call in before.iter().filter(|call| call.begun.tag.episode.as_str() == "keep") {
        assert_eq!(snapshot.call(call.begun.call_id).await.unwrap().as_ref(), Some(call));
    }
}
