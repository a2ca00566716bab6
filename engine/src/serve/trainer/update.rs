//! Weights are received: start, pieces and finish, or all at once.
//!
//! Work that changes the weights runs in a task of its own, which ends whether or not the caller
//! stays connected.

use std::path::Path;
use std::sync::Arc;

use http::api::schema::Field;
use hyper::StatusCode;
use kernels::Placement;
use kernels::cuda::DeviceOptions;
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use super::apply::{UpdateName, apply, prepare};
use super::in_place::{self, give_up_after};
use super::room::describe_updates;
use super::task::{BookGuard, lock_book, run_blocking, run_to_end};
use crate::bounds::LABEL_BYTES_MAX;
use crate::core::message::Command;
use crate::options::UpdateMode;
use crate::serve::calls::{ApiError, Fields, HttpCall, HttpReply, json_reply};
use crate::serve::state::ServerState;
use crate::stats::add;
use crate::update::IncomingWeights;
use crate::update::LabelWish;
use crate::update::OpenUpdate;
use crate::update::TensorDestination;
use crate::update::UpdateError;
use crate::update::UpdateReceipt;
use crate::update::UpdateState;
use crate::update::WeightVersion;
use crate::update::folder::take_folder;
use crate::weights::root::WeightsRoot;

/// The fields of `/init_weight_transfer_engine`.
pub(crate) const CONNECT_FIELDS: &[Field] = &[Field::object("init_info")];

/// The fields of `/start_weight_update`.
pub(crate) const START_FIELDS: &[Field] = &[Field::string("mode")];

/// The fields of `/update_weights`.
pub(crate) const UPDATE_FIELDS: &[Field] = &[
    Field::string("mode"),
    Field::any("update_info"),
    Field::string("weight_dir"),
    Field::string("path"),
    Field::any("weight_version"),
    Field::any("version"),
];

/// The fields of `/finish_weight_update`.
pub(crate) const FINISH_FIELDS: &[Field] = &[Field::any("weight_version")];

/// The fields of `/update_weight_version`.
pub(crate) const RENAME_FIELDS: &[Field] = &[Field::any("new_version")];

/// The refusal of an update of one call that lacks tensors.
const NOT_ALL_TENSORS: &str = "an update of one call must be of all tensors; parts go between \
                               `POST /start_weight_update` and `POST /finish_weight_update`";

/// The refusal of a finish without a start.
const NONE_STARTED: &str = "no update was started; `POST /start_weight_update` comes first";

/// The refusal of a transfer without a transport.
const NOT_CONNECTED: &str = "no transport is connected; `POST /init_weight_transfer_engine` comes \
                             first, or give `update_info.path`";

/// The fields of `update_info` by which vLLM's clients send handles of CUDA IPC.
const IPC_FIELDS: [&str; 2] = ["ipc_handles", "ipc_handles_pickled"];

/// The refusal of such handles.
const NO_IPC: &str = "weights by handles of CUDA IPC are not implemented; they can come over NCCL, \
                      as a folder of safetensors (`update_info.path`), or as a body of safetensors";

/// Counts the error of an update, and passes the result on.
fn count_error<T>(state: &ServerState, result: Result<T, ApiError>) -> Result<T, ApiError> {
    if let Err(error) = &result {
        let stats = &state.stats.updates;
        let is_failure = error.status().is_server_error();
        add(if is_failure { &stats.failed } else { &stats.refused }, 1);
    }
    result
}

fn message_reply(text: &str) -> HttpReply {
    json_reply(&json!({ "message": text }))
}

/// Handles `/init_weight_transfer_engine`: connects a transport, if `init_info` describes one.
/// Folders and bodies need none.
pub(crate) async fn connect(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let fields = call.fields_or_empty()?;
    let Some(info) = fields.object("init_info")?.cloned() else {
        let message = "must be an object; empty for folders and bodies";
        return Err(ApiError::bad_field("init_info", message));
    };
    if info.contains_key("master_address") || info.contains_key("nccl_unique_id_b64") {
        run_to_end(join_group(Arc::clone(state), info.clone())).await?;
    }
    Ok(json_reply(&describe_updates(state, &info).await?))
}

/// Joins the group of a trainer. This may take minutes and blocks no other call. A trainer that
/// connects again takes the place of the one that the engine waits for.
async fn join_group(state: Arc<ServerState>, info: Map<String, Value>) -> Result<(), ApiError> {
    let wait = state.updates.waits.take_over();
    let _joining = state.updates.joining.lock().await;
    // The old transport goes first: a trainer that begins anew does not know its group.
    lock_book(&state).await.transport = None;

    let gpu = state.model.gpu.clone();
    let transport = run_blocking(move || crate::update::nccl::connect(&info, &gpu, wait)).await??;
    lock_book(&state).await.transport = Some(transport);
    Ok(())
}

