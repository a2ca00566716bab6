//! Conservation: every token that `trajectories` trains is in each format once, with its id, its
//! logprob and what stood before it, or is counted under the reason why it is not.

use std::collections::{BTreeMap, BTreeSet};

use episode::Call;
use proptest::prelude::*;
use serde_json::Value;

use super::scores_of;
use crate::formats::records::record_builder;
use crate::graph::derive::derive;
use crate::graph::scan::RecordedAttempt;
use crate::input::plan::AttemptNumbers;
use crate::notes::{Omissions, add_omissions};
use crate::options::format::Format;
use crate::output::jsonl;
use crate::rows::builder::{RowExtras, rows};
use crate::rows::row::{Row, TurnRow};
use crate::tests::fixture::{episode, rows_of};
use crate::tests::properties::{Plan, distinct, plans};
use crate::weigh::{PathFilter, weigh};

/// A trained token: the ids before it, its own, and its logprob in bits.
type Token = (Vec<i64>, i64, u32);
/// A trained answer: the messages before it, and its text.
type Answer = (Vec<(String, String)>, String);

/// Two attempts of one group, whose answers are all different texts.
fn attempts(both: [&[Plan]; 2]) -> [RecordedAttempt; 2] {
    [0, 1].map(|attempt: u32| {
        let mut made = episode(distinct(both[attempt as usize], 1 + attempt * 1000));
        made.record.attempt = attempt;
        made.rewards = vec![episode::Reward {
            scope: episode::RewardScope::Episode,
            name: "reward".to_owned(),
            value: Some(f64::from(attempt)),
            source: "judge".to_owned(),
            at: 5,
            provenance: episode::Provenance::default(),
        }];
        made
    })
}

/// Makes a format of the attempts; returns what it leaves out, too.
fn made(format: Format, attempts: &[RecordedAttempt]) -> (Vec<Value>, Vec<Row>, Omissions) {
    let mut builder = record_builder(format, 0.5);
    let (mut left, mut taken) = (Omissions::new(), Vec::new());
    for (number, attempt) in attempts.iter().enumerate() {
        let derived = derive(&attempt.calls);
        let kinds = format.kinds().iter().copied().collect();
        let wanted = PathFilter { kinds, models: format.models().clone(), ..PathFilter::default() };
        let (shares, notes) = weigh(&derived, &wanted);
        add_omissions(&mut left, &notes.left_out);
        for mut row in rows(attempt, &derived, &shares, RowExtras::default()) {
            if format == Format::TrlDistillation {
                row.scores = vec![scores_of(&row)];
            }
            let place = AttemptNumbers {
                attempt: number as i64,
                repetition: number as i64,
                ..Default::default()
            };
            taken.push(row.clone());
            builder.add_row(row, place);
        }
        builder.end_attempt();
    }
    builder.end_file();
    add_omissions(&mut left, &builder.omissions());
    let mut text = Vec::new();
    jsonl::write(&builder.pending().take_batch().unwrap(), format.is_document(), &mut text)
        .unwrap();
    let lines = std::str::from_utf8(&text).unwrap().lines();
    (lines.map(|line| serde_json::from_str(line).unwrap()).collect(), taken, left)
}

/// The trained tokens of arrays of one length; `mask` and `logprobs` may lack the first ones.
fn masked(ids: &[&Value], mask: &Value, logprobs: &Value) -> Vec<Token> {
    let list = |value: &Value| value.as_array().unwrap().clone();
    let ids: Vec<i64> =
        ids.iter().flat_map(|ids| list(ids)).map(|id| id.as_i64().unwrap()).collect();
    let (mask, logprobs) = (list(mask), list(logprobs));
    assert_eq!(mask.len(), logprobs.len());
    let first = ids.len() - mask.len();
    let is_trained = |mask: &Value| *mask == true || mask.as_f64().is_some_and(|m| m > 0.0);
    let trained = (0..mask.len()).filter(|at| is_trained(&mask[*at]));
    let token = |at: usize| {
        let logprob = logprobs[at].as_f64().unwrap() as f32;
        (ids[..first + at].to_vec(), ids[first + at], logprob.to_bits())
    };
    trained.map(token).collect()
}

