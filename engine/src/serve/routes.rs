//! The table of all routes, and the dispatch by it.
//!
//! The documents are made from the same table: `GET /openapi.json`, and the list in
//! `docs/engine.md`.

use std::convert::Infallible;
use std::sync::Arc;

use http::api::route::{self, Lookup, Route};
use http::api::schema::Field;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, ORIGIN, SERVER};

use super::calls::{ApiError, HttpCall, HttpReply, WEIGHTS_TYPE, error_reply, json_reply};
use super::route::{EngineRoute, Handler, control, get, post};
use super::state::ServerState;
use super::{
    batch, chat, completions, generate, generation, lora, metrics, models, openapi, render,
    responses, sglang, status, tokenize, trainer, translation,
};

/// Makes a [`Handler`] of an async function.
macro_rules! handler {
    ($function:path) => {
        Handler::new(|state, call| Box::pin($function(state, call)))
    };
}

/// All routes by their groups, in the order in which they are documented.
static GROUPS: [(&str, &[EngineRoute]); 7] = [
    ("Sampling", SAMPLING),
    ("Models and tokens", MODELS),
    ("State of the engine", STATUS),
    ("Pauses and sleep", PAUSES),
    ("Weights", WEIGHTS),
    ("LoRA adapters", ADAPTERS),
    ("SGLang's calls", SGLANG),
];

static SAMPLING: &[EngineRoute] =
    &[
        post("/v1/chat/completions", handler!(chat::answer), "samples replies to a chat")
            .fields(&[chat::PROMPT_FIELDS, chat::CHAT_FIELDS, generation::GENERATION_FIELDS]),
        post("/v1/completions", handler!(completions::answer), "continues texts or token ids")
            .fields(&[completions::COMPLETION_FIELDS, generation::GENERATION_FIELDS]),
        post(
            "/v1/chat/completions/batch",
            handler!(batch::chats),
            "samples one reply to each of several chats, in `messages`",
        )
        .fields(&[chat::PROMPT_FIELDS, chat::CHAT_FIELDS, generation::GENERATION_FIELDS]),
        post(
            "/v1/chat/completions/render",
            handler!(render::chat),
            "returns the request to `/inference/v1/generate` that a chat stands for",
        )
        .fields(&[chat::PROMPT_FIELDS, chat::CHAT_FIELDS, generation::GENERATION_FIELDS]),
        post(
            "/v1/completions/render",
            handler!(render::completion),
            "returns such a request for each prompt of a completion",
        )
        .fields(&[completions::COMPLETION_FIELDS, generation::GENERATION_FIELDS]),
        post(
            "/v1/responses",
            handler!(responses::answer).errors(translation::responses_error),
            "samples a reply as OpenAI's Responses API does",
        )
        .fields(&[translation::HOSTED_FIELDS]),
        get(
            "/v1/responses/{*name}",
            handler!(responses::show).errors(translation::responses_error),
            "a response that is kept",
        ),
        post(
            "/v1/responses/{*name}/cancel",
            handler!(responses::cancel).errors(translation::responses_error),
            "ends a background response",
        ),
        post(
            "/v1/messages",
            handler!(translation::messages).errors(translation::messages_error),
            "samples a reply as Anthropic's Messages API does",
        )
        .fields(&[translation::HOSTED_FIELDS]),
        post(
            "/v1/messages/count_tokens",
            handler!(translation::count_tokens).errors(translation::count_tokens_error),
            "counts the tokens of a prompt in Anthropic's form",
        )
        .fields(&[translation::HOSTED_FIELDS]),
        post(
            "/inference/v1/generate",
            handler!(generate::answer),
            "continues token ids; the reply is token ids, too",
        )
        .fields(&[generate::GENERATE_FIELDS]),
        control(
            "/inference/v1/abort_requests",
            handler!(generate::abort),
            "ends replies by their ids, with the tokens that they have",
        )
        .fields(&[generate::ABORT_FIELDS]),
    ];

static MODELS: &[EngineRoute] = &[
    get("/v1/models", handler!(models::list), "lists the model and its adapters"),
    get("/v1/models/{*name}", handler!(models::show), "describes one of them"),
    post(
        "/tokenize",
        handler!(tokenize::tokenize),
        "returns the token ids of a text, or of messages as chat renders them",
    )
    .fields(&[tokenize::TOKENIZE_FIELDS, chat::PROMPT_FIELDS]),
    post("/detokenize", handler!(tokenize::detokenize), "returns the text of token ids")
        .fields(&[tokenize::DETOKENIZE_FIELDS]),
    get(
        "/tokenizer_info",
        handler!(tokenize::tokenizer_info),
        "the configuration of the tokenizer, with the chat template",
    ),
];

