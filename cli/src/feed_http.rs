//! The feed's side of HTTP: replies with their headers, and statements about leases.

use hyper::{HeaderMap, Method};
use serde_json::Value;

use crate::exit::Failure;
use crate::http::Http;

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
    Rows(Vec<u8>),
    Nothing,
}

impl Upstairs {
    pub(crate) fn new(control: &str, token: Option<String>) -> Self {
        let control = control.trim_end_matches('/').to_owned();
        let bearer = token.map(|token| format!("Bearer {token}"));
        Self { http: Http::new(), control, bearer }
    }

    /// Asks for what is ready. A body that breaks off is an error: it was not handed out.
    pub(crate) async fn feed(&self, query: &str) -> Result<Reply, Failure> {
        let url = format!("{}/feed?{query}", self.control);
        let (status, headers, body) =
            self.http.exchange(Method::GET, &url, &self.headers(), &Value::Null).await?;
        let text = |name: &str| -> Option<String> {
            let found: &HeaderMap = &headers;
            found.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let told = match status {
            200 => Told::Rows(body.to_vec()),
            204 => Told::Nothing,
            _ => {
                let told: Value = serde_json::from_slice(&body).unwrap_or_default();
                let why = told["error"]["message"].as_str().unwrap_or("no reason was given");
                return Err(Failure::new(format!("the feed answered {status}: {why}")));
            }
        };
        Ok(Reply { told, lease: text("x-rolltape-lease"), cursor: text("x-rolltape-cursor") })
    }

    /// Says something to the control listener.
    pub(crate) async fn tell(
        &self,
        method: Method,
        page: &str,
        body: &Value,
    ) -> Result<(u16, Value), Failure> {
        let url = format!("{}{page}", self.control);
        self.http.json(method, &url, &self.headers(), body).await
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        self.bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect()
    }
}
