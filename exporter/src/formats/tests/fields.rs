//! Tests of fields that are not tokens: rewards, states, and what a schema allows.

use std::collections::BTreeSet;

use super::*;
use crate::rows::annotations::TokenStream;
use crate::rows::token_data::Ragged;

/// The documents of one attempt whose rows are changed.
fn changed(format: Format, change: impl Fn(&mut Row)) -> Vec<Value> {
    let text = lines(format, &made(format, &[attempt(0, Some(1.0), "two")], change).0);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_row_has_the_reward_of_its_path() {
    let own = |row: &mut Row| {
        row.reward = None;
        row.trajectory_reward = Some(if row.kind == "main" { 2.0 } else { -2.0 });
    };
    let of = |format: Format| -> Vec<f64> {
        let found = changed(format, own);
        let rewards: Vec<Value> = match format {
            Format::Rllm => found[0]["trajectories"].as_array().unwrap().clone(),
            _ => found,
        };
        let number = |d: &Value| {
            let keys = ["reward", "rewards", "reward_score", "metrics"];
            let value = keys.iter().find_map(|key| d.get(*key)).unwrap();
            value.as_f64().or_else(|| value["reward"].as_f64()).unwrap()
        };
        rewards.iter().map(number).collect()
    };
    use Format::{AReaL, Art, Rllm, SkyRl, Slime, Tinker, TrlAsync, Verl};
    for format in [AReaL, Art, Rllm, SkyRl, Slime, Tinker, TrlAsync, Verl] {
        assert_eq!(of(format), [2.0, -2.0], "{format:?}");
    }
}

#[test]
fn a_path_that_could_not_be_scored_has_no_reward() {
    let scored = |value: Option<f64>| {
        let mut made = attempt(0, Some(1.0), "two");
        let call = made.calls[1].begun.call_id;
        let scope = episode::RewardScope::Trajectory { call, choice: 0 };
        made.rewards.push(episode::Reward { scope, value, ..made.rewards[0].clone() });
        rows_of(&made)[0].score()
    };
    assert_eq!(scored(Some(0.5)), Some(0.5));
    assert_eq!(scored(None), None, "the episode's reward is not the path's");
}

#[test]
fn rewards_of_calls_and_tokens_reach_those_who_have_a_place() {
    let scored = |row: &mut Row| {
        row.reward = None;
        row.turns[0].reward = Some(0.5);
        let mut rewards = vec![None; row.tokens.input_ids.len()];
        rewards[2] = Some(0.5);
        row.token_rewards = Some(rewards);
    };
    let skyrl = changed(Format::SkyRl, scored);
    assert_eq!(skyrl[0]["rewards"], 0.5, "their sum");
    assert_eq!(skyrl[0]["token_rewards"], json!([0.5, 0.0, 0.0, 0.0]));
    let both = changed(Format::SkyRl, |row| {
        scored(row);
        row.reward = Some(1.0);
    });
    assert_eq!(both[0]["token_rewards"], json!([0.5, 0.0, 0.0, 1.0]));
    assert_eq!(changed(Format::SkyRl, |_| {})[0]["token_rewards"], Value::Null);
    assert_eq!(changed(Format::Verl, scored)[0]["extra_fields"]["turn_scores"], json!([0.5]));
    assert_eq!(changed(Format::Rllm, scored)[0]["trajectories"][0]["steps"][0]["reward"], 0.5);
}

#[test]
fn ids_that_sampling_kept_are_rows_of_one_length() {
    let kept = |lengths: &'static [usize]| {
        move |row: &mut Row| {
            let most = lengths.iter().sum::<usize>() as i32;
            let lengths = lengths.iter().copied().chain([0; 9]).take(row.tokens.input_ids.len());
            let values = (0..most).collect();
            row.token_data.kept = Some(Ragged { lengths: lengths.collect(), values });
        }
    };
    // The first two tokens are the prompt.
    let rows =
        changed(Format::SkyRl, kept(&[0, 0, 2, 0, 1, 2]))[0]["rollout_sample_support"].take();
    assert_eq!(rows, json!([[0, 1], [-1, -1], [2, -1], [3, 4]]));
    let wide = changed(Format::SkyRl, kept(&[0, 0, 1025]))[0]["rollout_sample_support"].take();
    assert_eq!(wide, Value::Null);
    assert_eq!(changed(Format::SkyRl, |_| {})[0]["rollout_sample_support"], Value::Null);
}

