//! Several proxies that record into one database: what one learns of versions all learn, and the
//! readers of a consumer share its items, whichever proxy they ask.

use std::collections::BTreeSet;

use episode::{Call, EpisodeId};
use kit::{Step, Upstream, exchange, post};
use postgres_kit::Server;
use store::{Location, Selection, Snapshot};

use crate::recorder::Recorder;
use crate::wait::until;

/// A reply without its version.
const SILENT: &str = r#"{"id":"c","model":"m","prompt_token_ids":[1],"choices":[{"index":0,
    "message":{"role":"assistant","content":"x"},"finish_reason":"stop","token_ids":[5],
    "logprobs":{"content":[{"token":"x","logprob":-0.5,"bytes":[120],"top_logprobs":[]}]}}]}"#;

async fn tell(recorder: &Recorder, version: u32) {
    let body = format!(r#"{{"version":{version}}}"#);
    assert_eq!(post(recorder.control, "/version", &body).await.status, 200);
}

/// Waits until a recorder calls a version current.
async fn learned(recorder: &Recorder, version: u32) {
    until("the current version", async || {
        let listed = exchange(recorder.control, ("GET", "/versions"), &[], b"").await.json();
        (listed["current"]["number"] == version).then_some(())
    })
    .await;
}

async fn play(recorder: &Recorder, at: &Location, episode: &str) -> Call {
    let path = format!("/e/{episode}/v1/chat/completions");
    let body = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    assert_eq!(post(recorder.data, &path, body).await.status, 200);
    let mut snapshot = Snapshot::open(at).await.unwrap();
    let episode: EpisodeId = episode.parse().unwrap();
    let only = Selection { episode: Some(episode), ..Selection::default() };
    let record = snapshot.episodes(&only).await.unwrap().remove(0);
    snapshot.calls(&record).await.unwrap().remove(0)
}

fn labels(call: &Call) -> Vec<String> {
    let spans = call.ended.as_ref().unwrap().choices.iter().flat_map(|choice| &choice.versions);
    spans.map(|span| span.version.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_proxy_is_told_of_versions_the_others_learn() {
    let Some(server) = Server::shared() else { return };
    let silent = |_: &kit::Seen| vec![Step::reply("200 OK", "application/json", SILENT.as_bytes())];
    let upstream = Upstream::start("vllm", silent).await;
    let url = server.database();
    let at: Location = url.parse().unwrap();
    let [told, other] = [(), ()].map(|()| Recorder::start(&url, "power", upstream.address));
    tell(&other, 4).await;
    assert_eq!(labels(&play(&other, &at, "before").await), ["4"]);

    for version in 5..10 {
        tell(&told, version).await;
        // It may not know yet, and then it says so.
        let call = play(&other, &at, &format!("at-once-{version}")).await;
        let stamps = call.ended.as_ref().unwrap().stamps.clone();
        let expected = Vec::from_iter(stamps.constant().map(str::to_owned));
        assert_eq!((labels(&call), stamps.end), (expected, Some(version.to_string())));
        learned(&other, version).await;
        let late = play(&other, &at, &format!("later-{version}")).await;
        assert_eq!(labels(&late), [version.to_string()]);
    }

    tell(&other, 3).await;
    // A trainer may go back.
    learned(&told, 3).await;
    [told, other].into_iter().for_each(Recorder::stop);
}

/// Closed episodes, each of one call, more than the readers take.
async fn finish(recorder: &Recorder, episodes: usize) {
    for number in 0..episodes {
        let path = format!("/e/shared-{number}/v1/chat/completions");
        let body = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
        assert_eq!(post(recorder.data, &path, body).await.status, 200);
        let close = format!("/episodes/shared-{number}/close");
        assert_eq!(post(recorder.control, &close, "").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_at_several_proxies_get_rows_while_there_are_any() {
    const READERS: usize = 8;
    const TAKES: usize = 10;

    let Some(server) = Server::shared() else { return };
    let silent = |_: &kit::Seen| vec![Step::reply("200 OK", "application/json", SILENT.as_bytes())];
    let upstream = Upstream::start("vllm", silent).await;
    let url = server.database();
    let proxies = [(), ()].map(|()| Recorder::start(&url, "process", upstream.address));
    finish(&proxies[0], READERS * TAKES + 20).await;

    let reader = |control| async move {
        let mut taken = Vec::new();
        for _ in 0..TAKES {
            let reply = post(control, "/feed?consumer=t&limit=1", "").await;
            assert_eq!(reply.status, 200, "there are items: {}", reply.text());
            taken.push(reply.json()["episode_id"].as_str().unwrap().to_owned());
        }
        taken
    };
    let readers = (0..READERS).map(|at| tokio::spawn(reader(proxies[at % 2].control)));
    let mut taken = Vec::new();
    for reader in Vec::from_iter(readers) {
        taken.extend(reader.await.unwrap());
    }
    assert_eq!(taken.len(), READERS * TAKES);
    assert_eq!(BTreeSet::from_iter(taken).len(), READERS * TAKES, "none was handed out twice");
    proxies.into_iter().for_each(Recorder::stop);
}
