//! The end of a call, with all that was sampled, inside the write transaction.

use episode::{CallEnd, Choice, Continued, Route, TokenColumn, VersionSpan};

use crate::commit::body::{add_body, add_segment};
use crate::commit::seal::seal;
use crate::commit::state::CommitState;
use crate::database::batch::Batch;
use crate::database::connection::StoreConnection;
use crate::encoding::pack::{pack, pack_planes};
use crate::error::CommitResult;
use crate::log::episode::{EncodedPrompt, EpisodeLog};
use crate::log::format::IN_LOG;

/// Writes the end of a call with all that was sampled.
pub(crate) async fn write_ended(
    connection: &mut StoreConnection,
    state: &mut CommitState,
    ended: &CallEnd,
) -> CommitResult {
    let (call, mut log) = state.open_call(connection, ended.call_id).await?;
    let mut statements = EndStatements { batch: Batch::default(), call_key: call.key };

    let reply = log.add_body(&ended.reply.read());
    add_body(&mut statements.batch, log.key, &reply);
    statements.add_end(log.key, ended);
    write_tokens(connection, &mut log, statements, ended).await?;

    state.count_tokens(&call.attempt, call.api_key.as_deref(), ended);
    state.call_ended(ended.call_id);
    state.put(call.attempt, log);
    Ok(())
}

/// Writes the prompts and choices of a call behind the statements for its row.
pub(super) async fn write_tokens(
    connection: &mut StoreConnection,
    log: &mut EpisodeLog,
    mut statements: EndStatements,
    ended: &CallEnd,
) -> Result<(), sqlx::Error> {
    let call_key = statements.call_key;
    // Every prompt and choice refers to the one segment of new ids.
    let tokens = log.add_tokens(ended);
    if let Some(segment) = &tokens.segment {
        add_segment(&mut statements.batch, log.key, segment);
    }
    for ((index, prompt), ids) in (0..).zip(&tokens.prompts).zip(&ended.prompts) {
        statements.add_prompt(index, prompt, ids.len());
    }
    for (choice, start) in ended.choices.iter().zip(&tokens.choices) {
        statements.add_choice(choice, *start);
    }
    statements.batch.run(connection).await?;

    // Only now: a statement that fails must leave no path that later prompts would continue.
    log.remember_paths(call_key, ended, &tokens);
    Ok(())
}

/// The statements that write the end of one call.
pub(super) struct EndStatements {
    pub(super) batch: Batch,
    pub(super) call_key: i64,
}

impl EndStatements {
    /// Updates the row of the call. The batch's last key must be that of the reply's body.
    fn add_end(&mut self, log_key: i64, ended: &CallEnd) {
        let (prompt_tokens, completion_tokens) = (ended.usage.prompt, ended.usage.completion);

        self.batch
            .then(
                "UPDATE call SET reply_body = last_insert_rowid(), ended_at = $1, \
                 first_byte_at = $2, status = $3, outcome = $4, error = $5, reply_model = $6, \
                 prompt_tokens = $7, completion_tokens = $8, logprob_kind = $9, \
                 translated = $10, unasked = $11, stamp_start = $12, stamp_end = $13, \
                 sampled_with = $14, engine = $15, routed = $16, heartbeats = $17, reel_key = $18, \
                 seal = $19, continued = $20, reply_head = $21, replayed = $22 \
                 WHERE call_key = $23",
            )
            .bind(ended.ended_at)
            .bind(ended.first_byte_at)
            .bind(ended.status)
            .bind(ended.outcome.as_str())
            .bind(ended.error.clone())
            .bind(ended.model.clone())
            .bind(prompt_tokens.map(|tokens| tokens as i64))
            .bind(completion_tokens.map(|tokens| tokens as i64))
            .bind(ended.logprob_kind.clone())
            .bind(ended.translated.map(Route::as_str))
            .bind(ended.unasked.clone())
            .bind(ended.stamps.start.clone())
            .bind(ended.stamps.end.clone())
            .bind(ended.sampled_with.clone())
            .bind(ended.engine.clone())
            .bind(ended.routed.clone())
            .bind(ended.heartbeats)
            .bind(log_key)
            .bind(seal(ended).to_vec())
            .bind(ended.continued.map(Continued::to_json))
            .bind(ended.head.to_text())
            .bind(ended.replayed.map(|call| call.to_string()))
            .bind(self.call_key);
    }

    /// Inserts a prompt of `tokens` tokens.
    fn add_prompt(&mut self, index: i64, prompt: &EncodedPrompt, tokens: usize) {
        let parent = prompt.matched.parent;
        self.batch
            .then(
                "INSERT INTO prompt (call_key, prompt_index, parent_key, parent_choice, shared, \
                 tokens, encoding, token_ids, start, depth, hash) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            )
            .bind(self.call_key)
            .bind(index)
            .bind(parent.map(|parent| parent.call_key))
            .bind(parent.map(|parent| parent.choice))
            .bind(prompt.matched.shared() as i64)
            .bind(tokens as i64)
            .bind(IN_LOG)
            // `token_ids` is for older formats, which have the ids here.
            .bind(Vec::new())
            .bind(prompt.start as i64)
            .bind(prompt.matched.depth())
            .bind(prompt.hash.to_vec());
    }

    /// Inserts a choice, whose ids begin at byte `start` of the log's token track.
    fn add_choice(&mut self, choice: &Choice, start: u64) {
        self.batch
            .then(
                "INSERT INTO choice (call_key, choice_index, prompt_index, tokens, logprob_count, \
                 encoding, start, logprobs, finish_reason, stop_reason, versions, fidelity) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
            )
            .bind(self.call_key)
            .bind(choice.index)
            .bind(choice.prompt_index)
            .bind(choice.token_ids.as_ref().map(|ids| ids.len() as i64))
            .bind(choice.logprobs.len() as i64)
            .bind(IN_LOG)
            .bind(start as i64)
            .bind(pack_planes(&choice.logprobs))
            .bind(choice.finish_reason.clone())
            .bind(choice.stop_reason.clone())
            .bind(versions_json(&choice.versions))
            .bind(choice.fidelity.as_str());

        for side in &choice.token_columns {
            self.add_side(choice.index, side);
        }
    }

    /// Inserts an array that stands beside the ids of a choice.
    fn add_side(&mut self, choice_index: u32, side: &TokenColumn) {
        let packed = pack(side.json.as_bytes(), &[]);
        self.batch
            .then(
                "INSERT INTO side (call_key, choice_index, name, encoding, length, data) \
                 VALUES ($1, $2, $3, $4, $5, $6)",
            )
            .bind(self.call_key)
            .bind(choice_index)
            .bind(side.name.clone())
            .bind(packed.encoding)
            .bind(side.json.len() as i64)
            .bind(packed.data);
    }
}

/// The spans as `[[version, start, end], ...]`; `None` where there are none.
fn versions_json(spans: &[VersionSpan]) -> Option<String> {
    if spans.is_empty() {
        return None;
    }
    let rows: Vec<_> = spans.iter().map(|span| (&span.version, span.start, span.end)).collect();
    Some(serde_json::to_string(&rows).expect("strings and numbers are always JSON"))
}
