//! Weights that were received begin to serve.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::in_place::KNOWN_LABEL;
use super::task::run_blocking;
use crate::core::message::{Command, NewWeights};
use crate::core::status::WeightState;
use crate::serve::calls::ApiError;
use crate::serve::state::ServerState;
use crate::stats::add;
use crate::update::IncomingWeights;
use crate::update::LabelWish;
use crate::update::UpdateReceipt;
use crate::update::UpdateState;
use crate::update::WeightVersion;
use crate::weights::manifest::WeightManifest;

/// The names of an update.
#[derive(Default)]
pub(super) struct UpdateName {
    /// The folder that the weights came from.
    pub(super) folder: Option<String>,
    /// The label that the trainer asks for.
    pub(super) label: Option<String>,
}

/// An update that was checked and can be applied.
pub(super) struct PreparedUpdate {
    /// The checksums of the weights after the update.
    ledger: WeightManifest,
    version: WeightVersion,
    /// True if the engine serves these weights already.
    is_same: bool,
    name: UpdateName,
    /// The answer to the same update, if it was done before.
    earlier: Option<UpdateReceipt>,
}

/// Checks an update as a whole. It changes nothing.
pub(super) fn prepare(
    state: &ServerState,
    book: &UpdateState,
    staging: &IncomingWeights,
    name: UpdateName,
) -> Result<PreparedUpdate, ApiError> {
    let folder = name.folder.as_deref();
    let label = name.label.as_deref();
    let weights = state.engine.status().weights;
    let ledger = staging.outcome()?;
    let checksum = ledger.checksum();
    let is_same = weights == WeightState::Whole && checksum == book.version.checksum;

    // A folder that comes again under the same name was pushed by a client that lost the answer.
    let earlier = book.last.as_ref().filter(|last| {
        is_same && folder.is_some() && last.is_of(folder, label) && last.version == book.version
    });
    if let Some(earlier) = earlier.cloned() {
        let version = earlier.version.clone();
        return Ok(PreparedUpdate { ledger, version, is_same, name, earlier: Some(earlier) });
    }

    let label =
        state.updates.choose_label(LabelWish { asked: label, folder }, book.done, &checksum)?;
    // There may be no weights that missing tensors could keep.
    if (book.is_torn || weights == WeightState::Absent) && !staging.is_whole() {
        let reason = "the engine has no weights, so an update must be of all tensors";
        return Err(ApiError::bad_request(reason));
    }
    let version = WeightVersion { label, checksum };
    Ok(PreparedUpdate { ledger, version, is_same, name, earlier: None })
}

/// Lays the tensors out beside the weights that serve, and has the engine thread exchange them.
pub(super) async fn apply(
    state: &ServerState,
    book: &mut UpdateState,
    staging: IncomingWeights,
    update: PreparedUpdate,
) -> Result<UpdateReceipt, ApiError> {
    let stats = &state.stats.updates;
    let PreparedUpdate { ledger, version, is_same, name, earlier } = update;
    if let Some(receipt) = earlier {
        add(&stats.repeated, 1);
        return Ok(receipt);
    }
    let weights = match is_same {
        true => NewWeights::Same,
        false => place(state, staging).await?,
    };

    // The label must be known before any token is sampled under it.
    let is_new = state.updates.remember(&version);
    let pause = exchange(state, &version, weights).await.inspect_err(|_| {
        if is_new {
            state.updates.forget(&version.label);
        }
    })?;
    book.done += 1;
    book.manifest = Arc::new(ledger);
    book.version = version.clone();
    book.is_torn = false;

    // The receipt answers the same update again, should its answer be lost.
    let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
    add(if is_same { &stats.relabeled } else { &stats.exchanged }, 1);
    stats.exchange_us.fetch_add(pause_us, Ordering::Relaxed);
    let receipt = UpdateReceipt { folder: name.folder, asked: name.label, version, pause_us };
    book.last = Some(receipt.clone());
    tracing::info!(version = receipt.version.label, pause_us, "weights were updated");
    Ok(receipt)
}

/// Brings the tensors to where the engine thread takes them, unless they are there.
async fn place(state: &ServerState, staging: IncomingWeights) -> Result<NewWeights, ApiError> {
    if staging.drops() {
        return Err(ApiError::conflict(KNOWN_LABEL));
    }
    if staging.has_written() {
        return Ok(NewWeights::Written);
    }
    stage(state, staging).await?;
    Ok(NewWeights::Staged)
}

/// Lays the tensors out beside the weights that serve.
async fn stage(state: &ServerState, staging: IncomingWeights) -> Result<(), ApiError> {
    state.engine.send(|done| Command::Lend { done }).await?;
    let area = Arc::clone(&state.updates.staging);
    run_blocking(move || {
        let staged = area.stage(staging);
        if staged.is_err() {
            area.clear();
        }
        staged
    })
    .await??;
    Ok(())
}

/// Exchanges the weights, and returns how long generation stood still.
async fn exchange(
    state: &ServerState,
    version: &WeightVersion,
    weights: NewWeights,
) -> Result<Duration, ApiError> {
    state.adapters.record_versions_over(version, &state.updates);
    let label: Arc<str> = Arc::from(version.label.as_str());
    let exchanged =
        state.engine.send(|done| Command::Exchange { version: label, weights, done }).await?;

    // Freeing the weights that served before takes a while, so no other call waits for it.
    let area = Arc::clone(&state.updates.staging);
    run_blocking(move || area.clear()).await?;
    exchanged.map_err(ApiError::failed)
}
