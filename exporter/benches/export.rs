//! An export of many episodes against a plain Parquet writer that has the same rows in memory, in
//! one run: `cargo bench -p exporter --bench export`.
//!
//! An episode is three agents of ten turns each, whose prompts begin with what they sent before:
//! 30 calls, four tokens in five sent again. The store is recorded first (a few minutes for 10,000
//! episodes, `ROLLTAPE_BENCH_EPISODES` for fewer); `ROLLTAPE_BENCH_FOLDER` is a folder that keeps
//! it for the next run. Then the health of all episodes is asked for. The last part exports
//! episodes with the same new tokens in more and in fewer calls: time is to follow the new tokens.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use episode::{
    AttemptId, CallEnd, CallId, CallKind, CallStart, Choice, Fidelity, Lineage, Outcome, Reward,
    RewardScope, Route, Tag, TagSource, TokenCounts, VersionSpan,
};
use exporter::{HealthOptions, Options, Report, export, health};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use serde_json::{Value, json};
use store::{Durability, Selection, Snapshot, Store};
use uuid::Uuid;

const EPISODES: usize = 10_000;
/// Agents of an episode and turns of each.
const AGENTS: usize = 3;
const TURNS: usize = 10;
/// Tokens that a turn adds: what the agent says, and what is sampled.
const SAID: usize = 160;
const SAMPLED: usize = 80;
/// Episodes that are recorded at a time.
const AT_ONCE: usize = 64;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let episodes = std::env::var("ROLLTAPE_BENCH_EPISODES");
    let episodes = episodes.map_or(EPISODES, |n| n.parse().unwrap());
    let passing = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("ROLLTAPE_BENCH_FOLDER").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or(passing.path());
    let store = record(folder, "many", episodes, Shape::of(AGENTS, TURNS)).await;
    println!("{episodes} episodes of {} calls, {} B of store", AGENTS * TURNS, bytes(&store));
    for share in [episodes / 10, episodes] {
        measure(folder, &store, share).await;
    }
    judge(&store, episodes).await;
    println!("the same new tokens, sent again more and less often:");
    for turns in [2, 10, 30, 60] {
        follow(folder, turns, episodes / 20).await;
    }
}

/// The way in which the new tokens of an episode come.
#[derive(Debug, Clone, Copy)]
struct Shape {
    agents: usize,
    turns: usize,
    said: usize,
    sampled: usize,
}

impl Shape {
    fn of(agents: usize, turns: usize) -> Self {
        Self { agents, turns, said: SAID, sampled: SAMPLED }
    }

    fn new_tokens(self) -> usize {
        self.agents * self.turns * (self.said + self.sampled)
    }

    /// Prompt tokens over all calls.
    fn sent(self) -> usize {
        let turn = |n: usize| n * (self.said + self.sampled) + self.said;
        self.agents * (0..self.turns).map(turn).sum::<usize>()
    }
}

/// Exports the first `share` groups' episodes and writes the same rows plainly.
async fn measure(folder: &Path, store: &Path, share: usize) {
    let out = folder.join("export");
    reset_peak();
    let snapshot = Snapshot::open_here(store).await.unwrap();
    let mut options = Options { out: out.clone().into(), ..Options::default() };
    if share < EPISODES.min(count(store).await) {
        options.selection = Selection { group: Some("g0".parse().unwrap()), ..Default::default() };
    }
    let (started, before) = (Instant::now(), processor_time());
    let report = export(snapshot, &options).await.unwrap();
    let (took, busy) = (started.elapsed(), processor_time() - before);
    let peak = peak_mib();
    let file = out.join("trajectories.parquet");
    let size = bytes(&file);
    let (plain, plain_busy, plain_size) = write_plainly(&file, &folder.join("plain.parquet"));
    let rate = |bytes: u64, took: Duration| bytes as f64 / 1e6 / took.as_secs_f64();
    println!(
        "  {:>6} episodes, {} rows, {:.1} M tokens: {:.2} s ({busy:.2} s of processors), \
         {:.1} MB/s of output, peak {peak} MiB; plain writer {:.2} s ({plain_busy:.2}), \
         {:.1} MB/s ({} B); export/plain rate {:.2}",
        report.episodes,
        report.rows,
        report.tokens as f64 / 1e6,
        took.as_secs_f64(),
        rate(size, took),
        plain.as_secs_f64(),
        rate(plain_size, plain),
        plain_size,
        rate(size, took) / rate(plain_size, plain),
    );
}