static STATUS: &[EngineRoute] = &[
    get(
        "/health",
        handler!(status::health).open(),
        "200, or 503 once the device has failed for good",
    ),
    get("/ping", handler!(status::health).open(), "the same as `/health`")
        .methods(&["GET", "POST"]),
    get("/version", handler!(status::version), "the version of rolltape"),
    get("/load", handler!(status::load), "the number of choices that run or wait"),
    get("/metrics", handler!(metrics::answer), "metrics in the text format of Prometheus"),
    get(
        "/kv_event_sources",
        handler!(status::kv_event_sources),
        "an empty object: no cache events are published",
    ),
    get(
        "/get_world_size",
        handler!(trainer::world_size),
        "the number of processes that hold the weights: 1",
    ),
    get("/server_info", handler!(trainer::server_info), "the configuration in vLLM's form")
        .query(&[Field::string("config_format")]),
    get("/openapi.json", handler!(openapi_document), "all routes as an OpenAPI 3.1 document"),
];

static PAUSES: &[EngineRoute] = &[
    control("/pause", handler!(trainer::pause), "stops sampling").query(&[
        Field::string("mode"),
        Field::boolean("clear_cache"),
        Field::boolean("wait_for_inflight_requests"),
    ]),
    control("/resume", handler!(trainer::resume), "continues after a pause"),
    get("/is_paused", handler!(trainer::is_paused), "tells whether generation is paused"),
    control(
        "/abort_requests",
        handler!(trainer::abort),
        "ends replies with the tokens that they have; all of them for `{}`",
    )
    .fields(&[trainer::ABORT_FIELDS]),
    control("/sleep", handler!(trainer::sleep), "gives memory back").query(&[
        Field::integer("level"),
        Field::string("mode"),
        Field::boolean("wait_for_inflight_requests"),
    ]),
    control("/wake_up", handler!(trainer::wake_up), "takes the memory again")
        .query(&[Field::string("tags")]),
    get("/is_sleeping", handler!(trainer::is_sleeping), "tells whether any part sleeps"),
    control(
        "/release_kv_cache_memory",
        handler!(trainer::release_kv_cache),
        "gives the memory of keys and values back",
    ),
    control(
        "/reset_prefix_cache",
        handler!(trainer::reset_prefix_cache),
        "forgets all prefixes; with the flag, running replies are computed again",
    )
    .query(&[Field::boolean("reset_running_requests")]),
    control(
        "/reset_mm_cache",
        handler!(trainer::reset_absent_cache),
        "200: there is no such cache",
    ),
    control(
        "/reset_encoder_cache",
        handler!(trainer::reset_absent_cache),
        "200: there is no such cache",
    ),
];

static WEIGHTS: &[EngineRoute] = &[
    control(
        "/init_weight_transfer_engine",
        handler!(trainer::connect),
        "connects a transport; folders and bodies need none",
    )
    .fields(&[trainer::CONNECT_FIELDS]),
    control(
        "/start_weight_update",
        handler!(trainer::start),
        "starts an update, and drops one that was started and not finished",
    )
    .fields(&[trainer::START_FIELDS]),
    control(
        "/update_weights",
        handler!(trainer::update),
        "receives tensors: a folder, a body, or a transport's broadcast",
    )
    .query(&[Field::string("weight_version"), Field::string("mode")])
    .fields(&[trainer::UPDATE_FIELDS])
    .other_body(WEIGHTS_TYPE),
    control(
        "/finish_weight_update",
        handler!(trainer::finish),
        "serves the received tensors from now on, under the label `weight_version`",
    )
    .fields(&[trainer::FINISH_FIELDS]),
    control(
        "/update_weight_version",
        handler!(trainer::rename),
        "gives the weights another label, `new_version`",
    )
    .fields(&[trainer::RENAME_FIELDS]),
    get(
        "/weight_info",
        handler!(trainer::weight_info),
        "label and checksum of the weights that serve, or of those that had the label `version`",
    )
    .query(&[Field::string("version")]),
    control(
        "/weight_checker",
        handler!(trainer::check_weights),
        "reads the weights back: `checksum` of each, or `compare` with a `baseline`",
    )
    .fields(&[trainer::CHECK_FIELDS]),
    control(
        "/shutdown_weight_transfer_engine",
        handler!(trainer::disconnect),
        "drops the transport, and an update that was started",
    ),
    control("/collective_rpc", handler!(trainer::collective_rpc), "501: there are no such workers"),
];

