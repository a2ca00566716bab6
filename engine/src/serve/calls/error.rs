//! Errors in OpenAI's form, with the words and types of vLLM.

use std::fmt::Display;

use http::api::BadRequest;
use http::body::BodyError;
use hyper::StatusCode;
use serde::Serialize;

use super::json::to_json;

/// An error that a call is answered with.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    /// The `type` of the reply.
    kind: &'static str,
    message: String,
    /// The field to blame.
    param: Option<String>,
    /// Seconds after which the call may be tried again.
    retry_after: Option<u64>,
    /// The methods of a route that was called with another.
    allow: Option<String>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Display) -> ApiError {
        let message = message.to_string();
        ApiError { status, kind, message, param: None, retry_after: None, allow: None }
    }

    /// 400: the field `param` is wrong. `message` goes on from the name of the field.
    pub(crate) fn bad_field(param: &str, message: impl Display) -> ApiError {
        let error = ApiError::bad_request(format!("`{param}` {message}"));
        ApiError { param: Some(param.to_owned()), ..error }
    }

    /// 400: the prompt in the field `param` does not fit the model. The reply blames
    /// `input_tokens`, as vLLM's does.
    pub(crate) fn prompt_too_long(param: &str, message: impl Display) -> ApiError {
        let error = ApiError::bad_field(param, message);
        ApiError { param: Some("input_tokens".to_owned()), ..error }
    }

    /// 400: the request as a whole cannot be answered.
    pub(crate) fn bad_request(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    /// 400 of vLLM's type `InvalidUserInput`.
    pub(crate) fn invalid_input(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "InvalidUserInput", message)
    }

    /// 401: the caller sent no token that opens the engine.
    pub(crate) fn unauthorized(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "AuthenticationError", message)
    }

    /// 403: the caller may not do this.
    pub(crate) fn forbidden(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "PermissionDeniedError", message)
    }

    /// 415: the route takes bodies of another type.
    pub(crate) fn unsupported_type(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "BadRequestError", message)
    }

    /// 404: the thing that the request names does not exist.
    pub(crate) fn not_found(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "NotFoundError", message)
    }

    /// 404 for a model. vLLM's sentence comes first, because clients search for it.
    pub(crate) fn unknown_model(name: &str, served: &str) -> ApiError {
        let message = format!("The model `{name}` does not exist. `{served}` is served here.");
        ApiError { param: Some("model".to_owned()), ..ApiError::not_found(message) }
    }

    /// 404: no route has this path.
    pub(crate) fn unknown_path() -> ApiError {
        ApiError::not_found("Not Found")
    }

    /// 405: the routes of this path take these methods.
    pub(crate) fn wrong_method(allowed: &[&str]) -> ApiError {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let error = ApiError::new(status, "NotFoundError", "Method Not Allowed");
        ApiError { allow: Some(allowed.join(", ")), ..error }
    }

    /// 413: the values of the body would take more than `limit` bytes of memory.
    pub(crate) fn too_many_values(limit: usize) -> ApiError {
        let message =
            format!("the values of the body would take more than {limit} bytes of memory");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BadRequestError", message)
    }

    /// 413: the body is larger than `limit` bytes.
    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message = format!("the body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BadRequestError", message)
    }

    /// 429: the queue is full; a place is expected to be free in `seconds`.
    pub(crate) fn queue_full(waiting: usize, seconds: u64) -> ApiError {
        let message =
            format!("{waiting} calls are waiting already; try again in {seconds} seconds");
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "RateLimitError", message);
        ApiError { retry_after: Some(seconds), ..error }
    }

    /// 429: this many replies are made in the background already.
    pub(crate) fn background_full(running: usize) -> ApiError {
        let message = format!(
            "{running} replies are made in the background already; try again in a second, or \
             without `background`"
        );
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "RateLimitError", message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// 503: the call cannot be answered now, and may be tried again in a second.
    pub(crate) fn unavailable(message: impl Display) -> ApiError {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let error = ApiError::new(status, "ServiceUnavailableError", message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// 409: the request contradicts the state of the engine.
    pub(crate) fn conflict(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, "ConflictError", message)
    }

    /// 501: the operation is known and not implemented.
    pub(crate) fn not_implemented(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "NotImplementedError", message)
    }

    /// 504: another process did not answer in time, or went away.
    pub(crate) fn gateway_timeout(message: impl Display) -> ApiError {
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, "GatewayTimeoutError", message)
    }

    /// 500 that names the failure, such as that of a device.
    pub(crate) fn failed(reason: impl Display) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", reason)
    }

    /// 500 in vLLM's words, for a failure that the reply cannot name.
    pub(crate) fn internal() -> ApiError {
        ApiError::failed("Internal server error")
    }

    /// The same error, which also says what follows from it.
    pub(crate) fn with_consequence(self, consequence: &str) -> ApiError {
        ApiError { message: format!("{}; {consequence}", self.message), ..self }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the seconds after which the call may be tried again.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// Returns the methods that the path takes, if that is the error.
    pub(crate) fn allow(&self) -> Option<&str> {
        self.allow.as_deref()
    }

    /// Returns the body of the reply: JSON on one line.
    pub(crate) fn body(&self) -> String {
        let error = ErrorBody {
            message: &self.message,
            r#type: self.kind,
            param: self.param.as_deref(),
            code: self.status.as_u16(),
        };
        to_json(&ErrorEnvelope { error })
    }
}

impl From<BadRequest> for ApiError {
    fn from(reason: BadRequest) -> ApiError {
        ApiError::bad_request(reason)
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> ApiError {
        ApiError::new(error.status(), "BadRequestError", error)
    }
}

#[derive(Serialize)]
struct ErrorEnvelope<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: u16,
}
