//! Tests of where files go, and that nobody ever sees half of one.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arrow::ipc::reader::StreamReader;
use episode::{AttemptId, Call};
use serde_json::{Value, json};

use super::*;
use crate::input::plan::{Partition, Shard};
use crate::options::destination::OutputStream;
use crate::tests::fixture::{call, with_bodies};
use crate::tests::stored::{Stored, stored};
use crate::{ExportError, Report};

fn calls() -> Vec<Call> {
    answered("yo")
}

fn answered(answer: &str) -> Vec<Call> {
    let user = json!({ "role": "user", "content": "hi" });
    vec![with_bodies(call(1, &[1, 2], &[&[3]]), &[user], answer)]
}

/// Six episodes in three groups, and one without.
async fn six(folder: &Path) -> Stored {
    let told = [
        ("a", Some("g1"), Some(1.0), calls()),
        ("b", Some("g1"), Some(0.0), answered("no")),
        ("c", Some("g2"), Some(0.5), calls()),
        ("d", Some("g2"), None, calls()),
        ("e", Some("g3"), Some(2.0), calls()),
        ("f", None, None, calls()),
    ];
    stored(folder, &told).await
}

fn to(out: &Path) -> Options {
    Options { out: out.to_owned().into(), ..Options::default() }
}

/// Counts how often each reason was met.
fn counts(left: &Omissions) -> BTreeMap<&'static str, u64> {
    left.iter().map(|(why, left)| (*why, left.count)).collect()
}

/// Every file below a folder, by its path.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    files(folder).into_keys().collect()
}

fn manifest(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The attempts that an export holds.
async fn held(store: &Stored, out: &Path) -> BTreeSet<AttemptId> {
    crate::exported_attempts(out, &mut store.snapshot().await).await.unwrap()
}

async fn done(store: &Stored, options: &Options) -> Report {
    store.export(options).await.unwrap()
}

#[tokio::test]
async fn partitions_are_folders_and_the_same_every_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let out = folder.path().join("out");
    let options = Options { partition: Some(Partition::Group), ..to(&out) };
    let report = done(&store, &options).await;
    assert_eq!((report.rows, report.files.len()), (6, 6));
    let first = files(&out);
    let expected = ["g1", "g2", "g3", "__HIVE_DEFAULT_PARTITION__"];
    for group in expected {
        assert!(first.contains_key(&format!("group={group}/trajectories.parquet")), "{group}");
    }
    assert!(first.contains_key("_forks.pq"));
    assert_eq!(first.len(), 7);
    done(&store, &options).await;
    assert_eq!(files(&out), first);
    assert_eq!(held(&store, &out).await.len(), 6);
    // What the export before had and the next one has not is gone.
    let whole = done(&store, &to(&out)).await;
    let expected = [".huggingface.yaml", "_forks.pq", "manifest.json", "trajectories.parquet"];
    assert_eq!(names(&out), expected);
    assert_eq!(whole.files.len(), 3);
}

/// The variable that says where a process with few open files is to export to.
const FEW_FILES: &str = "ROLLTAPE_TEST_FEW_FILES";

#[tokio::test]
async fn there_may_be_more_partitions_than_open_files() {
    let Some(folder) = std::env::var_os(FEW_FILES).map(PathBuf::from) else {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..100).map(|n| format!("e{n}")).collect();
        let told: Vec<_> = names.iter().map(|id| (&**id, Some(&**id), None, calls())).collect();
        stored(folder.path(), &told).await;
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""]);
        limited.arg(std::env::current_exe().unwrap());
        limited
            .args(["--exact", "output::sink::tests::there_may_be_more_partitions_than_open_files"]);
        let ended = limited.env(FEW_FILES, folder.path()).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        // The manifest, the forks, the card and a file for each group.
        assert_eq!(files(&folder.path().join("out")).len(), 103);
        return;
    };
    let options = Options { partition: Some(Partition::Group), ..to(&folder.join("out")) };
    let report = done(&Stored(folder.join("rolltape.db")), &options).await;
    assert_eq!((report.rows, report.files.len()), (100, 102));
}

#[tokio::test]
async fn shards_stand_side_by_side_and_an_empty_one_has_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let out = folder.path().join("out");
    let mut rows = 0;
    for index in 0..7 {
        let shard = Some(Shard { index, count: 7 });
        rows += done(&store, &Options { shard, ..to(&out) }).await.rows;
    }
    assert_eq!(rows, 6);
    let names = names(&out);
    assert_eq!(names.len(), 22, "three files a shard, and a card");
    assert!(names.contains(&"trajectories-00006-of-00007.parquet".to_owned()), "{names:?}");
    assert_eq!(held(&store, &out).await.len(), 6);
}