/// The tokens of a part that is trained as a whole.
fn whole(part: &Value, prompt: &str, said: &str, logprobs: &str) -> Vec<Token> {
    let all = vec![1; part[said].as_array().unwrap().len()];
    masked(&[&part[prompt], &part[said]], &Value::from(all), &part[logprobs])
}

/// The trained tokens of a chain of nodes, which have logprobs of these tokens alone.
fn of_nodes(trace: &Value) -> Vec<Token> {
    let all = |name: &str| -> Vec<Value> {
        let nodes = trace["nodes"].as_array().unwrap().iter();
        nodes.flat_map(|node| node[name].as_array().cloned().unwrap_or_default()).collect()
    };
    let mask = all("mask");
    let mut logprobs = all("logprobs").into_iter();
    let mut logprob =
        |mask: &Value| if *mask == true { logprobs.next().unwrap() } else { 0.into() };
    let aligned: Value = mask.iter().map(&mut logprob).collect();
    assert!(logprobs.next().is_none());
    masked(&[&all("token_ids").into()], &mask.into(), &aligned)
}

/// The trained tokens of a document; none where the format has no ids of what is trained.
fn tokens(format: Format, d: &Value) -> Option<Vec<Token>> {
    let of = |ids: &[&str], mask: &str, logprobs: &str| {
        let ids: Vec<&Value> = ids.iter().map(|name| &d[name]).collect();
        Some(masked(&ids, &d[mask], &d[logprobs]))
    };
    match format {
        Format::SftTokens => {
            let (ids, labels) = (d["input_ids"].as_array()?, d["labels"].as_array()?);
            let is_trained = labels.iter().map(|label| Value::from(*label != -100)).collect();
            assert!(ids.iter().zip(labels).all(|(id, label)| *label == -100 || id == label));
            // It has no logprobs: the fixture's stand for them.
            let logprobs = Value::from(vec![-0.5; ids.len()]);
            Some(masked(&[&d["input_ids"]], &is_trained, &logprobs))
        }
        Format::Rllm => {
            let trajectories = d["trajectories"].as_array()?.iter();
            let steps = trajectories.flat_map(|t| t["steps"].as_array().unwrap());
            Some(steps.flat_map(|s| whole(s, "prompt_ids", "response_ids", "logprobs")).collect())
        }
        Format::NemoGym => {
            let items = d["response"]["output"].as_array()?.iter();
            let trained = items.filter(|item| item.get("generation_token_ids").is_some());
            let names = ["prompt_token_ids", "generation_token_ids", "generation_log_probs"];
            Some(trained.flat_map(|item| whole(item, names[0], names[1], names[2])).collect())
        }
        Format::Verifiers => {
            let steps = d["trajectory"].as_array()?.iter().map(|step| &step["tokens"]);
            let known = steps.filter(|tokens| !tokens.is_null());
            let of = |t: &Value| {
                let ids = [&t["prompt_ids"], &t["completion_ids"]];
                masked(&ids, &t["completion_mask"], &t["completion_logprobs"])
            };
            Some(known.flat_map(of).collect())
        }
        Format::VerifiersTraces => {
            Some(d["traces"].as_array()?.iter().flat_map(of_nodes).collect())
        }
        Format::Trajectories | Format::AReaL => of(&["input_ids"], "loss_mask", "logprobs"),
        Format::Turns => of(&["prompt_ids", "completion_ids"], "loss_mask", "logprobs"),
        Format::Trl => of(&["prompt_ids", "completion_ids"], "env_mask", "logprobs"),
        Format::TrlDistillation => {
            // It has the logprobs of another model: the fixture's stand for them.
            let logprobs = Value::from(vec![-0.5; d["input_ids"].as_array()?.len()]);
            Some(masked(&[&d["input_ids"]], &d["completion_mask"], &logprobs))
        }
        Format::TrlAsync => of(&["input_ids"], "completion_mask", "old_log_probs"),
        Format::Verl => of(&["prompt_ids", "response_ids"], "response_mask", "response_logprobs"),
        Format::PrimeRl => of(&["token_ids"], "mask", "logprobs"),
        Format::SkyRl => {
            of(&["prompt_token_ids", "response_ids"], "loss_masks", "rollout_logprobs")
        }
        Format::Slime => of(&["tokens"], "loss_mask", "rollout_log_probs"),
        Format::Tinker => {
            let inputs = &d["loss_fn_inputs"];
            let first = Value::from(d["model_input"].as_array().unwrap()[..1].to_vec());
            let ids = [&first, &inputs["target_tokens"]];
            Some(masked(&ids, &inputs["weights"], &inputs["logprobs"]))
        }
        _ => None,
    }
}

