//! `/v1/responses` with responses that are kept: `previous_response_id`, background replies, and
//! the routes that fetch and cancel them.

pub(super) mod store;

use std::sync::Arc;

use bytes::Bytes;
use episode::Route;
use http_body_util::BodyExt;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::store::{StoredTurn, not_kept};
use super::calls::{ApiError, HttpCall, HttpReply, json_reply};
use super::state::ServerState;
use super::translation::{self, Caller};

/// The field of a request whose reply is fetched later.
const BACKGROUND: &str = "background";

/// Handles `/v1/responses`.
pub(super) async fn answer(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let caller = Caller::of(&call);
    let body = state.responses.continued(&call.body)?;
    let request = translation::read_request(&body)?;
    if asks_for_later(&body) {
        return in_background(state, &caller, &call.body, &body);
    }
    let keeps = wire::stores_reply(&call.body).then(|| call.body.clone());
    translation::complete(state, Route::Responses, &caller, &request, keeps).await
}

/// Handles `GET /v1/responses/{name}`.
pub(super) async fn show(state: &Arc<ServerState>, call: HttpCall) -> Result<HttpReply, ApiError> {
    let turn = state.responses.kept().turns.get(&call.parameter).cloned();
    let turn = turn.ok_or_else(|| not_kept(&call.parameter))?;
    Ok(json_reply(&document(&turn.reply)))
}

/// Handles `POST /v1/responses/{name}/cancel`: ends a reply that is made in the background. One
/// that has ended stays as it is.
pub(super) async fn cancel(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let id = &call.parameter;
    let mut kept = state.responses.kept();
    let turn = kept.turns.get(id).cloned().ok_or_else(|| not_kept(id))?;
    let mut cancelled = document(&turn.reply);
    if cancelled[BACKGROUND] != true {
        return Err(ApiError::bad_request("Cannot cancel a synchronous response."));
    }
    let Some(running) = kept.running.remove(id) else { return Ok(json_reply(&cancelled)) };
    running.abort();
    cancelled["status"] = json!("cancelled");
    let reply = Bytes::from(cancelled.to_string());
    kept.add(id.clone(), StoredTurn { reply, ..turn });
    Ok(json_reply(&cancelled))
}

/// Samples a reply that is fetched later, and answers what is known of it now.
fn in_background(
    state: &Arc<ServerState>,
    caller: &Caller,
    given: &Bytes,
    continued: &Bytes,
) -> Result<HttpReply, ApiError> {
    let mut fields: Map<String, Value> = serde_json::from_slice(continued)
        .map_err(|_| ApiError::bad_request("the body must be a JSON object"))?;
    fields.remove(BACKGROUND);
    if fields.get("stream").is_some_and(|stream| *stream == true) {
        return Err(ApiError::bad_field(BACKGROUND, "cannot be given together with `stream`"));
    }
    if !wire::stores_reply(given) {
        return Err(ApiError::bad_field(BACKGROUND, "needs `store`, which must not be false"));
    }
    let place = state.responses.background_place()?;

    let stem = uuid::Uuid::new_v4().simple().to_string();
    let id = format!("resp_{stem}");
    let begun = json!({
        "id": id, "object": "response", "created_at": crate::engine::now(),
        "status": "in_progress", "background": true, "error": null, "incomplete_details": null,
        "model": state.model.name, "output": [], "previous_response_id": caller.previous,
    });
    let mut queued = begun.clone();
    queued["status"] = json!("queued");
    let turn = StoredTurn { request: given.clone(), reply: Bytes::from(begun.to_string()) };
    state.responses.kept().add(id.clone(), turn);

    let body = Bytes::from(Value::Object(fields).to_string());
    let caller = Caller { request_id: Some(stem), ..caller.clone() };
    let (shared, given, number) = (Arc::clone(state), given.clone(), id.clone());
    let task = tokio::spawn(async move {
        let _place = place;
        let reply = whole_reply(&shared, &caller, &body, &begun).await;
        let mut kept = shared.responses.kept();
        kept.running.remove(&number);
        kept.add(number, StoredTurn { request: given, reply: Bytes::from(reply.to_string()) });
    });
    let mut kept = state.responses.kept();
    if !task.is_finished() {
        kept.running.insert(id.clone(), task.abort_handle());
    }
    drop(kept);
    Ok(json_reply(&queued))
}

/// Samples a reply, and returns its document: that of the failure if there is none.
async fn whole_reply(
    state: &Arc<ServerState>,
    caller: &Caller,
    body: &Bytes,
    begun: &Value,
) -> Value {
    let failed = |error: Value| {
        let mut document = begun.clone();
        document["status"] = json!("failed");
        document["error"] = error;
        document
    };

    let request = match translation::read_request(body) {
        Ok(request) => request,
        Err(error) => return failed(json!({"message": error.message()})),
    };

    match translation::complete(state, Route::Responses, caller, &request, None).await {
        Ok(reply) => {
            let status = reply.status();
            let Ok(collected) = reply.into_body().collect().await;
            let mut document: Value =
                serde_json::from_slice(&collected.to_bytes()).unwrap_or_default();
            if status != StatusCode::OK {
                return failed(document["error"].take());
            }
            document["id"] = begun["id"].clone();
            document[BACKGROUND] = json!(true);
            document
        }
        Err(error) => failed(json!({"message": error.message()})),
    }
}

/// Returns the response of a kept reply: the document, or that of a stream's last event.
fn document(reply: &Bytes) -> Value {
    let mut document = serde_json::from_slice(reply).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(reply);
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut responses = data.filter_map(|data| {
            serde_json::from_str::<Value>(data).ok()?.get_mut("response").map(Value::take)
        });
        responses.next_back().unwrap_or_default()
    });
    document["store"] = json!(true);
    document
}

/// Returns true if the reply is to be fetched later.
fn asks_for_later(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Flags {
        background: Option<bool>,
    }
    serde_json::from_slice::<Flags>(body).is_ok_and(|flags| flags.background == Some(true))
}