#[tokio::test]
async fn a_folder_holds_what_all_its_exports_hold() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let out = folder.path().join("out");
    let one = |id: &str| store::Selection {
        episode: Some(id.parse().unwrap()),
        ..store::Selection::default()
    };
    let held = async || {
        let held = held(&store, &out).await;
        held.into_iter().map(|held| held.episode.to_string()).collect::<Vec<_>>()
    };
    done(&store, &Options { selection: one("a"), ..to(&out) }).await;
    assert_eq!(held().await, ["a"]);
    done(&store, &Options { selection: one("b"), format: Format::Sft, ..to(&out) }).await;
    assert_eq!(held().await, ["a", "b"], "another format stands beside");
    for index in 0..2 {
        let shard = Some(Shard { index, count: 2 });
        done(&store, &Options { shard, ..to(&out) }).await;
    }
    assert_eq!(held().await, ["a", "b", "c", "d", "e", "f"], "shards stand beside");
    fs::write(out.join("sft.manifest.json"), "{}").unwrap();
    let unknown = crate::exported_attempts(&out, &mut store.snapshot().await).await;
    assert!(matches!(unknown, Err(crate::ReadExportError::NotAnExport(_))), "{unknown:?}");
}

#[tokio::test]
async fn what_is_new_is_added_beside_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let store = six(folder.path()).await;
    let one = |id: &str| store::Selection {
        episode: Some(id.parse().unwrap()),
        ..store::Selection::default()
    };
    let new = Options { new: true, ..to(&out) };
    let report = done(&store, &new).await;
    assert_eq!((report.rows, report.files.len()), (0, 0), "all are open");
    assert_eq!(counts(&report.left_out), [("episodes_still_open", 6)].into());
    // Their selection is no part of what is compared here: they are closed one after the other.
    close(folder.path(), "a").await;
    assert_eq!(done(&store, &new).await.rows, 1);
    let first = files(&out);
    close(folder.path(), "c").await;
    let report = done(&store, &new).await;
    assert_eq!((report.rows, report.left_out["episodes_exported_before"].count), (1, 1));
    let second = files(&out);
    assert_eq!(second["trajectories.parquet"], first["trajectories.parquet"]);
    assert!(second.contains_key("trajectories.1.parquet"), "{:?}", second.keys());
    let read = manifest(out.join("manifest.json"));
    assert_eq!((&read["rows"], &read["episodes"]), (&json!(2), &json!([])));
    let positions = read["positions"].as_object().unwrap().values().next().unwrap();
    assert_eq!(positions, &json!({ "held": [[1, 2]], "through": 2, "last": "c/0" }));
    assert_eq!(held(&store, &out).await.len(), 2);
    assert_eq!(done(&store, &new).await.files.len(), 0);
    assert_eq!(files(&out), second, "nothing new changes nothing");
    let other = Options { selection: one("a"), ..new.clone() };
    let refused = store.export(&other).await;
    assert!(matches!(refused, Err(ExportError::Write(WriteError::OtherOptions { .. }))));
    assert_eq!(files(&out), second);
}

#[tokio::test]
async fn what_is_new_waits_for_the_ends_of_its_calls() {
    let folder = tempfile::tempdir().unwrap();
    let mut ends = calls();
    ends.push(call(2, &[1, 2, 3, 4], &[&[5]]));
    let late = ends[1].ended.take().unwrap();
    let mut lost = calls();
    lost[0].ended = None;
    lost.extend(calls());
    let told = [("a", None, None, ends), ("b", None, None, lost)];
    let store = stored(folder.path(), &told).await;
    for id in ["a", "b"] {
        close(folder.path(), id).await;
    }
    let out = folder.path().join("out");
    let at = |now| Options { new: true, now, ..to(&out) };
    let waiting = |count| [("episodes_with_calls_under_way", count)].into();
    let report = done(&store, &at(99 + crate::SETTLE_US - 1)).await;
    assert_eq!((report.rows, counts(&report.left_out)), (0, waiting(2)));
    let (on_disk, writer) = store::Store::open(&store.0, store::Durability::Process).await.unwrap();
    let id = store.snapshot().await.episodes(&store::Selection::default()).await.unwrap();
    let calls = store.snapshot().await.calls(&id[0]).await.unwrap();
    let call_id = calls[1].begun.call_id;
    on_disk.end(episode::CallEnd { call_id, ..late }).await.done().await.unwrap();
    drop(on_disk);
    writer.finish().await;
    let report = done(&store, &at(99 + crate::SETTLE_US - 1)).await;
    assert_eq!((report.rows, report.trained_tokens, counts(&report.left_out)), (1, 2, waiting(1)));
    // Of a recorder that died nobody waits for more.
    assert_eq!(done(&store, &at(99 + crate::SETTLE_US)).await.rows, 1);
    assert_eq!(held(&store, &out).await.len(), 2);
}

