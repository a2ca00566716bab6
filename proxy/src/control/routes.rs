//! The routes of the control listener, in one table: the dispatch, the 404 and 405 replies, the
//! tables of `docs/control.md` and the OpenAPI document are made from it.

use http::api::route::{self, Lookup, Route};
use http::api::schema::{Field, fields_of};
use http::path::escapes::unescaped;
use hyper::Method;

use crate::control::requests::{
    AckBody, AdmissionBody, AnnounceBody, CloseBody, KeyBody, NackBody, RenewBody, RevokeBody,
    RewardBody, RotateBody, UpstreamBody, VersionBody,
};
use crate::reading::ReadView as R;
use crate::reading::ReadView;
use Handler::{Changes, Feed, Health, Json, Metrics, Models, Read};
use JsonHandler as J;

/// A route of the control listener.
pub(crate) type ControlRoute = Route<Handler>;

/// The function that answers a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handler {
    /// Returns at once, to anybody.
    Health,
    /// Reads a small body and returns a JSON document.
    Json(JsonHandler),
    /// Returns a stream of rows.
    Feed,
    /// Returns metrics as text.
    Metrics,
    /// Forwards the upstream's list of models.
    Models,
    /// Returns what people read of the recording.
    Read(ReadView),
    /// Returns a stream of what changes in the recording.
    Changes,
    /// Forwards a control route of the upstream.
    Engine { server: EngineServer, changes_weights: bool },
}

/// A handler that returns a JSON document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonHandler {
    Ready,
    OpenApi,
    AnnounceEpisode,
    ShowEpisode,
    SignKey,
    RevokeKeys,
    RotateSecrets,
    AddReward,
    CloseEpisode,
    ListConsumers,
    AckLease,
    NackLease,
    RenewLease,
    SetAdmission,
    ShowAdmission,
    LiftAdmission,
    DeclareVersion,
    ListVersions,
    ListUpstreams,
    AddUpstream,
    DrainUpstream,
    RemoveUpstream,
}

/// A server that has a control route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineServer {
    Vllm,
    Sglang,
    Trainer,
}

impl EngineServer {
    /// The name for the docs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM, rolltape's engine",
            Self::Sglang => "SGLang",
            Self::Trainer => "prime-rl, SkyRL, AReaL",
        }
    }
}

const OK: &str = "`{status: \"ok\"}`, once it is on disk";
const GET: &[&str] = &["GET"];
const POST: &[&str] = &["POST"];
/// The group of rolltape's own routes in the documents.
pub(super) const OWN: &str = "rolltape";
const ATTEMPT: &[Field] = &[Field::any("attempt")];
/// Parameters that select attempts.
const LIST: &[Field] = &Field::any_of([
    "name",
    "group",
    "task",
    "label",
    "state",
    "since",
    "until",
    "min_reward",
    "max_reward",
    "sort",
    "limit",
    "offset",
]);
const STATS: &[Field] = &Field::any_of([
    "name",
    "group",
    "task",
    "label",
    "state",
    "since",
    "until",
    "min_reward",
    "max_reward",
    "buckets",
    "solved_at",
]);
const SEARCH: &[Field] = &Field::any_of([
    "q",
    "name",
    "group",
    "task",
    "label",
    "state",
    "since",
    "until",
    "min_reward",
    "max_reward",
    "limit",
    "cursor",
]);
/// Parameters of the feed itself, then those of its rows.
const FEED: &[Field] = &Field::any_of([
    "consumer",
    "cursor",
    "limit",
    "wait_s",
    "lease_s",
    "unit",
    "group_size",
    "group_wait_s",
    "group_late",
    "rewarded",
    "episode",
    "group",
    "task",
    "format",
    "advantage",
    "group_stats",
    "gamma",
    "at_version",
    "max_staleness",
    "min_version",
    "max_version",
    "max_version_span",
    "verdict",
    "kind",
    "model",
    "min_reward",
    "no_infrastructure_failed",
]);

const fn get(path: &'static str, handler: Handler, summary: &'static str) -> ControlRoute {
    Route { group: OWN, ..Route::new(GET, path, handler, summary) }
}

const fn post(path: &'static str, handler: JsonHandler, summary: &'static str) -> ControlRoute {
    Route { methods: POST, reply: OK, ..get(path, Handler::Json(handler), summary) }
}

/// The reply of the feed without rows.
const FEED_EMPTY: &[(u16, &str)] = &[(204, "nothing became ready in time")];
const ENGINE_REPLY: &str = "the reply of the upstream";

