//! Tests: exports with rewards, bounds on versions and arrays, from a store to the file.

use std::fs::{self, File};
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, UInt16Type};
use episode::{
    AttemptId, Call, CallEnd, CallId, EpisodeId, Micros, Reward, RewardScope, TokenColumn,
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};
use store::{Durability, Store};

use crate::tests::fixture::{call, reply};
use crate::tests::stored::Stored;
use crate::{Advantage, Options, Report, RewardOptions, VersionFilter};

/// Name, group, calls, and what was said when.
type StoredEpisode<'a> = (&'a str, Option<&'a str>, Vec<Call>, &'a [(Option<f64>, Micros)]);

async fn stored(folder: &Path, episodes: &[StoredEpisode<'_>]) -> Stored {
    let path = folder.join("rolltape.db");
    let (store, writer) = Store::open(&path, Durability::Process).await.unwrap();
    let mut number = 0;
    for (name, group, calls, said) in episodes {
        let episode: EpisodeId = name.parse().unwrap();
        for call in calls {
            number += 1;
            let mut call = call.clone();
            let id = CallId(uuid::Uuid::from_u128(number));
            call.begun.call_id = id;
            call.begun.tag.episode = episode.clone();
            call.begun.tag.group = group.map(|group| group.parse().unwrap());
            store.begin(call.begun).await.done().await.unwrap();
            let ended = CallEnd { call_id: id, ..call.ended.unwrap() };
            store.end(ended).await.done().await.unwrap();
        }
        for (value, at) in *said {
            let (scope, name, source) = (RewardScope::Episode, "reward".into(), "judge".into());
            let reward = Reward {
                scope,
                name,
                value: *value,
                source,
                at: *at,
                provenance: episode::Provenance::default(),
            };
            store.reward(AttemptId { episode: episode.clone(), attempt: 0 }, reward).await.unwrap();
        }
    }
    drop(store);
    writer.finish().await;
    Stored(path)
}

async fn exported(store: &Stored, options: &Options) -> (Report, RecordBatch, Value) {
    let report = store.export(options).await.unwrap();
    let file = File::open(&report.files[0]).unwrap();
    let mut batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let batch = batches.next().unwrap().unwrap();
    assert!(batches.next().is_none());
    let manifest =
        serde_json::from_slice(&fs::read(report.files.last().unwrap()).unwrap()).unwrap();
    (report, batch, manifest)
}

fn doubles(batch: &RecordBatch, name: &str) -> Vec<Option<f64>> {
    batch[name].as_primitive::<Float64Type>().iter().collect()
}

fn longs(batch: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    batch[name].as_primitive::<Int64Type>().iter().collect()
}

fn one_turn() -> Vec<Call> {
    vec![call(1, &[1, 2], &[&[3, 4]])]
}

fn by_version(version: &str) -> Vec<Call> {
    let mut calls = one_turn();
    reply(&mut calls[0]).choices[0].versions[0].version = version.to_owned();
    calls
}

#[tokio::test]
async fn a_group_is_compared_as_of_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let told: [StoredEpisode<'_>; 6] = [
        ("a", Some("g"), one_turn(), &[(Some(1.0), 10)]),
        ("b", Some("g"), one_turn(), &[(Some(0.0), 10), (Some(1.0), 30)]),
        ("c", Some("g"), one_turn(), &[(Some(0.0), 10), (None, 40)]),
        ("d", Some("g"), one_turn(), &[(Some(0.0), 20)]),
        ("alone", Some("h"), one_turn(), &[(Some(7.0), 10)]),
        ("free", None, one_turn(), &[(Some(7.0), 10)]),
    ];
    let store = stored(folder.path(), &told).await;
    let rewards =
        RewardOptions { as_of: Some(20), advantage: Advantage::Grpo, ..RewardOptions::default() };
    let options = Options { out: folder.path().join("out").into(), rewards, ..Options::default() };
    let (report, batch, manifest) = exported(&store, &options).await;
    let names: Vec<_> = batch["episode_id"].as_string::<i32>().iter().flatten().collect();
    assert_eq!(names, ["a", "b", "c", "d", "alone", "free"]);
    // One of four: 1.5 and -0.5, less what epsilon takes.
    let shown = doubles(&batch, "advantage");
    for (found, expected) in shown[..4].iter().zip([1.5, -0.5, -0.5, -0.5]) {
        assert!((found.unwrap() - expected).abs() < 1e-5, "{shown:?}");
    }
    assert_eq!(shown[4..], [None, None]);
    assert_eq!(longs(&batch, "group_size"), [Some(4), Some(4), Some(4), Some(4), Some(1), None]);
    assert_eq!(doubles(&batch, "group_reward_std")[3..], [Some(0.5), None, None]);
    assert_eq!(report.notes.rewards_later, 2);
    assert_eq!(manifest["notes"]["groups"][0]["reward_mean"], 0.25);
    assert_eq!(manifest["notes"]["groups"][1]["reward_std"], Value::Null);
    let asked = &manifest["options"]["rewards"];
    assert_eq!((&asked["advantage"], &asked["std_ddof"]), (&json!("grpo"), &json!(1)));

    let now = RewardOptions { as_of: None, advantage: Advantage::Rloo, ..rewards };
    let options = Options { rewards: now, ..options };
    let (_, batch, _) = exported(&store, &options).await;
    // a and b 1, d 0, c could not be scored.
    assert_eq!(doubles(&batch, "reward")[..4], [Some(1.0), Some(1.0), None, Some(0.0)]);
    let shown = doubles(&batch, "advantage");
    assert_eq!((shown[2], shown[4]), (None, None));
    for (found, expected) in [(shown[0], 0.5), (shown[1], 0.5), (shown[3], -1.0)] {
        assert!((found.unwrap() - expected).abs() < 1e-12, "{shown:?}");
    }
    let plain = Options { rewards: RewardOptions::default(), ..options };
    let (_, batch, _) = exported(&store, &plain).await;
    assert_eq!(batch["advantage"].null_count(), 6);
    assert_eq!(batch["group_size"].null_count(), 6);
    let stats = RewardOptions { group_stats: true, ..RewardOptions::default() };
    let (_, batch, _) = exported(&store, &Options { rewards: stats, ..plain }).await;
    assert_eq!(longs(&batch, "group_scored")[..2], [Some(3), Some(3)]);
    assert_eq!(batch["advantage"].null_count(), 6);
}