/// Adds closed episodes of these names and groups to a store, each with a reward.
async fn add_closed(folder: &Path, episodes: &[(&str, Option<&str>)]) -> Stored {
    let told = |(id, group)| (id, group, Some(1.0), calls());
    let told: Vec<_> = episodes.iter().copied().map(told).collect();
    let store = stored(folder, &told).await;
    for (id, ..) in told {
        close(folder, id).await;
    }
    store
}

/// The rows of all files of JSON lines in a folder.
fn lines(folder: &Path) -> Vec<Value> {
    let files = files(folder).into_iter().filter(|(name, _)| name.ends_with(".jsonl"));
    let texts: Vec<String> = files.map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect();
    texts.iter().flat_map(|text| text.lines()).map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[tokio::test]
async fn increments_and_shards_share_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let formats = [Format::Slime, Format::TrlAsync, Format::SkyRl];
    let encoding = Some(Encoding::Jsonl);
    let out = |format: Format| folder.path().join(format.as_str());
    let add = async |store: &Stored| {
        for format in formats {
            let options = Options { format, encoding, new: true, ..to(&out(format)) };
            for index in 0..2 {
                let shard = Some(Shard { index, count: 2 });
                done(store, &Options { shard, ..options.clone() }).await;
            }
        }
    };
    let first = [("e2", Some("g")), ("e3", Some("g")), ("c", Some("h")), ("x", None)];
    add(&add_closed(folder.path(), &first).await).await;
    let second = [("a", Some("b")), ("e1", Some("g")), ("g", None), ("w", Some("x"))];
    add(&add_closed(folder.path(), &second).await).await;
    // Which groups an episode's rows say that they are of.
    let group = |name: &str| match name.chars().next() {
        Some('e') => "three".to_owned(),
        _ => name.to_owned(),
    };
    let slime = lines(&out(Format::Slime));
    assert_eq!(slime.len(), 8);
    let all = |key: &str| slime.iter().map(|r| r[key].as_i64().unwrap()).collect::<BTreeSet<_>>();
    assert_eq!((all("index").len(), all("rollout_id").len()), (8, 8));
    let mut groups: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for row in &slime {
        let name = group(row["metadata"]["episode_id"].as_str().unwrap());
        groups.entry(name).or_default().insert(row["group_index"].as_i64().unwrap());
    }
    assert!(groups.values().all(|numbers| numbers.len() == 1), "{groups:?}");
    assert_eq!((groups.len(), all("group_index").len()), (6, 6));
    let of_async = lines(&out(Format::TrlAsync));
    let told = of_async.iter().map(|row| row["group_id"].as_i64().unwrap());
    assert_eq!(told.collect::<BTreeSet<_>>(), all("group_index"));
    let skyrl = lines(&out(Format::SkyRl));
    let ids: BTreeSet<String> = skyrl.iter().map(|r| r["trajectory_ids"].to_string()).collect();
    assert_eq!((skyrl.len(), ids.len()), (8, 8));
}

#[tokio::test]
async fn what_is_added_is_made_with_the_options_of_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let options = Options { new: true, ..to(&out) };
    done(&add_closed(folder.path(), &[("a", None)]).await, &options).await;
    let store = add_closed(folder.path(), &[("b", None)]).await;
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/models/tiny");
    let tokenizer = Some(Arc::new(crate::Retokenizer::load(&tiny).unwrap()));
    let rewards = crate::RewardOptions { group_stats: true, ..Default::default() };
    let in_lines = Options { encoding: Some(Encoding::Jsonl), ..options.clone() };
    let others = [
        in_lines.clone(),
        Options { retokenizer: tokenizer, ..options.clone() },
        Options { rewards, ..options.clone() },
    ];
    let is_refused = |refused: Result<Report, ExportError>| {
        matches!(refused, Err(ExportError::Write(WriteError::OtherOptions { .. })))
    };
    for other in others {
        assert!(is_refused(store.export(&other).await), "{other:?}");
    }
    // A manifest that does not say them is taken at its word, and its files at their names.
    let path = out.join("manifest.json");
    let mut older = manifest(path.clone());
    for key in ["encoding", "tokenizer", "group_stats"] {
        assert!(older["options"].as_object_mut().unwrap().remove(key).is_some(), "{key}");
    }
    fs::write(&path, older.to_string()).unwrap();
    assert!(is_refused(store.export(&in_lines).await));
    assert_eq!(done(&store, &Options { rewards, ..options }).await.rows, 1);
}

