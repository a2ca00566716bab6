//! The routes of the control listener, in one table: the dispatch, the 404 and 405 replies, the
//! tables of `docs/control.md` and the OpenAPI document are made from it.

use std::sync::LazyLock;

use http::api::route::{self, Lookup, Route};
use http::api::schema::{Field, fields_of};
use http::path::escapes::normalized;
use hyper::Method;
use viewer::View;
use wire::{ENGINE_ROUTES, EngineRoute, engine_route};

use crate::feed::parameters::NAMES;
use crate::requests::{
    AckBody, AdmissionBody, AnnotationsBody, AnnounceBody, CloseBody, KeyBody, NackBody, PruneBody,
    RenewBody, RevokeBody, RewardBody, RotateBody, UpstreamBody, VersionBody,
};
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
    Read(View),
    /// Returns a stream of what changes in the recording.
    Changes,
    /// Forwards a control route of the upstream.
    Engine(&'static EngineRoute),
}

/// A handler that returns a JSON document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonHandler {
    Ready,
    OpenApi,
    ShowReadToken,
    AnnounceEpisode,
    ShowEpisode,
    SignKey,
    RevokeKeys,
    RotateSecrets,
    AddReward,
    CloseEpisode,
    DeleteEpisode,
    Prune,
    AddAnnotations,
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

