//! Reports on the weights and on the configuration.

use std::sync::Arc;

use http::api::schema::Field;
use kernels::KvFormat;
use serde_json::{Map, Value, json};

use super::task::{lock_book, run_blocking};
use crate::core::message::Command;
use crate::lora::LoraLimits;
use crate::sample::LogprobsMode;
use crate::serve::calls::{ApiError, HttpCall, HttpReply, json_reply};
use crate::serve::state::ServerState;
use crate::weights::manifest::WeightManifest;

/// The fields of `/weight_checker`.
pub(crate) const CHECK_FIELDS: &[Field] = &[Field::string("action"), Field::object("baseline")];

/// Handles `/weight_info`: label and checksum of the weights that serve, or of those with the label
/// `version`.
pub(crate) async fn weight_info(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let query = call.query()?;
    let serving = state.engine.status().version;
    let label = query.get("version").unwrap_or(&serving);
    match state.updates.checksum_of(label) {
        Some(checksum) => Ok(json_reply(&json!({"weight_version": label, "checksum": checksum}))),
        None => Err(ApiError::bad_field("version", format!("`{label}` is not known"))),
    }
}

/// Handles `/get_world_size`.
pub(crate) async fn world_size(_: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    Ok(json_reply(&json!({"world_size": 1})))
}

/// Handles `/server_info`, in the form of vLLM's configuration.
pub(crate) async fn server_info(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let model = &state.model;
    // TRL sends adapters instead of weights where it finds a `lora_config`.
    let LoraLimits { adapters, rank } = model.lora;
    let lora = (adapters > 0).then(|| json!({"max_lora_rank": rank, "max_loras": adapters}));
    let config = json!({
        "model_config": model_config(state),
        "cache_config": {"cache_dtype": cache_dtype(model.kv_format)},
        "parallel_config": {
            "data_parallel_size": 1,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "world_size": 1,
        },
        "weight_transfer_config": {"backend": "nccl"},
        "lora_config": lora,
    });

    // By default vLLM answers with the configuration as one string.
    let shown = match call.query()?.get("config_format") {
        Some("json") => config,
        _ => Value::String(config.to_string()),
    };
    let system = json!({"version": env!("CARGO_PKG_VERSION")});
    Ok(json_reply(&json!({"vllm_config": shown, "vllm_env": {}, "system_env": system})))
}

/// The numbers of the KV cache, in vLLM's words.
fn cache_dtype(format: KvFormat) -> &'static str {
    match format {
        KvFormat::Native => "auto",
        KvFormat::Fp8 => "fp8_e4m3",
    }
}

fn model_config(state: &ServerState) -> Value {
    let model = &state.model;
    let defaults = &model.defaults;
    let logprobs_mode = match model.logprobs_mode {
        LogprobsMode::ProcessedLogprobs => "processed_logprobs",
        LogprobsMode::RawLogprobs => "raw_logprobs",
        LogprobsMode::ProcessedLogits => "processed_logits",
        LogprobsMode::RawLogits => "raw_logits",
    };

    // A limit beyond all integers is -1, the whole vocabulary.
    json!({
        "model": model.root,
        "served_model_name": model.name,
        "dtype": state.updates.dtype,
        "max_model_len": model.max_model_len,
        "max_logprobs": i64::try_from(model.max_logprobs).unwrap_or(-1),
        "logprobs_mode": logprobs_mode,
        "generation_config": "auto",
        "default_sampling_params": {
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
        },
    })
}

/// Handles `/weight_checker`: reads the weights that serve, and reports their checksums or how they
/// differ from a baseline.
pub(crate) async fn check_weights(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let fields = call.fields_or_empty()?;
    let action = fields.text("action")?.unwrap_or_default();

    // Reading the weights back takes seconds, so only a valid request does it.
    match (action, fields.object("baseline")?) {
        ("checksum", _) => {
            let ledger = read_back(state).await?;
            let reply = json!({"checksums": checksums(&ledger), "checksum": ledger.checksum()});
            Ok(json_reply(&reply))
        }
        ("compare", Some(baseline)) => {
            let found = checksums(&read_back(state).await?);
            let mismatches = mismatches(baseline, &found);
            Ok(json_reply(&json!({"match": mismatches.is_empty(), "mismatches": mismatches})))
        }
        ("compare", None) => Err(ApiError::bad_field("baseline", "must be an object of checksums")),
        ("reset", _) => Err(ApiError::not_implemented(
            "`action` `reset` would overwrite the weights that serve; this engine keeps them",
        )),
        (other, _) => {
            let reason = format!("must be `checksum` or `compare`, got `{other}`");
            Err(ApiError::bad_field("action", reason))
        }
    }
}

/// Returns the checksum of each tensor by name.
fn checksums(ledger: &WeightManifest) -> Map<String, Value> {
    ledger
        .iter()
        .map(|(name, entry)| (name.to_owned(), entry.hash.to_hex().as_str().into()))
        .collect()
}

/// Lists the tensors of either side whose checksums differ or that the other side lacks.
fn mismatches(baseline: &Map<String, Value>, found: &Map<String, Value>) -> Vec<String> {
    let differ = baseline.iter().filter(|(name, hash)| found.get(*name) != Some(*hash));
    let extra = found.iter().filter(|(name, _)| !baseline.contains_key(*name));
    differ.chain(extra).map(|(name, _)| name.clone()).collect()
}

/// Computes the checksums of the weights from the memory that the engine computes with.
async fn read_back(state: &ServerState) -> Result<WeightManifest, ApiError> {
    let book = lock_book(state).await;
    state.engine.send(|done| Command::Lend { done }).await?;
    let area = Arc::clone(&state.updates.staging);
    let ledger = run_blocking(move || {
        let ledger = area.inspect(&book.manifest);
        area.clear();
        ledger
    })
    .await??;
    Ok(ledger)
}
