//! What trainers call: the routes of vLLM's development mode, under their names.
//!
//! - `pause`: generation stops and goes on, and the engine sleeps.
//! - `update`, `apply`: weights come in, and serve.
//! - `info`: what is served, and how.

mod apply;
mod info;
pub(super) mod pause;
mod query;
pub(super) mod update;

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, StatusCode};

use super::error::ApiError;
use super::fields::Fields;
use super::routes::{Reply, body_of, empty, json_reply};
use super::submit::State;
use crate::control::Command;
use query::Query;

/// Bytes of the largest piece of weights that comes as a body.
const MAX_PIECE: usize = 256 << 20;

/// Bytes of the largest other body.
const MAX_BODY: usize = 64 << 20;

/// Paths that are only read.
const READS: [&str; 5] =
    ["/weight_info", "/get_world_size", "/server_info", "/is_paused", "/is_sleeping"];

/// Paths that do something.
const TAKES: [&str; 17] = [
    "/pause",
    "/resume",
    "/abort_requests",
    "/sleep",
    "/wake_up",
    "/release_kv_cache_memory",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/init_weight_transfer_engine",
    "/shutdown_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/update_weight_version",
    "/weight_checker",
    "/collective_rpc",
];

/// A call of one of these routes.
struct Call {
    query: Query,
    /// Whether the body is weights rather than JSON.
    binary: bool,
    body: Bytes,
}

impl Call {
    /// The fields of the body; none if it is empty.
    fn fields(&self) -> Result<Fields, ApiError> {
        match self.body.iter().all(u8::is_ascii_whitespace) {
            true => Fields::parse(b"{}"),
            false => Fields::parse(&self.body),
        }
    }

    /// The fields of a body that must be there.
    fn given(&self) -> Result<Fields, ApiError> {
        Fields::parse(&self.body)
    }
}

/// Whether a path is one of this module's.
pub(super) fn has(path: &str) -> bool {
    READS.contains(&path) || TAKES.contains(&path)
}

/// Answers a call of a path that [`has`] knows.
pub(super) async fn answer(
    state: &Arc<State>,
    request: Request<Incoming>,
) -> Result<Reply, ApiError> {
    let path = request.uri().path().to_owned();
    let wanted = if READS.contains(&path.as_str()) { Method::GET } else { Method::POST };
    if *request.method() != wanted {
        return Err(ApiError::no_route(StatusCode::METHOD_NOT_ALLOWED));
    }
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let binary = kind.is_some_and(|kind| kind.starts_with("application/octet-stream"));
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let most = if binary { MAX_PIECE } else { MAX_BODY };
    let call = Call { query, binary, body: body_of(request, most).await? };
    route(state, &path, call).await
}

async fn route(state: &Arc<State>, path: &str, call: Call) -> Result<Reply, ApiError> {
    match path {
        "/weight_info" => info::weights(state, &call.query),
        "/get_world_size" => Ok(info::world_size()),
        "/server_info" => Ok(info::server(state, &call.query)),
        "/is_paused" => Ok(pause::is_paused(state)),
        "/is_sleeping" => Ok(pause::is_sleeping(state)),
        "/pause" => pause::pause(state, &call.query).await,
        "/resume" => pause::resume(state).await,
        "/abort_requests" => pause::abort(state, &call.given()?).await,
        "/sleep" => pause::sleep(state, &call.query).await,
        "/wake_up" => pause::wake_up(state, &call.query).await,
        "/release_kv_cache_memory" => pause::release_cache(state).await,
        "/reset_prefix_cache" => reset_prefixes(state, &call.query).await,
        // Caches of images and encoders, which text has none of: they are always empty.
        "/reset_mm_cache" | "/reset_encoder_cache" => Ok(empty(StatusCode::OK)),
        "/init_weight_transfer_engine" => update::connect(state, &call.fields()?).await,
        "/shutdown_weight_transfer_engine" => update::disconnect(state).await,
        "/start_weight_update" => update::start(state).await,
        "/update_weights" => update::update(state, call).await,
        "/finish_weight_update" => update::finish(state, &call.fields()?).await,
        "/update_weight_version" => update::rename(state, &call.fields()?).await,
        "/weight_checker" => info::check(state, &call.fields()?).await,
        _ => Err(ApiError::not_implemented(
            "`/collective_rpc` runs methods of vLLM's workers, which this engine does not have",
        )),
    }
}

async fn reset_prefixes(state: &State, query: &Query) -> Result<Reply, ApiError> {
    let running = query.flag("reset_running_requests", false)?;
    state.gate.tell(|done| Command::ResetPrefixes { running, done }).await?;
    Ok(json_reply(&serde_json::json!({"success": true})))
}
