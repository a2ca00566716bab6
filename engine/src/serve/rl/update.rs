//! Weights come in: start, pieces, finish; or all at once from a folder.
//!
//! What changes anything runs in a task of its own, to its end whether or not the caller stays.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use safetensors::SafeTensors;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedMutexGuard;
use tokio::task::spawn_blocking;

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::routes::{Reply, json_reply};
use super::super::submit::State;
use super::Call;
use super::apply::{apply, prepare};
use crate::control::Command;
use crate::stats::add;
use crate::update::{Book, Open, Receipt, Refused, Staging, Version};

/// Why some tensors alone are refused.
const PARTS: &str = "an update of one call must be of all tensors; parts go between \
                     `POST /start_weight_update` and `POST /finish_weight_update`";

/// Why there is nothing to finish.
const NONE_STARTED: &str = "no update was started; `POST /start_weight_update` comes first";

type Held = OwnedMutexGuard<Book>;

/// A refusal as the caller sees it.
pub(super) fn refused(refused: Refused) -> ApiError {
    match refused {
        Refused::Weights(reason) => ApiError::malformed(reason),
        Refused::Label(reason) => ApiError::conflict(reason),
        Refused::Device(reason) => ApiError::failed(&reason),
        Refused::Trainer(reason) => ApiError::no_answer(reason),
        Refused::Interrupted(reason) => ApiError::conflict(reason),
        Refused::Stopping => ApiError::unavailable(&Refused::Stopping.to_string()),
    }
}

/// Runs `work` to its end, whoever still waits for it.
pub(super) async fn whole<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(work).await.map_err(|_| ApiError::internal())?
}

/// Counts a refusal or failure of weights that came.
fn counted<T>(state: &State, came: Result<T, ApiError>) -> Result<T, ApiError> {
    if let Err(error) = &came {
        let stats = &state.stats.updates;
        let fault = error.status().is_server_error();
        add(if fault { &stats.failed } else { &stats.refused }, 1);
    }
    came
}

async fn hold(state: &State) -> Held {
    Arc::clone(&state.updates.book).lock_owned().await
}

fn message(text: &str) -> Reply {
    json_reply(&json!({ "message": text }))
}

/// Gets a transport ready, if `init_info` asks for one: folders and bodies need none.
pub(super) async fn connect(state: &Arc<State>, fields: &Fields) -> Result<Reply, ApiError> {
    let missing = || ApiError::bad("init_info", "must be an object; empty for folders and bodies");
    let info = fields.object("init_info")?.cloned().ok_or_else(missing)?;
    if info.contains_key("master_address") || info.contains_key("nccl_unique_id_b64") {
        let state = Arc::clone(state);
        whole(join(state, info)).await?;
    }
    Ok(message("Weight transfer initialized"))
}

/// Waits for the trainer, which may take minutes, and holds nobody else up meanwhile. A trainer
/// that was waited for before is not any more: who begins anew comes in its place.
async fn join(state: Arc<State>, info: Map<String, Value>) -> Result<(), ApiError> {
    let wait = state.updates.waits.take_over();
    let _one = state.updates.joining.lock().await;
    // The other side waits for nobody whom it does not know.
    hold(&state).await.transport = None;
    let gpu = state.card.gpu.clone();
    let joined = spawn_blocking(move || crate::nccl::connect(&info, &gpu, wait)).await;
    let joined = joined.map_err(|_| ApiError::internal())?.map_err(refused)?;
    hold(&state).await.transport = Some(joined);
    Ok(())
}

pub(super) async fn disconnect(state: &State) -> Result<Reply, ApiError> {
    state.updates.waits.end();
    let mut book = hold(state).await;
    book.transport = None;
    (book.open, book.finished) = (None, None);
    Ok(message("Weight transfer shut down"))
}

