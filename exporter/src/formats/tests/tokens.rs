//! Tests of tokens: that the formats which cut rows into parts train what the contract trains, and
//! that what trainers replay stands where they look for it.

use arrow::array::{Array, AsArray};
use serde_json::{Value, json};

use super::*;
use crate::rows::token_data::{Experts, Ragged};

/// The first row is 1 2 [3] 6 [7 8]; the reply of its second turn is trained in its last token.
fn half_trained(row: &mut Row) {
    if row.tokens.input_ids == [1, 2, 3, 6, 7, 8] {
        row.tokens.loss_mask[4] = 0;
    }
}

/// One whose first and last turn are trained, and whose turns cannot be told in the messages.
fn in_parts(row: &mut Row) {
    if row.tokens.input_ids == [1, 2, 3, 6, 7, 8] {
        row.turns.remove(0);
        (row.turns[0].start, row.turns[0].end) = (2, 6);
        row.tokens.loss_mask = vec![0, 0, 1, 0, 1, 1];
        row.tokens.logprobs[3] = -9.0;
    }
}

/// Each trained token of the contract with its logprob and how many tokens stand before it.
fn contract(change: fn(&mut Row)) -> Vec<Value> {
    let mut found = Vec::new();
    for attempt in both() {
        for mut row in rows_of(&attempt) {
            change(&mut row);
            let tokens = row.tokens;
            let all = tokens.loss_mask.iter().enumerate().filter(|(_, mask)| **mask == 1);
            found.extend(all.map(|(at, _)| json!([at, tokens.input_ids[at], tokens.logprobs[at]])));
        }
    }
    sorted(found)
}

fn sorted(mut tokens: Vec<Value>) -> Vec<Value> {
    tokens.sort_by_key(Value::to_string);
    tokens
}

/// The same of parts of prompt, response, logprobs and mask (all ones where there is none).
fn trained(parts: &[[&Value; 4]]) -> Vec<Value> {
    let mut found = Vec::new();
    for [prompt, response, logprobs, mask] in parts {
        let before = prompt.as_array().unwrap().len();
        let response = response.as_array().unwrap();
        assert_eq!(response.len(), logprobs.as_array().unwrap().len());
        for (index, id) in response.iter().enumerate() {
            if mask.is_null() || mask[index] == 1 {
                found.push(json!([before + index, id, logprobs[index]]));
            }
        }
    }
    sorted(found)
}

fn changed(format: Format, change: fn(&mut Row)) -> Vec<Value> {
    let text = lines(format, &made(format, &both(), change).0);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn all<'a>(values: &'a [Value], of: &str) -> Vec<&'a Value> {
    values.iter().flat_map(|value| value.pointer(of).unwrap().as_array().unwrap()).collect()
}

#[test]
fn parts_of_rows_train_what_the_contract_trains() {
    for change in [|_: &mut Row| {}, half_trained, in_parts] {
        let expected = contract(change);
        let episodes = changed(Format::Rllm, change);
        let rows = all(&episodes, "/trajectories");
        let steps: Vec<&Value> = rows.iter().flat_map(|r| r["steps"].as_array().unwrap()).collect();
        let parts: Vec<_> = steps
            .iter()
            .map(|s| [&s["prompt_ids"], &s["response_ids"], &s["logprobs"], &Value::Null])
            .collect();
        assert_eq!(trained(&parts), expected, "rllm");

        let results = changed(Format::Verifiers, change);
        let steps = all(&results, "/trajectory");
        let tokens = steps.iter().map(|step| &step["tokens"]);
        let names = ["prompt_ids", "completion_ids", "completion_logprobs", "completion_mask"];
        let parts: Vec<_> = tokens.map(|t| names.map(|name| &t[name])).collect();
        assert_eq!(trained(&parts), expected, "verifiers");

        let items = changed(Format::NemoGym, change);
        let items = all(&items, "/response/output");
        let items = items.iter().filter(|item| !item["generation_token_ids"].is_null());
        let parts: Vec<_> = items
            .map(|i| {
                let names = ["prompt_token_ids", "generation_token_ids", "generation_log_probs"];
                let [prompt, ids, logprobs] = names.map(|name| &i[name]);
                [prompt, ids, logprobs, &Value::Null]
            })
            .collect();
        assert_eq!(trained(&parts), expected, "nemo-gym");

        let labels: Vec<_> = changed(Format::SftTokens, change)
            .iter()
            .flat_map(|row| {
                let at = |(at, id): (usize, &Value)| (*id != -100).then(|| json!([at, id]));
                row["labels"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .enumerate()
                    .filter_map(at)
                    .collect::<Vec<_>>()
            })
            .collect();
        let ids = expected.iter().map(|token| json!([token[0], token[1]])).collect();
        assert_eq!(sorted(labels), sorted(ids), "sft-tokens");
    }
}

#[test]
fn ids_stand_at_the_last_item_of_their_answer() {
    let rows = documents(Format::NemoGym, &both()[..1]);
    let output = rows[0]["response"]["output"].as_array().unwrap();
    let told: Vec<_> = output
        .iter()
        .map(|item| (item["type"].as_str().unwrap(), item["generation_token_ids"].clone()))
        .collect();
    let expected = [
        ("reasoning", Value::Null),
        ("function_call", json!([3])),
        ("function_call_output", Value::Null),
        ("message", json!([7, 8])),
    ];
    assert_eq!(told, expected);
    assert_eq!(output[3]["prompt_token_ids"], json!([1, 2, 3, 6]));
}

/// Experts of the first tokens, two layers of one expert each.
fn routed(known: usize) -> impl Fn(&mut Row) {
    move |row| {
        let tokens = row.tokens.input_ids.len();
        let values = (0..tokens * 2).map(|n| if n < known * 2 { n as u16 + 300 } else { 0 });
        let known = (0..tokens).map(|at| i8::from(at < known)).collect();
        let shape = vec![2, 1];
        row.token_data.experts = Some(Experts { shape, values: values.collect(), known });
    }
}

fn main_rows(format: Format, change: impl Fn(&mut Row)) -> Vec<Value> {
    let batch = made(format, &both()[..1], change).0;
    let text = lines(format, &batch);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).take(1).collect()
}

