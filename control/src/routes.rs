//! The routes of the control listener, in one table: the dispatch, the 404 and 405 replies, the
//! tables of `docs/control.md` and the OpenAPI document are made from it.

use std::sync::LazyLock;

use hyper::Method;
use proxy::ground::normalized;
use viewer::View;
use wire::{ENGINE_ROUTES, EngineRoute, engine_route};

use crate::api::schema::{Field, fields_of};
use crate::api::suggest::nearest;
use crate::feed::parameters::NAMES as FEED;
use crate::requests::{
    AckBody, AdmissionBody, AnnounceBody, CloseBody, KeyBody, NackBody, RenewBody, RevokeBody,
    RewardBody, RotateBody, UpstreamBody, VersionBody,
};
use Handler::{Changes, Feed, Health, Json, Metrics, Models, Read};
use JsonHandler as J;

/// A route of the control listener.
#[derive(Clone, Copy)]
pub(crate) struct ControlRoute {
    pub(crate) method: &'static str,
    /// The path. A part in braces is a parameter.
    pub(crate) path: &'static str,
    pub(crate) handler: Handler,
    /// One sentence for the docs.
    pub(crate) summary: &'static str,
    /// Names of the query parameters.
    pub(crate) query: &'static [&'static str],
    /// Fields of the JSON body, if the route takes one.
    pub(crate) body: Option<fn() -> Vec<Field>>,
    /// The content of a 200 reply, for the docs.
    pub(crate) reply: &'static str,
}

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

const OK: &str = "`{status: \"ok\"}`, once it is on disk";
const GET: &str = "GET";
const POST: &str = "POST";
const ATTEMPT: &[&str] = &["attempt"];
/// Parameters that select attempts.
const LIST: &[&str] = &[
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
];
const STATS: &[&str] = &[
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
];
const SEARCH: &[&str] = &[
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
];
const ENGINE_REPLY: &str = "the reply of the upstream";

const fn get(path: &'static str, handler: Handler, summary: &'static str) -> ControlRoute {
    ControlRoute { method: GET, path, handler, summary, query: &[], body: None, reply: "" }
}

const fn post(path: &'static str, handler: JsonHandler, summary: &'static str) -> ControlRoute {
    let handler = Handler::Json(handler);
    ControlRoute { method: POST, path, handler, summary, query: &[], body: None, reply: OK }
}

impl ControlRoute {
    fn of_engine(route: &'static EngineRoute) -> Self {
        Self { method: route.method, ..get(route.path, Handler::Engine(route), route.summary) }
            .reply(ENGINE_REPLY)
    }

    const fn query(self, query: &'static [&'static str]) -> Self {
        Self { query, ..self }
    }

    const fn body(self, fields: fn() -> Vec<Field>) -> Self {
        Self { body: Some(fields), ..self }
    }

    const fn reply(self, reply: &'static str) -> Self {
        Self { reply, ..self }
    }
}

/// All routes: rolltape's own, then those of the upstream.
pub(crate) static ROUTES: LazyLock<Vec<ControlRoute>> = LazyLock::new(|| {
    let of_engines = ENGINE_ROUTES.iter().map(ControlRoute::of_engine);
    OWN.iter().copied().chain(of_engines).collect()
});

