//! The upstream's own control routes: passed on from the control listener, refused to agents.

use std::sync::Arc;
use std::time::Duration;

use episode::{Micros, Route};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{Method, Request, Response};
use serde_json::Value;
use store::VersionRecord;
use wire::Dialect;

use super::answers::{Answer, faulty};
use crate::headers;
use crate::open_call;
use crate::proxy::Proxy;
use crate::tee::ReplyBody;

/// The routes of vLLM, SGLang, prime-rl's and SkyRL's servers by which weights, sleep and caches
/// are ruled, and by which one looks at them. Sorted.
const ROUTES: [&str; 54] = [
    "/abort_request",
    "/abort_requests",
    "/clear_hicache_storage_backend",
    "/collective_rpc",
    "/configure_logging",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/fetch_weights",
    "/finish_weight_update",
    "/flush_cache",
    "/freeze_gc",
    "/get_internal_state",
    "/get_load",
    "/get_server_info",
    "/get_weights_by_name",
    "/get_world_size",
    "/init_broadcaster",
    "/init_weight_transfer_engine",
    "/init_weights_send_group_for_remote_instance",
    "/init_weights_update_group",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/load_lora_adapter",
    "/pause",
    "/pause_generation",
    "/release_kv_cache_memory",
    "/release_memory_occupation",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/resume_memory_occupation",
    "/scale_elastic_ep",
    "/send_weights_to_remote_instance",
    "/server_info",
    "/set_internal_state",
    "/shutdown_weight_transfer_engine",
    "/sleep",
    "/start_profile",
    "/start_weight_update",
    "/stop_profile",
    "/unload_lora_adapter",
    "/update_weight_version",
    "/update_weights",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/update_weights_from_tensor",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/wake_up",
    "/weight_checker",
    "/weight_info",
];

/// Those after which there may be other weights.
const CHANGES: [&str; 6] = [
    "/finish_weight_update",
    "/update_weight_version",
    "/update_weights",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
];

/// Whether a path is a control route, however it is spelled.
pub(crate) fn is_control(path: &str) -> bool {
    let plain = plain(path.split('?').next().unwrap_or(path));
    let bare = plain.strip_prefix(INFERENCE).unwrap_or(&plain);
    ROUTES.binary_search(&bare).is_ok() || plain.starts_with("/areal_")
}

/// What begins the paths of servers that have their routes behind it.
const INFERENCE: &str = "/inference/v1";