fn message(value: &Value) -> (String, String) {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    (text("role"), text("content"))
}

/// The trained answers of a document, each with its ids where the format has them.
fn answers(format: Format, d: &Value) -> Vec<(Answer, Option<Vec<i64>>)> {
    let list = |name: &str| d[name].as_array().unwrap().clone();
    let told = |messages: &[Value], is_trained: &dyn Fn(usize) -> Option<Option<Vec<i64>>>| {
        let all: Vec<_> = messages.iter().map(|m| message(m.get("message").unwrap_or(m))).collect();
        let trained = (0..all.len()).filter_map(|at| Some((at, is_trained(at)?)));
        trained.map(|(at, ids)| ((all[..at].to_vec(), all[at].1.clone()), ids)).collect::<Vec<_>>()
    };
    match format {
        Format::Sft | Format::Kto => {
            let (given, said) = (list("prompt"), list("completion"));
            let all = [given.as_slice(), &said].concat();
            let is_one = |at: usize| at >= given.len() && all[at]["role"] == "assistant";
            told(&all, &|at| is_one(at).then_some(None))
        }
        Format::OpenAi => {
            let all = list("messages");
            assert_eq!(all.last().unwrap()["weight"], 1, "a line ends with what it trains");
            told(&all, &|at| (all[at]["weight"] == 1).then_some(None))
        }
        Format::Art => {
            let all = list("messages_and_choices");
            let id = |t: &Value| t["token"].as_str()?.strip_prefix("token_id:")?.parse().ok();
            let ids = |m: &Value| m["logprobs"]["content"].as_array()?.iter().map(id).collect();
            told(&all, &|at| all[at].get("logprobs").map(|_| ids(&all[at])))
        }
        _ => unreachable!("{format:?} has no answers"),
    }
}

/// Every trained answer of the rows: what it answered, its text, its ids and how many it trains.
fn expected_answers(
    rows: &[Row],
    attempts: &[RecordedAttempt],
) -> BTreeMap<String, (Answer, Vec<i64>, u64)> {
    let mut expected = BTreeMap::new();
    for row in rows {
        for turn in row.turns.iter().filter(|turn| row.trained_of(turn) > 0) {
            let calls: Vec<&Call> = attempts.iter().flat_map(|a| &a.calls).collect();
            let call = calls.iter().find(|c| c.begun.call_id.to_string() == turn.call_id).unwrap();
            let sent: Value = serde_json::from_slice(&call.begun.request.read()).unwrap();
            let heard = sent["messages"].as_array().unwrap().iter().map(message).collect();
            let reply: Value =
                serde_json::from_slice(&call.ended.as_ref().unwrap().reply.read()).unwrap();
            let text = message(&reply["choices"][turn.choice as usize]["message"]).1;
            let ids = &row.tokens.input_ids[turn.start as usize..turn.end as usize];
            let ids = ids.iter().map(|id| i64::from(*id)).collect();
            let found = ((heard, text.clone()), ids, row.trained_of(turn) as u64);
            assert!(expected.insert(text, found).is_none(), "an answer is trained twice");
        }
    }
    expected
}