/// The routes of rolltape itself.
#[rustfmt::skip]
static OWN: [ControlRoute; 36] = [
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

    get("/episodes", Read(View::Episodes), "Lists attempts at episodes.")
        .query(LIST).reply("`{total, episodes}`"),
    get("/episodes/{id}/tree", Read(View::Tree), "Returns an attempt as turns.")
        .query(ATTEMPT).reply("the turns, with verdict, forks and rewards"),
    get("/calls/{id}", Read(View::Call), "Returns what was said in a call.")
        .query(&["arrays"]).reply("the call, with its messages"),
    get("/calls/{id}/tokens", Read(View::Tokens),
        "Returns the tokens of a call, with texts, logprobs, mask and versions.")
        .query(&["choice", "from", "count"]).reply("arrays of one length"),
    get("/calls/{id}/request", Read(View::Request), "Returns the body that the agent sent.")
        .reply("the body, as text"),
    get("/calls/{id}/reply", Read(View::Reply), "Returns the body that the agent received.")
        .reply("the body, as text"),
    get("/groups", Read(View::Groups), "Lists groups in numbers.")
        .query(&["name", "since", "until", "sort", "limit", "offset"])
        .reply("`{total, groups}`"),
    get("/stats", Read(View::Stats), "Returns numbers over time and by policy version.")
        .query(STATS).reply("sums, buckets and versions"),
    get("/search", Read(View::Search), "Looks for a text in what was said.")
        .query(SEARCH).reply("`{hits, searched, total, next}`"),
    get("/events", Changes, "Returns a stream of what changes in the recording.")
        .query(&["episode", "group", "task", "text"]).reply("server-sent events"),

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
    ControlRoute { method: POST, ..get("/feed", Feed, "Hands out finished episodes as rows.") }
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
    ControlRoute { method: "DELETE", ..post("/admission", J::LiftAdmission,
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
    ControlRoute { method: "DELETE", ..post("/upstreams/{name}", J::RemoveUpstream,
        "Removes an upstream; its calls in flight end by themselves.") }
        .reply("`{status: \"ok\"}`"),

    get("/v1/models", Models, "Forwards the upstream's list of models.").reply(ENGINE_REPLY),

];

/// The route for a request.
pub(crate) enum Lookup {
    Found {
        route: &'static ControlRoute,
        /// The value of the path's parameter; empty if it has none.
        parameter: String,
    },
    /// The path has other methods.
    WrongMethod(String),
    /// The path is unknown. It may be a misspelling of another.
    Unknown(Option<String>),
}

impl Lookup {
    /// True for the route that needs no token, because health checks of a load balancer carry none.
    pub(crate) fn is_health(&self) -> bool {
        matches!(self, Self::Found { route, .. } if route.handler == Health)
    }
}

/// Looks up the route for a request to the control listener.
pub(crate) fn find(method: &Method, path: &str) -> Lookup {
    let mut other_methods: Vec<&str> = Vec::new();
    for route in &OWN {
        let Some(parameter) = route.parameter(path) else { continue };
        if method == route.method {
            return Lookup::Found { route, parameter: parameter.to_owned() };
        }
        other_methods.push(route.method);
    }
    if let Some(engine_route) = engine_route(&normalized(path)) {
        let handler = Handler::Engine(engine_route);
        if engine_route.takes(method.as_str())
            && let Some(route) = ROUTES.iter().find(|route| route.handler == handler)
        {
            return Lookup::Found { route, parameter: String::new() };
        }
        other_methods.push(engine_route.method);
    }
    match other_methods.is_empty() {
        false => Lookup::WrongMethod(other_methods.join(", ")),
        true => Lookup::Unknown(similar_path(path)),
    }
}

impl ControlRoute {
    /// The value of the parameter in `path`, or an empty one; `None` if the path is another one.
    fn parameter<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut parameter = "";
        let mut segments = path.trim_matches('/').split('/');
        for template in self.segments() {
            let segment = segments.next()?;
            if is_parameter(template) {
                parameter = segment;
            } else if template != segment {
                return None;
            }
        }
        segments.next().is_none().then_some(parameter)
    }

    fn segments(&self) -> impl Iterator<Item = &'static str> {
        self.path.trim_start_matches('/').split('/')
    }
}

fn is_parameter(segment: &str) -> bool {
    segment.starts_with('{')
}

/// The known path that is most similar to `path`, with the parameter of `path` in its place.
fn similar_path(path: &str) -> Option<String> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let known: Vec<String> = ROUTES
        .iter()
        .filter(|route| route.segments().count() == segments.len())
        .map(|route| {
            let filled = route
                .segments()
                .zip(&segments)
                .map(|(template, segment)| if is_parameter(template) { segment } else { template });
            filled.fold(String::new(), |path, segment| format!("{path}/{segment}"))
        })
        .collect();
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    nearest(path, &names).map(str::to_owned)
}

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
                let found = find(&method, path_only);
                let is_refused = matches!(found, Lookup::WrongMethod(allowed) if allowed == POST);
                assert!(is_refused, "{method} {path}");
            }
            assert!(matches!(find(&Method::POST, path_only), Lookup::Found { .. }), "{path}");
        }
    }

    #[test]
    fn a_path_stands_in_the_table_once() {
        let mut paths: Vec<_> = ROUTES.iter().map(|route| (route.path, route.method)).collect();
        paths.sort_unstable();
        let count = paths.len();
        paths.dedup();
        assert_eq!(paths.len(), count);
    }

    #[test]
    fn a_request_finds_its_route_or_is_told_which_one_may_be_meant() {
        let find = |method: Method, path: &str| match find(&method, path) {
            Lookup::Found { route, parameter } => format!("{} {parameter}", route.path),
            Lookup::WrongMethod(method) => format!("use {method}"),
            Lookup::Unknown(similar) => format!("like {}", similar.unwrap_or_default()),
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