/// A path as whoever stands in front of the upstream may make it: escapes read, `.`, `..` and empty
/// segments resolved. Escapes may be escaped themselves.
pub(crate) fn plain(path: &str) -> String {
    let mut path = path.to_owned();
    for _ in 0..ESCAPES_MAX {
        let read = unescaped(&path);
        if read == path {
            break;
        }
        path = read;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.into_iter().flat_map(|part| ["/", part]).collect()
}

/// A path with its escapes read; what is no text then is replaced.
fn unescaped(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|pair| pair.iter().all(u8::is_ascii_hexdigit));
        let pair = digits.and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = pair.filter(|_| *first == b'%').and_then(|p| u8::from_str_radix(p, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How often a path is read that has escapes of escapes in it.
const ESCAPES_MAX: usize = 4;

/// Whether the control listener passes a request on.
pub(super) fn is_forwarded(method: &Method, path: &str) -> bool {
    // Trainers ask for the model's name where they push its weights to.
    is_control(path) || (method == Method::GET && path == "/v1/models")
}

/// Passes a request on as it is, and the reply.
pub(super) async fn forward(
    proxy: &Proxy,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Answer> {
    let (mut head, body) = request.into_parts();
    headers::request_headers(&mut head.headers, Route::Other);
    if proxy.config().control_token.is_some() {
        // It is for this listener and goes no further.
        headers::without(&mut head.headers, &[AUTHORIZATION.as_str()]);
    }
    let path = head.uri.path().to_owned();
    let reply = proxy.forward.control(head, body).await.map_err(faulty)?;
    if reply.status().is_success() && CHANGES.contains(&path.as_str()) {
        proxy.watch.versions.look();
        proxy.forward.samplers.forget();
    }
    let (mut head, body) = reply.into_parts();
    headers::end_to_end(&mut head.headers);
    Ok(Response::from_parts(head, body.map_err(Into::into).boxed_unsync()))
}

/// How long the upstream may take to tell of its weights.
const INFO_WAIT: Duration = Duration::from_secs(10);

/// Writes down the versions that replies name, with the checksums that rolltape's own engine tells.
pub(super) async fn note_versions(proxy: Arc<Proxy>) {
    loop {
        let labels = proxy.watch.versions.fresh().await;
        let is_ours = proxy.forward.known_dialect() == Some(Dialect::Rolltape);
        let mut told = Vec::new();
        for (label, seen_at) in labels {
            let page = format!("/weight_info?version={}", encoded(&label));
            let found = if is_ours { weights(&proxy, &page).await } else { None };
            let checksum = found.filter(|found| found.0 == label).and_then(|found| found.1);
            note(&proxy, (label.clone(), checksum.clone()), (seen_at, None)).await;
            told.push((label, checksum));
        }
        // It may serve others by now, of which no reply was seen yet.
        if let Some(now) = if is_ours { weights(&proxy, "/weight_info").await } else { None } {
            let at = open_call::now();
            let is_other = proxy.watch.versions.served(&now.0, at);
            if is_other || !told.contains(&now) {
                note(&proxy, now, (at, is_other.then_some(at))).await;
            }
        }
    }
}

/// Writes down a label with its checksum, and when it was seen and found to be served.
async fn note(
    proxy: &Proxy,
    (label, checksum): (String, Option<String>),
    (first_seen, served_at): (Micros, Option<Micros>),
) {
    let source = "upstream".to_owned();
    let version = VersionRecord { label, checksum, source, first_seen, said_at: None, served_at };
    if let Err(error) = proxy.store().version(version).await {
        tracing::warn!(%error, "a version of the weights was not written down");
    }
}

/// The label and the checksum of weights, as a page of the upstream's tells them.
async fn weights(proxy: &Proxy, page: &str) -> Option<(String, Option<String>)> {
    let asked = tokio::time::timeout(INFO_WAIT, proxy.forward.get(page)).await;
    let (status, body) = asked.ok()?.ok()?;
    let told: Value = serde_json::from_slice(&body).ok().filter(|_| status.is_success())?;
    let text = |name: &str| told.get(name).and_then(Value::as_str).map(str::to_owned);
    Some((text("weight_version")?, text("checksum")))
}

/// A label as a value of a query.
fn encoded(label: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    label.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_encoded_for_a_query() {
        assert_eq!(encoded("step_7"), "step_7");
        assert_eq!(encoded("a b&c/\u{e9}"), "a%20b%26c%2F%C3%A9");
    }

    #[test]
    fn control_routes_are_known_however_they_are_spelled() {
        assert!(ROUTES.is_sorted());
        for path in [
            "/pause",
            "/pause?mode=keep",
            "//v1//load_lora_adapter/",
            "/v1/%6coad_lora_adapter",
            "/areal_update_weights",
            "/v1/../pause",
            "/v1/%2e%2e/pause",
            "/v1/%252E%252e/pause",
            "/v1/.%2E/./pause/.",
            "/../pause",
            "/v1/chat/../../pause?x=/y",
            "/v1/x/..%2f..%2fpause",
            "/v1/..\\pause",
            "/%ff/%2e%2e/pause",
            "/inference/v1/abort_requests",
            "/inference/v1/generate/../pause",
            "/x/../inference/v1/../../pause",
        ] {
            assert!(is_control(path), "{path}");
        }
        for path in [
            "/v1/chat/completions",
            "/v1/models",
            "/pausee",
            "/health",
            "/e/pause",
            "/v1/pause/../models",
            "/v1/chat/completions?next=/../pause",
            "/inference/v1/generate",
        ] {
            assert!(!is_control(path), "{path}");
        }
    }
}
