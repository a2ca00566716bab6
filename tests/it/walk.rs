//! The whole path on real parts: engine, proxy, store, exporter.

use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Float64Type, Int8Type, Int32Type};
use episode::{Call, Outcome};
use exporter::Options;
use kit::{World, post, start_engine};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

fn request(messages: &[Value], seed: u64, extra: Value) -> Value {
    let tool = json!({ "type": "function", "function": { "name": "guess", "parameters": {
        "type": "object", "properties": { "n": { "type": "integer" } } } } });
    let mut body = json!({ "model": "tiny", "messages": messages, "tools": [tool], "seed": seed,
        "max_tokens": 24 });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn opening() -> Vec<Value> {
    let prompt = "Find the secret number from 1 to 7. You have 3 guesses.";
    vec![json!({ "role": "user", "content": prompt })]
}

/// Two turns of a game, streamed or not; the answer to the first is always "higher".
async fn play(world: &World, episode: &str, stream: bool) {
    let path = format!("/e/{episode}/v1/chat/completions");
    let mut messages = opening();
    for seed in [1, 2] {
        let body = request(&messages, seed, json!({ "stream": stream }));
        let reply = post(world.data, &path, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(!reply.text().contains("\"logprob\""), "{}", reply.text());
        let answer = wire::answers(episode::Route::Chat, &reply.body).remove(0).message;
        let id = answer["tool_calls"][0]["id"].clone();
        messages.push(answer);
        messages.push(json!({ "role": "tool", "tool_call_id": id, "content": "higher" }));
    }
}

/// All columns of an export with numbers for trainers.
struct Rows(RecordBatch);

impl Rows {
    fn read(folder: &Path) -> Self {
        let file = std::fs::File::open(folder.join("trajectories.parquet")).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        let batches: Vec<_> = reader.map(|batch| batch.unwrap()).collect();
        Self(arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap())
    }

    fn list<T: arrow::datatypes::ArrowPrimitiveType>(
        &self,
        name: &str,
        row: usize,
    ) -> Vec<T::Native> {
        let lists = self.0.column_by_name(name).unwrap().as_list::<i32>();
        lists.value(row).as_primitive::<T>().values().to_vec()
    }

    fn text(&self, name: &str, row: usize) -> String {
        self.0.column_by_name(name).unwrap().as_string::<i32>().value(row).to_owned()
    }
}

fn ids(call: &Call) -> Vec<i32> {
    let ended = call.ended.as_ref().unwrap();
    let sampled = ended.choices[0].token_ids.as_ref().unwrap();
    [&ended.prompts[0][..], sampled].concat().into_iter().map(|id| id as i32).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_game_through_the_proxy_comes_out_as_exact_rows() {
    let world = World::start(start_engine().await).await;
    play(&world, "plain", false).await;
    play(&world, "streamed", true).await;
    post(world.control, "/episodes/plain/rewards", r#"{"value":0.5}"#).await;

    let recorded = world.recorded().await;
    assert_eq!(recorded.len(), 2);
    let (one, two) = (&recorded[0].1, &recorded[1].1);
    for (call, twin) in one.iter().zip(two) {
        let ended = call.ended.as_ref().unwrap();
        assert_eq!(ended.outcome, Outcome::Complete);
        assert_eq!(ended.usage.completion, Some(ended.choices[0].logprobs.len() as u64));
        assert_eq!(ids(call), ids(twin), "a stream samples what a document does");
    }

    let out = tempfile::tempdir().unwrap();
    let options = Options { out: out.path().to_owned().into(), ..Options::default() };
    let report = exporter::export(world.snapshot().await, &options).await.unwrap();
    assert_eq!((report.rows, report.episodes), (2, 2), "a game is one trajectory");
    let rows = Rows::read(out.path());
    for (row, calls) in [one, two].into_iter().enumerate() {
        assert_eq!(rows.list::<Int32Type>("input_ids", row), ids(calls.last().unwrap()));
        assert_eq!(rows.text("verdict", row), "exact");
        let mask = rows.list::<Int8Type>("loss_mask", row);
        let logprobs = rows.list::<Float32Type>("logprobs", row);
        let trained = mask.iter().zip(&logprobs).filter(|(mask, _)| **mask == 1);
        let exported: Vec<u32> = trained.map(|(_, logprob)| logprob.to_bits()).collect();
        let reported = calls.iter().flat_map(|c| &c.ended.as_ref().unwrap().choices[0].logprobs);
        assert_eq!(exported, reported.map(|logprob| logprob.to_bits()).collect::<Vec<_>>());
    }
    let rewards = rows.0.column_by_name("reward").unwrap().as_primitive::<Float64Type>();
    assert!(rewards.value(0) == 0.5 && rewards.is_null(1));
    world.stop().await;
}

/// A reply without its ids and its time, which differ from run to run.
fn steady(reply: &str) -> String {
    let without = |text: &str, mark: &str, until: char| {
        let mut pieces = text.split(mark);
        let first = pieces.next().unwrap_or_default().to_owned();
        let cut = |piece: &str| piece.find(until).map_or("", |at| &piece[at..]).to_owned();
        pieces.fold(first, |joined, piece| joined + mark + &cut(piece))
    };
    without(&without(reply, "\"id\":\"", '"'), "\"created\":", ',')
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_direct_and_through_the_proxy_say_the_same() {
    let engine = start_engine().await;
    let world = World::start(engine).await;

    let asks = json!({ "logprobs": true, "top_logprobs": 2, "return_token_ids": true });
    let extras = [
        json!({}),
        asks.clone(),
        json!({ "logprobs": true }),
        json!({ "return_token_ids": true }),
        json!({ "n": 2 }),
        json!({ "stop": ["}}"] }),
        json!({ "temperature": -1 }),
        json!({ "model": "other" }),
    ];

    for stream in [false, true] {
        for extra in &extras {
            let mut body = request(&opening(), 7, extra.clone());
            body["stream"] = json!(stream);
            let body = body.to_string();
            let direct = post(engine, "/v1/chat/completions", &body).await;
            let through = post(world.data, "/e/a/v1/chat/completions", &body).await;
            assert_eq!(through.status, direct.status);
            assert_eq!(steady(&through.text()), steady(&direct.text()), "{body}");
        }
    }
    world.stop().await;
}