#[tokio::test]
async fn forks_are_told_in_the_texts_of_the_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/models/tiny");
    let tokenizer = template::Tokenizer::load(&tiny).unwrap();
    let ids = |text: &str| tokenizer.encode(text, false).unwrap();
    let user = json!({ "role": "user", "content": "q" });
    let said = json!({ "role": "assistant", "content": "tool" });
    // The model sampled a letter at a time what the tokenizer has as one token.
    let sampled = ["t", "o", "o", "l"].map(ids).concat();
    let next = [ids("q"), ids("tool"), ids("q")].concat();
    let calls = vec![
        with_bodies(call(1, &ids("q"), &[&sampled]), std::slice::from_ref(&user), "tool"),
        with_bodies(call(2, &next, &[&ids("q")]), &[user.clone(), said, user], "q"),
    ];
    let store = stored(folder.path(), &[("a", None, None, calls)]).await;
    let out = folder.path().join("out");
    let retokenizer = Some(Arc::new(crate::Retokenizer::load(&tiny).unwrap()));
    let encoding = Some(Encoding::Jsonl);
    done(&store, &Options { retokenizer, encoding, ..to(&out) }).await;
    let written = files(&out);
    let (_, forks) = written.iter().find(|(name, _)| name.contains("forks")).unwrap();
    let fork: Value = serde_json::from_slice(forks).unwrap();
    assert_eq!(
        (&fork["cause"], &fork["text_source"]),
        (&json!("retokenized"), &json!("tokenizer"))
    );
    assert_eq!((&fork["text_known"], &fork["text_sent"]), (&json!("tool"), &json!("toolq")));
}

#[tokio::test]
async fn pairs_are_not_made_of_what_is_new_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    close(folder.path(), "a").await;
    let out = folder.path().join("out");
    for format in [Format::Preference, Format::OpenAiPreference] {
        // Of `a` alone there is no pair, and `b` would find it taken.
        let refused = store.export(&Options { format, new: true, ..to(&out) }).await;
        assert!(
            matches!(refused, Err(ExportError::Write(WriteError::Pairs { .. }))),
            "{refused:?}"
        );
        let options = Options { format, selection: store::Selection::default(), ..to(&out) };
        assert_eq!(done(&store, &options).await.rows, 1);
    }
}

#[tokio::test]
async fn a_trace_is_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let out = folder.path().join("out");
    let whole = Options { format: Format::Mooncake, ..to(&out) };
    let shard = Some(Shard { index: 0, count: 2 });
    for part in [Options { new: true, ..whole.clone() }, Options { shard, ..whole.clone() }] {
        let refused = store.export(&part).await;
        assert!(
            matches!(refused, Err(ExportError::Write(WriteError::Whole { .. }))),
            "{refused:?}"
        );
    }
    assert!(done(&store, &whole).await.rows > 0);
}

#[tokio::test]
async fn nothing_is_added_to_rows_whose_numbers_are_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let options = Options { format: Format::Slime, new: true, ..to(&out) };
    done(&add_closed(folder.path(), &[("a", None)]).await, &options).await;
    let path = out.join("slime.manifest.json");
    let mut older = manifest(path.clone());
    assert!(older.as_object_mut().unwrap().remove("numbers").is_some());
    fs::write(&path, older.to_string()).unwrap();
    let store = add_closed(folder.path(), &[("b", None)]).await;
    let error = store.export(&options).await.unwrap_err();
    assert!(matches!(error, ExportError::Write(WriteError::Uncounted { .. })), "{error:?}");
    // Rows without numbers need none.
    let plain = Options { new: true, ..to(&out) };
    assert_eq!(done(&store, &plain).await.rows, 2);
    assert!(manifest(out.join("manifest.json")).get("numbers").is_none());
}

async fn close(folder: &Path, id: &str) {
    let path = folder.join("rolltape.db");
    let (store, writer) = store::Store::open(&path, store::Durability::Process).await.unwrap();
    store.close(AttemptId { episode: id.parse().unwrap(), attempt: 0 }, 99, None).await.unwrap();
    drop(store);
    writer.finish().await;
}

