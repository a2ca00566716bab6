//! Refusals in OpenAI's error form, as vLLM writes it.

use std::fmt;

use hyper::StatusCode;
use serde::Serialize;

/// Why a call was refused or failed.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    /// Seconds after which the call may be tried again.
    retry_after: Option<u64>,
}

impl ApiError {
    /// The call cannot be answered as it stands; `param` is the field to blame.
    pub(super) fn bad(param: &str, message: impl fmt::Display) -> ApiError {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: format!("`{param}` {message}"),
            param: Some(param.to_owned()),
            retry_after: None,
        }
    }

    /// The prompt in the field `param` does not fit the model; `param` of the reply is vLLM's.
    pub(super) fn too_long(param: &str, message: impl fmt::Display) -> ApiError {
        ApiError { param: Some("input_tokens".to_owned()), ..ApiError::bad(param, message) }
    }

    /// The body as a whole cannot be read.
    pub(super) fn malformed(message: impl fmt::Display) -> ApiError {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: message.to_string(),
            param: None,
            retry_after: None,
        }
    }

    /// The caller got something wrong that is not one field; the kind is vLLM's.
    pub(super) fn invalid(message: String) -> ApiError {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            kind: "InvalidUserInput",
            message,
            param: None,
            retry_after: None,
        }
    }

    /// What is asked for does not exist.
    pub(super) fn not_found(message: String) -> ApiError {
        ApiError {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message,
            param: None,
            retry_after: None,
        }
    }

    /// The call can be answered later.
    pub(super) fn later(message: String) -> ApiError {
        ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "ServiceUnavailableError",
            message,
            param: None,
            retry_after: Some(1),
        }
    }

    /// vLLM's sentence first: clients look for it.
    pub(super) fn no_model(name: &str, served: &str) -> ApiError {
        ApiError {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{name}` does not exist. `{served}` is served here."),
            param: Some("model".to_owned()),
            retry_after: None,
        }
    }

    pub(super) fn no_route(status: StatusCode) -> ApiError {
        ApiError {
            status,
            kind: "NotFoundError",
            message: status.canonical_reason().unwrap_or("Not Found").to_owned(),
            param: None,
            retry_after: None,
        }
    }

    pub(super) fn too_large(limit: usize) -> ApiError {
        ApiError {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            kind: "BadRequestError",
            message: format!("the body is larger than {limit} bytes"),
            param: None,
            retry_after: None,
        }
    }

    /// The queue is full; there should be room after so many seconds.
    pub(super) fn busy(waiting: usize, seconds: u64) -> ApiError {
        ApiError {
            status: StatusCode::TOO_MANY_REQUESTS,
            kind: "RateLimitError",
            message: format!("{waiting} calls are waiting already; try again in {seconds} seconds"),
            param: None,
            retry_after: Some(seconds),
        }
    }

    /// No reply can begin now; it may be tried again.
    pub(super) fn unavailable(reason: &str) -> ApiError {
        ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "ServiceUnavailableError",
            message: reason.to_owned(),
            param: None,
            retry_after: Some(1),
        }
    }

    /// What is asked for does not go together with what is there.
    pub(super) fn conflict(message: impl fmt::Display) -> ApiError {
        let bad = ApiError::malformed(message);
        ApiError { status: StatusCode::CONFLICT, kind: "ConflictError", ..bad }
    }

    /// What is asked for is known and not done here.
    pub(super) fn not_implemented(message: impl fmt::Display) -> ApiError {
        let bad = ApiError::malformed(message);
        ApiError { status: StatusCode::NOT_IMPLEMENTED, kind: "NotImplementedError", ..bad }
    }

    /// The device failed.
    pub(super) fn failed(error: &impl fmt::Display) -> ApiError {
        ApiError { message: error.to_string(), ..ApiError::internal() }
    }

    /// Somebody else was waited for and did not come, or went away.
    pub(super) fn no_answer(message: impl fmt::Display) -> ApiError {
        let bad = ApiError::malformed(message);
        ApiError { status: StatusCode::GATEWAY_TIMEOUT, kind: "GatewayTimeoutError", ..bad }
    }

    /// The engine failed; the text is vLLM's.
    pub(super) fn internal() -> ApiError {
        ApiError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "InternalServerError",
            message: "Internal server error".to_owned(),
            param: None,
            retry_after: None,
        }
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Seconds after which the call may be tried again.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// The error as JSON on one line.
    pub(super) fn body(&self) -> String {
        #[derive(Serialize)]
        struct Outer<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            message: &'a str,
            r#type: &'a str,
            param: Option<&'a str>,
            code: u16,
        }
        let error = Inner {
            message: &self.message,
            r#type: self.kind,
            param: self.param.as_deref(),
            code: self.status.as_u16(),
        };
        super::sse::json(&Outer { error })
    }
}
