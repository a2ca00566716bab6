//! Weights come in: start, pieces, finish; or all at once from a folder.
//!
//! What changes anything runs in a task of its own, to its end whether or not the caller stays.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::sync::OwnedMutexGuard;
use tokio::task::spawn_blocking;

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::routes::{Reply, json_reply};
use super::super::submit::State;
use super::Call;
use crate::control::Command;
use crate::update::{Book, Receipt, Refused, Staging, Version};

type Held = OwnedMutexGuard<Book>;

/// A refusal as the caller sees it.
pub(super) fn refused(refused: Refused) -> ApiError {
    match refused {
        Refused::Weights(reason) => ApiError::malformed(reason),
        Refused::Label(reason) => ApiError::conflict(reason),
        Refused::Device(reason) => ApiError::failed(&reason),
    }
}

/// Runs `work` to its end, whoever still waits for it.
async fn whole<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(work).await.map_err(|_| ApiError::internal())?
}

async fn hold(state: &State) -> Held {
    Arc::clone(&state.updates.book).lock_owned().await
}

fn message(text: &str) -> Reply {
    json_reply(&json!({ "message": text }))
}

/// Gets a transport ready, if `init_info` asks for one: folders and bodies need none.
pub(super) async fn connect(state: &Arc<State>, fields: &Fields) -> Result<Reply, ApiError> {
    let info = fields.object("init_info")?.cloned().unwrap_or_default();
    if info.contains_key("master_address") || info.contains_key("nccl_unique_id_b64") {
        let mut book = hold(state).await;
        // The other side waits for nobody whom it does not know.
        book.transport = None;
        let connected = spawn_blocking(move || crate::nccl::connect(&info)).await;
        book.transport = Some(connected.map_err(|_| ApiError::internal())?.map_err(refused)?);
    }
    Ok(message("Weight transfer initialized"))
}

pub(super) async fn disconnect(state: &State) -> Result<Reply, ApiError> {
    let mut book = hold(state).await;
    book.transport = None;
    book.open = None;
    Ok(message("Weight transfer shut down"))
}

/// Begins an update; one that was begun and never finished is forgotten.
pub(super) async fn start(state: &State) -> Result<Reply, ApiError> {
    let mut book = hold(state).await;
    book.open = Some(book.staging());
    Ok(message("Weight update started"))
}

/// Where the tensors of a call are.
enum Source {
    Folder(String),
    Body(bytes::Bytes),
    /// To be received as these fields announce.
    Transport(Map<String, Value>),
}

impl Source {
    fn of(call: Call) -> Result<(Source, Option<String>), ApiError> {
        if call.binary {
            let asked = call.query.get("weight_version").map(str::to_owned);
            return Ok((Source::Body(call.body), asked));
        }
        let fields = call.fields()?;
        let asked = version(&fields, "weight_version")?.or(version(&fields, "version")?);
        for name in ["weight_dir", "path"] {
            if let Some(folder) = fields.text(name)? {
                return Ok((Source::Folder(folder.to_owned()), asked));
            }
        }
        let info = match fields.get("update_info") {
            Some(Value::Array(list)) if list.len() == 1 => list[0].as_object(),
            info => info.and_then(Value::as_object),
        };
        let Some(info) = info else {
            let forms = "must be an object: `path` of a folder, or what a transport sends";
            return Err(ApiError::bad("update_info", forms));
        };
        match info.get("path").or_else(|| info.get("weight_dir")) {
            Some(Value::String(folder)) => Ok((Source::Folder(folder.clone()), asked)),
            Some(_) => Err(ApiError::bad("update_info.path", "must be a string")),
            None => Ok((Source::Transport(info.clone()), asked)),
        }
    }

    fn folder(&self) -> Option<String> {
        match self {
            Source::Folder(folder) => Some(folder.clone()),
            _ => None,
        }
    }

    /// Puts all tensors into `staging`. Blocks.
    fn read(self, book: &mut Book, staging: &mut Staging) -> Result<(), Refused> {
        match self {
            Source::Folder(folder) => staging.take_folder(Path::new(&folder)),
            Source::Body(body) => staging.take_file(&body),
            Source::Transport(info) => {
                let Some(transport) = &mut book.transport else {
                    return Err(Refused::Weights(
                        "no transport is connected; `POST /init_weight_transfer_engine` comes \
                         first, or give `update_info.path`"
                            .into(),
                    ));
                };
                transport.receive(&info, &mut |piece| staging.take(piece))
            }
        }
    }
}

/// A label, which may be given as a number.
fn version(fields: &Fields, name: &str) -> Result<Option<String>, ApiError> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        Some(_) => Err(ApiError::bad(name, "must be a text that is not empty")),
    }
}

/// Reads all tensors of a source. The book comes back, whatever came of it.
async fn read(
    mut book: Held,
    mut staging: Staging,
    source: Source,
) -> Result<(Held, Staging, Result<(), Refused>), ApiError> {
    let reading = spawn_blocking(move || {
        let read = source.read(&mut book, &mut staging);
        (book, staging, read)
    });
    reading.await.map_err(|_| ApiError::internal())
}

/// Serves a folder of a whole model from now on, under the label that is asked for.
pub(in crate::serve) async fn push_folder(
    state: &Arc<State>,
    folder: String,
    asked: Option<String>,
) -> Result<Receipt, ApiError> {
    push(state, Source::Folder(folder), asked).await
}