/// A control route of the upstream. Some servers take a GET where it changes something; here it is
/// the method of the table.
const fn engine(
    server: EngineServer,
    methods: &'static [&'static str],
    path: &'static str,
    summary: &'static str,
) -> ControlRoute {
    let handler = Handler::Engine { server, changes_weights: false };
    Route {
        group: server.name(),
        reply: ENGINE_REPLY,
        ..Route::new(methods, path, handler, summary)
    }
}

const fn vllm(
    methods: &'static [&'static str],
    path: &'static str,
    summary: &'static str,
) -> ControlRoute {
    engine(EngineServer::Vllm, methods, path, summary)
}

const fn sglang(
    methods: &'static [&'static str],
    path: &'static str,
    summary: &'static str,
) -> ControlRoute {
    engine(EngineServer::Sglang, methods, path, summary)
}

const fn trainer(
    methods: &'static [&'static str],
    path: &'static str,
    summary: &'static str,
) -> ControlRoute {
    engine(EngineServer::Trainer, methods, path, summary)
}

/// A control route after which the upstream may serve other weights.
const fn vllm_weights(path: &'static str, summary: &'static str) -> ControlRoute {
    let handler = Handler::Engine { server: EngineServer::Vllm, changes_weights: true };
    Route { handler, ..vllm(POST, path, summary) }
}

/// A control route after which the upstream may serve other weights.
const fn sglang_weights(path: &'static str, summary: &'static str) -> ControlRoute {
    let handler = Handler::Engine { server: EngineServer::Sglang, changes_weights: true };
    Route { handler, ..sglang(POST, path, summary) }
}