/// Begins an update; one that was begun and never finished is forgotten.
pub(super) async fn start(state: &State) -> Result<Reply, ApiError> {
    let mut book = hold(state).await;
    (book.open, book.finished) = (Some(Open::new(book.staging())), None);
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

    /// Names of the tensors that it is to bring, where they can be known without reading it.
    fn names(&self) -> Option<Vec<String>> {
        match self {
            Source::Folder(_) => None,
            Source::Body(body) => {
                let (_, file) = SafeTensors::read_metadata(body).ok()?;
                Some(file.offset_keys())
            }
            Source::Transport(info) => {
                let names = info.get("names")?.as_array()?.iter();
                names.map(|name| name.as_str().map(str::to_owned)).collect()
            }
        }
    }

    /// Puts all tensors into `staging`. Blocks.
    fn read(self, book: &mut Book, staging: &mut Staging) -> Result<(), Refused> {
        match self {
            Source::Folder(folder) => staging.take_folder(Path::new(&folder)),
            Source::Body(body) => staging.take_file(&body),
            Source::Transport(info) => {
                let Some(mut transport) = book.transport.take() else {
                    return Err(Refused::Weights(
                        "no transport is connected; `POST /init_weight_transfer_engine` comes \
                         first, or give `update_info.path`"
                            .into(),
                    ));
                };
                let received = transport.receive(&info, &mut |piece| staging.take(piece));
                // One that is out of step would take an old broadcast for a new one.
                book.transport = transport.is_in_step().then_some(transport);
                received
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

/// Reads all tensors of a source into `staging`. The book comes back, whatever came of it.
async fn read(
    mut book: Held,
    mut staging: Staging,
    source: Source,
) -> Result<(Held, Result<Staging, Refused>), ApiError> {
    let reading = spawn_blocking(move || {
        let read = source.read(&mut book, &mut staging);
        (book, read.map(|()| staging))
    });
    reading.await.map_err(|_| ApiError::internal())
}

/// Serves a folder of a whole model from now on, under the label that is asked for.
pub(in crate::serve) async fn push_folder(
    state: &Arc<State>,
    folder: String,
    asked: Option<String>,
) -> Result<Receipt, ApiError> {
    let book = hold(state).await;
    push(state, book, Source::Folder(folder), asked).await
}

/// An update that is one call. It ends one that was begun.
async fn push(
    state: &Arc<State>,
    mut book: Held,
    source: Source,
    asked: Option<String>,
) -> Result<Receipt, ApiError> {
    let state = Arc::clone(state);
    whole(async move {
        (book.open, book.finished) = (None, None);
        let (folder, staging) = (source.folder(), book.staging());
        let (mut book, read) = read(book, staging, source).await?;
        let done = async {
            let staging = read.map_err(refused)?;
            if !staging.is_whole() {
                return Err(ApiError::malformed(PARTS));
            }
            let ready = prepare(&state, &book, &staging, (folder, asked))?;
            apply(&state, &mut book, staging, ready).await
        };
        counted(&state, done.await)
    })
    .await
}

/// Takes tensors in. Without an update that was started they are one by themselves, and so is a
/// call that is given a label.
pub(super) async fn update(state: &Arc<State>, call: Call) -> Result<Reply, ApiError> {
    const UPDATED: &str = "Weights updated";
    let (source, asked) = Source::of(call)?;
    let mut book = hold(state).await;
    let open = if asked.is_none() { book.open.take() } else { None };
    let Some(mut open) = open else {
        return Ok(done(UPDATED, &push(state, book, source, asked).await?));
    };
    let state = Arc::clone(state);
    whole(async move {
        let (names, scratch) = (source.names(), open.scratch());
        let (mut book, read) = read(book, scratch, source).await?;
        let settled = open.settle(read, names).map_err(refused);
        let tensors = open.staging().len();
        book.open = Some(open);
        counted(&state, settled)?;
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
        let Some(open) = book.open.take() else {
            // The answer may have been lost.
            let last = book.finished.as_ref().filter(|last| last.is_of(None, asked.as_deref()));
            let last = last.ok_or_else(|| ApiError::conflict(NONE_STARTED))?;
            add(&state.stats.updates.repeated, 1);
            return Ok(done(FINISHED, last));
        };
        let ready = match open.debt() {
            Some(debt) => Err(ApiError::conflict(debt)),
            None => prepare(&state, &book, open.staging(), (None, asked)),
        };
        let receipt = match ready {
            Ok(ready) => apply(&state, &mut book, open.into_staging(), ready).await,
            Err(refused) => {
                // What has arrived stays, so that what is missing can come.
                book.open = Some(open);
                Err(refused)
            }
        };
        let receipt = counted(&state, receipt)?;
        book.finished = Some(receipt.clone());
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
