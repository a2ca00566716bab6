//! Tests of what formats of conversations make of rewritten histories, of answers that were cut
//! off, and of messages that the agent wrote itself.

use super::*;

/// A call of one sampled token in a conversation of `words`.
fn turn(n: u32, ids: (&[u32], u32), words: &[&str], answer: &str) -> Call {
    let roles = ["user", "assistant"].iter().cycle();
    let message = |(text, role)| json!({ "role": role, "content": text });
    let messages: Vec<Value> = words.iter().zip(roles).map(message).collect();
    with_bodies(call(n, ids.0, &[&[ids.1]]), &messages, answer)
}

/// Three turns, each of which has other tokens for the turns before it: thoughts are stripped.
fn rewritten(attempt: u32, reward: f64) -> RecordedAttempt {
    let mut made = super::attempt(attempt, Some(reward), "");
    let last = format!("f{attempt}");
    made.calls = vec![
        turn(10 * attempt + 1, (&[1], 2), &["a"], "b"),
        turn(10 * attempt + 2, (&[1, 9, 3], 4), &["a", "b", "c"], "d"),
        turn(10 * attempt + 3, (&[1, 9, 3, 8, 5], 6), &["a", "b", "c", "d", "e"], &last),
    ];
    made
}

fn texts(messages: &Value) -> Vec<&str> {
    messages.as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect()
}

#[test]
fn every_turn_of_a_rewritten_conversation_is_taught_once() {
    let found = documents(Format::Sft, &[rewritten(1, 1.0)]);
    let said: Vec<_> = found.iter().map(|d| texts(&d["completion"])).collect();
    assert_eq!(said, [["b"], ["d"], ["f1"]]);
    assert_eq!(texts(&found[2]["messages"]), ["a", "b", "c", "d", "e", "f1"]);
    let found = documents(Format::OpenAi, &[rewritten(1, 1.0)]);
    let weights = |d: &Value| -> Vec<Value> {
        let messages = d["messages"].as_array().unwrap().iter();
        messages.filter_map(|m| m.get("weight").cloned()).collect()
    };
    let found: Vec<_> = found.iter().map(weights).collect();
    assert_eq!(
        found,
        [vec![json!(1)], vec![json!(0), json!(1)], vec![json!(0), json!(0), json!(1)]]
    );
    let found = documents(Format::Art, &[rewritten(1, 1.0)]);
    let choices = |d: &Value| {
        let all = d["messages_and_choices"].as_array().unwrap();
        all.iter().filter(|m| m.get("logprobs").is_some()).count()
    };
    assert_eq!(found.iter().map(choices).collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn a_pair_holds_the_whole_of_a_rewritten_conversation() {
    let pairs = documents(Format::Preference, &[rewritten(0, 0.0), rewritten(1, 1.0)]);
    assert_eq!(pairs.len(), 1);
    assert_eq!(texts(&pairs[0]["prompt"]), ["a"]);
    assert_eq!(texts(&pairs[0]["chosen"]), ["b", "c", "d", "e", "f1"]);
    assert_eq!(texts(&pairs[0]["rejected"]), ["b", "c", "d", "e", "f0"]);
    assert_eq!(pairs[0]["chosen_trajectory_id"], "e/1/2");
}

#[test]
fn an_answer_that_was_cut_off_ends_no_line() {
    let mut cut = rewritten(1, 1.0);
    reply(&mut cut.calls[2]).choices[0].finish_reason = Some("length".to_owned());
    let mut gone = rewritten(1, 1.0);
    reply(&mut gone.calls[2]).outcome = episode::Outcome::ClientGone;
    for format in [Format::Sft, Format::Kto, Format::OpenAi] {
        assert_eq!(documents(format, &[rewritten(1, 1.0)]).len(), 3, "{format:?}");
        assert_eq!(documents(format, std::slice::from_ref(&cut)).len(), 2, "{format:?}");
        assert_eq!(documents(format, std::slice::from_ref(&gone)).len(), 2, "{format:?}");
    }
    let better = rewritten(0, 2.0);
    assert!(documents(Format::Preference, &[better, cut]).is_empty(), "half an answer is no side");
}

#[test]
fn what_the_agent_wrote_itself_is_not_taught() {
    let mut made = rewritten(1, 1.0);
    made.calls = vec![
        turn(1, (&[1], 2), &["a"], "b"),
        turn(2, (&[1, 2, 3], 4), &["a", "b", "c", "example", "e"], "f"),
    ];
    let said: Vec<_> = documents(Format::Sft, std::slice::from_ref(&made))
        .iter()
        .map(|d| (texts(&d["prompt"]).len(), texts(&d["completion"]).join(" ")))
        .collect();
    assert_eq!(said, [(1, "b".to_owned()), (5, "f".to_owned())]);
    let line = &documents(Format::OpenAi, &[made])[0];
    let weights: Vec<_> =
        line["messages"].as_array().unwrap().iter().map(|m| &m["weight"]).collect();
    assert_eq!((weights[1], weights[3], weights[5]), (&json!(1), &json!(0), &json!(1)));
}

#[test]
fn an_answer_sent_back_in_other_letters_is_still_its_turn() {
    let mut made = rewritten(1, 1.0);
    made.calls =
        vec![turn(1, (&[1], 2), &["a"], "b "), turn(2, (&[1, 2, 3], 4), &["a", "b", "c"], "d")];
    let found = documents(Format::Sft, &[made]);
    assert_eq!(texts(&found[0]["completion"]), ["b ", "c", "d"], "as the call got it");
}

#[test]
fn a_turn_is_taken_from_the_row_that_trains_it() {
    // The first fork shows the first turn, which another model sampled; the second one trains it.
    let mut judged = rewritten(1, 1.0);
    judged.calls = vec![
        turn(1, (&[1], 2), &["a"], "b"),
        turn(2, (&[1, 2, 7], 8), &["a", "b", "x"], "y"),
        turn(3, (&[1, 2, 3], 4), &["a", "b", "c"], "d"),
        turn(4, (&[1, 2, 3, 4, 5], 6), &["a", "b", "c", "d", "e"], "f"),
    ];
    reply(&mut judged.calls[2]).model = Some("judge".to_owned());
    let mut builder = record_builder(Format::Turns, 0.5);
    for row in crate::tests::fixture::chosen(
        &judged,
        &[episode::TrajectoryKind::Fork],
        crate::SharedTokens::Once,
    ) {
        builder.add_row(row, AttemptNumbers::default());
    }
    builder.end_attempt();
    let text = lines(Format::Turns, &builder.pending().take_batch().unwrap());
    let found = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found: Vec<_> = found.map(|t| (t["model"].clone(), t["loss_mask"].clone())).collect();
    let expected = [("m", [1]), ("judge", [1]), ("m", [1])];
    assert_eq!(found, expected.map(|(model, mask)| (json!(model), json!(mask))));
}
