//! The table of all routes, and the dispatch by it.
//!
//! The documents are made from the same table: `GET /openapi.json`, and the list in
//! `docs/engine.md`.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HeaderValue, ORIGIN, SERVER};
use hyper::{Request, StatusCode};

use super::http::{ApiError, Field, HttpCall, HttpReply, error_reply, json_reply};
use super::route::{Route, RouteGroup};
use super::state::ServerState;
use super::{
    batch, chat, completions, generate, generation, lora, metrics, models, openapi, render,
    responses, sglang, status, tokenize, trainer, translation,
};

/// Makes a [`Handler`](super::route::Handler) of an async function.
macro_rules! handler {
    ($function:path) => {
        |state, call| Box::pin($function(state, call))
    };
}

/// All routes, in the order in which they are documented.
pub(super) static ROUTES: &[RouteGroup] = &[
    RouteGroup { title: "Sampling", routes: SAMPLING },
    RouteGroup { title: "Models and tokens", routes: MODELS },
    RouteGroup { title: "State of the engine", routes: STATUS },
    RouteGroup { title: "Pauses and sleep", routes: PAUSES },
    RouteGroup { title: "Weights", routes: WEIGHTS },
    RouteGroup { title: "LoRA adapters", routes: ADAPTERS },
    RouteGroup { title: "SGLang's calls", routes: SGLANG },
];

static SAMPLING: &[Route] = &[
    Route::post("/v1/chat/completions", handler!(chat::answer), "samples replies to a chat")
        .fields(&[chat::PROMPT_FIELDS, chat::CHAT_FIELDS, generation::GENERATION_FIELDS]),
    Route::post("/v1/completions", handler!(completions::answer), "continues texts or token ids")
        .fields(&[completions::COMPLETION_FIELDS, generation::GENERATION_FIELDS]),
    Route::post(
        "/v1/chat/completions/batch",
        handler!(batch::chats),
        "samples one reply to each of several chats, in `messages`",
    )
    .fields(&[chat::PROMPT_FIELDS, chat::CHAT_FIELDS, generation::GENERATION_FIELDS]),
    Route::post(
        "/v1/chat/completions/render",
        handler!(render::chat),
        "returns the request to `/inference/v1/generate` that a chat stands for",
    )
    .fields(&[chat::PROMPT_FIELDS, chat::CHAT_FIELDS, generation::GENERATION_FIELDS]),
    Route::post(
        "/v1/completions/render",
        handler!(render::completion),
        "returns such a request for each prompt of a completion",
    )
    .fields(&[completions::COMPLETION_FIELDS, generation::GENERATION_FIELDS]),
    Route::post(
        "/v1/responses",
        handler!(responses::answer),
        "samples a reply as OpenAI's Responses API does",
    )
    .fields(&[translation::HOSTED_FIELDS])
    .errors(translation::responses_error),
    Route::get("/v1/responses/{name}", handler!(responses::show), "a response that is kept")
        .errors(translation::responses_error),
    Route::post(
        "/v1/responses/{name}/cancel",
        handler!(responses::cancel),
        "ends a background response",
    )
    .errors(translation::responses_error),
    Route::post(
        "/v1/messages",
        handler!(translation::messages),
        "samples a reply as Anthropic's Messages API does",
    )
    .fields(&[translation::HOSTED_FIELDS])
    .errors(translation::messages_error),
    Route::post(
        "/v1/messages/count_tokens",
        handler!(translation::count_tokens),
        "counts the tokens of a prompt in Anthropic's form",
    )
    .fields(&[translation::HOSTED_FIELDS])
    .errors(translation::count_tokens_error),
    Route::post(
        "/inference/v1/generate",
        handler!(generate::answer),
        "continues token ids; the reply is token ids, too",
    )
    .fields(&[generate::GENERATE_FIELDS]),
    Route::control(
        "/inference/v1/abort_requests",
        handler!(generate::abort),
        "ends replies by their ids, with the tokens that they have",
    )
    .fields(&[generate::ABORT_FIELDS]),
];