/// A stream whose bytes can be read.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<Vec<u8>>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_stream_gets_the_rows_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let read = |pipe: &Pipe| pipe.0.lock().unwrap().clone();
    let pipe = Pipe::default();
    let out = Destination::Stream(OutputStream::new(pipe.clone()));
    let options = Options { out, ..Options::default() };
    let report = done(&store, &options).await;
    assert!(report.files.is_empty());
    let bytes = read(&pipe);
    let rows = StreamReader::try_new(bytes.as_slice(), None).unwrap();
    assert_eq!(rows.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 6);
    let pipe = Pipe::default();
    let (out, encoding) =
        (Destination::Stream(OutputStream::new(pipe.clone())), Some(Encoding::Jsonl));
    done(&store, &Options { out, encoding, ..options }).await;
    let text = String::from_utf8(read(&pipe)).unwrap();
    assert_eq!(text.lines().count(), 6);
    for line in text.lines() {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap()["input_ids"], json!([1, 2, 3]));
    }
}

#[tokio::test]
async fn the_calls_of_one_attempt_are_several_batches() {
    let folder = tempfile::tempdir().unwrap();
    let mut long = calls().remove(0);
    long.begun.request = "a".repeat(3 << 20).into();
    let store = stored(folder.path(), &[("a", None, None, vec![long; 5])]).await;
    let out = folder.path().join("calls.arrow");
    done(&store, &Options { format: Format::Calls, ..to(&out) }).await;
    let rows = StreamReader::try_new(fs::File::open(&out).unwrap(), None).unwrap();
    let rows: Vec<usize> = rows.map(|batch| batch.unwrap().num_rows()).collect();
    assert_eq!(rows, [2, 2, 1]);
}

#[tokio::test]
async fn formats_stand_in_one_folder_and_a_name_says_the_encoding() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let out = folder.path().join("out");
    for format in [Format::Trajectories, Format::Sft, Format::OpenAi] {
        done(&store, &Options { format, ..to(&out) }).await;
    }
    let expected = [
        ".huggingface.yaml",
        "_forks.pq",
        "manifest.json",
        "openai.jsonl",
        "openai.manifest.json",
        "sft.manifest.json",
        "sft.parquet",
        "trajectories.parquet",
    ];
    assert_eq!(names(&out), expected);
    assert_eq!(manifest(out.join("sft.manifest.json"))["format"], "rolltape-sft");
    let named = folder.path().join("some.jsonl");
    let report = done(&store, &to(&named)).await;
    let beside = |name: &str| folder.path().join(name);
    let written = [beside("some.forks.ndjson"), beside("some.jsonl.manifest.json")];
    assert_eq!(report.files[0], named);
    assert_eq!(report.files[1..], written);
    assert_eq!(fs::read_to_string(&named).unwrap().lines().count(), 6);
    done(&store, &to(&folder.path().join("some.parquet"))).await;
    assert_eq!(held(&store, &named).await.len(), 6, "each has a manifest of its own");
    let refused = [
        Options { encoding: Some(Encoding::Arrow), ..to(&named) },
        Options { partition: Some(Partition::Task), ..to(&named) },
        Options { new: true, ..to(&named) },
    ];
    for options in refused {
        let error = store.export(&options).await.unwrap_err();
        assert!(matches!(error, ExportError::Write(_)), "{error:?}");
    }
}

#[tokio::test]
async fn rewards_choose_episodes_and_what_is_left_out_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let out = folder.path().join("out");
    let options = Options { min_reward: Some(0.5), ..to(&out) };
    let report = done(&store, &options).await;
    assert_eq!((report.rows, report.left_out["episodes_below_min_reward"].count), (3, 3));
    let kto = Options { format: Format::Kto, label_above: 0.5, ..to(&out) };
    let report = done(&store, &kto).await;
    assert_eq!((report.rows, report.left_out["rows_without_reward"].count), (4, 2));
    let read = manifest(out.join("kto.manifest.json"));
    assert_eq!(read["left_out"], json!({ "rows_without_reward": 2 }));
    assert_eq!(read["episodes"], json!(["a/0", "b/0", "c/0", "e/0"]));
    let none = Options { min_reward: Some(9.0), ..to(&out) };
    let error = store.export(&none).await.unwrap_err();
    let ExportError::Empty { left_out, .. } = error else { panic!("{error:?}") };
    assert_eq!(counts(&left_out), [("episodes_below_min_reward", 6)].into());
}