#[test]
fn experts_stand_where_trainers_replay_them_from() {
    let of = |format, name: &str, known| main_rows(format, routed(known))[0][name].clone();
    let five =
        json!([[[300], [301]], [[302], [303]], [[304], [305]], [[306], [307]], [[308], [309]]]);
    for (format, name) in
        [(Format::Verl, "routed_experts"), (Format::SkyRl, "rollout_expert_indices")]
    {
        assert_eq!(of(format, name, 5), five);
    }
    assert_eq!(of(Format::Slime, "rollout_routed_experts", 5), five);
    assert_eq!(of(Format::Slime, "rollout_routed_experts", 6), five, "the last one says nothing");
    let (batch, _) = made(Format::PrimeRl, &both()[..1], routed(5));
    let experts = batch.column_by_name("routed_experts").unwrap().as_struct();
    let bytes = experts.column_by_name("data").unwrap().as_binary::<i32>().value(0);
    let read: Vec<u16> =
        bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
    assert_eq!(read, [300, 301, 302, 303, 304, 305, 306, 307, 308, 309, 0, 0]);
    let info = &main_rows(Format::VerifiersTraces, routed(5))[0]["traces"][0]["info"];
    let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    let expected = json!({ "data": text, "dtype": "uint16", "shape": [6, 2, 1] });
    assert_eq!(info["routed_experts"], expected);
    let told = of(Format::PrimeRl, "routed_experts", 5);
    assert_eq!((&told["shape"], &told["dtype"]), (&json!([6, 2, 1]), &json!("uint16")));
}

#[test]
fn experts_that_lack_where_they_are_needed_are_none() {
    let columns = [
        (Format::Verl, "routed_experts"),
        (Format::SkyRl, "rollout_expert_indices"),
        (Format::Slime, "rollout_routed_experts"),
        (Format::PrimeRl, "routed_experts"),
    ];
    for (format, name) in columns {
        assert_eq!(main_rows(format, |_| {})[0][name], Value::Null, "{format:?}");
        assert_eq!(main_rows(format, routed(4))[0][name], Value::Null, "{format:?}");
        let flat = |row: &mut Row| {
            routed(5)(row);
            row.token_data.experts.as_mut().unwrap().shape = vec![2];
        };
        assert_eq!(main_rows(format, flat)[0][name], Value::Null, "{format:?}");
    }
    let (batch, _) = made(Format::PrimeRl, &both()[..1], |_| {});
    assert!(batch.column_by_name("routed_experts").unwrap().is_null(0));
}

