//! What is served, and how.

use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::routes::{Reply, json_reply};
use super::super::submit::State;
use super::query::Query;
use super::update::refused;
use crate::control::Command;
use crate::lora::Bounds;
use crate::sample::LogprobsMode;
use crate::update::Ledger;

/// The label of the weights that serve and their checksum, or of those with the label `version`.
pub(super) fn weights(state: &State, query: &Query) -> Result<Reply, ApiError> {
    let serving = state.gate.board.read().version;
    let label = query.get("version").unwrap_or(&serving);
    let Some(checksum) = state.updates.checksum_of(label) else {
        return Err(ApiError::bad("version", format!("`{label}` is not known")));
    };
    Ok(json_reply(&json!({"weight_version": label, "checksum": checksum})))
}

pub(super) fn world_size() -> Reply {
    json_reply(&json!({"world_size": 1}))
}

/// What trainers ask of a configuration.
pub(super) fn server(state: &State, query: &Query) -> Reply {
    let card = &state.card;
    let logprobs_mode = match card.logprobs_mode {
        LogprobsMode::ProcessedLogprobs => "processed_logprobs",
        LogprobsMode::RawLogprobs => "raw_logprobs",
        LogprobsMode::ProcessedLogits => "processed_logits",
        LogprobsMode::RawLogits => "raw_logits",
    };
    let defaults = &card.defaults;
    let Bounds { adapters, rank } = card.lora;
    let lora = (adapters > 0).then(|| json!({"max_lora_rank": rank, "max_loras": adapters}));
    let config = json!({
        "model_config": {
            "model": card.root,
            "served_model_name": card.name,
            "dtype": state.updates.dtype,
            "max_model_len": card.max_model_len,
            "max_logprobs": i64::try_from(card.max_logprobs).unwrap_or(-1),
            "logprobs_mode": logprobs_mode,
            "generation_config": "auto",
            "default_sampling_params": {
                "temperature": defaults.temperature,
                "top_p": defaults.top_p,
                "top_k": defaults.top_k,
                "min_p": defaults.min_p,
                "repetition_penalty": defaults.repetition_penalty,
            },
        },
        "parallel_config": {
            "data_parallel_size": 1,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "world_size": 1,
        },
        "weight_transfer_config": {"backend": "nccl"},
        "lora_config": lora,
    });
    let config = match query.get("config_format") {
        Some("json") => config,
        _ => Value::String(config.to_string()),
    };
    let system = json!({"version": env!("CARGO_PKG_VERSION")});
    json_reply(&json!({"vllm_config": config, "vllm_env": {}, "system_env": system}))
}

/// Reads the weights that serve and says what they are, or how they differ from a baseline.
pub(super) async fn check(state: &State, fields: &Fields) -> Result<Reply, ApiError> {
    let action = fields.text("action")?.unwrap_or_default();
    let baseline = fields.object("baseline")?;
    match (action, baseline) {
        ("checksum", _) => {
            let found = inspect(state).await?;
            let checksums: Map<String, Value> = hashes(&found).collect();
            Ok(json_reply(&json!({"checksums": checksums, "checksum": found.checksum()})))
        }
        ("compare", Some(baseline)) => {
            let mut found: Map<String, Value> = hashes(&inspect(state).await?).collect();
            let differs = |(name, hash): (&String, &Value)| {
                (found.remove(name).as_ref() != Some(hash)).then(|| name.clone())
            };
            let mut mismatches: Vec<String> = baseline.iter().filter_map(differs).collect();
            mismatches.extend(found.keys().cloned());
            Ok(json_reply(&json!({"match": mismatches.is_empty(), "mismatches": mismatches})))
        }
        ("compare", None) => Err(ApiError::bad("baseline", "must be an object of checksums")),
        ("reset", _) => Err(ApiError::not_implemented(
            "`action` `reset` would overwrite the weights that serve; this engine keeps them",
        )),
        (other, _) => {
            let reason = format!("must be `checksum` or `compare`, got `{other}`");
            Err(ApiError::bad("action", reason))
        }
    }
}

fn hashes(ledger: &Ledger) -> impl Iterator<Item = (String, Value)> {
    ledger.iter().map(|(name, entry)| (name.to_owned(), entry.hash.to_hex().as_str().into()))
}

/// What the weights are that the engine computes with, read from where it has them.
async fn inspect(state: &State) -> Result<Ledger, ApiError> {
    let book = std::sync::Arc::clone(&state.updates.book).lock_owned().await;
    state.gate.tell(|done| Command::Lend { done }).await?;
    let yard = std::sync::Arc::clone(&state.updates.yard);
    let found = tokio::task::spawn_blocking(move || {
        let found = yard.inspect(&book.ledger);
        yard.clear();
        found
    });
    found.await.map_err(|_| ApiError::internal())?.map_err(refused)
}