/// All routes: rolltape's own, then those of the upstream.
#[rustfmt::skip]
pub(super) static ROUTES: [ControlRoute; 91] = [
    get("/health", Health, "Reports that the process lives. Needs no token.")
        .reply("`{status: \"ok\"}`"),
    get("/ready", Json(J::Ready),
        "Commits a test write and names the upstream; 503 with the reason if the write fails, the \
         upstream cannot be reached, or rolltape drains.")
        .reply("`{status: \"ok\", upstream}`"),
    get("/openapi.json", Json(J::OpenApi), "Returns these routes as an OpenAPI 3.1 document.")
        .reply("the document"),
    get("/metrics", Metrics, "Returns metrics in the text format of Prometheus.")
        .reply("the metrics, as text"),

    get("/episodes", Read(R::Episodes), "Lists attempts at episodes.")
        .query(LIST).reply("`{total, episodes}`"),
    get("/episodes/{id}/tree", Read(R::Tree), "Returns an attempt as turns.")
        .query(ATTEMPT).reply("the turns, with verdict, forks and rewards"),
    get("/calls/{id}", Read(R::Call), "Returns what was said in a call.")
        .query(&[Field::any("arrays")]).reply("the call, with its messages"),
    get("/calls/{id}/tokens", Read(R::Tokens),
        "Returns the tokens of a call, with texts, logprobs, mask and versions.")
        .query(&Field::any_of(["choice", "from", "count"])).reply("arrays of one length"),
    get("/calls/{id}/request", Read(R::Request), "Returns the body that the agent sent.")
        .reply("the body, as text"),
    get("/calls/{id}/reply", Read(R::Reply), "Returns the body that the agent received.")
        .reply("the body, as text"),
    get("/groups", Read(R::Groups), "Lists groups in numbers.")
        .query(&Field::any_of(["name", "since", "until", "sort", "limit", "offset"]))
        .reply("`{total, groups}`"),
    get("/stats", Read(R::Stats), "Returns numbers over time and by policy version.")
        .query(STATS).reply("sums, buckets and versions"),
    get("/search", Read(R::Search), "Looks for a text in what was said.")
        .query(SEARCH).reply("`{hits, searched, total, next}`"),
    get("/events", Changes, "Returns a stream of what changes in the recording.")
        .query(&Field::any_of(["episode", "group", "task", "text"])).reply("server-sent events"),

    post("/episodes", J::AnnounceEpisode,
        "Announces an episode: its group, task, labels and budget are those that are given here.")
        .body(fields_of::<AnnounceBody>),
    get("/episodes/{id}", Json(J::ShowEpisode),
        "Returns counts of what was recorded of an episode.")
        .query(ATTEMPT)
        .reply("`{episode_id, attempt, group_id, task_id, closed, status, calls, generations, \
            with_ids, incomplete, prompt_tokens, completion_tokens, reward}`"),
    post("/episodes/{id}/key", J::SignKey,
        "Returns an API key that names the episode, which takes only calls with a key from then \
         on.")
        .query(ATTEMPT).body(fields_of::<KeyBody>)
        .reply("`{api_key, key_id, expires_at}`"),
    post("/episodes/{id}/keys/revoke", J::RevokeKeys,
        "Revokes a key of the episode, or all of them: later calls with it are refused.")
        .query(ATTEMPT).body(fields_of::<RevokeBody>),
    post("/keys/rotate", J::RotateSecrets,
        "Signs keys with a new secret; those of the earlier ones end after `old_keys_s` seconds.")
        .body(fields_of::<RotateBody>),
    post("/episodes/{id}/rewards", J::AddReward, "Appends a reward.")
        .query(ATTEMPT).body(fields_of::<RewardBody>),
    post("/episodes/{id}/close", J::CloseEpisode,
        "Closes the episode: its calls end, later ones are refused, and the feed hands it out.")
        .query(ATTEMPT).body(fields_of::<CloseBody>),

    // A lease changes what others are handed out, so it is no GET.
    Route { methods: POST, other_replies: FEED_EMPTY, ..get("/feed", Feed, "Hands out finished episodes as rows.") }
        .query(FEED).reply("rows; 204 if none became ready in time"),
    get("/feed/consumers", Json(J::ListConsumers),
        "Returns the backlog of each consumer of the feed.")
        .reply("`{consumers: [{consumer, depth, oldest_age_s, waiting, leased, acked, delivered, \
            redelivered, nacked, dropped}]}`"),
    post("/feed/leases/{id}/ack", J::AckLease, "Acknowledges what a lease holds.")
        .body(fields_of::<AckBody>),
    post("/feed/leases/{id}/nack", J::NackLease, "Gives back what a lease holds.")
        .body(fields_of::<NackBody>),
    post("/feed/leases/{id}/renew", J::RenewLease, "Extends a lease.")
        .body(fields_of::<RenewBody>),

    post("/admission", J::SetAdmission,
        "Lets so many attempts begin that each is trained at most `max_versions` versions later.")
        .body(fields_of::<AdmissionBody>).reply("as `GET /admission`, once it is on disk"),
    get("/admission", Json(J::ShowAdmission), "Returns the rule of admission, and what it counts.")
        .reply("`{admission: null or {consumer, batch_attempts, max_versions, unit, group_size, \
            wait_s, idle_s, limit, taken, open, finished, idle, waiting, admitted, refused}}`"),
    Route { methods: &["DELETE"], ..post("/admission", J::LiftAdmission,
        "Lifts the rule of admission.") },

    post("/version", J::DeclareVersion, "Declares the policy version that samples from now on.")
        .body(fields_of::<VersionBody>),
    get("/versions", Json(J::ListVersions),
        "Returns the known policy versions and the current one.")
        .reply("`{current: {label, number} or null, versions: [{label, number, checksum, source, \
            first_seen}]}`"),

    get("/upstreams", Json(J::ListUpstreams), "Lists the upstreams and their states.")
        .reply("`{upstreams: [{name, url, dialect, weight, calls_max, state, reason, calls, \
            threads, weight_version, begun, moved, failed}]}`"),
    post("/upstreams", J::AddUpstream, "Adds an upstream, or changes the one of its name.")
        .body(fields_of::<UpstreamBody>).reply("`{status: \"ok\"}`"),
    post("/upstreams/{name}/drain", J::DrainUpstream,
        "Gives an upstream no new calls; those in flight end by themselves.")
        .reply("`{status: \"ok\", calls}`"),
    Route { methods: &["DELETE"], ..post("/upstreams/{name}", J::RemoveUpstream,
        "Removes an upstream; its calls in flight end by themselves.") }
        .reply("`{status: \"ok\"}`"),

    get("/v1/models", Models, "Forwards the upstream's list of models.").reply(ENGINE_REPLY),

    vllm(POST, "/pause", "Pauses generation."),
    vllm(POST, "/resume", "Resumes generation."),
    vllm(GET, "/is_paused", "Reports whether generation is paused."),
    vllm(POST, "/abort_requests", "Aborts requests."),
    vllm(POST, "/sleep", "Frees GPU memory."),
    vllm(POST, "/wake_up", "Takes GPU memory back."),
    vllm(GET, "/is_sleeping", "Reports whether the engine sleeps."),
    vllm(POST, "/init_weight_transfer_engine", "Connects a transport for weights."),
    vllm(POST, "/start_weight_update", "Starts an update of the weights."),
    vllm_weights("/update_weights", "Updates weights."),
    vllm_weights("/finish_weight_update", "Finishes an update of the weights."),
    vllm_weights("/update_weight_version", "Changes the label of the weights."),
    vllm(POST, "/shutdown_weight_transfer_engine", "Disconnects the transport for weights."),
    vllm(GET, "/weight_info", "Returns the label and checksum of the weights."),
    vllm(POST, "/weight_checker", "Checks the weights."),
    vllm(GET, "/get_world_size", "Returns the number of workers."),
    vllm(GET, "/server_info", "Returns the configuration of the server."),
    vllm(POST, "/reset_prefix_cache", "Empties the prefix cache."),
    vllm(POST, "/reset_mm_cache", "Empties the multi-modal cache."),
    vllm(POST, "/reset_encoder_cache", "Empties the encoder cache."),
    vllm(POST, "/release_kv_cache_memory", "Frees the memory of the key-value cache."),
    vllm(POST, "/collective_rpc", "Calls a method on every worker."),
    vllm(POST, "/scale_elastic_ep", "Scales expert parallelism."),
    vllm(POST, "/is_scaling_elastic_ep", "Reports whether expert parallelism is being scaled."),
    vllm(POST, "/start_profile", "Starts the profiler."),
    vllm(POST, "/stop_profile", "Stops the profiler."),
    vllm(POST, "/v1/load_lora_adapter", "Loads a LoRA adapter."),
    vllm(POST, "/v1/unload_lora_adapter", "Unloads a LoRA adapter."),

    sglang_weights("/update_weights_from_disk", "Updates weights from a folder."),
    sglang_weights("/update_weights_from_distributed", "Updates weights from a process group."),
    sglang_weights("/update_weights_from_tensor", "Updates weights from tensors."),
    sglang(POST, "/update_weights_from_ipc", "Updates weights from shared memory."),
    sglang(POST, "/init_weights_update_group", "Joins a process group for weights."),
    sglang(POST, "/destroy_weights_update_group", "Leaves the process group for weights."),
    sglang(POST, "/init_weights_send_group_for_remote_instance",
        "Joins a process group to send weights."),
    sglang(POST, "/send_weights_to_remote_instance", "Sends weights to another server."),
    sglang(POST, "/get_weights_by_name", "Returns weights by their name."),
    sglang(POST, "/pause_generation", "Pauses generation."),
    sglang(POST, "/continue_generation", "Resumes generation."),
    sglang(POST, "/abort_request", "Aborts requests."),
    sglang(POST, "/flush_cache", "Empties the prefix cache."),
    sglang(POST, "/clear_hicache_storage_backend",
        "Empties the storage of the hierarchical cache."),
    sglang(POST, "/release_memory_occupation", "Frees GPU memory."),
    sglang(POST, "/resume_memory_occupation", "Takes GPU memory back."),
    sglang(POST, "/load_lora_adapter", "Loads a LoRA adapter."),
    sglang(POST, "/unload_lora_adapter", "Unloads a LoRA adapter."),
    sglang(GET, "/get_server_info", "Returns the configuration of the server."),
    sglang(GET, "/get_internal_state", "Returns the state of the server."),
    sglang(POST, "/set_internal_state", "Sets the state of the server."),
    sglang(GET, "/get_load", "Returns the load of the server."),
    sglang(POST, "/configure_logging", "Configures logging."),
    sglang(POST, "/freeze_gc", "Freezes garbage collection."),

    trainer(POST, "/init_broadcaster", "Joins the broadcast of weights."),
    trainer(POST, "/fetch_weights", "Fetches weights."),
    trainer(POST, "/areal_{name}", "Any control route of AReaL."),
];