#[tokio::test]
async fn an_attempt_without_a_row_is_in_the_population() {
    let folder = tempfile::tempdir().unwrap();
    let told: [StoredEpisode<'_>; 2] = [
        ("new", Some("g"), by_version("9"), &[(Some(1.0), 1)]),
        ("old", Some("g"), by_version("3"), &[(Some(0.0), 1)]),
    ];
    let store = stored(folder.path(), &told).await;
    let rewards = RewardOptions { advantage: Advantage::DrGrpo, ..RewardOptions::default() };
    let versions =
        VersionFilter { at: Some(10), staleness_max: Some(4), ..VersionFilter::default() };
    let out = folder.path().join("out");
    let options = Options { out: out.into(), rewards, versions, ..Options::default() };
    let (report, batch, manifest) = exported(&store, &options).await;
    assert_eq!((report.rows, report.groups[0].episodes), (1, 2));
    assert_eq!(doubles(&batch, "advantage"), [Some(0.5)]);
    assert_eq!(longs(&batch, "staleness"), [Some(1)]);
    assert_eq!(manifest["notes"]["not_of_versions"], json!({ "stale": 1 }));
    assert_eq!(manifest["options"]["versions"]["staleness_max"], 4);
}

#[tokio::test]
async fn arrays_read_back_as_they_were_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let mut calls = one_turn();
    let side =
        |name: &str, json: Value| TokenColumn { name: name.to_owned(), json: json.to_string() };
    reply(&mut calls[0]).choices[0].token_columns = vec![
        side(
            "top_logprobs",
            json!([[{ "token": "token_id:3", "logprob": -0.5 }],
            [{ "token": "x", "logprob": -1.0 }, { "token": "token_id:4", "logprob": -2.0 }]]),
        ),
        side("sampling_mask", json!([[3, 5], [4]])),
        side("routed_experts", json!([[[0, 1], [2, 300]], [[4, 5], [6, 7]], [[8, 9], [1, 2]]])),
    ];
    let told: [StoredEpisode<'_>; 2] = [("a", None, calls, &[]), ("b", None, one_turn(), &[])];
    let store = stored(folder.path(), &told).await;
    let options = Options { out: folder.path().join("out").into(), ..Options::default() };
    let (report, batch, _) = exported(&store, &options).await;
    assert_eq!(report.notes.token_data_unread, 0);
    let inner = |name: &str, token: usize| {
        batch[name].as_list::<i32>().value(0).as_list::<i32>().value(token)
    };
    for name in ["top_logprob_ids", "top_logprob_tokens", "top_logprobs", "kept_token_ids"] {
        let column = batch[name].as_list::<i32>();
        assert_eq!((column.value(0).len(), column.is_null(1)), (4, true), "{name}");
        assert_eq!(inner(name, 0).len(), 0, "{name}: a prompt token has none");
    }
    let ids = inner("top_logprob_ids", 3);
    assert_eq!(ids.as_primitive::<Int32Type>().iter().collect::<Vec<_>>(), [None, Some(4)]);
    let texts = inner("top_logprob_tokens", 3);
    assert_eq!(texts.as_string::<i32>().iter().collect::<Vec<_>>(), [Some("x"), None]);
    assert_eq!(inner("top_logprobs", 3).as_primitive::<Float32Type>().values(), &[-1.0, -2.0]);
    assert_eq!(inner("kept_token_ids", 2).as_primitive::<Int32Type>().values(), &[3, 5]);
    let experts =
        |token| inner("routed_experts", token).as_primitive::<UInt16Type>().values().to_vec();
    assert_eq!((experts(0), experts(3)), (vec![0, 1, 2, 300], vec![0; 4]));
    let shape = batch["routed_experts_shape"].as_list::<i32>().value(0);
    assert_eq!(shape.as_primitive::<Int32Type>().values(), &[4, 2, 2]);
    let mask = batch["routed_experts_mask"].as_list::<i32>();
    assert_eq!(mask.value(0).as_primitive::<Int8Type>().values(), &[1, 1, 1, 0]);
    assert!(mask.is_null(1) && batch["routed_experts"].is_null(1));
}

