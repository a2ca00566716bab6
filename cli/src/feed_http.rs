//! The feed's side of HTTP: replies with their headers, and statements about leases.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::feed_items::Attempt;
use crate::http::{self, Http, whole};

/// A server that hands out rows.
pub(crate) struct Upstairs {
    http: Http,
    control: String,
    bearer: Option<String>,
}

/// A reply of the feed.
pub(crate) struct Reply {
    pub(crate) told: Told,
    pub(crate) lease: Option<String>,
    pub(crate) cursor: Option<String>,
}

/// What a reply holds.
pub(crate) enum Told {
    /// Rows, as they come: see [`more`].
    Rows(Incoming),
    Nothing,
}

impl Upstairs {
    pub(crate) fn new(control: &str, token: Option<String>) -> Self {
        let control = http::base(control);
        let bearer = token.map(|token| format!("Bearer {token}"));
        Self { http: Http::new(), control, bearer }
    }

    /// Asks for what is ready.
    pub(crate) async fn feed(&self, query: &str) -> Result<Reply, Failure> {
        let url = format!("{}/feed?{query}", self.control);
        let (status, headers, body) =
            self.http.begin(Method::GET, &url, &self.headers(), &Value::Null).await.map_err(
                |failure| {
                    failure.hint("give the control listener of `rolltape serve` with --control")
                },
            )?;
        let text = |name: &str| -> Option<String> {
            let found: &HeaderMap = &headers;
            found.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let told = match status {
            200 => Told::Rows(body),
            204 => Told::Nothing,
            _ => {
                let told: Value =
                    serde_json::from_slice(&whole(body, &url).await?).unwrap_or_default();
                let why = told["error"]["message"].as_str().unwrap_or("no reason was given");
                let failure = Failure::new(format!("the feed answered {status}: {why}"));
                return Err(http::hinted(failure, status));
            }
        };
        Ok(Reply { told, lease: text("x-rolltape-lease"), cursor: text("x-rolltape-cursor") })
    }

    /// These attempts of a lease are done; the status of the answer.
    pub(crate) async fn ack(&self, lease: &str, attempts: &[Attempt]) -> Result<u16, Failure> {
        let one = |(id, number): &Attempt| json!({ "episode_id": id, "attempt": number });
        let named: Vec<Value> = attempts.iter().map(one).collect();
        self.say(lease, "ack", json!({ "episodes": named })).await
    }

    /// Gives back what a lease holds.
    pub(crate) async fn nack(&self, lease: &str) -> Result<u16, Failure> {
        self.say(lease, "nack", json!({})).await
    }

    /// Holds on to a lease, again and again. What cannot be said is said the next time.
    pub(crate) async fn renew(&self, lease: &str, lease_s: u32, every: Duration) -> Infallible {
        loop {
            tokio::time::sleep(every).await;
            let _ = self.say(lease, "renew", json!({ "lease_s": lease_s })).await;
        }
    }

    async fn say(&self, lease: &str, word: &str, body: Value) -> Result<u16, Failure> {
        let url = format!("{}/feed/leases/{lease}/{word}", self.control);
        Ok(self.http.json(Method::POST, &url, &self.headers(), &body).await?.0)
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        self.bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect()
    }
}

/// The next bytes of a body; none when it has ended.
pub(crate) async fn more(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::of(&error).context("the reply broke off"))?;
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}
