//! What trainers call: the routes of vLLM's development mode under their names.

use std::sync::Arc;

use hyper::Method;
use serde_json::json;

use super::error::ApiError;
use super::fields::Fields;
use super::routes::{Reply, json_reply};
use super::submit::State;
use crate::control::Command;

/// A route of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    WeightInfo,
    UpdateWeightVersion,
}

/// Which route a call is for; whether its path has one at all if the method does not fit.
pub(super) fn route(method: &Method, path: &str) -> Option<Result<Route, ApiError>> {
    let (wanted, route) = match path {
        "/weight_info" => (Method::GET, Route::WeightInfo),
        "/update_weight_version" => (Method::POST, Route::UpdateWeightVersion),
        _ => return None,
    };
    let wrong = || ApiError::no_route(hyper::StatusCode::METHOD_NOT_ALLOWED);
    Some(if *method == wanted { Ok(route) } else { Err(wrong()) })
}

/// Answers a call; `body` is empty for what is only read.
pub(super) async fn answer(state: &State, route: Route, body: &[u8]) -> Result<Reply, ApiError> {
    match route {
        Route::WeightInfo => Ok(json_reply(&json!({"weight_version": &*state.standing.version()}))),
        Route::UpdateWeightVersion => {
            let fields = Fields::parse(body)?;
            let version = fields.text("new_version")?.filter(|version| !version.is_empty());
            let version = version.ok_or_else(|| ApiError::bad("new_version", "must be a text"))?;
            let label: Arc<str> = Arc::from(version);
            state.gate.tell(|done| Command::Rename { version: label, done }).await?;
            Ok(json_reply(&json!({"success": true, "new_version": version})))
        }
    }
}
