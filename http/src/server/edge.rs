//! The edge of every listener: layers around the function that answers its requests.
//!
//! Bounds of connections, heads and bodies are not here: they hold before there is a request, or
//! for each piece of one.

use std::any::Any;
use std::convert::Infallible;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use tower::{Service, ServiceBuilder};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::sensitive_headers::SetSensitiveRequestHeadersLayer;

use crate::body::BoxError;
use crate::headers::SECRET_HEADERS;

/// The service of a listener. No log shows the credentials of a request, and a request whose answer
/// panics gets the reply `panicked` makes.
pub fn service<A, F, B>(
    answer: A,
    panicked: fn() -> Response<B>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<impl Body<Data = Bytes, Error = BoxError> + Send + Unpin + 'static>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ 'static
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let reply = move |why: Box<dyn Any + Send>| {
        tracing::error!(reason = reason(&*why), "the answer to a request panicked");
        panicked()
    };
    ServiceBuilder::new()
        .layer(SetSensitiveRequestHeadersLayer::new(SECRET_HEADERS))
        .layer(CatchPanicLayer::custom(reply))
        .service_fn(answer)
}

/// The words of a panic, if it has any.
fn reason(why: &(dyn Any + Send)) -> &str {
    let text = why.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or("no reason was given")
}