/// Handles `/shutdown_weight_transfer_engine`.
pub(crate) async fn disconnect(
    state: &Arc<ServerState>,
    _: HttpCall,
) -> Result<HttpReply, ApiError> {
    state.updates.waits.end();
    let mut book = lock_book(state).await;
    book.transport = None;
    drop_open_update(state, &mut book).await?;
    Ok(message_reply("Weight transfer shut down"))
}

/// Handles `/start_weight_update`. An update that was started and not finished is dropped.
pub(crate) async fn start(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let mode = in_place::mode_of(state, &call.fields_or_empty()?)?;
    let mut book = lock_book(state).await;
    drop_open_update(state, &mut book).await?;
    let destination = in_place::destination(state, mode);
    book.open = Some(OpenUpdate::new(book.new_incoming().with_destination(destination)));
    Ok(message_reply("Weight update started"))
}

async fn drop_open_update(state: &ServerState, book: &mut UpdateState) -> Result<(), ApiError> {
    book.finished = None;
    match book.open.take() {
        Some(open) if open.has_written() => {
            in_place::give_up(state, book, "a later call dropped it").await
        }
        _ => Ok(()),
    }
}

/// The place that the tensors of a call come from.
enum WeightSource {
    Folder(String),
    /// A safetensors file.
    Body(bytes::Bytes),
    /// The connected transport; the fields announce the tensors.
    Transport(Map<String, Value>),
}

/// The tensors of a call, and the label that it asks for.
struct WeightPush {
    source: WeightSource,
    label: Option<String>,
    /// The mode, if the call is an update of its own.
    mode: UpdateMode,
}

impl WeightPush {
    fn parse(state: &ServerState, call: HttpCall) -> Result<WeightPush, ApiError> {
        if call.is_binary() {
            let query = call.query()?;
            let label = query.get("weight_version").map(str::to_owned);
            let mode = in_place::parse_mode(state, query.get("mode"))?;
            return Ok(WeightPush { source: WeightSource::Body(call.body), label, mode });
        }
        let fields = call.fields_or_empty()?;
        let label = parse_label(&fields, "weight_version")?.or(parse_label(&fields, "version")?);
        let mode = in_place::mode_of(state, &fields)?;
        Ok(WeightPush { source: WeightSource::parse(&fields)?, label, mode })
    }

    /// The place where the tensors of an update of this one call go. What would be refused in the
    /// end must not be written over the weights.
    fn destination(&self, state: &Arc<ServerState>, book: &UpdateState) -> TensorDestination {
        let destination = in_place::destination(state, self.mode);
        if matches!(destination, TensorDestination::Kept) {
            return destination;
        }
        let label = self.label.as_deref();
        let is_known = label.is_some_and(|label| state.updates.checksum_of(label).is_some());
        let is_whole = match (&self.source, self.source.names()) {
            (WeightSource::Folder(_), _) => true,
            (_, Some(names)) => book.new_incoming().would_be_whole(names),
            (_, None) => false,
        };
        if is_known || !is_whole { TensorDestination::Dropped } else { destination }
    }
}

impl WeightSource {
    fn parse(fields: &Fields) -> Result<WeightSource, ApiError> {
        for name in ["weight_dir", "path"] {
            if let Some(folder) = fields.text(name)? {
                return Ok(WeightSource::Folder(folder.to_owned()));
            }
        }

        // Some clients wrap the object in a list of one.
        let info = match fields.get("update_info") {
            Some(Value::Array(list)) if list.len() == 1 => list[0].as_object(),
            info => info.and_then(Value::as_object),
        };
        let Some(info) = info else {
            let message = "must be an object: `path` of a folder, or what a transport sends";
            return Err(ApiError::bad_field("update_info", message));
        };
        if IPC_FIELDS.iter().any(|field| info.contains_key(*field)) {
            return Err(ApiError::not_implemented(NO_IPC));
        }
        match info.get("path").or_else(|| info.get("weight_dir")) {
            Some(Value::String(folder)) => Ok(WeightSource::Folder(folder.clone())),
            Some(_) => Err(ApiError::bad_field("update_info.path", "must be a string")),
            None => Ok(WeightSource::Transport(info.clone())),
        }
    }

    fn folder(&self) -> Option<String> {
        match self {
            WeightSource::Folder(folder) => Some(folder.clone()),
            _ => None,
        }
    }

