//! HTTP requests to the feed: replies of rows, and statements about leases.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use episode::AttemptId;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method};
use serde_json::{Value, json};

use super::waiting::FeedWaiting;
use crate::exit::Failure;
use crate::http::{self, Http};
use crate::options::control::ServerToAsk;

/// A client of a server's feed.
pub(crate) struct FeedClient {
    http: Http,
    control: String,
    bearer: Option<String>,
}

/// A reply of the feed.
pub(crate) struct FeedAnswer {
    /// Rows, as they arrive: see [`next_bytes`]. `None` if nothing is ready.
    pub(crate) rows: Option<Incoming>,
    pub(crate) lease: Option<String>,
    /// The attempts that are not handed out, and the reason.
    pub(super) waiting: FeedWaiting,
    pub(crate) cursor: Option<String>,
}

impl FeedClient {
    /// A client of a running server.
    ///
    /// # Errors
    /// [`Failure`] if its token or the authority of its certificate cannot be used.
    pub(crate) fn new(server: &ServerToAsk) -> Result<Self, Failure> {
        let control = http::base_url(&server.control);
        let http = Http::of(&control, &server.ca.read()?)?;
        Ok(Self { http, control, bearer: server.bearer()? })
    }

    /// Asks for items. Returns once the headers have arrived.
    pub(crate) async fn feed(&self, query: &str) -> Result<FeedAnswer, Failure> {
        let url = format!("{}/feed?{query}", self.control);
        let answer = self.http.begin(Method::POST, &url, &self.headers(), &Value::Null).await;
        let (status, headers, body) = answer.map_err(|failure| {
            failure.or_hint("give the control listener of `rolltape serve` with --control")
        })?;

        let rows = match status {
            200 => Some(body),
            204 => None,
            _ => return Err(refusal(status, body, &url).await?),
        };
        let lease = header(&headers, "x-rolltape-lease");
        let waiting = header(&headers, "x-rolltape-waiting");
        let waiting = waiting.map_or_else(FeedWaiting::default, |said| FeedWaiting::read(&said));
        Ok(FeedAnswer { rows, lease, cursor: header(&headers, "x-rolltape-cursor"), waiting })
    }

    /// Acks these attempts of a lease. Returns the answer's status.
    pub(crate) async fn ack(&self, lease: &str, attempts: &[AttemptId]) -> Result<u16, Failure> {
        let episodes: Vec<Value> = attempts
            .iter()
            .map(|id| json!({ "episode_id": id.episode.as_str(), "attempt": id.attempt }))
            .collect();
        self.post(lease, "ack", json!({ "episodes": episodes })).await
    }

    /// Gives back what a lease holds. Returns the answer's status.
    pub(crate) async fn nack(&self, lease: &str) -> Result<u16, Failure> {
        self.post(lease, "nack", json!({})).await
    }

    /// Renews a lease again and again. A renewal that fails is retried with the next one.
    pub(crate) async fn renew(&self, lease: &str, lease_s: u32, every: Duration) -> Infallible {
        loop {
            tokio::time::sleep(every).await;
            let _ = self.post(lease, "renew", json!({ "lease_s": lease_s })).await;
        }
    }

    async fn post(&self, lease: &str, action: &str, body: Value) -> Result<u16, Failure> {
        let url = format!("{}/feed/leases/{lease}/{action}", self.control);
        Ok(self.http.json(Method::POST, &url, &self.headers(), &body).await?.0)
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        self.bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect()
    }
}

/// The failure that a refusal's body describes.
async fn refusal(status: u16, body: Incoming, url: &str) -> Result<Failure, Failure> {
    let reply: Value =
        serde_json::from_slice(&http::read_body(body, url).await?).unwrap_or_default();
    let reason = reply["error"]["message"].as_str().unwrap_or("no reason was given");
    let failure = Failure::new(format!("the feed answered {status}: {reason}"));
    Ok(http::with_hint(failure, status))
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// The next bytes of a body, or `None` at its end.
pub(crate) async fn next_bytes(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::of(&error).context("the reply broke off"))?;
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}