static ADAPTERS: &[EngineRoute] = &[
    control("/v1/load_lora_adapter", handler!(lora::load), "loads an adapter from a PEFT folder")
        .fields(&[lora::LOAD_FIELDS]),
    control("/v1/unload_lora_adapter", handler!(lora::unload), "unloads an adapter")
        .fields(&[lora::UNLOAD_FIELDS]),
];

static SGLANG: &[EngineRoute] = &[
    post("/generate", handler!(sglang::generate), "continues texts or token ids")
        .methods(&["POST", "PUT"])
        .fields(&[sglang::GENERATE_FIELDS]),
    control("/abort_request", handler!(sglang::abort), "ends one reply, or all")
        .fields(&[sglang::ABORT_FIELDS]),
    control(
        "/pause_generation",
        handler!(sglang::pause),
        "stops sampling: `abort`, `retract` or `in_place`",
    )
    .fields(&[sglang::PAUSE_FIELDS]),
    control("/continue_generation", handler!(sglang::resume), "continues after a pause"),
    control(
        "/update_weights_from_disk",
        handler!(sglang::update_from_disk),
        "serves a folder of a whole model",
    )
    .fields(&[sglang::UPDATE_FIELDS]),
    control(
        "/flush_cache",
        handler!(sglang::flush_cache),
        "forgets the prefixes that no reply uses",
    )
    .methods(&["GET", "POST"]),
    control(
        "/load_lora_adapter",
        handler!(sglang::load_adapter),
        "loads an adapter from a PEFT folder",
    )
    .fields(&[lora::LOAD_FIELDS]),
    control("/unload_lora_adapter", handler!(sglang::unload_adapter), "unloads an adapter")
        .fields(&[lora::UNLOAD_FIELDS]),
    get("/model_info", handler!(sglang::model_info), "folder and label of the weights"),
    get("/get_model_info", handler!(sglang::model_info), "the same under its older name"),
    get("/get_server_info", handler!(trainer::server_info), "the same as `/server_info`"),
    get("/health_generate", handler!(sglang::probe), "200 once a token was sampled"),
];

/// Returns all routes, each with its group.
pub(super) fn documented() -> Vec<EngineRoute> {
    let in_group = |(group, routes): &(&'static str, &'static [EngineRoute])| {
        let group = *group;
        routes.iter().map(move |route| Route { group, ..*route })
    };
    GROUPS.iter().flat_map(in_group).collect()
}

/// Handles `/openapi.json`.
async fn openapi_document(_: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    Ok(json_reply(&openapi::document(&documented())))
}

/// Answers one call. An error is an answer, too.
pub(super) async fn answer(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Result<HttpReply, Infallible> {
    let origins = &state.access.origins;
    let origin = request.headers().get(ORIGIN).cloned();
    let mut reply = match origins.answer_question(request.method(), request.headers()) {
        Some(reply) => reply,
        None => dispatch(&state, request).await,
    };
    origins.mark(origin.as_ref(), &mut reply);
    reply.headers_mut().insert(SERVER, HeaderValue::from_static("rolltape"));
    Ok(reply)
}

/// Has the route of a call answer it.
async fn dispatch(state: &Arc<ServerState>, request: Request<Incoming>) -> HttpReply {
    let routes = GROUPS.iter().flat_map(|(_, routes)| *routes);
    let lookup = route::find(routes, request.method(), request.uri().path());
    let is_open = matches!(&lookup, Lookup::Found { route, .. } if route.handler.is_open);
    if !is_open && let Err(error) = state.access.check_token(request.headers()) {
        return error_reply(&error);
    }

    match lookup {
        Lookup::Found { route, parameter } => match call(state, route, parameter, request).await {
            Ok(reply) => reply,
            Err(error) => (route.handler.write_error)(&error),
        },
        Lookup::WrongMethod(allowed) => error_reply(&ApiError::wrong_method(&allowed)),
        Lookup::Unknown => error_reply(&ApiError::unknown_path()),
    }
}

async fn call(
    state: &Arc<ServerState>,
    route: &'static EngineRoute,
    parameter: String,
    request: Request<Incoming>,
) -> Result<HttpReply, ApiError> {
    if route.handler.is_control {
        state.access.check_origin(request.headers())?;
    }
    let call = HttpCall::read(request, parameter, route, &state.json_room).await?;
    (route.handler.answer)(state, call).await
}