/// An update that is one call.
async fn push(
    state: &Arc<State>,
    source: Source,
    asked: Option<String>,
) -> Result<Receipt, ApiError> {
    let state = Arc::clone(state);
    whole(async move {
        let book = hold(&state).await;
        let (folder, staging) = (source.folder(), book.staging());
        let (mut book, staging, read) = read(book, staging, source).await?;
        read.map_err(refused)?;
        apply(&state, &mut book, staging, (folder, asked)).await
    })
    .await
}

/// Takes tensors in. Without an update that was started they are one by themselves.
pub(super) async fn update(state: &Arc<State>, call: Call) -> Result<Reply, ApiError> {
    const UPDATED: &str = "Weights updated";
    let (source, asked) = Source::of(call)?;
    let mut book = hold(state).await;
    let Some(staging) = book.open.take() else {
        drop(book);
        let receipt = match source {
            Source::Folder(folder) => push_folder(state, folder, asked).await?,
            source => push(state, source, asked).await?,
        };
        return Ok(done(UPDATED, &receipt));
    };
    whole(async move {
        let (mut book, staging, read) = read(book, staging, source).await?;
        // What came before a piece that is refused stays, so that the piece can come again.
        let tensors = staging.len();
        book.open = Some(staging);
        read.map_err(refused)?;
        Ok(json_reply(&json!({"message": UPDATED, "tensors": tensors})))
    })
    .await
}

/// Serves what has arrived from now on.
pub(super) async fn finish(state: &Arc<State>, fields: &Fields) -> Result<Reply, ApiError> {
    const FINISHED: &str = "Weight update finished";
    let asked = version(fields, "weight_version")?;
    let state = Arc::clone(state);
    whole(async move {
        let mut book = hold(&state).await;
        let Some(staging) = book.open.take() else {
            // The answer may have been lost.
            return match &book.last {
                Some(last) if last.is_of(None, asked.as_deref()) => Ok(done(FINISHED, last)),
                _ => Err(ApiError::conflict(
                    "no update was started; `POST /start_weight_update` comes first",
                )),
            };
        };
        let receipt = apply(&state, &mut book, staging, (None, asked)).await?;
        Ok(done(FINISHED, &receipt))
    })
    .await
}

fn done(text: &str, receipt: &Receipt) -> Reply {
    let Version { label, checksum } = &receipt.version;
    json_reply(&json!({
        "message": text,
        "weight_version": label,
        "checksum": checksum,
        "pause_us": receipt.pause_us,
    }))
}

/// Lays the tensors out beside the weights that serve, then has the engine thread exchange them.
async fn apply(
    state: &State,
    book: &mut Book,
    staging: Staging,
    (folder, asked): (Option<String>, Option<String>),
) -> Result<Receipt, ApiError> {
    let loaded = state.gate.board.read().loaded;
    let outcome = staging.outcome().map_err(refused)?;
    let checksum = outcome.checksum();
    let same = loaded && checksum == book.version.checksum;
    let again = book.last.as_ref().filter(|last| last.is_of(folder.as_deref(), asked.as_deref()));
    if let Some(last) =
        again.filter(|last| same && folder.is_some() && last.version == book.version)
    {
        return Ok(last.clone());
    }
    let wanted = (asked.as_deref(), folder.as_deref());
    let label = state.updates.label(wanted, book.done, &checksum).map_err(refused)?;
    if !loaded && !staging.is_whole() {
        let reason = "the engine has no weights, so an update must be of all tensors";
        return Err(ApiError::malformed(reason));
    }
    let version = Version { label, checksum };
    if !same {
        stage(state, staging).await?;
    }
    state.updates.remember(&version);
    let pause = exchange(state, &version, same).await?;
    book.done += 1;
    book.ledger = Arc::new(outcome);
    book.version = version.clone();
    let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
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

async fn exchange(
    state: &State,
    version: &Version,
    same: bool,
) -> Result<std::time::Duration, ApiError> {
    let version: Arc<str> = Arc::from(version.label.as_str());
    let pause = state.gate.tell(|done| Command::Exchange { version, same, done }).await?;
    let yard = Arc::clone(&state.updates.yard);
    // The weights that served before are given back to the system, which takes a while.
    spawn_blocking(move || yard.clear()).await.map_err(|_| ApiError::internal())?;
    pause.map_err(|error| ApiError::failed(&error))
}

/// Gives the weights that serve another label.
pub(super) async fn rename(state: &Arc<State>, fields: &Fields) -> Result<Reply, ApiError> {
    let asked = version(fields, "new_version")?;
    let asked = asked.ok_or_else(|| ApiError::bad("new_version", "must be a text"))?;
    let state = Arc::clone(state);
    whole(async move {
        let mut book = hold(&state).await;
        let checksum = book.version.checksum.clone();
        let label =
            state.updates.label((Some(&asked), None), book.done, &checksum).map_err(refused)?;
        let version = Version { label, checksum };
        state.updates.remember(&version);
        let label: Arc<str> = Arc::from(asked.as_str());
        state.gate.tell(|done| Command::Rename { version: label, done }).await?;
        book.version = version;
        Ok(json_reply(&json!({"success": true, "new_version": asked})))
    })
    .await
}