const OK: &str = "`{status: \"ok\"}`, once it is on disk";
const GET: &[&str] = &["GET"];
const POST: &[&str] = &["POST"];
/// The group of rolltape's own routes in the documents.
const OWN_GROUP: &str = "rolltape";
const ATTEMPT: &[Field] = &[Field::any("attempt")];
/// Parameters that select attempts.
const LIST: &[Field] = &Field::any_of([
    "episode",
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
    "cursor",
    "text",
]);
const STATS: &[Field] = &Field::any_of([
    "episode",
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
    "usage",
]);
const SEARCH: &[Field] = &Field::any_of([
    "q",
    "episode",
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
const CHECKS: &[Field] = &Field::any_of([
    "episode",
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
]);
const ENGINE_REPLY: &str = "the reply of the upstream";

/// The reply of the feed without rows.
const FEED_EMPTY: &[(u16, &str)] = &[(204, "nothing became ready in time")];
const FEED: &[Field] = &Field::any_of(NAMES);

const fn get(path: &'static str, handler: Handler, summary: &'static str) -> ControlRoute {
    Route { group: OWN_GROUP, ..Route::new(GET, path, handler, summary) }
}

const fn post(path: &'static str, handler: JsonHandler, summary: &'static str) -> ControlRoute {
    Route { methods: POST, reply: OK, ..get(path, Handler::Json(handler), summary) }
}

/// A control route of the upstream.
fn of_engine(route: &'static EngineRoute) -> ControlRoute {
    let handler = Handler::Engine(route);
    Route {
        group: route.server.name(),
        reply: ENGINE_REPLY,
        ..Route::new(std::slice::from_ref(&route.method), route.path, handler, route.summary)
    }
}

/// All routes: rolltape's own, then those of the upstream.
pub(crate) static ROUTES: LazyLock<Vec<ControlRoute>> = LazyLock::new(|| {
    let of_engines = ENGINE_ROUTES.iter().map(of_engine);
    OWN.iter().copied().chain(of_engines).collect()
});

/// The routes of rolltape itself.
#[rustfmt::skip]
static OWN: [ControlRoute; 43] = [
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
    get("/read-token", Json(J::ShowReadToken),
        "Returns the token that opens the routes that only read.")
        .reply("`{read_token}`; null if no token is required"),

    get("/episodes", Read(View::Episodes), "Lists attempts at episodes.")
        .query(LIST).reply("`{total, total_is_least, sorted, episodes, next}`"),
    get("/episodes/{id}/tree", Read(View::Tree), "Returns an attempt as turns.")
        .query(&Field::any_of(["attempt", "messages"]))
        .reply("the turns, with verdict, forks and rewards"),
    get("/calls/{id}", Read(View::Call), "Returns what was said in a call.")
        .query(&[Field::any("arrays")]).reply("the call, with its messages"),
    get("/calls/{id}/tokens", Read(View::Tokens),
        "Returns the tokens of a call, with texts, logprobs, mask and versions.")
        .query(&Field::any_of(["choice", "from", "count"])).reply("arrays of one length"),
    get("/calls/{id}/request", Read(View::Request), "Returns the body that the agent sent.")
        .reply("the body, as text"),
    get("/calls/{id}/reply", Read(View::Reply), "Returns the body that the agent received.")
        .reply("the body, as text"),
    get("/groups", Read(View::Groups), "Lists groups in numbers.")
        .query(&Field::any_of(["name", "group", "since", "until", "sort", "limit", "offset"]))
        .reply("`{total, groups}`"),
    get("/tasks", Read(View::Tasks), "Lists tasks in numbers, for a sampler of tasks.")
        .query(&Field::any_of(["name", "since", "until", "solved_at", "limit", "offset"]))
        .reply("`{total, tasks}`"),
    get("/stats", Read(View::Stats), "Returns numbers over time and by policy version.")
        .query(STATS).reply("sums, buckets and versions"),
    get("/search", Read(View::Search), "Looks for a text in what was said.")
        .query(SEARCH).reply("`{hits, searched, total, next}`"),
    get("/checks", Read(View::Checks),
        "Reads the newest attempts and judges the run; 503 while another one is judged.")
        .query(CHECKS)
        .reply("`{total, total_is_least, verdict, attempts, unread, calls, sampled_tokens, \
            checks}`"),
    get("/audit", Read(View::Audit), "Returns the audit that is kept beside the store.")
        .reply("`{audit}`: what `rolltape audit --keep` wrote, or null"),
    get("/events", Changes, "Returns a stream of what changes in the recording.")
        .query(&Field::any_of(["episode", "group", "task", "text"])).reply("server-sent events"),

    post("/episodes", J::AnnounceEpisode,
        "Announces an episode: its group, task, labels and budget are those that are given here.")
        .body(fields_of::<AnnounceBody>)
        .reply("`{status: \"ok\", episode_id}`, once it is on disk"),
    get("/episodes/{id}", Json(J::ShowEpisode),
        "Returns counts of what was recorded of an episode.")
        .query(ATTEMPT)
        .reply("`{episode_id, attempt, group_id, task_id, closed, status, calls, generations, \
            with_ids, incomplete, refused, prompt_tokens, completion_tokens, reward, replay}`"),
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
    Route { methods: &["DELETE"], ..post("/episodes/{id}", J::DeleteEpisode,
        "Deletes an attempt, with all that was recorded of it; 409 while it is open or leased.") }
        .query(ATTEMPT)
        .reply("`{status: \"ok\", episode_id, attempt, calls, bytes}`, once it is gone"),
    post("/prune", J::Prune,
        "Deletes the episodes that fit every field, between the calls that are recorded.")
        .body(fields_of::<PruneBody>)
        .reply("`{episodes, calls, bytes, pruned, kept_exported, kept_open, kept_running, \
            kept_leased, kept_needed, kept, file_bytes_before, file_bytes_after, withheld}`"),

    post("/annotations", J::AddAnnotations,
        "Appends what a trainer says of sampled tokens, a number for each by name and version; or \
         `comments`: what people say of attempts and calls.")
        .body(fields_of::<AnnotationsBody>)
        .reply("`{status: \"ok\", kept, not_sampled}` or `{status: \"ok\", comments}`, once it is \
            on disk"),

    // A lease changes what others are handed out, so it is no GET.
    Route { methods: POST, other_replies: FEED_EMPTY,
        ..get("/feed", Feed, "Hands out finished episodes as rows.") }
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

];

/// Looks up the route for a request to the control listener.
pub(crate) fn lookup(method: &Method, path: &str) -> Lookup<'static, Handler> {
    let own = route::find(&OWN, method, path);
    let of_engine = engine_route(&normalized(path));
    let Some(of_engine) = of_engine.filter(|_| !matches!(own, Lookup::Found { .. })) else {
        return own;
    };

    let handler = Handler::Engine(of_engine);
    if of_engine.takes(method.as_str())
        && let Some(route) = ROUTES.iter().find(|route| route.handler == handler)
    {
        return Lookup::Found { route, parameter: String::new() };
    }
    let mut methods = match own {
        Lookup::WrongMethod(methods) => methods,
        _ => Vec::new(),
    };
    methods.push(of_engine.method);
    Lookup::WrongMethod(methods)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_the_path_of_its_route() {
        for route in &OWN {
            if let Read(view) = route.handler {
                assert_eq!(view.path("{id}"), route.path);
            }
        }
    }

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
            assert!(engine_route(&normalized(path)).is_some(), "{path}");
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
            assert!(engine_route(&normalized(path)).is_none(), "{path}");
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
                let similar = route::similar_path(ROUTES.iter(), path);
                format!("like {}", similar.unwrap_or_default())
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