#[tokio::test]
async fn an_infrastructure_failure_is_counted_and_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut failed = one_turn();
    reply(&mut failed[0]).outcome = episode::Outcome::UpstreamFailed;
    let told: [StoredEpisode<'_>; 3] = [
        ("a", Some("g"), one_turn(), &[(Some(1.0), 1)]),
        ("b", Some("g"), one_turn(), &[(Some(0.5), 1)]),
        ("c", Some("g"), failed, &[(Some(0.0), 1)]),
    ];
    let store = stored(folder.path(), &told).await;
    let rewards = RewardOptions { advantage: Advantage::DrGrpo, ..RewardOptions::default() };
    let out = crate::Destination::Path(folder.path().join("all"));
    let all = Options { out, rewards, ..Options::default() };
    let (_, batch, manifest) = exported(&store, &all).await;
    assert_eq!(doubles(&batch, "advantage"), [Some(0.25), Some(-0.25), None]);
    assert_eq!(doubles(&batch, "reward"), [Some(1.0), Some(0.5), Some(0.0)]);
    let group = &manifest["notes"]["groups"][0];
    assert_eq!((&group["scored"], &group["infrastructure_failed"]), (&json!(2), &json!(1)));

    let out = crate::Destination::Path(folder.path().join("some"));
    let some = Options { out, no_infrastructure_failed: true, ..all };
    let (report, batch, manifest) = exported(&store, &some).await;
    assert_eq!((batch.num_rows(), report.left_out["episodes_infrastructure_failed"].count), (2, 1));
    assert_eq!(manifest["options"]["no_infrastructure_failed"], true);
}
