//! Tests of formats: what each of them writes of two attempts at one task, and in which encodings.
//!
//! The expected lines are in `expected/`; `UPDATE_EXPECTED=1` writes them anew.

use std::path::Path;

use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use arrow::array::RecordBatch;
use arrow::ipc::reader::StreamReader;
use bytes::Bytes;
use episode::Call;
use serde_json::{Value, json};

use super::records::record_builder;
use crate::graph::scan::RecordedAttempt;
use crate::input::plan::AttemptNumbers;
use crate::notes::reason::Reason;
use crate::options::encoding::Encoding;
use crate::options::format::Format;
use crate::output::encode::Encoder;
use crate::output::jsonl;
use crate::rows::row::Row;
use crate::rows::scores::{RowScores, TopScores};
use crate::tests::fixture::{call, episode, reply, rows_of, text_call, with_bodies};

mod conservation;
mod conversations;
mod fields;
mod scored;
mod tokens;

/// An attempt whose first call has two choices and calls a tool, and whose second one answers.
fn attempt(number: u32, reward: Option<f64>, answer: &str) -> RecordedAttempt {
    let system = json!({ "role": "system", "content": "be brief" });
    let user = json!({ "role": "user", "content": "add 1 and 1" });
    let arguments = json!({ "name": "add", "arguments": "{\"a\": 1, \"b\": 1}" });
    let said = json!({ "role": "assistant", "content": null, "reasoning_content": "sum",
        "tool_calls": [{ "id": "c1", "type": "function", "function": arguments }] });
    let told = json!({ "role": "tool", "content": "2", "tool_call_id": "c1" });
    let asked = [system, user];
    let mut first = with_bodies(call(1, &[1, 2], &[&[3], &[4, 5]]), &asked, "");
    let other = json!({ "role": "assistant", "content": "three" });
    let choices = json!([{ "index": 0, "message": said }, { "index": 1, "message": other }]);
    reply(&mut first).reply = json!({ "choices": choices }).to_string().into();
    reply(&mut first).choices[0].finish_reason = Some("tool_calls".to_owned());
    let history = [asked.to_vec(), vec![said, told]].concat();
    let mut second = with_bodies(call(2, &[1, 2, 3, 6], &[&[7, 8]]), &history, answer);
    second.begun.sampling = Some(r#"{"temperature":0.5}"#.to_owned());
    let mut found = episode(vec![first, second]);
    found.record.attempt = number;
    for call in &mut found.calls {
        call.begun.call_id = episode::CallId(uuid::Uuid::from_u128(
            call.begun.call_id.0.as_u128() + u128::from(number) * 10,
        ));
        reply(call).call_id = call.begun.call_id;
    }
    let value = |value| episode::Reward {
        scope: episode::RewardScope::Episode,
        name: "reward".to_owned(),
        value: Some(value),
        source: "judge".to_owned(),
        at: 5,
        provenance: episode::Provenance::default(),
    };
    found.rewards = reward.map(value).into_iter().collect();
    found
}

fn both() -> [RecordedAttempt; 2] {
    [attempt(0, Some(1.0), "two"), attempt(1, Some(0.25), "2!")]
}

/// Scores of a row under a model, with the two likeliest ids of each token.
fn scores_of(row: &Row) -> RowScores {
    let ids = &row.tokens.input_ids;
    let at = |place: usize| match place {
        0 => ([-1; 3], [f32::NEG_INFINITY; 3]),
        // The token itself is the second, or not among them.
        1 => ([9, ids[1], -1], [-0.25, -1.5, f32::NEG_INFINITY]),
        _ => ([8, 9, ids[place]], [-0.25, -2.5, -3.5]),
    };
    let places = 0..ids.len();
    let of_ids = places.clone().flat_map(|place| at(place).0).collect();
    let logprobs = places.clone().flat_map(|place| at(place).1).collect();
    RowScores {
        name: "big".to_owned(),
        logprobs: places.map(|place| [0.0, -1.5].get(place).copied().unwrap_or(-3.5)).collect(),
        top: Some(TopScores { width: 3, ids: of_ids, logprobs }),
    }
}

/// The batch that a format makes of these attempts, and what it leaves out.
fn made(
    format: Format,
    attempts: &[RecordedAttempt],
    change: impl Fn(&mut Row),
) -> (RecordBatch, u64) {
    let mut builder = record_builder(format, 0.5);
    let mut refused = 0;
    for (number, attempt) in attempts.iter().enumerate() {
        let place =
            AttemptNumbers { group: 4, attempt: number as i64, repetition: number as i64, set: 0 };
        attempt.calls.iter().for_each(|call| builder.add_call(&attempt.record, call));
        let kinds = format.kinds();
        for mut row in crate::tests::fixture::chosen(attempt, kinds, crate::SharedTokens::Once) {
            if format == Format::TrlDistillation {
                row.scores = vec![scores_of(&row)];
            }
            change(&mut row);
            refused += u64::from(!builder.add_row(row, place));
        }
        builder.end_attempt();
    }
    builder.end_file();
    if format.is_of_groups() {
        let left = builder.omissions();
        let unpaired = left.iter().filter(|(why, _)| **why != "turns_in_no_pair");
        refused += unpaired.map(|(_, left)| left.count).sum::<u64>();
    }
    (builder.pending().take_batch().unwrap(), refused)
}

fn lines(format: Format, batch: &RecordBatch) -> String {
    let mut out = Vec::new();
    jsonl::write(batch, format.is_document(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn documents(format: Format, attempts: &[RecordedAttempt]) -> Vec<Value> {
    let text = lines(format, &made(format, attempts, |_| {}).0);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_format_writes_what_is_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/formats/expected");
    // What is in the contract is tested where its columns are.
    for format in Format::ALL.into_iter().filter(|f| *f != Format::Trajectories) {
        let (batch, _) = made(format, &both(), |row| row.advantage = Some(0.5));
        let found = lines(format, &batch);
        let path = folder.join(format!("{}.jsonl", format.as_str()));
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert_eq!(found, expected, "{}", path.display());
    }
}

#[test]
fn a_format_says_the_same_in_every_encoding() {
    for format in Format::ALL {
        let (batch, _) = made(format, &both(), |_| {});
        let expected = lines(format, &batch);
        assert!(!expected.is_empty(), "{format:?} makes nothing");
        for encoding in Encoding::ALL {
            let mut encoder = Encoder::new(encoding, format, &batch.schema(), &[]).unwrap();
            encoder.write(&batch, 1).unwrap();
            let mut bytes = encoder.take();
            bytes.extend(encoder.finish().unwrap());
            let read: String = match encoding {
                Encoding::Jsonl => String::from_utf8(bytes).unwrap(),
                Encoding::Arrow => StreamReader::try_new(bytes.as_slice(), None)
                    .unwrap()
                    .map(|batch| lines(format, &batch.unwrap()))
                    .collect(),
                Encoding::Parquet => ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes))
                    .unwrap()
                    .build()
                    .unwrap()
                    .map(|batch| lines(format, &batch.unwrap()))
                    .collect(),
            };
            assert_eq!(read, expected, "{format:?} as {encoding:?}");
        }
    }
}

#[test]
fn a_word_is_one_format() {
    for format in Format::ALL {
        assert_eq!(Format::from_word(format.as_str()), Some(format));
    }
    assert_eq!(Format::from_word("parquet"), None);
}

#[test]
fn the_user_page_tells_of_every_format_and_column() {
    let page = include_str!("../../../docs/formats.md");
    for format in Format::ALL {
        let line = format!("| `{}` | {} |", format.as_str(), format.doc());
        assert!(page.contains(&line), "docs/formats.md lacks the line\n{line}");
        if format == Format::Trajectories {
            continue;
        }
        let (batch, _) = made(format, &both(), |_| {});
        for field in batch.schema().fields() {
            assert!(page.contains(&format!("`{}`", field.name())), "{format:?}: {}", field.name());
        }
    }
}

#[test]
fn what_a_trainer_cannot_take_is_left_out_and_counted() {
    let silent = || [attempt(0, None, "two")];
    let unscored = [Format::Kto, Format::SkyRl, Format::Slime, Format::AReaL, Format::Art];
    for format in [&unscored[..], &[Format::Rllm, Format::NemoGym, Format::Verifiers]].concat() {
        let (batch, refused) = made(format, &silent(), |_| {});
        assert_eq!((batch.num_rows(), refused > 0), (0, true), "{format:?}");
    }
    for format in [Format::Sft, Format::SftTokens, Format::Verl, Format::OpenAi] {
        assert!(made(format, &silent(), |_| {}).0.num_rows() > 0, "{format:?}");
    }
    let user = json!({ "role": "user", "content": "hi" });
    let words = [episode(vec![text_call(1, &[user], "yo")])];
    for format in [Format::Trl, Format::Verl, Format::PrimeRl, Format::Tinker, Format::SftTokens] {
        let (batch, refused) = made(format, &words, |_| {});
        assert_eq!((batch.num_rows(), refused), (0, 1), "{format:?}");
    }
    assert_eq!(made(Format::Sft, &words, |_| {}).0.num_rows(), 1);
}

#[test]
fn arrays_of_a_sample_have_the_lengths_that_trainers_check() {
    let length = |value: &Value| value.as_array().unwrap().len();
    let alike = |row: &Value, names: &[&str]| {
        let found: Vec<usize> = names.iter().map(|name| length(&row[name])).collect();
        assert!(found.iter().all(|n| *n == found[0]), "{names:?} {found:?}");
        found[0]
    };
    for row in documents(Format::Trl, &both()) {
        alike(&row, &["completion_ids", "logprobs", "env_mask"]);
    }
    for row in documents(Format::Verl, &both()) {
        alike(&row, &["response_ids", "response_mask", "response_logprobs"]);
    }
    for row in documents(Format::PrimeRl, &both()) {
        alike(&row, &["token_ids", "mask", "logprobs", "temperatures"]);
    }
    for row in documents(Format::SkyRl, &both()) {
        alike(&row, &["response_ids", "loss_masks", "rollout_logprobs"]);
    }
    for row in documents(Format::AReaL, &both()) {
        alike(&row, &["input_ids", "loss_mask", "logprobs", "versions", "attention_mask"]);
    }
    for row in documents(Format::Slime, &both()) {
        let response = alike(&row, &["loss_mask", "rollout_log_probs"]);
        assert_eq!(row["response_length"], response);
    }
    for row in documents(Format::Tinker, &both()) {
        let inputs = length(&row["model_input"]);
        let targets = alike(&row["loss_fn_inputs"], &["target_tokens", "logprobs", "weights"]);
        assert_eq!(inputs, targets);
    }
}

#[test]
fn rows_of_one_attempt_say_which_is_the_last() {
    let rows = documents(Format::SkyRl, &both());
    let told: Vec<_> = rows
        .iter()
        .map(|r| (r["trajectory_ids"]["repetition_id"].as_i64(), r["is_last_step"].as_bool()))
        .collect();
    let expected = [(0, false), (0, true), (1, false), (1, true)];
    assert_eq!(told, expected.map(|(repetition, last)| (Some(repetition), Some(last))));
}

#[test]
fn a_group_and_an_episode_of_one_name_are_not_compared() {
    let mut both = both();
    both[0].record.group = Some("same".parse().unwrap());
    both[1].record.group = None;
    both[1].record.id = "same".parse().unwrap();
    let told = |format, of: fn(&Value) -> &Value| {
        documents(format, &both).iter().map(|r| of(r).clone()).collect::<Vec<_>>()
    };
    let expected = ["g/same", "g/same", "e/same", "e/same"];
    assert_eq!(told(Format::Verl, |r| &r["extra_fields"]["uid"]), expected);
    assert_eq!(told(Format::SkyRl, |r| &r["trajectory_ids"]["instance_id"]), expected);
}

#[test]
fn a_choice_that_stands_in_several_rows_is_one_turn() {
    let turns = documents(Format::Turns, &[attempt(0, None, "two")]);
    let ids: Vec<_> = turns.iter().map(|t| t["completion_ids"].clone()).collect();
    assert_eq!(ids, [json!([3]), json!([7, 8]), json!([4, 5])]);
    assert_eq!(turns[1]["prompt_ids"], json!([1, 2, 3, 6]));
    let mut forked = attempt(0, None, "two").calls;
    let mut third: Call = call(3, &[1, 2, 3, 9], &[&[5]]);
    third.begun.request = forked[1].begun.request.clone();
    forked.push(third);
    let rows = rows_of(&episode(forked.clone()));
    let held = rows.iter().filter(|r| r.tokens.input_ids.starts_with(&[1, 2, 3])).count();
    assert_eq!(held, 2, "the first turn stands in two rows");
    assert_eq!(documents(Format::Turns, &[episode(forked)]).len(), 4);
}

#[test]
fn the_better_attempt_and_the_answer_gone_on_with_are_chosen() {
    let pairs = documents(Format::Preference, &both());
    let said = |pair: &Value, side: &str| {
        let messages = pair[side].as_array().unwrap();
        messages.last().unwrap()["content"].clone()
    };
    let choices: Vec<_> = pairs.iter().filter(|p| p["source"] == "choices").collect();
    assert_eq!(choices.len(), 2);
    assert_eq!(choices[0]["chosen"][0]["tool_calls"][0]["function"]["name"], "add");
    assert_eq!(said(choices[0], "rejected"), "three");
    assert_eq!(choices[0]["prompt"].as_array().unwrap().len(), 2);
    let groups: Vec<_> = pairs.iter().filter(|p| p["source"] == "group").collect();
    assert_eq!(groups.len(), 1);
    assert_eq!(
        (said(groups[0], "chosen"), said(groups[0], "rejected")),
        (json!("two"), json!("2!"))
    );
    assert_eq!(
        (&groups[0]["score_chosen"], &groups[0]["score_rejected"]),
        (&json!(1.0), &json!(0.25))
    );
    let alike = [attempt(0, Some(1.0), "two"), attempt(1, Some(1.0), "2!")];
    let (batch, refused) = made(Format::Preference, &alike, |_| {});
    assert_eq!((batch.num_rows(), refused), (2, 1), "rewards that are alike choose nothing");
    let alike = [attempt(0, Some(1.0), "two"), attempt(1, Some(0.25), "two")];
    let (batch, refused) = made(Format::Preference, &alike, |_| {});
    assert_eq!((batch.num_rows(), refused), (2, 1), "of equal answers none is better");
}

/// The pairs of one attempt as `change` leaves its rows.
fn pairs(change: impl Fn(&mut Row)) -> Vec<Value> {
    let (batch, _) = made(Format::Preference, &[attempt(0, None, "two")], change);
    let text = lines(Format::Preference, &batch);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_reward_of_a_call_outweighs_what_the_agent_went_on_with() {
    let pair = &pairs(|row| {
        let is_sibling = row.kind == "sibling";
        row.turns[0].reward = Some(if is_sibling { 1.0 } else { 0.0 });
        if is_sibling {
            row.turns[0].call_id = "another try".to_owned();
        }
    })[0];
    assert_eq!(
        (&pair["chosen"][0]["content"], &pair["score_chosen"]),
        (&json!("three"), &json!(1.0))
    );
    assert_eq!(pair["chosen_trajectory_id"], "e/0/1");
}

#[test]
fn the_reward_of_a_call_does_not_tell_its_choices_apart() {
    let pairs = pairs(|row| row.turns[0].reward = Some(1.0));
    assert_eq!(pairs.len(), 1);
    assert_eq!(pairs[0]["rejected"][0]["content"], "three");
    assert_eq!(
        (&pairs[0]["score_chosen"], &pairs[0]["score_rejected"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn a_trainer_of_ratios_gets_no_row_whose_logprobs_are_not_known() {
    use Format::TrlDistillation;
    use Format::{AReaL, Art, NemoGym, PrimeRl, Rllm, SkyRl, Slime, Tinker, Trl, TrlAsync, Verl};
    let of_ratios = [
        TrlDistillation,
        Trl,
        TrlAsync,
        Verl,
        PrimeRl,
        SkyRl,
        Slime,
        AReaL,
        Tinker,
        Rllm,
        NemoGym,
        Art,
    ];
    for format in Format::ALL {
        let retokenized = |row: &mut Row| {
            row.reasons.insert(Reason::Retokenized);
        };
        let found = made(format, &both(), retokenized).0.num_rows();
        let plain = made(format, &both(), |_| ()).0.num_rows();
        let expected = if of_ratios.contains(&format) { 0 } else { plain };
        assert_eq!(found, expected, "{}", format.as_str());
    }
}
