//! Tests of rows with scores of another model.

use super::*;
use crate::formats::records::scored_record_builder;

/// The documents of an attempt whose rows have scores.
fn scored(format: Format, change: impl Fn(&mut Row)) -> Vec<Value> {
    let mut builder = scored_record_builder(format, 0.5, &["big".to_owned()]);
    for mut row in rows_of(&attempt(0, Some(1.0), "two")) {
        row.scores = vec![scores_of(&row)];
        change(&mut row);
        builder.add_row(row, AttemptNumbers::default());
    }
    builder.end_attempt();
    builder.end_file();
    let text = lines(format, &builder.pending().take_batch().unwrap());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn without_tops(row: &mut Row) {
    row.scores[0].top = None;
}

#[test]
fn rows_of_the_contract_have_columns_of_the_name() {
    let rows = scored(Format::Trajectories, |_| {});
    assert_eq!(rows[0]["input_ids"], json!([1, 2, 3, 6, 7, 8]));
    assert_eq!(rows[0]["score_big_logprobs"], json!([0.0, -1.5, -3.5, -3.5, -3.5, -3.5]));
    let ids = [[-1, -1, -1], [9, 2, -1], [8, 9, 3], [8, 9, 6], [8, 9, 7], [8, 9, 8]];
    assert_eq!(rows[0]["score_big_top_ids"], json!(ids));
    assert_eq!(rows[0]["score_big_top_logprobs"][1], json!([-0.25, -1.5, null]));
    let plain = scored(Format::Trajectories, without_tops);
    assert_eq!(plain[0]["score_big_top_ids"], Value::Null);
    let none = scored(Format::Trajectories, |row| row.scores.clear());
    assert_eq!(none[0]["score_big_logprobs"], Value::Null);
    // Without scores, no column.
    let documents = documents(Format::Trajectories, &both());
    assert!(documents.iter().all(|row| row.get("score_big_logprobs").is_none()));
}

#[test]
fn trl_gets_candidates_of_what_is_trained() {
    let row = &scored(Format::TrlDistillation, |_| {})[0];
    assert_eq!(row["completion_mask"], json!([0, 0, 1, 0, 1, 1]));
    let none = [-1, -1, -1];
    let ids = [none, none, [8, 9, 3], none, [8, 9, 7], [8, 9, 8]];
    assert_eq!(row["teacher_topk_ids"], json!(ids));
    assert_eq!(row["teacher_topk_logprobs"][4], json!([-0.25, -2.5, -3.5]));
    assert_eq!(row["teacher_topk_logprobs"][3], json!([null, null, null]));
    assert_eq!((&row["teacher_id"], &row["prompt_id"]), (&json!("big"), &json!(0)));
    let plain = &scored(Format::TrlDistillation, without_tops)[0];
    assert_eq!(plain["teacher_topk_ids"], json!([[-1], [-1], [3], [-1], [7], [8]]));
    assert_eq!(plain["teacher_topk_logprobs"][2], json!([-3.5]));
}

#[test]
fn trl_gets_no_row_that_no_teacher_scored() {
    let (batch, refused) = made(Format::TrlDistillation, &both(), |row| row.scores.clear());
    assert_eq!((batch.num_rows(), refused), (0, 4));
}

#[test]
fn verl_gets_what_its_teachers_answer() {
    let extra = &scored(Format::Verl, |_| {})[0]["extra_fields"];
    let ids = [[9, 2], [8, 9], [8, 9], [8, 9], [8, 9], [0, 0]];
    assert_eq!(extra["teacher_ids"], json!(ids));
    assert_eq!(extra["teacher_logprobs"][0], json!([-0.25, -1.5]));
    assert_eq!(extra["teacher_logprobs"][5], json!([0.0, 0.0]));
    let extra = &scored(Format::Verl, without_tops)[0]["extra_fields"];
    assert_eq!(extra["teacher_ids"], json!([[2], [3], [6], [7], [8], [0]]));
    assert_eq!(extra["teacher_logprobs"][1], json!([-3.5]));
    let short = |row: &mut Row| row.scores[0].logprobs[2] = -0.1;
    let plain = scored(Format::Verl, |row| {
        without_tops(row);
        short(row);
    });
    assert_eq!(plain[0]["extra_fields"]["teacher_logprobs"][1], json!([-0.1]));
}

#[test]
fn prime_rl_trains_towards_the_reference() {
    let row = &scored(Format::PrimeRl, |_| {})[0];
    assert_eq!(row["ref_logprobs"], json!([0.0, -1.5, -3.5, -3.5, -3.5, -3.5]));
    assert_eq!(row["ref_kl_weights"], json!([0.0, 0.0, 1.0, 0.0, 1.0, 1.0]));
    assert_eq!(row["rl_weights"], json!(vec![0.0; 6]));
    let row = &scored(Format::PrimeRl, |row| row.advantage = Some(0.5))[0];
    assert_eq!(row["rl_weights"], Value::Null);
    let row = &scored(Format::PrimeRl, |row| row.scores.clear())[0];
    assert_eq!((&row["ref_logprobs"], &row["ref_kl_weights"]), (&Value::Null, &Value::Null));
}

#[test]
fn tinker_gets_scores_of_its_targets_and_soft_targets() {
    let row = &scored(Format::Tinker, |_| {})[0];
    assert_eq!(row["loss_fn_inputs"]["target_tokens"], json!([2, 3, 6, 7, 8]));
    assert_eq!(row["teacher_logprobs"], json!([-1.5, -3.5, -3.5, -3.5, -3.5]));
    assert_eq!(row["teacher"], "big");
    let soft = &row["teacher_loss_fn_inputs"];
    assert_eq!(
        (&soft["target_tokens"][0], &soft["target_tokens"][1]),
        (&json!([9, 2, 0]), &json!([8, 9, 3]))
    );
    assert_eq!(soft["weights"][0], json!([0.0, 0.0, 0.0]));
    let likely = soft["weights"][1][0].as_f64().unwrap();
    assert!((likely - (-0.25_f64).exp()).abs() < 1e-6, "{likely}");
    let row = &scored(Format::Tinker, without_tops)[0];
    assert_eq!(row["teacher_loss_fn_inputs"], Value::Null);
}