/// The texts of answers of which no server reported ids: they train text and no token.
fn without_ids(attempts: &[RecordedAttempt]) -> BTreeSet<String> {
    let ended = attempts.iter().flat_map(|a| &a.calls).filter_map(|c| c.ended.as_ref());
    let silent = ended.filter(|e| e.choices.iter().all(|choice| choice.token_ids.is_none()));
    let replies = silent.map(|e| serde_json::from_slice::<Value>(&e.reply.read()).unwrap());
    let texts = |reply: Value| {
        let choices = reply["choices"].as_array().unwrap().clone();
        choices.into_iter().map(|choice| message(&choice["message"]).1)
    };
    replies.flat_map(texts).collect()
}

/// Formats whose records hold no trained tokens: `calls` is what was recorded, `mooncake` when.
fn has_no_loss(format: Format) -> bool {
    matches!(format, Format::Calls | Format::Mooncake)
}

fn is_of_pairs(format: Format) -> bool {
    matches!(format, Format::Preference | Format::OpenAiPreference)
}

/// The texts of the answers on either side of a pair that are turns of its row. The words before
/// its last call may quote answers whose tokens are in other rows.
fn sides(format: Format, d: &Value, turns: &[BTreeSet<String>]) -> BTreeSet<String> {
    let names = match format {
        Format::Preference => ["chosen", "rejected"],
        _ => ["preferred_output", "non_preferred_output"],
    };
    let side = |name: &str| {
        let messages = d[name].as_array().unwrap().iter().map(message);
        let said = messages.filter(|(role, _)| role == "assistant").map(|(_, text)| text);
        let said: Vec<String> = said.collect();
        let last = said.last().cloned().unwrap_or_default();
        let own: BTreeSet<&String> =
            turns.iter().filter(|turns| turns.contains(&last)).flatten().collect();
        said.iter().filter(|text| own.contains(text)).cloned().collect::<Vec<_>>()
    };
    names.into_iter().flat_map(side).collect()
}

/// The texts of the turns of each row.
fn turns_of(rows: &[Row], attempts: &[RecordedAttempt]) -> Vec<BTreeSet<String>> {
    let calls: BTreeMap<String, &Call> =
        attempts.iter().flat_map(|a| &a.calls).map(|c| (c.begun.call_id.to_string(), c)).collect();
    let text = |turn: &TurnRow| {
        let reply = &calls[&turn.call_id].ended.as_ref().unwrap().reply;
        let reply: Value = serde_json::from_slice(&reply.read()).unwrap();
        message(&reply["choices"][turn.choice as usize]["message"]).1
    };
    rows.iter().map(|row| row.turns.iter().map(text).collect()).collect()
}

/// The steps of ATIF: calls, and the ids that each of them sampled.
fn steps(d: &Value) -> Vec<(String, Vec<i64>)> {
    let steps = d["steps"].as_array().unwrap().iter().filter_map(|step| step.get("metrics"));
    let ids = |m: &Value| m["completion_token_ids"].as_array().cloned().unwrap_or_default();
    let ids = |m: &Value| ids(m).iter().map(|id| id.as_i64().unwrap()).collect();
    steps.map(|m| (m["extra"]["call_id"].as_str().unwrap().to_owned(), ids(m))).collect()
}

/// Wherever a document names a row and its weight, they are those of the contract.
fn check_weights(part: &Value, rows: &[Row]) {
    let named = part.get("trajectory_id").and_then(Value::as_str).zip(part.get("row_weight"));
    if let Some((id, weight)) = named {
        let row = rows.iter().find(|row| row.trajectory_id == id);
        assert_eq!(weight.as_f64(), row.map(|row| row.row_weight), "{id}");
    }
    let within = part.as_object().into_iter().flat_map(|map| map.values());
    within.for_each(|part| check_weights(part, rows));
}