/// Looks up the route for a request to the control listener.
pub(super) fn lookup(method: &Method, path: &str) -> Lookup<'static, Handler> {
    let own = route::find(ROUTES.iter().filter(|route| !is_engine(route)), method, path);
    let Some(of_engine) = engine_route(path).filter(|_| !matches!(own, Lookup::Found { .. }))
    else {
        return own;
    };
    if of_engine.takes(method) || (of_engine.takes(&Method::GET) && *method == Method::HEAD) {
        return Lookup::Found { route: of_engine, parameter: String::new() };
    }
    let own_methods = match own {
        Lookup::WrongMethod(methods) => methods,
        _ => Vec::new(),
    };
    Lookup::WrongMethod(own_methods.into_iter().chain(of_engine.methods.iter().copied()).collect())
}

/// The control route of the upstream that a path names in any spelling. `path` may have a query.
pub(crate) fn engine_route(path: &str) -> Option<&'static ControlRoute> {
    let path = normalized(path.split('?').next().unwrap_or(path));
    let path = path.strip_prefix(INFERENCE_PREFIX).unwrap_or(&path);
    ROUTES.iter().filter(|route| is_engine(route)).find(|route| {
        match route.path.strip_suffix("{name}") {
            None => route.path == path,
            Some(prefix) => path.starts_with(prefix),
        }
    })
}

