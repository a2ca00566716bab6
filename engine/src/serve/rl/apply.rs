//! Weights that have arrived begin to serve.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::super::error::ApiError;
use super::super::submit::State;
use super::update::refused;
use crate::control::Command;
use crate::stats::add;
use crate::update::{Book, Ledger, Receipt, Staging, Version};

/// What an update is called: the folder that it came from, and the label that is asked for.
pub(super) type Asked = (Option<String>, Option<String>);

/// An update that can be done.
pub(super) struct Ready {
    /// What the weights will be.
    outcome: Ledger,
    version: Version,
    /// Whether the weights that serve are these already.
    same: bool,
    asked: Asked,
    /// The answer, where the same update was done before.
    again: Option<Receipt>,
}

/// Checks what arrived as a whole. Nothing has changed if it is refused.
pub(super) fn prepare(
    state: &State,
    book: &Book,
    staging: &Staging,
    asked: Asked,
) -> Result<Ready, ApiError> {
    let (folder, wanted) = (asked.0.as_deref(), asked.1.as_deref());
    let loaded = state.gate.board.read().loaded;
    let outcome = staging.outcome().map_err(refused)?;
    let checksum = outcome.checksum();
    let same = loaded && checksum == book.version.checksum;
    let again = book.last.as_ref().filter(|last| {
        same && folder.is_some() && last.is_of(folder, wanted) && last.version == book.version
    });
    if let Some(again) = again.cloned() {
        let version = again.version.clone();
        return Ok(Ready { outcome, version, same, asked, again: Some(again) });
    }
    let label = state.updates.label((wanted, folder), book.done, &checksum).map_err(refused)?;
    if !loaded && !staging.is_whole() {
        let reason = "the engine has no weights, so an update must be of all tensors";
        return Err(ApiError::malformed(reason));
    }
    let version = Version { label, checksum };
    Ok(Ready { outcome, version, same, asked, again: None })
}

/// Lays the tensors out beside the weights that serve, then has the engine thread exchange them.
pub(super) async fn apply(
    state: &State,
    book: &mut Book,
    staging: Staging,
    ready: Ready,
) -> Result<Receipt, ApiError> {
    let stats = &state.stats.updates;
    let Ready { outcome, version, same, asked: (folder, asked), again } = ready;
    if let Some(again) = again {
        add(&stats.repeated, 1);
        return Ok(again);
    }
    if !same {
        stage(state, staging).await?;
    }
    let new = state.updates.remember(&version);
    let pause = exchange(state, &version, same).await.inspect_err(|_| {
        if new {
            state.updates.forget(&version.label);
        }
    })?;
    book.done += 1;
    book.ledger = Arc::new(outcome);
    book.version = version.clone();
    let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
    add(if same { &stats.relabeled } else { &stats.exchanged }, 1);
    stats.exchange_us.fetch_add(pause_us, Ordering::Relaxed);
    let receipt = Receipt { folder, asked, version, pause_us };
    book.last = Some(receipt.clone());
    tracing::info!(version = receipt.version.label, pause_us, "weights were updated");
    Ok(receipt)
}

async fn stage(state: &State, staging: Staging) -> Result<(), ApiError> {
    state.gate.tell(|done| Command::Lend { done }).await?;
    let yard = Arc::clone(&state.updates.yard);
    let staged = spawn_blocking(move || {
        let staged = yard.stage(staging);
        if staged.is_err() {
            yard.clear();
        }
        staged
    });
    staged.await.map_err(|_| ApiError::internal())?.map_err(refused)
}

async fn exchange(state: &State, version: &Version, same: bool) -> Result<Duration, ApiError> {
    state.adapters.remember_over(version, &state.updates);
    let version: Arc<str> = Arc::from(version.label.as_str());
    let pause = state.gate.tell(|done| Command::Exchange { version, same, done }).await?;
    let yard = Arc::clone(&state.updates.yard);
    // The weights that served before are given back to the system, which takes a while.
    spawn_blocking(move || yard.clear()).await.map_err(|_| ApiError::internal())?;
    pause.map_err(|error| ApiError::failed(&error))
}