static MODELS: &[Route] = &[
    Route::get("/v1/models", handler!(models::list), "lists the model and its adapters"),
    Route::get("/v1/models/{name}", handler!(models::show), "describes one of them"),
    Route::post(
        "/tokenize",
        handler!(tokenize::tokenize),
        "returns the token ids of a text, or of messages as chat renders them",
    )
    .fields(&[tokenize::TOKENIZE_FIELDS, chat::PROMPT_FIELDS]),
    Route::post("/detokenize", handler!(tokenize::detokenize), "returns the text of token ids")
        .fields(&[tokenize::DETOKENIZE_FIELDS]),
    Route::get(
        "/tokenizer_info",
        handler!(tokenize::tokenizer_info),
        "the configuration of the tokenizer, with the chat template",
    ),
];

static STATUS: &[Route] = &[
    Route::get(
        "/health",
        handler!(status::health),
        "200, or 503 once the device has failed for good",
    )
    .open(),
    Route::get("/ping", handler!(status::health), "the same as `/health`")
        .methods(&["GET", "POST"])
        .open(),
    Route::get("/version", handler!(status::version), "the version of rolltape"),
    Route::get("/load", handler!(status::load), "the number of choices that run or wait"),
    Route::get("/metrics", handler!(metrics::answer), "metrics in the text format of Prometheus"),
    Route::get(
        "/kv_event_sources",
        handler!(status::kv_event_sources),
        "an empty object: no cache events are published",
    ),
    Route::get(
        "/get_world_size",
        handler!(trainer::world_size),
        "the number of processes that hold the weights: 1",
    ),
    Route::get("/server_info", handler!(trainer::server_info), "the configuration in vLLM's form")
        .query(&[Field::string("config_format")]),
    Route::get(
        "/openapi.json",
        handler!(openapi_document),
        "all routes as an OpenAPI 3.1 document",
    ),
];

static PAUSES: &[Route] = &[
    Route::control("/pause", handler!(trainer::pause), "stops sampling").query(&[
        Field::string("mode"),
        Field::boolean("clear_cache"),
        Field::boolean("wait_for_inflight_requests"),
    ]),
    Route::control("/resume", handler!(trainer::resume), "continues after a pause"),
    Route::get("/is_paused", handler!(trainer::is_paused), "tells whether generation is paused"),
    Route::control(
        "/abort_requests",
        handler!(trainer::abort),
        "ends replies with the tokens that they have; all of them for `{}`",
    )
    .fields(&[trainer::ABORT_FIELDS]),
    Route::control("/sleep", handler!(trainer::sleep), "gives memory back").query(&[
        Field::integer("level"),
        Field::string("mode"),
        Field::boolean("wait_for_inflight_requests"),
    ]),
    Route::control("/wake_up", handler!(trainer::wake_up), "takes the memory again")
        .query(&[Field::string("tags")]),
    Route::get("/is_sleeping", handler!(trainer::is_sleeping), "tells whether any part sleeps"),
    Route::control(
        "/release_kv_cache_memory",
        handler!(trainer::release_kv_cache),
        "gives the memory of keys and values back",
    ),
    Route::control(
        "/reset_prefix_cache",
        handler!(trainer::reset_prefix_cache),
        "forgets all prefixes; with the flag, running replies are computed again",
    )
    .query(&[Field::boolean("reset_running_requests")]),
    Route::control(
        "/reset_mm_cache",
        handler!(trainer::reset_absent_cache),
        "200: there is no such cache",
    ),
    Route::control(
        "/reset_encoder_cache",
        handler!(trainer::reset_absent_cache),
        "200: there is no such cache",
    ),
];

static WEIGHTS: &[Route] = &[
    Route::control(
        "/init_weight_transfer_engine",
        handler!(trainer::connect),
        "connects a transport; folders and bodies need none",
    )
    .fields(&[trainer::CONNECT_FIELDS]),
    Route::control(
        "/start_weight_update",
        handler!(trainer::start),
        "starts an update, and drops one that was started and not finished",
    ),
    Route::control(
        "/update_weights",
        handler!(trainer::update),
        "receives tensors: a folder, a body, or a transport's broadcast",
    )
    .query(&[Field::string("weight_version")])
    .fields(&[trainer::UPDATE_FIELDS])
    .or_weights(),
    Route::control(
        "/finish_weight_update",
        handler!(trainer::finish),
        "serves the received tensors from now on, under the label `weight_version`",
    )
    .fields(&[trainer::FINISH_FIELDS]),
    Route::control(
        "/update_weight_version",
        handler!(trainer::rename),
        "gives the weights another label, `new_version`",
    )
    .fields(&[trainer::RENAME_FIELDS]),
    Route::get(
        "/weight_info",
        handler!(trainer::weight_info),
        "label and checksum of the weights that serve, or of those that had the label `version`",
    )
    .query(&[Field::string("version")]),
    Route::control(
        "/weight_checker",
        handler!(trainer::check_weights),
        "reads the weights back: `checksum` of each, or `compare` with a `baseline`",
    )
    .fields(&[trainer::CHECK_FIELDS]),
    Route::control(
        "/shutdown_weight_transfer_engine",
        handler!(trainer::disconnect),
        "drops the transport, and an update that was started",
    ),
    Route::control(
        "/collective_rpc",
        handler!(trainer::collective_rpc),
        "501: there are no such workers",
    ),
];