/// Asks for the health of all episodes: seconds a million new tokens, sampled and said.
async fn judge(store: &Path, episodes: usize) {
    reset_peak();
    let snapshot = Snapshot::open_here(store).await.unwrap();
    let (started, before) = (Instant::now(), processor_time());
    let report = health(snapshot, &HealthOptions::default(), |_, _| {}).await.unwrap();
    let (took, busy) = (started.elapsed().as_secs_f64(), processor_time() - before);
    let millions = (episodes * Shape::of(AGENTS, TURNS).new_tokens()) as f64 / 1e6;
    println!(
        "  health of {} attempts, {millions:.1} M new tokens ({:.1} M sampled): {took:.2} s \
         ({busy:.2} s of processors), {:.3} s a million, peak {} MiB",
        report.attempts,
        report.sampled_tokens as f64 / 1e6,
        took / millions,
        peak_mib(),
    );
}

async fn count(store: &Path) -> usize {
    let mut snapshot = Snapshot::open(store).await.unwrap();
    snapshot.episodes(&Selection::default()).await.unwrap().len()
}

/// Episodes of 2,400 new tokens a turn's worth, cut into `turns`.
async fn follow(folder: &Path, turns: usize, episodes: usize) {
    let total = 60 * (SAID + SAMPLED);
    let shape = Shape {
        agents: 1,
        turns,
        said: total / turns * 2 / 3,
        sampled: total / turns - total / turns * 2 / 3,
    };
    let store = record(folder, &format!("turns-{turns}"), episodes, shape).await;
    let snapshot = Snapshot::open_here(&store).await.unwrap();
    let options = Options { out: folder.join(format!("t{turns}")).into(), ..Options::default() };
    let started = Instant::now();
    let report: Report = export(snapshot, &options).await.unwrap();
    let took = started.elapsed();
    println!(
        "  {turns:>3} calls an episode, {:>5.1} prompt tokens sent for each new token: \
         {:.0} ns a new token",
        shape.sent() as f64 / shape.new_tokens() as f64,
        took.as_nanos() as f64 / report.tokens as f64
    );
}

/// Reads rows back, and counts only the time that it takes to write them.
fn write_plainly(from: &Path, to: &Path) -> (Duration, f64, u64) {
    let file = std::fs::File::open(from).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let batches = reader.map(|batch| batch.unwrap());
    let (mut took, mut busy) = (Duration::ZERO, 0.0);
    let mut writer: Option<ArrowWriter<std::fs::File>> = None;
    for batch in batches {
        let batch: RecordBatch = batch;
        let (started, before) = (Instant::now(), processor_time());
        let writer = writer.get_or_insert_with(|| plain_writer(to, &batch));
        writer.write(&batch).unwrap();
        took += started.elapsed();
        busy += processor_time() - before;
    }
    let (started, before) = (Instant::now(), processor_time());
    let file = writer.unwrap().into_inner().unwrap();
    file.sync_all().unwrap();
    took += started.elapsed();
    busy += processor_time() - before;
    (took, busy, bytes(to))
}

fn plain_writer(to: &Path, batch: &RecordBatch) -> ArrowWriter<std::fs::File> {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(3).unwrap());
    // The settings of the export, so that both do the same work.
    let logprobs = ColumnPath::from(["logprobs", "list", "element"].map(str::to_owned).to_vec());
    let properties = WriterProperties::builder()
        .set_compression(zstd)
        .set_column_dictionary_enabled(logprobs.clone(), false)
        .set_column_encoding(logprobs, Encoding::BYTE_STREAM_SPLIT)
        .build();
    let file = std::fs::File::create(to).unwrap();
    ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap()
}