#[test]
fn nemo_gym_masks_what_the_policy_did_not_fail() {
    let of = |change: fn(&mut Row)| {
        let found = changed(Format::NemoGym, change).swap_remove(0);
        (found["mask_sample"].clone(), found["failure_kind"].clone())
    };
    assert_eq!(of(|_| {}), (json!(false), Value::Null));
    assert_eq!(of(|row| row.status = "failed".to_owned()), (json!(false), Value::Null));
    let lost = of(|row| row.status = "infrastructure_failed".to_owned());
    assert_eq!(lost, (json!(true), json!("rolltape:infrastructure_failed")));
    let aborted = |row: &mut Row| {
        row.turns.last_mut().unwrap().finish_reason = Some("abort".to_owned());
    };
    assert_eq!(of(aborted), (json!(true), json!("rolltape:aborted")));
}

#[test]
fn a_trace_is_a_chain_of_nodes_with_all_tokens() {
    let lost = |row: &mut Row| {
        row.status = "infrastructure_failed".to_owned();
        row.dialogue.prompt[0].role = "developer".to_owned();
        row.advantage = Some(0.25);
    };
    let episode = changed(Format::VerifiersTraces, lost).swap_remove(0);
    assert_eq!(
        (&episode["ok"], &episode["errors"][0]["type"]),
        (&json!(false), &json!("infrastructure_failed"))
    );
    let trace = &episode["traces"][0];
    let nodes = trace["nodes"].as_array().unwrap();
    let of = |name: &str| nodes.iter().map(|node| node[name].clone()).collect::<Value>();
    assert_eq!(of("parent"), json!([null, 0, 1, 2, 3]));
    assert_eq!(of("sampled"), json!([false, false, true, false, true]));
    assert_eq!(of("token_ids"), json!([[], [], [1, 2, 3], [], [6, 7, 8]]));
    assert_eq!(of("logprobs"), json!([[], [], [-0.5], [], [-0.5, -0.5]]));
    assert_eq!(nodes[4]["advantages"], json!([0.25, 0.25]));
    assert_eq!(nodes[0]["message"]["role"], "system");
    let called = &nodes[2]["message"]["tool_calls"][0];
    assert_eq!(
        (&called["name"], &called["arguments"]),
        (&json!("add"), &json!(r#"{"a":1,"b":1}"#))
    );
    assert_eq!(
        (&trace["calls"][1]["node"], &trace["calls"][1]["finish_reason"]),
        (&json!(4), &json!("stop"))
    );
    assert_eq!(episode["traces"].as_array().unwrap().len(), 2, "a path of its own");
    let other = &episode["traces"][1]["info"];
    assert_eq!(
        (&other["parent_trajectory_id"], &trace["info"]["parent_trajectory_id"]),
        (&trace["id"], &Value::Null)
    );
    // Without a message there is a node for the tokens all the same; made ids are in none.
    let silent = |row: &mut Row| row.turns.iter_mut().for_each(|turn| turn.message = None);
    let nodes = &changed(Format::VerifiersTraces, silent)[0]["traces"][0]["nodes"];
    assert_eq!(nodes[5]["token_ids"], json!([1, 2, 3, 6, 7, 8]));
    let made = |row: &mut Row| row.reasons.extend([Reason::Retokenized]);
    let nodes = &changed(Format::VerifiersTraces, made)[0]["traces"][0]["nodes"];
    assert_eq!(nodes[4].get("token_ids"), None);
}

#[test]
fn a_trace_has_what_a_trainer_said_of_its_tokens() {
    let said = |row: &mut Row| {
        let of = |name: &str, values: Vec<Option<f32>>| TokenStream {
            name: name.to_owned(),
            version: "7".to_owned(),
            values,
        };
        let tokens = row.tokens.loss_mask.len();
        let numbers = || (0..tokens).map(|at| Some(at as f32)).collect::<Vec<_>>();
        let last = row.tokens.loss_mask.iter().rposition(|mask| *mask == 1).unwrap();
        let mut lacks = numbers();
        lacks[last] = None;
        let all = ["trainer_logprobs", "loss_weights", "unknown"].map(|name| of(name, numbers()));
        row.annotations = all.into_iter().chain([of("entropies", lacks)]).collect();
    };
    let trace = changed(Format::VerifiersTraces, said)[0]["traces"][0].clone();
    let mut from = 0;
    for node in trace["nodes"].as_array().unwrap() {
        let mask: Vec<bool> = serde_json::from_value(node["mask"].clone()).unwrap();
        let weights: Vec<f64> =
            mask.iter().zip(from..).map(|(m, at)| f64::from(*m) * f64::from(at)).collect();
        from += mask.len() as i32;
        let trained: Vec<f64> =
            mask.iter().zip(&weights).filter(|(m, _)| **m).map(|(_, at)| *at).collect();
        match trained.is_empty() {
            true => assert_eq!(node.get("trainer_logprobs"), None),
            false => {
                assert_eq!(node["trainer_logprobs"], json!(trained));
                assert_eq!(node["loss_weights"], json!({ "loss_weights": weights }));
            }
        }
        assert_eq!(node.get("unknown"), None);
    }
    let nodes = trace["nodes"].as_array().unwrap();
    let told = nodes.iter().filter(|node| node.get("trainer_logprobs").is_some()).count();
    let whole = nodes.iter().filter(|node| node.get("entropies").is_some()).count();
    assert_eq!(whole + 1, told, "the node that lacks one has none");
}

#[test]
fn a_trace_says_what_cut_it_in_words_of_its_reader() {
    let of = |status: &'static str, reason: &'static str| {
        let told = |row: &mut Row| {
            row.status = status.to_owned();
            row.turns.last_mut().unwrap().finish_reason = Some(reason.to_owned());
        };
        let trace = changed(Format::VerifiersTraces, told)[0]["traces"][0].clone();
        (trace["stop_condition"].clone(), trace["calls"][1]["finish_reason"].clone())
    };
    let told = |condition: &str, reason: &str| (json!(condition), json!(reason));
    assert_eq!(of("completed", "end_turn"), told("agent_completed", "stop"));
    assert_eq!(of("completed", "max_tokens"), told("agent_completed", "length"));
    assert_eq!(of("truncated", "max_output_tokens"), told("agent_completed", "length"));
    assert_eq!(of("truncated", "tool_use"), told("max_turns", "tool_calls"));
    // A call whose message is not known is told all the same: the last one says how it ended.
    let silent = |row: &mut Row| row.turns.iter_mut().for_each(|turn| turn.message = None);
    let calls = &changed(Format::VerifiersTraces, silent)[0]["traces"][0]["calls"];
    assert_eq!((calls.as_array().unwrap().len(), &calls[1]["node"]), (2, &Value::Null));
}

#[test]
fn tools_are_without_nulls_and_of_the_kinds_of_their_reader() {
    let told = |row: &mut Row| {
        let plain = json!({ "name": "f", "description": null, "parameters": null });
        let custom = json!({ "type": "custom", "custom": { "name": "g", "format": null } });
        let tools = [json!({ "type": "function", "function": plain }), custom];
        row.dialogue.tools = tools.iter().map(Value::to_string).collect();
        let parts = json!([{ "type": "text", "text": "on" }, { "type": "text", "text": "e" }]);
        row.dialogue.completion[0].content = Some(parts.to_string());
    };
    let trace = &changed(Format::VerifiersTraces, told)[0]["traces"][0];
    let expected = json!([{ "name": "f" }, { "type": "custom", "name": "g" }]);
    assert_eq!((&trace["tools"], &trace["nodes"][0]["tools"]), (&expected, &expected));
    assert_eq!(trace["nodes"][2]["message"]["content"], "one", "an answer is one text");
    let function = json!([{ "type": "function", "function": { "name": "f" } }]);
    for format in [Format::Art, Format::OpenAi] {
        assert_eq!(changed(format, told)[0]["tools"], function, "{format:?}");
    }
    let tools = &changed(Format::NemoGym, told)[0]["response"]["tools"];
    let function = json!({ "type": "function", "name": "f", "parameters": null, "strict": null });
    assert_eq!(tools, &json!([function, { "type": "custom", "name": "g" }]));
}

#[test]
fn slime_reads_states_of_its_own() {
    let states = |change: fn(&mut Row)| -> BTreeSet<String> {
        let found = changed(Format::Slime, change);
        found.iter().map(|d| d["status"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        states(|row| row.status = "infrastructure_failed".to_owned()),
        ["failed"].map(str::to_owned).into()
    );
    assert_eq!(
        states(|row| row.status = "truncated".to_owned()),
        ["truncated"].map(str::to_owned).into()
    );
    let aborted = changed(Format::Slime, |row| {
        row.turns.last_mut().unwrap().finish_reason = Some("abort".to_owned());
        row.tokens.loss_mask.fill(0);
    });
    assert_eq!(aborted.len(), 2);
    let said = (&aborted[0]["status"], &aborted[0]["remove_sample"]);
    assert_eq!(said, (&json!("aborted"), &json!(true)));
}

#[test]
fn a_queue_that_compares_numbers_gets_numbers() {
    let unversioned = |row: &mut Row| row.tokens.versions.fill(-1);
    assert_eq!(changed(Format::TrlAsync, unversioned)[0]["model_version"], -1);
    let (batch, refused) = made(Format::TrlAsync, &[attempt(0, None, "two")], |_| {});
    assert_eq!((batch.num_rows(), refused), (0, 2), "without a reward there is no advantage");
    let closed = |row: &mut Row| row.closed_at = Some(1_500_000);
    assert_eq!(changed(Format::TrlAsync, closed)[0]["enqueued_at"], 1.5);
}

#[test]
fn a_line_holds_what_its_schema_allows() {
    let parts = r#"[{"type":"text","text":"r"},{"type":"image_url","image_url":{"url":"x"}}]"#;
    let odd = |row: &mut Row| {
        let result = &mut row.dialogue.completion[1];
        result.role = "function".to_owned();
        (result.name, result.tool_call_id) = (Some("add".to_owned()), None);
        result.content = Some(parts.to_owned());
        row.dialogue.prompt[1].content = Some(parts.to_owned());
        row.dialogue.tools.push(r#"{"type":"custom","custom":{"name":"patch"}}"#.to_owned());
        row.dialogue.parallel_tool_calls = Some(false);
    };
    let found = changed(Format::OpenAi, odd);
    let line = found.iter().find(|line| line["messages"].as_array().unwrap().len() == 5).unwrap();
    let picture = json!({ "type": "image_url", "image_url": { "url": "x" } });
    let text = |text: &str| json!({ "type": "text", "text": text });
    assert_eq!(line["messages"][1]["content"], json!([text("r"), picture]));
    let result = json!({ "role": "tool", "tool_call_id": "c1",
        "content": [text("r"), text(&picture.to_string())] });
    assert_eq!(line["messages"][3], result);
    assert_eq!(line["tools"].as_array().unwrap().len(), 1);
    assert_eq!(line["parallel_tool_calls"], false);
}

#[test]
fn a_step_has_pictures_and_sounds_as_parts() {
    let url = "data:image/png;base64,AA==";
    let parts = json!([{ "type": "text", "text": "see" },
        { "type": "image_url", "image_url": { "url": url } },
        { "type": "image_url", "image_url": { "url": "http://h/a.JPG?x=1" } },
        { "type": "input_audio", "input_audio": { "data": "AA==", "format": "mp3" } },
        { "type": "input_audio" }]);
    let pictured = |row: &mut Row| {
        row.dialogue.prompt[1].content = Some(parts.to_string());
        row.dialogue.completion[1].content = Some(parts.to_string());
    };
    let found = changed(Format::Atif, pictured);
    let media = |kind: &str, path: &str| {
        let source = json!({ "media_type": kind, "path": path });
        json!({ "type": kind.split_once('/').unwrap().0, "source": source })
    };
    let expected = json!([
        { "type": "text", "text": "see" },
        media("image/png", url),
        media("image/jpeg", "http://h/a.JPG?x=1"),
        media("audio/mpeg", "data:audio/mp3;base64,AA=="),
        { "type": "text", "text": r#"{"type":"input_audio"}"# },
    ]);
    assert_eq!(found[0]["steps"][1]["message"], expected);
    assert_eq!(found[0]["steps"][2]["observation"]["results"][0]["content"], expected);
}

#[test]
fn a_turn_has_the_temperature_that_was_used() {
    let temperatures = |used: Option<&str>| {
        let mut made = attempt(0, Some(1.0), "two");
        reply(&mut made.calls[1]).sampled_with = used.map(str::to_owned);
        rows_of(&made)[0].turns[1].temperature
    };
    let used = |value: &str| format!(r#"{{"temperature":{{"value":{value},"source":"server"}}}}"#);
    assert_eq!(temperatures(Some(&used("0.6"))), Some(0.6));
    assert_eq!(temperatures(Some(&used("null"))), Some(0.5), "what was asked for");
    assert_eq!(temperatures(None), Some(0.5));
}
