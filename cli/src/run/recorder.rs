//! The server that records, as `run` sees it: where agents call it, and its control listener.

use hyper::Method;
use serde_json::Value;

use super::Args;
use super::bridge::Bridge;
use crate::exit::Failure;
use crate::http::{self, Http};
use crate::options::address::UNIX;
use crate::server::RunningServer;

/// The server that records.
pub(super) struct RecorderClient {
    /// URL of the data listener.
    pub(super) proxy: String,
    /// URL of the control listener.
    pub(super) control: String,
    http: Http,
    /// The control listener's `authorization`.
    bearer: Option<String>,
}

impl RecorderClient {
    pub(super) fn new(args: &Args, own_server: Option<&RunningServer>) -> Result<Self, Failure> {
        let (proxy, control) = match own_server {
            Some(server) => (server.agents_url(), server.control_url()),
            None => (http::base_url(&args.server.proxy), http::base_url(&args.server.control)),
        };
        let bearer = match own_server {
            Some(server) => server.control_bearer(),
            None => {
                args.proxy.control.token.of_client(&args.server.control, &args.store.location)?
            }
        };
        let http = Http::of(&control, &args.server.ca.read()?)?;
        Ok(Self { proxy, control, http, bearer })
    }

    /// Starts a bridge to a server whose data listener is a socket, and takes its address.
    pub(super) async fn bridge(&mut self, args: &Args) -> Result<Option<Bridge>, Failure> {
        let has_own_server = args.server.upstream.is_some() || args.server.model.is_some();
        let path = args.server.proxy.strip_prefix(UNIX).filter(|_| !has_own_server);
        let Some(path) = path else { return Ok(None) };

        let bridge = Bridge::start(path.as_ref()).await?;
        self.proxy.clone_from(&bridge.url);
        Ok(Some(bridge))
    }

    /// Asks the control listener. Returns the status and the reply.
    pub(super) async fn ask(
        &self,
        method: Method,
        page: &str,
        body: &Value,
    ) -> Result<(u16, Value), Failure> {
        let url = format!("{}{page}", self.control);
        let headers: Vec<_> =
            self.bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        self.http.json(method, &url, &headers, body).await.map_err(|failure| {
            failure.or_hint(
                "start `rolltape serve` first, or give --upstream URL or --model DIR to start a \
                 server for this command",
            )
        })
    }

    /// Sends a request to the control listener, which has to accept it.
    pub(super) async fn request(
        &self,
        method: Method,
        page: &str,
        body: &Value,
    ) -> Result<Value, Failure> {
        let (status, reply) = self.ask(method, page, body).await?;
        if status == 200 {
            return Ok(reply);
        }

        let message = reply["error"]["message"].as_str().unwrap_or("no reason was given");
        let failure = Failure::new(format!("{}{page} answered {status}: {message}", self.control));
        Err(match status {
            409 => failure.hint("the episode is closed; give another --attempt, or --attempt next"),
            _ => http::with_hint(failure, status),
        })
    }
}