async fn record(folder: &Path, name: &str, episodes: usize, shape: Shape) -> PathBuf {
    let path = folder.join(format!("{name}-{episodes}.db"));
    if path.exists() {
        return path;
    }
    let (store, writer) = Store::open(&path, Durability::Process).await.unwrap();
    let lanes: Vec<_> = (0..AT_ONCE)
        .map(|lane| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in (lane..episodes).step_by(AT_ONCE) {
                    play(&store, number, shape).await;
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.unwrap();
    }
    drop(store);
    writer.finish().await;
    path
}

/// Records one episode.
async fn play(store: &Store, number: usize, shape: Shape) {
    let mut random = Random(number as u64 + 1);
    let episode: episode::EpisodeId = format!("e{number:06}").parse().unwrap();
    let tag = Tag {
        episode: episode.clone(),
        attempt: 0,
        group: Some(format!("g{}", number % 10).parse().unwrap()),
        task: None,
        labels: Vec::new(),
        source: TagSource::Path,
    };
    let mut at = 1_700_000_000_000_000 + number as i64 * 1_000_000;
    for agent in 0..shape.agents {
        let mut prompt = vec![agent as u32 + 1];
        let mut messages = Vec::new();
        for _ in 0..shape.turns {
            at += 1000;
            prompt.extend(random.tokens(shape.said));
            let said = words(&prompt[prompt.len() - shape.said..]);
            messages.push(json!({ "role": "user", "content": said }));
            let sampled = random.tokens(shape.sampled);
            let answer = words(&sampled);
            let begun = begun(tag.clone(), at, &messages);
            let ended = ended(&begun, &prompt, &sampled, &answer);
            messages.push(json!({ "role": "assistant", "content": answer }));
            prompt.extend(sampled);
            store.begin(begun).await.done().await.unwrap();
            store.end(ended).await.done().await.unwrap();
        }
    }
    let reward = Reward {
        scope: RewardScope::Episode,
        name: "reward".into(),
        value: Some((number % 2) as f64),
        source: "bench".into(),
        at,
        provenance: episode::Provenance::default(),
    };
    store.reward(AttemptId { episode, attempt: 0 }, reward).await.unwrap();
}

fn begun(tag: Tag, at: i64, messages: &[Value]) -> CallStart {
    CallStart {
        call_id: CallId(Uuid::now_v7()),
        tag,
        started_at: at,
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        route: Route::Chat,
        model: Some("m".into()),
        request: json!({ "model": "m", "messages": messages }).to_string().into(),
        sampling: Some(r#"{"temperature":1.0}"#.into()),
        lineage: Lineage {
            client: None,
            session: None,
            agent: None,
            parent: None,
            kind: CallKind::Main,
            retry: 0,
        },
    }
}

fn ended(begun: &CallStart, prompt: &[u32], sampled: &[u32], answer: &str) -> CallEnd {
    let message = json!({ "role": "assistant", "content": answer });
    let choice = json!({ "index": 0, "finish_reason": "stop", "message": message });
    let reply = json!({ "id": "c", "object": "chat.completion", "choices": [choice] });
    CallEnd {
        first_byte_at: Some(begun.started_at + 100),
        status: Some(200),
        reply: reply.to_string().into(),
        model: Some("m".into()),
        prompts: vec![prompt.to_vec()],
        choices: vec![Choice {
            index: 0,
            prompt_index: 0,
            token_ids: Some(sampled.to_vec()),
            logprobs: sampled.iter().map(|id| -((id * 7919 % 9973) as f32) / 3000.0).collect(),
            finish_reason: Some("stop".into()),
            stop_reason: None,
            versions: vec![VersionSpan {
                version: "7".into(),
                start: 0,
                end: sampled.len() as u32,
            }],
            fidelity: Fidelity::Exact,
            token_columns: Vec::new(),
        }],
        usage: TokenCounts {
            prompt: Some(prompt.len() as u64),
            completion: Some(sampled.len() as u64),
        },
        logprob_kind: "processed".into(),
        ..CallEnd::without_reply(begun.call_id, begun.started_at + 500, Outcome::Complete)
    }
}

/// Text of about four bytes a token.
fn words(tokens: &[u32]) -> String {
    let mut text = String::new();
    for token in tokens {
        let mut rest = *token;
        while rest > 0 {
            text.push(char::from(b'a' + (rest % 26) as u8));
            rest /= 26;
        }
        text.push(' ');
    }
    text
}

/// Token ids as skewed as those of a text.
struct Random(u64);

impl Random {
    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.token()).collect()
    }

    fn token(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let unit = (self.0 >> 40) as f64 / (1u64 << 24) as f64;
        (150_000f64.powf(unit)) as u32 + 5
    }
}

fn bytes(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// Seconds that this process has kept processors busy: what the export takes when others keep the
/// machine busy too.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

/// Lets the peak of memory begin anew.
fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}