#[tokio::test]
async fn an_export_that_fails_or_is_given_up_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let out = folder.path().join("out");
    done(&store, &Options { partition: Some(Partition::Group), ..to(&out) }).await;
    let before = files(&out);
    let whole = to(&out);
    let snapshot = store.snapshot().await;
    let given_up = tokio::task::LocalSet::new();
    let ended = given_up.spawn_local(async move {
        let stop = |done, _| assert!(done < 3, "given up on purpose");
        crate::export_with_progress(snapshot, &whole, stop).await.is_ok()
    });
    given_up.await;
    assert!(ended.await.unwrap_err().is_panic());
    assert_eq!(files(&out), before);
    // A file stands where a partition's folder should be.
    let blocked = folder.path().join("blocked");
    fs::create_dir(&blocked).unwrap();
    fs::write(blocked.join("group=g2"), "mine").unwrap();
    let options = Options { partition: Some(Partition::Group), ..to(&blocked) };
    let error = store.export(&options).await.unwrap_err();
    assert!(matches!(error, ExportError::Write(WriteError::Io { .. })), "{error:?}");
    assert_eq!(fs::read(blocked.join("group=g2")).unwrap(), b"mine");
    assert_eq!(names(&blocked), ["group=g2"]);
}

#[tokio::test]
async fn what_stands_beside_an_export_is_not_ours_for_that() {
    let folder = tempfile::tempdir().unwrap();
    let store = add_closed(folder.path(), &[("a", None)]).await;
    let out = folder.path().join("out");
    done(&store, &to(&out)).await;
    let is_foreign = |refused, name: &str| match refused {
        Err(ExportError::Write(WriteError::Foreign { path })) => path == out.join(name),
        _ => false,
    };
    let mine = |name: &str| fs::write(out.join(name), "mine").unwrap();
    mine("trajectories.jsonl");
    let in_lines = Options { encoding: Some(Encoding::Jsonl), ..to(&out) };
    assert!(is_foreign(store.export(&in_lines).await, "trajectories.jsonl"));
    mine("trajectories.1.parquet");
    let store = add_closed(folder.path(), &[("b", None)]).await;
    let new = Options { new: true, ..to(&out) };
    assert!(is_foreign(store.export(&new).await, "trajectories.1.parquet"));
    for name in ["trajectories.jsonl", "trajectories.1.parquet"] {
        assert_eq!(fs::read(out.join(name)).unwrap(), b"mine", "{name}");
    }
    assert_eq!(held(&store, &out).await.len(), 1);
    done(&store, &Options { overwrite: true, ..in_lines }).await;
    assert_eq!(held(&store, &out).await.len(), 2);
}

#[tokio::test]
async fn what_a_run_left_that_died_while_it_published_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let store = add_closed(folder.path(), &[("a", None)]).await;
    let out = folder.path().join("out");
    done(&store, &to(&out)).await;
    let whole = files(&out);
    fs::remove_file(out.join("manifest.json")).unwrap();
    fs::write(out.join("trajectories.7.parquet"), "left").unwrap();
    assert!(store.export(&to(&out)).await.is_err(), "nobody says whose these files are");

    let left = json!(["trajectories.parquet", "_forks.pq", "trajectories.7.parquet", "../mine"]);
    fs::write(out.join(".manifest.json.begun"), left.to_string()).unwrap();
    fs::write(folder.path().join("mine"), "mine").unwrap();
    done(&store, &to(&out)).await;
    assert_eq!(files(&out), whole);
    assert!(folder.path().join("mine").exists());
}

#[tokio::test]
async fn a_target_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = six(folder.path()).await;
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = store.export(&to(&file.join("below"))).await.unwrap_err();
    let ExportError::Write(WriteError::Io { path, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(path, &file.join("below"));
    fs::create_dir(folder.path().join("newer")).unwrap();
    let newer = json!({ "format": "rolltape-trajectories", "format_version": 99, "files": [] });
    fs::write(folder.path().join("newer/manifest.json"), newer.to_string()).unwrap();
    let error = store.export(&to(&folder.path().join("newer"))).await.unwrap_err();
    assert!(matches!(error, ExportError::Write(WriteError::Newer { version: 99, .. })));
    fs::write(folder.path().join("newer/manifest.json"), "{}").unwrap();
    let error = store.export(&to(&folder.path().join("newer"))).await.unwrap_err();
    assert!(matches!(error, ExportError::Write(WriteError::Foreign { .. })));
}