    /// Returns the names of its tensors, if these are known before it is read.
    fn names(&self) -> Option<Vec<String>> {
        match self {
            WeightSource::Folder(_) => None,
            WeightSource::Body(body) => {
                let (_, metadata) = SafeTensors::read_metadata(body).ok()?;
                Some(metadata.offset_keys())
            }
            WeightSource::Transport(info) => {
                let names = info.get("names")?.as_array()?.iter();
                names.map(|name| name.as_str().map(str::to_owned)).collect()
            }
        }
    }

    /// Reads all tensors into `staging`. Blocks.
    fn read(
        self,
        to: &ReadPlace,
        book: &mut UpdateState,
        staging: &mut IncomingWeights,
    ) -> Result<(), UpdateError> {
        match self {
            WeightSource::Folder(folder) => {
                let folder = to.root.folder(Path::new(&folder))?;
                take_folder(staging, &folder, to.gpu.as_ref())
            }
            WeightSource::Body(body) => staging.take_file(&body),
            WeightSource::Transport(info) => {
                let Some(mut transport) = book.transport.take() else {
                    return Err(UpdateError::Weights(NOT_CONNECTED.into()));
                };
                let received = transport.receive(&info, to.home, staging);
                // A transport out of step would take an old broadcast for a new one.
                book.transport = transport.is_in_step().then_some(transport);
                received
            }
        }
    }
}

/// Reads a label, which may be given as a number.
fn parse_label(fields: &Fields, name: &str) -> Result<Option<String>, ApiError> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(Value::String(text)) if text.len() > LABEL_BYTES_MAX => {
            let message = format!("must be at most {LABEL_BYTES_MAX} bytes");
            Err(ApiError::bad_field(name, message))
        }
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        Some(_) => Err(ApiError::bad_field(name, "must be a text that is not empty")),
    }
}

/// The places from which tensors may be read, and those in which they may stay.
struct ReadPlace {
    root: WeightsRoot,
    /// The device if what arrives on a GPU may stay there.
    home: Placement,
    /// The GPU of the engine, if folders may be read by way of it.
    gpu: Option<DeviceOptions>,
}

impl ReadPlace {
    fn new(state: &ServerState) -> ReadPlace {
        // The memory of a GPU whose weights sleep is for others.
        let (home, gpu) = match state.engine.status().asleep.weights {
            true => (Placement::Host, None),
            false => (Placement::Device, Some(state.model.gpu.clone())),
        };
        ReadPlace { root: state.model.weights_root.clone(), home, gpu }
    }
}

/// The result of reading a source; the lock comes back also if that failed.
struct ReadWeights {
    book: BookGuard,
    staging: IncomingWeights,
    result: Result<(), UpdateError>,
}

/// Reads all tensors of a source into `staging`.
async fn read_source(
    state: &ServerState,
    mut book: BookGuard,
    mut staging: IncomingWeights,
    source: WeightSource,
) -> Result<ReadWeights, ApiError> {
    let mut to = ReadPlace::new(state);
    let area = Arc::clone(&state.updates.staging);
    run_blocking(move || {
        // An engine on the CPU has no use for the machine's GPU.
        to.gpu = to.gpu.filter(|_| matches!(area.memory(), Ok(Some(_))));
        let read = source.read(&to, &mut book, &mut staging);
        let result = read.and_then(|()| staging.flush());
        ReadWeights { book, staging, result }
    })
    .await
}

/// Serves the weights in a folder of a whole model from now on, under the label if there is one.
pub(crate) async fn push_folder(
    state: &Arc<ServerState>,
    folder: String,
    label: Option<String>,
) -> Result<UpdateReceipt, ApiError> {
    let book = lock_book(state).await;
    let mode = state.model.update_mode;
    push_all(state, book, WeightPush { source: WeightSource::Folder(folder), label, mode }).await
}

/// Applies an update of one call. An update that was started is dropped.
async fn push_all(
    state: &Arc<ServerState>,
    mut book: BookGuard,
    push: WeightPush,
) -> Result<UpdateReceipt, ApiError> {
    let state = Arc::clone(state);
    run_to_end(async move {
        drop_open_update(&state, &mut book).await?;
        let destination = push.destination(&state, &book);
        let empty = book.new_incoming().with_destination(destination);
        let WeightPush { source, label, .. } = push;
        let name = UpdateName { folder: source.folder(), label };
        let read = read_source(&state, book, empty, source).await?;
        let ReadWeights { mut book, staging, result } = read;

        let has_written = staging.has_written();
        let applied = match result {
            Ok(()) => apply_whole(&state, &mut book, staging, name).await,
            Err(error) => Err(error.into()),
        };
        let settled = match applied {
            Ok(receipt) => Ok(receipt),
            Err(error) => Err(give_up_after(&state, &mut book, error, has_written).await),
        };
        count_error(&state, settled)
    })
    .await
}

