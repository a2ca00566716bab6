//! Tests of exports of a part: shards, increments, and what is recent.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use episode::{AttemptId, Call, Reward, RewardScope};
use serde_json::{Value, json};

use crate::input::plan::Shard;
use crate::options::encoding::Encoding;
use crate::options::format::Format;
use crate::rewards::advantage::Advantage;
use crate::tests::fixture::{call, with_bodies};
use crate::tests::stored::{Stored, StoredEpisode, stored};
use crate::{ExportError, Options, Report, RewardOptions, WriteError};

/// One call for each of `turns`.
fn turns(turns: u32) -> Vec<Call> {
    let user = json!({ "role": "user", "content": "hi" });
    let turn = |n| with_bodies(call(n, &[n, 2], &[&[3]]), std::slice::from_ref(&user), "yo");
    (1..=turns).map(turn).collect()
}

/// Options of an export of JSON lines to a folder.
fn lines_to(out: &Path) -> Options {
    let rewards = RewardOptions { advantage: Advantage::Grpo, ..RewardOptions::default() };
    let encoding = Some(Encoding::Jsonl);
    Options { out: out.to_owned().into(), encoding, rewards, ..Options::default() }
}

/// Adds episodes to the store of a folder, and closes each at its time.
async fn add(folder: &Path, told: &[(StoredEpisode<'_>, i64)]) -> Stored {
    let episodes: Vec<_> = told.iter().map(|(episode, _)| episode.clone()).collect();
    let at = stored(folder, &episodes).await;
    let (store, writer) = store::Store::open(&at.0, store::Durability::Process).await.unwrap();
    for ((id, ..), time) in told {
        let attempt = AttemptId { episode: id.parse().unwrap(), attempt: 0 };
        store.close(attempt, *time, None).await.unwrap();
    }
    drop(store);
    writer.finish().await;
    at
}

fn rows_of(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn manifest(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

async fn shard(store: &Stored, options: &Options, shard: Shard) -> Report {
    store.export(&Options { shard: Some(shard), ..options.clone() }).await.unwrap()
}

/// The rows of all shards of an export, one after the other.
async fn shards(store: &Stored, options: &Options, folder: &Path, count: u32) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for index in 0..count {
        let report = shard(store, options, Shard { index, count }).await;
        assert_eq!(report.shards_of_other_lists, [0_u32; 0]);
        let name = format!("trajectories-{index:05}-of-{count:05}.jsonl");
        rows.push(rows_of(&folder.join(name)));
    }
    rows
}

/// Groups of two, one of them with long attempts, and episodes without a group.
async fn grouped(folder: &Path) -> Stored {
    let names: Vec<(String, Option<String>)> = (0..24)
        .map(|n| (format!("e{n:02}"), Some(format!("g{:02}", n % 12)).filter(|_| n < 20)))
        .collect();
    let told: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, (id, group))| {
            let calls = turns(if n % 12 == 5 { 3 } else { 1 });
            ((id.as_str(), group.as_deref(), Some(n as f64), calls), n as i64)
        })
        .collect();
    add(folder, &told).await
}

#[tokio::test]
async fn shards_are_stretches_of_about_equal_weight() {
    let folder = tempfile::tempdir().unwrap();
    let store = grouped(folder.path()).await;
    let (whole, out) = (folder.path().join("whole"), folder.path().join("out"));
    store.export(&lines_to(&whole)).await.unwrap();
    let all = rows_of(&whole.join("trajectories.jsonl"));
    for count in [2, 3] {
        let parts = shards(&store, &lines_to(&out), &out, count).await;
        assert_eq!(parts.concat(), all, "in one order, each once, with the same advantages");
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(2 * most <= 3 * least, "{sizes:?}");
    }

    // A manifest has the groups of its own rows.
    let own: BTreeSet<_> = rows_of(&out.join("trajectories-00001-of-00003.jsonl"))
        .iter()
        .map(|row| row["group_id"].clone().to_string())
        .collect();
    let read = manifest(&out, "manifest-00001-of-00003.json");
    let named = read["notes"]["groups"].as_array().unwrap().iter();
    assert_eq!(named.map(|group| group["group"].to_string()).collect::<BTreeSet<_>>(), own);
    assert_eq!(read["left_out"]["episodes_of_other_shards"], 16);

    // More shards than groups: some are empty, and have a file.
    let parts = shards(&store, &lines_to(&out), &out, 40).await;
    assert_eq!(parts.concat(), all);
}

#[tokio::test]
async fn shards_up_to_a_position_go_together_while_more_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let store = grouped(folder.path()).await;
    let (out, whole) = (folder.path().join("out"), folder.path().join("whole"));
    let until = |out: &Path| Options { until: Some(24), ..lines_to(out) };
    store.export(&until(&whole)).await.unwrap();
    let first = shard(&store, &until(&out), Shard { index: 0, count: 2 }).await;
    let more = [(("a", Some("a0"), Some(1.0), turns(9)), 50), (("f", None, None, turns(1)), 51)];
    let store = add(folder.path(), &more).await;
    let second = shard(&store, &until(&out), Shard { index: 1, count: 2 }).await;
    assert_eq!(first.rows + second.rows, rows_of(&whole.join("trajectories.jsonl")).len() as u64);
    assert!(second.shards_of_other_lists.is_empty());
    let name = |index| out.join(format!("trajectories-0000{index}-of-00002.jsonl"));
    let both = [rows_of(&name(0)), rows_of(&name(1))].concat();
    assert_eq!(both, rows_of(&whole.join("trajectories.jsonl")));

    // One that takes all that is there by now is named as not going with the other.
    let report = shard(&store, &lines_to(&out), Shard { index: 1, count: 2 }).await;
    assert_eq!(report.shards_of_other_lists, [0]);
}