static ADAPTERS: &[Route] = &[
    Route::control(
        "/v1/load_lora_adapter",
        handler!(lora::load),
        "loads an adapter from a PEFT folder",
    )
    .fields(&[lora::LOAD_FIELDS]),
    Route::control("/v1/unload_lora_adapter", handler!(lora::unload), "unloads an adapter")
        .fields(&[lora::UNLOAD_FIELDS]),
];

static SGLANG: &[Route] = &[
    Route::post("/generate", handler!(sglang::generate), "continues texts or token ids")
        .methods(&["POST", "PUT"])
        .fields(&[sglang::GENERATE_FIELDS]),
    Route::control("/abort_request", handler!(sglang::abort), "ends one reply, or all")
        .fields(&[sglang::ABORT_FIELDS]),
    Route::control(
        "/pause_generation",
        handler!(sglang::pause),
        "stops sampling: `abort`, `retract` or `in_place`",
    )
    .fields(&[sglang::PAUSE_FIELDS]),
    Route::control("/continue_generation", handler!(sglang::resume), "continues after a pause"),
    Route::control(
        "/update_weights_from_disk",
        handler!(sglang::update_from_disk),
        "serves a folder of a whole model",
    )
    .fields(&[sglang::UPDATE_FIELDS]),
    Route::control(
        "/flush_cache",
        handler!(sglang::flush_cache),
        "forgets the prefixes that no reply uses",
    )
    .methods(&["GET", "POST"]),
    Route::control(
        "/load_lora_adapter",
        handler!(sglang::load_adapter),
        "loads an adapter from a PEFT folder",
    )
    .fields(&[lora::LOAD_FIELDS]),
    Route::control("/unload_lora_adapter", handler!(sglang::unload_adapter), "unloads an adapter")
        .fields(&[lora::UNLOAD_FIELDS]),
    Route::get("/model_info", handler!(sglang::model_info), "folder and label of the weights"),
    Route::get("/get_model_info", handler!(sglang::model_info), "the same under its older name"),
    Route::get("/get_server_info", handler!(trainer::server_info), "the same as `/server_info`"),
    Route::get("/health_generate", handler!(sglang::probe), "200 once a token was sampled"),
];

/// Handles `/openapi.json`.
async fn openapi_document(_: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    Ok(json_reply(&openapi::document(ROUTES)))
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
    let found = find(&request);
    let is_open = found.as_ref().is_ok_and(|(route, _)| route.is_open);
    let admitted = if is_open { Ok(()) } else { state.access.check_token(request.headers()) };

    match admitted.and(found) {
        Ok((route, parameter)) => match call(state, route, parameter, request).await {
            Ok(reply) => reply,
            Err(error) => (route.write_error)(&error),
        },
        Err(error) => error_reply(&error),
    }
}

/// Finds the route of a request, and the parameter in its path.
///
/// # Errors
/// 404 if no route has the path, 405 if none of those that do has the method.
fn find(request: &Request<Incoming>) -> Result<(&'static Route, String), ApiError> {
    let mut status = StatusCode::NOT_FOUND;
    for route in ROUTES.iter().flat_map(|group| group.routes) {
        let Some(parameter) = route.matches(request.uri().path()) else { continue };
        if route.methods.contains(&request.method().as_str()) {
            return Ok((route, parameter.to_owned()));
        }
        status = StatusCode::METHOD_NOT_ALLOWED;
    }
    Err(ApiError::no_route(status))
}

async fn call(
    state: &Arc<ServerState>,
    route: &'static Route,
    parameter: String,
    request: Request<Incoming>,
) -> Result<HttpReply, ApiError> {
    if route.is_control {
        state.access.check_origin(request.headers())?;
    }
    let call = HttpCall::read(request, parameter, &route.body, &state.json_room).await?;
    (route.handler)(state, call).await
}