async fn apply_whole(
    state: &ServerState,
    book: &mut UpdateState,
    staging: IncomingWeights,
    name: UpdateName,
) -> Result<UpdateReceipt, ApiError> {
    if !staging.is_whole() {
        return Err(ApiError::bad_request(NOT_ALL_TENSORS));
    }
    let prepared = prepare(state, book, &staging, name)?;
    apply(state, book, staging, prepared).await
}

/// Handles `/update_weights`. A call is an update of its own if none was started, or if it gives a
/// label.
pub(crate) async fn update(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    const UPDATED: &str = "Weights updated";
    let push = WeightPush::parse(state, call)?;
    let mut book = lock_book(state).await;
    let open = if push.label.is_none() { book.open.take() } else { None };
    let Some(mut open) = open else {
        return Ok(receipt_reply(UPDATED, &push_all(state, book, push).await?));
    };

    let state = Arc::clone(state);
    run_to_end(async move {
        let names = push.source.names();
        let read = read_source(&state, book, open.new_batch(), push.source).await?;
        let ReadWeights { mut book, staging, result } = read;
        let has_written = open.has_written() || staging.has_written();
        let settled = open.add(result.map(|()| staging), names).map_err(ApiError::from);
        let tensors = open.incoming().len();

        book.open = Some(open);
        let settled = match settled {
            Ok(()) => Ok(()),
            Err(error) => Err(give_up_after(&state, &mut book, error, has_written).await),
        };
        count_error(&state, settled)?;
        Ok(json_reply(&json!({"message": UPDATED, "tensors": tensors})))
    })
    .await
}

/// Handles `/finish_weight_update`: serves the received weights from now on.
pub(crate) async fn finish(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    const FINISHED: &str = "Weight update finished";
    let label = parse_label(&call.fields_or_empty()?, "weight_version")?;
    let state = Arc::clone(state);
    run_to_end(async move {
        let mut book = lock_book(&state).await;
        let Some(open) = book.open.take() else {
            // A client that lost the answer finishes again, and gets the same one.
            let finished = book.finished.as_ref();
            let last = finished.filter(|last| last.is_of(None, label.as_deref()));
            let receipt = last.ok_or_else(|| ApiError::conflict(NONE_STARTED))?;
            add(&state.stats.updates.repeated, 1);
            return Ok(receipt_reply(FINISHED, receipt));
        };

        let applied = finish_open(&state, &mut book, open, label).await;
        let receipt = count_error(&state, applied)?;
        book.finished = Some(receipt.clone());
        Ok(receipt_reply(FINISHED, &receipt))
    })
    .await
}

/// Applies a started update. If it is refused, it stays open, so that missing tensors can come.
async fn finish_open(
    state: &ServerState,
    book: &mut UpdateState,
    open: OpenUpdate,
    label: Option<String>,
) -> Result<UpdateReceipt, ApiError> {
    let name = UpdateName { folder: None, label };
    let prepared = match open.missing() {
        Some(debt) => Err(ApiError::conflict(debt)),
        None => prepare(state, book, open.incoming(), name),
    };
    match prepared {
        Ok(prepared) => apply(state, book, open.into_incoming(), prepared).await,
        // Tensors that contradict each other cannot be sent again once they were written.
        Err(refusal) if open.has_written() && refusal.status() == StatusCode::BAD_REQUEST => {
            Err(give_up_after(state, book, refusal, true).await)
        }
        Err(refusal) => {
            book.open = Some(open);
            Err(refusal)
        }
    }
}

fn receipt_reply(message: &str, receipt: &UpdateReceipt) -> HttpReply {
    let WeightVersion { label, checksum } = &receipt.version;
    json_reply(&json!({
        "message": message,
        "weight_version": label,
        "checksum": checksum,
        "pause_us": receipt.pause_us,
    }))
}

/// Handles `/update_weight_version`: gives the weights that serve another label.
pub(crate) async fn rename(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    const FIELD: &str = "new_version";
    let Some(wanted) = parse_label(&call.fields_or_empty()?, FIELD)? else {
        return Err(ApiError::bad_field(FIELD, "must be a text"));
    };
    let state = Arc::clone(state);
    run_to_end(async move {
        let mut book = lock_book(&state).await;
        let checksum = book.version.checksum.clone();
        let label = state.updates.choose_label(
            LabelWish { asked: Some(&wanted), folder: None },
            book.done,
            &checksum,
        )?;
        let version = WeightVersion { label, checksum };
        // The label must be known before any token is sampled under it.
        state.updates.remember(&version);

        let engine_label: Arc<str> = Arc::from(wanted.as_str());
        state.engine.send(|done| Command::Rename { version: engine_label, done }).await?;
        book.version = version;
        Ok(json_reply(&json!({"success": true, "new_version": wanted})))
    })
    .await
}