#[test]
fn what_sampling_left_is_cut_at_the_tokens_of_the_response() {
    let kept = |row: &mut Row| {
        let lengths = row.tokens.loss_mask.iter().map(|m| usize::from(*m == 1) * 2).collect();
        let values = (10..10 + 2 * row.tokens.trained() as i32).collect();
        row.token_data.kept = Some(Ragged { lengths, values });
    };
    let row = &main_rows(Format::Slime, kept)[0];
    assert_eq!(row["rollout_top_p_token_ids"], json!([10, 11, 12, 13, 14, 15]));
    assert_eq!(row["rollout_top_p_token_offsets"], json!([0, 2, 2, 4, 6]));
    assert_eq!(row["response_length"], 4);
    assert_eq!(main_rows(Format::Slime, |_| {})[0]["rollout_top_p_token_ids"], Value::Null);
    let mask = |change: &dyn Fn(&mut Row)| {
        let rows = main_rows(Format::VerifiersTraces, change);
        rows[0]["traces"][0]["info"]["sampling_mask"].clone()
    };
    let expected = json!({ "ids": [10, 11, 12, 13, 14, 15], "counts": [0, 0, 2, 0, 2, 2] });
    assert_eq!(mask(&kept), expected);
    let half = |row: &mut Row| {
        kept(row);
        half_trained(row);
    };
    let expected = json!({ "ids": [10, 11, 14, 15], "counts": [0, 0, 2, 0, 0, 2] });
    assert_eq!(mask(&half), expected, "as in the mask of the trace");
    assert_eq!(mask(&|_| {}), Value::Null);

    // prime-rl's are of every token.
    let (batch, _) = made(Format::PrimeRl, &both()[..1], kept);
    let mask = batch.column_by_name("sampling_mask").unwrap().as_struct();
    let of = |name: &str| -> Vec<i32> {
        let bytes = mask.column_by_name(name).unwrap().as_binary::<i32>().value(0);
        bytes.chunks_exact(4).map(|four| i32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    assert_eq!(of("ids"), [10, 11, 12, 13, 14, 15]);
    let tokens = &main_rows(Format::PrimeRl, kept)[0]["mask"];
    let trained = tokens.as_array().unwrap().iter().map(|is| i32::from(is == true) * 2);
    assert_eq!(of("counts"), trained.collect::<Vec<_>>());
    let (none, _) = made(Format::PrimeRl, &both()[..1], |_| {});
    assert!(none.column_by_name("sampling_mask").unwrap().is_null(0));
}

#[test]
fn trl_takes_the_row_that_trains_most_and_counts_the_others() {
    let mut builder = record_builder(Format::Trl, 0.0);
    let place = AttemptNumbers::default();
    let all = rows_of(&both()[0]);
    let with = |trained: usize, id: &str| {
        let mut row = all[0].clone();
        let at = |at| i8::from(at < trained);
        row.tokens.loss_mask = (0..row.tokens.input_ids.len()).map(at).collect();
        row.trajectory_id = id.to_owned();
        row
    };
    let mut take = |trained, id| builder.add_row(with(trained, id), place);
    assert!(!take(0, "none"));
    for (trained, id) in [(2, "two"), (5, "five"), (5, "again"), (1, "one")] {
        take(trained, id);
    }
    builder.end_attempt();
    assert!(builder.add_row(with(1, "next"), place));
    builder.end_attempt();
    builder.end_file();
    let left = |count, trained_tokens| crate::Omission { count, trained_tokens };
    let expected =
        [("rows_that_train_less", left(3, 2 + 5 + 1)), ("rows_without_trained_tokens", left(1, 0))];
    assert_eq!(builder.omissions(), expected.into());
    let batch = builder.pending().take_batch().unwrap();
    let names = batch.column_by_name("trajectory_id").unwrap().as_string::<i32>();
    assert_eq!(names.iter().flatten().collect::<Vec<_>>(), ["five", "next"]);
}

#[test]
fn a_row_of_verl_has_the_key_and_the_extras_that_it_looks_for() {
    let mut attempts = both();
    for attempt in &mut attempts {
        attempt.record.group = Some("my_group".parse().unwrap());
    }
    let rows = documents(Format::Verl, &attempts);
    let key = |row: &Value| {
        let extra = &row["extra_fields"];
        (extra["uid"].clone(), extra["session_id"].clone(), extra["index"].clone())
    };
    let expected = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let expected = expected.map(|(s, i)| (json!("g/my%5Fgroup"), json!(s), json!(i)));
    assert_eq!(rows.iter().map(key).collect::<Vec<_>>(), expected);
    for row in &rows {
        let told = &row["extra_fields"]["reward_extra_info"];
        assert_eq!(told, &json!({ "score": row["reward_score"] }));
    }
}

#[test]
fn a_line_of_openai_knows_no_developer() {
    let told = |row: &mut Row| row.dialogue.prompt[0].role = "developer".to_owned();
    for (format, at) in
        [(Format::OpenAi, "/messages/0/role"), (Format::OpenAiPreference, "/input/messages/0/role")]
    {
        for line in lines(format, &made(format, &both(), told).0).lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line.pointer(at).unwrap(), "system", "{format:?}");
        }
    }
}