fn check(format: Format, attempts: &[RecordedAttempt]) {
    let (documents, taken, left) = made(format, attempts);
    let all: Vec<Row> = attempts.iter().flat_map(rows_of).collect();
    let trained: u64 = all.iter().map(|row| row.tokens.trained() as u64).sum();
    let unsaid: u64 = left.values().map(|left| left.trained_tokens).sum();
    let name = format.as_str();

    if is_of_pairs(format) {
        // The history of a side may quote what another model said, whose row is none.
        let expected = expected_answers(&taken, attempts);
        let turns = turns_of(&taken, attempts);
        let told: BTreeSet<_> = documents.iter().flat_map(|d| sides(format, d, &turns)).collect();
        let told: u64 = told.iter().filter_map(|text| Some(expected.get(text)?.2)).sum();
        // An answer that the agent rewrote is told, though not in the letters of the model.
        assert!(told + unsaid <= trained, "{name}: {told} + {unsaid} of {trained}");
        assert!(!documents.is_empty() || unsaid == trained, "{name}: {unsaid} of {trained}");
        return;
    }
    let told = match documents.iter().map(|d| tokens(format, d)).collect::<Option<Vec<_>>>() {
        Some(found) => {
            let mut expected: Vec<Token> = Vec::new();
            for row in &all {
                let of = |values: &[i32]| Value::from(values.to_vec());
                let mask = Value::from(row.tokens.loss_mask.clone());
                let logprobs = Value::from(row.tokens.logprobs.clone());
                expected.extend(masked(&[&of(&row.tokens.input_ids)], &mask, &logprobs));
            }
            let told: Vec<Token> = found.into_iter().flatten().collect();
            for token in &told {
                let place = expected.iter().position(|other| other == token);
                expected.swap_remove(place.unwrap_or_else(|| panic!("{name}: {token:?}")));
            }
            told.len() as u64
        }
        None if format == Format::Atif => {
            let mut expected: BTreeMap<(String, Vec<i64>), Vec<u64>> = BTreeMap::new();
            for row in &taken {
                for turn in row.turns.iter().filter(|turn| row.trained_of(turn) > 0) {
                    let ids = &row.tokens.input_ids[turn.start as usize..turn.end as usize];
                    let step = (turn.call_id.clone(), ids.iter().map(|id| (*id).into()).collect());
                    expected.entry(step).or_default().push(row.trained_of(turn) as u64);
                }
            }
            let found = documents.iter().flat_map(steps);
            found.filter_map(|step| expected.get_mut(&step)?.pop()).sum()
        }
        None => {
            let mut expected = expected_answers(&all, attempts);
            let (mut told, mut without_ids) = (0, without_ids(attempts));
            for (answer, ids) in documents.iter().flat_map(|d| answers(format, d)) {
                let found = expected.remove(&answer.1);
                if found.is_none() && without_ids.remove(&answer.1) {
                    continue;
                }
                let (heard, known, tokens) = found.unwrap_or_else(|| panic!("{name}: {answer:?}"));
                assert_eq!(answer, heard, "{name}: another context");
                assert!(ids.is_none_or(|ids| ids == known), "{name}: other ids");
                told += tokens;
            }
            told
        }
    };
    assert_eq!(told + unsaid, trained, "{name}: {left:?}");
    documents.iter().for_each(|document| check_weights(document, &taken));
}

proptest! {
    // Each case makes two episodes in every format.
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_is_trained_is_in_every_format_once_or_counted(one in plans(), other in plans()) {
        let attempts = attempts([&one, &other]);
        for format in Format::ALL.into_iter().filter(|format| !has_no_loss(*format)) {
            check(format, &attempts);
        }
    }
}