#[tokio::test]
async fn what_is_recent_is_compared_with_its_whole_group() {
    let folder = tempfile::tempdir().unwrap();
    let told = [
        (("a", Some("g"), Some(0.0), turns(1)), 10),
        (("b", Some("g"), Some(1.0), turns(1)), 20),
        (("c", Some("h"), Some(1.0), turns(1)), 10),
        (("d", None, Some(1.0), turns(1)), 20),
    ];
    let store = add(folder.path(), &told).await;
    let out = folder.path().join("out");
    let report = store.export(&Options { since: Some(20), ..lines_to(&out) }).await.unwrap();
    assert_eq!((report.rows, report.left_out["episodes_before_since"].count), (2, 2));
    let groups: Vec<_> = report.groups.iter().map(|g| (g.group.as_deref(), g.episodes)).collect();
    assert_eq!(groups, [(Some("g"), 2), (None, 1)]);
    let rows = rows_of(&out.join("trajectories.jsonl"));
    let advantage = rows[0]["advantage"].as_f64().unwrap();
    assert!((advantage - 0.5_f64.sqrt()).abs() < 1e-3, "{advantage}");
}

#[tokio::test]
async fn increments_go_on_from_a_manifest_that_names_every_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let new = Options { new: true, ..lines_to(&out) };
    let one = |id| [((id, Some("g"), Some(1.0), turns(1)), 9)];
    add(folder.path(), &one("a")).await.export(&new).await.unwrap();
    let path = out.join("manifest.json");
    let mut older = manifest(&out, "manifest.json");
    let fields = older.as_object_mut().unwrap();
    assert!(fields.remove("positions").is_some());
    fields.insert("format_version".to_owned(), json!(1));
    fields.insert("episodes".to_owned(), json!(["a/0"]));
    fs::write(&path, older.to_string()).unwrap();

    let report = add(folder.path(), &one("b")).await.export(&new).await.unwrap();
    assert_eq!((report.rows, report.left_out["episodes_exported_before"].count), (1, 1));
    let read = manifest(&out, "manifest.json");
    assert_eq!((&read["format_version"], &read["episodes"]), (&json!(2), &json!([])));
    let positions = read["positions"].as_object().unwrap().values().next().unwrap();
    assert_eq!(positions["held"], json!([[1, 2]]));
    // The group is whole in the manifest of an increment too.
    let store = add(folder.path(), &one("c")).await;
    let report = store.export(&new).await.unwrap();
    assert_eq!((report.rows, report.groups[0].episodes), (1, 3));
}

#[tokio::test]
async fn what_made_no_row_is_looked_at_again() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let new = Options { new: true, format: Format::Kto, ..lines_to(&out) };
    let told = [(("a", None, None, turns(1)), 9), (("b", None, Some(1.0), turns(1)), 9)];
    let at = add(folder.path(), &told).await;
    assert_eq!(at.export(&new).await.unwrap().rows, 1);
    let (store, writer) = store::Store::open(&at.0, store::Durability::Process).await.unwrap();
    let reward = Reward {
        scope: RewardScope::Episode,
        name: "reward".to_owned(),
        value: Some(0.0),
        source: "judge".to_owned(),
        at: 50,
        provenance: episode::Provenance::default(),
    };
    store.reward("a/0".parse().unwrap(), reward).await.unwrap();
    drop(store);
    writer.finish().await;
    assert_eq!(at.export(&new).await.unwrap().rows, 1);
    let read = manifest(&out, "kto.manifest.json");
    let positions = read["positions"].as_object().unwrap().values().next().unwrap();
    assert_eq!(positions, &json!({ "held": [[1, 2]], "through": 2, "last": "b/0" }));
}

#[tokio::test]
async fn a_store_that_was_restored_is_not_taken_for_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let new = Options { new: true, ..lines_to(&out) };
    let one = |id| [((id, None, Some(1.0), turns(1)), 9)];
    let at = add(folder.path(), &one("a")).await;
    let earlier = fs::read(&at.0).unwrap();
    let store = add(folder.path(), &one("b")).await;
    assert_eq!(store.export(&new).await.unwrap().rows, 2);

    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{ending}", at.0.display()));
    }
    fs::write(&at.0, earlier).unwrap();
    let is_other =
        |refused| matches!(refused, Err(ExportError::Write(WriteError::OtherStore { .. })));
    assert!(is_other(at.export(&new).await), "it has not come so far");
    let store = add(folder.path(), &one("c")).await;
    assert!(is_other(store.export(&new).await), "its second attempt is another");
    let read = crate::exported_attempts(&out, &mut store.snapshot().await).await;
    assert!(matches!(read, Err(crate::ReadExportError::OtherStore(_))), "{read:?}");
}
