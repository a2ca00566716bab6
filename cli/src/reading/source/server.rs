//! A recording that a running server shows on its control listener.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::Value;
use viewer::View;
use wire::Splitter;

use super::QueryPairs;
use crate::exit::Failure;
use crate::http::{self, Http};

/// A client of a control listener.
pub(in crate::reading) struct ServerReader {
    http: Http,
    control: String,
    bearer: Option<String>,
}

/// A stream of server-sent events.
pub(in crate::reading) struct ServerEvents {
    body: Incoming,
    splitter: Splitter,
}

impl ServerReader {
    pub(super) fn new(control: &str, ca: &[u8], bearer: Option<String>) -> Result<Self, Failure> {
        let control = http::base_url(control);
        Ok(Self { http: Http::of(&control, ca)?, control, bearer })
    }

    /// The token that only reads; `None` if the server requires none.
    pub(super) async fn read_token(&self) -> Result<Option<String>, Failure> {
        let url = self.url("/read-token", &Vec::new());
        let body = http::read_body(self.get(&url).await?, &url).await?;
        let reply: Value = serde_json::from_slice(&body).unwrap_or_default();
        Ok(reply["read_token"].as_str().map(str::to_owned))
    }

    pub(super) async fn answer(
        &self,
        view: View,
        id: &str,
        parameters: &QueryPairs,
    ) -> Result<Vec<u8>, Failure> {
        let url = self.url(&view.path(&http::escaped(id)), parameters);
        let body = self.get(&url).await?;
        Ok(http::read_body(body, &url).await?.to_vec())
    }

    pub(super) async fn events(&self, parameters: &QueryPairs) -> Result<ServerEvents, Failure> {
        let body = self.get(&self.url("/events", parameters)).await?;
        Ok(ServerEvents { body, splitter: Splitter::default() })
    }

    fn url(&self, path: &str, parameters: &QueryPairs) -> String {
        let pairs = parameters.iter();
        let pairs: Vec<String> =
            pairs.map(|(name, value)| format!("{name}={}", http::escaped(value))).collect();
        format!("{}{path}?{}", self.control, pairs.join("&"))
    }

    async fn get(&self, url: &str) -> Result<Incoming, Failure> {
        let headers: Vec<(&str, &str)> =
            self.bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        let answer = self.http.begin(Method::GET, url, &headers, &Value::Null).await;
        let (status, _, body) = answer.map_err(|failure| {
            failure.or_hint(
                "give the control listener of `rolltape serve` with --control, or leave it out to \
                 read the store",
            )
        })?;
        if status == 200 {
            return Ok(body);
        }
        Err(refusal(status, &http::read_body(body, url).await?))
    }
}

impl ServerEvents {
    /// The next events: the kind and the document of each.
    pub(super) async fn next(&mut self) -> Result<Vec<(String, String)>, Failure> {
        loop {
            let mut found = Vec::new();
            while let Some(event) = self.splitter.next_event().map_err(|e| Failure::of(&e))? {
                found.extend(named(&event.0));
            }
            if !found.is_empty() {
                return Ok(found);
            }
            let ended = || Failure::new("the server has ended the stream of events");
            let frame = self.body.frame().await.ok_or_else(ended)?;
            let frame =
                frame.map_err(|error| Failure::of(&error).context("the stream broke off"))?;
            if let Ok(bytes) = frame.into_data() {
                self.splitter.push(&bytes);
            }
        }
    }
}

/// The kind and the document of an event; `None` of a comment.
fn named(event: &Bytes) -> Option<(String, String)> {
    let text = String::from_utf8_lossy(event);
    let field = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.strip_prefix(' ').unwrap_or(value).to_owned())
    };
    Some((field("event")?, field("data")?))
}

/// The failure that a refusal's body describes.
fn refusal(status: u16, body: &[u8]) -> Failure {
    let reply: Value = serde_json::from_slice(body).unwrap_or_default();
    let reason = reply["error"]["message"].as_str();
    match (status, reason) {
        (400, Some(reason)) => Failure::new(reason),
        (404, Some(reason)) if reason.starts_with("no ") => super::missing(reason.to_owned()),
        _ => {
            let reason = reason.unwrap_or("no reason was given");
            let failure = Failure::new(format!("the server answered {status}: {reason}"));
            http::with_hint(failure, if status == 404 { 403 } else { status })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_kind_and_a_document() {
        let event = |text: &'static str| named(&Bytes::from_static(text.as_bytes()));
        let call = event("event: call\ndata: {\"a\":1}\n\n");
        assert_eq!(call, Some(("call".to_owned(), "{\"a\":1}".to_owned())));
        assert_eq!(event(": still here\n\n"), None);
    }

    #[test]
    fn a_refusal_says_what_is_wrong_and_a_way_out() {
        let body = |text: &str| serde_json::json!({ "error": { "message": text } }).to_string();
        let failure = refusal(404, body("no episode `e`").as_bytes());
        assert_eq!(failure.to_string(), "no episode `e` in the recording");
        assert_eq!(refusal(400, body("`x` is wrong").as_bytes()).to_string(), "`x` is wrong");
        let other = refusal(404, b"<html>").to_string();
        assert_eq!(other, "the server answered 404: no reason was given");
    }
}
