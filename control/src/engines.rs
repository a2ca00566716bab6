//! Control requests that are forwarded to engines: to one unread, to several with one answer.
//!
//! If all engines that serve carried a request out, the answer is that of the first. If one did
//! not, the answer names each.

use std::time::Duration;

use http::api::reply::{JsonReply, bad_request, error};
use http::body::read::read_whole;
use http::body::{ReplyBody, full};
use http::headers;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use proxy::{EngineAnswer, Recorder};
use serde_json::{Map, Value, json};
use wire::EngineRoute;

use crate::bounds::FAN_OUT_BODY_BYTES_MAX;
use crate::error::{body_error, request_error};
use crate::reading::{BODY_POLICY, guard};

/// The parameter that asks for one engine after another. It is not sent on.
const ROLLING: &str = "rolling=true";
/// The header of an answer that says how many engines carried the request out.
const ENGINES: &str = "x-rolltape-engines";
const WORLD_SIZE: &str = "/get_world_size";

/// Headers of a reply that pass, beside those that begin with `x-` and are not rolltape's. Others
/// could set cookies, lead a client and its token elsewhere, or open this origin to web pages of
/// the upstream's choice.
const PASSED: [HeaderName; 11] = [
    header::ALLOW,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::DATE,
    header::ETAG,
    header::RETRY_AFTER,
    header::SERVER,
];

/// Forwards a request unchanged, and the reply.
pub(crate) async fn forward(
    recorder: &Recorder,
    request: Request<Incoming>,
    changes_weights: bool,
) -> Result<Response<ReplyBody>, JsonReply> {
    let (head, body) = request.into_parts();
    let reply = recorder.upstreams().forward(head, body, changes_weights).await;
    let mut reply = reply.map_err(request_error)?;
    guard_reply(reply.headers_mut());
    Ok(reply.map(|body| body.map_err(Into::into).boxed_unsync()))
}

/// Makes the headers of a forwarded reply harmless to a browser that reads this listener.
fn guard_reply(headers: &mut HeaderMap) {
    let is_own = |name: &str| name.starts_with("x-") && !name.starts_with("x-rolltape-");
    headers::remove_where(headers, |name| !PASSED.contains(name) && !is_own(name.as_str()));
    guard(headers, BODY_POLICY);
}

/// Sends a request to all engines that answer. `body_wait` is the time of a piece of its body.
pub(crate) async fn to_all(
    recorder: &Recorder,
    route: &'static EngineRoute,
    request: Request<Incoming>,
    body_wait: Duration,
) -> Result<Response<ReplyBody>, JsonReply> {
    let read = read_whole(request, FAN_OUT_BODY_BYTES_MAX, body_wait).await;
    let (mut head, body) = read.map_err(body_error)?;
    let is_rolling = take_rolling(&mut head)?;
    let sums_worlds = route.path == WORLD_SIZE && head.method == Method::GET;
    let answers = recorder.upstreams().ask_all(route, (head, body), is_rolling).await;
    answer(&answers, sums_worlds)
}

/// Takes the parameter that asks for one engine after another out of a request; returns whether it
/// was there.
fn take_rolling(head: &mut Parts) -> Result<bool, JsonReply> {
    let query = head.uri.query().unwrap_or_default();
    let is_rolling = query.split('&').any(|pair| pair == ROLLING);
    let kept: Vec<&str> = query.split('&').filter(|pair| *pair != ROLLING).collect();
    let path = match kept.join("&") {
        query if query.is_empty() => head.uri.path().to_owned(),
        query => format!("{}?{query}", head.uri.path()),
    };
    head.uri = path.parse::<Uri>().map_err(|why| bad_request(&why))?;
    Ok(is_rolling)
}

/// One answer for all. `sums_worlds` says that it is the sum of what all say of their workers.
fn answer(answers: &[EngineAnswer], sums_worlds: bool) -> Result<Response<ReplyBody>, JsonReply> {
    if answers.is_empty() {
        return Err(error(StatusCode::SERVICE_UNAVAILABLE, "no upstream answers"));
    }
    // One that was behind the fence and stays there takes nothing from those that serve.
    let failed = answers.iter().any(|answer| !answer.is_success() && answer.was_serving());
    let first = answers.iter().find(|answer| answer.is_success()).filter(|_| !failed);
    let Some(Ok((head, body))) = first.map(EngineAnswer::reply) else {
        return Err(failure(answers));
    };

    let (mut head, mut body) = (head.clone(), body.clone());
    if sums_worlds {
        let sizes = answers.iter().filter_map(|answer| answer.reply().ok());
        body = wire::world_size_body(sizes.filter_map(|(_, body)| wire::world_size(body)).sum());
    }
    headers::remove(&mut head.headers, &[header::CONTENT_LENGTH.as_str()]);
    guard_reply(&mut head.headers);
    let succeeded = answers.iter().filter(|answer| answer.is_success()).count();
    head.headers.insert(ENGINES, HeaderValue::from(succeeded));
    Ok(Response::from_parts(head, full(body)))
}

/// The answer that names each engine. Its status is that of all, or a 502.
fn failure(answers: &[EngineAnswer]) -> JsonReply {
    let failed = answers.iter().filter(|answer| !answer.is_success());
    let names: Vec<String> = failed.map(|answer| format!("`{}`", answer.upstream())).collect();
    let message = format!(
        "{} of {} upstreams did not carry this out: {}",
        names.len(),
        answers.len(),
        names.join(", ")
    );
    let status = answers.first().and_then(EngineAnswer::status);
    let is_common = answers.iter().all(|answer| answer.status() == status);
    let status = status.filter(|_| is_common).unwrap_or(StatusCode::BAD_GATEWAY);

    let each: Map<String, Value> =
        answers.iter().map(|answer| (answer.upstream().to_owned(), shown(answer))).collect();
    let reply = error(status, &message);
    let mut body = reply.body;
    body["upstreams"] = Value::Object(each);
    JsonReply { status, body, allow: None }
}

/// The answer of one engine, for a document that names each.
fn shown(answer: &EngineAnswer) -> Value {
    match answer.reply() {
        Err(reason) => json!({ "status": null, "error": reason }),
        Ok((head, body)) => {
            let text = || Value::String(String::from_utf8_lossy(body).into_owned());
            let body = serde_json::from_slice(body).unwrap_or_else(|_| text());
            json!({ "status": head.status.as_u16(), "body": body })
        }
    }
}