/// The path prefix of servers that have all routes behind it.
const INFERENCE_PREFIX: &str = "/inference/v1";

pub(super) fn is_engine(route: &ControlRoute) -> bool {
    matches!(route.handler, Handler::Engine { .. })
}

/// The path as a server behind the upstream's load balancer may see it: escapes are decoded, and
/// `.`, `..` and empty segments are resolved.
pub(crate) fn normalized(path: &str) -> String {
    let mut path = path.to_owned();
    for _ in 0..ESCAPE_LEVELS_MAX {
        let decoded = unescaped(&path);
        if decoded == path {
            break;
        }
        path = decoded;
    }

    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    segments.into_iter().flat_map(|segment| ["/", segment]).collect()
}

/// Number of times that escapes within escapes are decoded.
const ESCAPE_LEVELS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_routes_are_known_however_they_are_spelled() {
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
            assert!(engine_route(path).is_some(), "{path}");
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
            assert!(engine_route(path).is_none(), "{path}");
        }
    }

    #[test]
    fn what_changes_the_upstream_is_a_post_however_it_is_spelled() {
        for path in [
            "/flush_cache",
            "/release_memory_occupation",
            "//v1/../flush_cache/",
            "/%66lush_cache",
            "/areal_anything",
            "/inference/v1/pause",
            "/sleep?level=2",
        ] {
            let path_only = path.split('?').next().unwrap();
            for method in [Method::GET, Method::HEAD, Method::PUT, Method::OPTIONS, Method::DELETE]
            {
                let found = lookup(&method, path_only);
                let is_refused = matches!(found, Lookup::WrongMethod(allowed) if allowed == POST);
                assert!(is_refused, "{method} {path}");
            }
            assert!(matches!(lookup(&Method::POST, path_only), Lookup::Found { .. }), "{path}");
        }
    }

    #[test]
    fn a_path_stands_in_the_table_once() {
        let mut paths: Vec<_> = ROUTES.iter().map(|route| (route.path, route.methods)).collect();
        paths.sort_unstable();
        let count = paths.len();
        paths.dedup();
        assert_eq!(paths.len(), count);
    }

    #[test]
    fn a_request_finds_its_route_or_is_told_which_one_may_be_meant() {
        let find = |method: Method, path: &str| match lookup(&method, path) {
            Lookup::Found { route, parameter } => format!("{} {parameter}", route.path),
            Lookup::WrongMethod(methods) => format!("use {}", methods.join(", ")),
            Lookup::Unknown => {
                format!("like {}", route::similar_path(&ROUTES, path).unwrap_or_default())
            }
        };
        assert_eq!(find(Method::POST, "/episodes/a/rewards"), "/episodes/{id}/rewards a");
        assert_eq!(find(Method::GET, "/feed/consumers/"), "/feed/consumers ");
        assert_eq!(find(Method::POST, "//pause"), "/pause ");
        assert_eq!(find(Method::HEAD, "/is_paused"), "/is_paused ");
        assert_eq!(find(Method::POST, "/is_paused"), "use GET");
        assert_eq!(find(Method::GET, "/feed"), "use POST");
        assert_eq!(find(Method::GET, "/episodes"), "/episodes ");
        assert_eq!(find(Method::PUT, "/episodes"), "use GET, POST");
        assert_eq!(find(Method::GET, "/calls/c/tokens"), "/calls/{id}/tokens c");
        assert_eq!(find(Method::POST, "/v1/models"), "use GET");
        assert_eq!(find(Method::POST, "/episodes/a/reward"), "like /episodes/a/rewards");
        assert_eq!(find(Method::GET, "/nothing/of/it"), "like ");
    }
}
