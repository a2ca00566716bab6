//! The end of a call, with all that was sampled, inside the write transaction.

use episode::{Choice, Ended, Route, Side};

use crate::batch::Batch;
use crate::commit::Verdict;
use crate::link::Link;
use crate::pack::{REELED, pack, pack_planes};
use crate::reel::Prompt;
use crate::reels::Reels;
use crate::seal::seal;
use crate::write::{add_body, add_segment};

/// Writes the end of a call with all that was sampled.
pub(crate) async fn write_ended(
    connection: &mut Link,
    reels: &mut Reels,
    ended: &Ended,
) -> Verdict {
    let (call_key, mut open) = reels.open_of(connection, ended.call_id).await?;
    let mut batch = Batch::default();
    let reply = open.reel.body(&ended.reply);
    add_body(&mut batch, open.reel.key, &reply);
    add_end(&mut batch, (call_key, open.reel.key), ended);
    let ids = open.reel.ids(ended);
    if let Some(segment) = &ids.segment {
        add_segment(&mut batch, open.reel.key, segment);
    }
    for ((index, prompt), whole) in (0..).zip(&ids.prompts).zip(&ended.prompts) {
        add_prompt(&mut batch, (call_key, index), (prompt, whole.len()));
    }
    for (choice, start) in ended.choices.iter().zip(&ids.choices) {
        add_choice(&mut batch, (call_key, *start), choice);
    }
    batch.run(connection).await?;
    open.reel.follow(call_key, ended, &ids);
    reels.ended(ended.call_id);
    reels.put(open);
    Ok(())
}

/// The last key is that of the reply's body.
fn add_end(batch: &mut Batch, (call_key, reel_key): (i64, i64), ended: &Ended) {
    batch
        .then(
            "UPDATE call SET reply_body = {key}, ended_at = ?, first_byte_at = ?, \
             status = ?, outcome = ?, error = ?, reply_model = ?, prompt_tokens = ?, \
             completion_tokens = ?, logprob_kind = ?, translated = ?, unasked = ?, \
             stamp_start = ?, stamp_end = ?, sampled_with = ?, reel_key = ?, \
             seal = ? WHERE call_key = ?",
        )
        .bind(ended.ended_at)
        .bind(ended.first_byte_at)
        .bind(ended.status)
        .bind(ended.outcome.as_str())
        .bind(ended.error.clone())
        .bind(ended.model.clone())
        .bind(ended.usage.prompt.map(|n| n as i64))
        .bind(ended.usage.completion.map(|n| n as i64))
        .bind(ended.logprob_kind.clone())
        .bind(ended.translated.map(Route::as_str))
        .bind(ended.unasked.clone())
        .bind(ended.stamps.start.clone())
        .bind(ended.stamps.end.clone())
        .bind(ended.sampled_with.clone())
        .bind(reel_key)
        .bind(seal(ended).to_vec())
        .bind(call_key);
}

fn add_prompt(
    batch: &mut Batch,
    (call_key, index): (i64, i64),
    (prompt, tokens): (&Prompt, usize),
) {
    let parent = prompt.walked.parent;
    batch
        .then(
            "INSERT INTO prompt (call_key, prompt_index, parent_key, parent_choice, shared, \
             tokens, encoding, token_ids, start, depth, hash) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(call_key)
        .bind(index)
        .bind(parent.map(|parent| parent.call_key))
        .bind(parent.map(|parent| parent.choice))
        .bind(parent.map_or(0, |parent| parent.shared as i64))
        .bind(tokens as i64)
        .bind(REELED)
        .bind(Vec::new())
        .bind(prompt.start as i64)
        .bind(prompt.walked.depth())
        .bind(prompt.hash.to_vec());
}

fn add_choice(batch: &mut Batch, (call_key, start): (i64, u64), choice: &Choice) {
    let spans: Vec<_> = choice.versions.iter().map(|s| (&s.version, s.start, s.end)).collect();
    let versions = (!spans.is_empty())
        .then(|| serde_json::to_string(&spans).expect("strings and numbers are always JSON"));
    batch
        .then(
            "INSERT INTO choice (call_key, choice_index, prompt_index, tokens, logprob_count, \
             encoding, start, logprobs, finish_reason, stop_reason, versions, fidelity) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(call_key)
        .bind(choice.index)
        .bind(choice.prompt_index)
        .bind(choice.token_ids.as_ref().map(|ids| ids.len() as i64))
        .bind(choice.logprobs.len() as i64)
        .bind(REELED)
        .bind(start as i64)
        .bind(pack_planes(&choice.logprobs))
        .bind(choice.finish_reason.clone())
        .bind(choice.stop_reason.clone())
        .bind(versions)
        .bind(choice.fidelity.as_str());
    for side in &choice.sides {
        add_side(batch, (call_key, choice.index), side);
    }
}

fn add_side(batch: &mut Batch, (call_key, choice_index): (i64, u32), side: &Side) {
    let packed = pack(side.json.as_bytes(), &[]);
    batch
        .then(
            "INSERT INTO side (call_key, choice_index, name, encoding, length, data) \
             VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(call_key)
        .bind(choice_index)
        .bind(side.name.clone())
        .bind(packed.encoding)
        .bind(side.json.len() as i64)
        .bind(packed.data);
}
