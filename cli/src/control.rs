//! `rolltape control`: one request to the control listener of a running server.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use hyper::Method;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::exit::{CommandResult, Failure};
use crate::http::{self, Http};
use crate::options::control::ServerToAsk;
use crate::terminal;

/// Send one request to a running server's control listener
///
/// Prints the reply, with the token that the server requires: `rolltape control GET /ready`. The
/// requests are in docs/control.md.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Request", allow_missing_positional = true)]
pub(crate) struct Args {
    /// GET, POST, PUT or DELETE [default: GET, or POST with --json]
    #[arg(value_parser = method, help_heading = None::<&str>)]
    method: Option<Method>,
    /// Path of the request, such as /ready or /episodes/run-1
    #[arg(value_parser = path, help_heading = None::<&str>)]
    path: String,
    /// The body, as JSON
    #[arg(long, value_name = "JSON", value_parser = json)]
    json: Option<Value>,
    /// Write the reply's headers to a file, as `name: value` lines
    ///
    /// Such as the lease of POST /feed.
    #[arg(long, value_name = "FILE")]
    headers: Option<PathBuf>,
    #[command(flatten)]
    server: ServerToAsk,
}

fn method(text: &str) -> Result<Method, String> {
    let known = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
    let found = known.into_iter().find(|method| method.as_str().eq_ignore_ascii_case(text));
    found.ok_or_else(|| "give GET, POST, PUT or DELETE".to_owned())
}

fn path(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a path begins with a slash, such as /ready".to_owned()),
    }
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Sends the request, and prints the reply.
pub(crate) async fn run(args: Args) -> CommandResult {
    let bearer = args.server.bearer()?;
    let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
    let method = args.method.unwrap_or(match args.json {
        Some(_) => Method::POST,
        None => Method::GET,
    });
    let base = http::base_url(&args.server.control);
    let client = Http::of(&base, &args.server.ca.read()?)?;
    let url = format!("{base}{}", args.path);

    let body = args.json.unwrap_or_default();
    let answer = client.begin(method, &url, &headers, &body).await;
    let (status, told, reply) = answer.map_err(|failure| {
        failure.or_hint("give the control listener of `rolltape serve` with --control")
    })?;
    if let Some(file) = &args.headers {
        let written = std::fs::write(file, header_lines(&told));
        written.map_err(|error| Failure::of(&error).context(&file.display().to_string()))?;
    }
    let reply = http::read_body(reply, &url).await?;
    if (200..300).contains(&status) {
        print(&reply)?;
        return Ok(ExitCode::SUCCESS);
    }
    Err(refusal(status, &reply))
}

fn header_lines(headers: &HeaderMap) -> Vec<u8> {
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\n"].concat()
    };
    headers.iter().flat_map(line).collect()
}

/// Prints a reply, and the end of its line on a terminal.
fn print(reply: &[u8]) -> Result<(), Failure> {
    let mut out = terminal::rows();
    let end: &[u8] = if reply.is_empty() || reply.ends_with(b"\n") { b"" } else { b"\n" };
    let end = if terminal::is_terminal() { end } else { b"" };
    match out.write_all(reply).and_then(|()| out.write_all(end)).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn refusal(status: u16, reply: &[u8]) -> Failure {
    let document: Value = serde_json::from_slice(reply).unwrap_or_default();
    let text = String::from_utf8_lossy(reply);
    let reason = document["error"]["message"].as_str().unwrap_or(text.trim());
    let failure = Failure::new(format!("the server answered {status}: {reason}"));
    // The server names a path that is like an unknown one.
    if status == 404 { failure } else { http::with_hint(failure, status) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &[&str]) -> Result<(Option<String>, String, Option<Value>), String> {
        let line = Line::try_parse_from([&["control"], words].concat());
        let Args { method, path, json, .. } = line.map_err(|error| error.to_string())?.args;
        Ok((method.map(|method| method.to_string()), path, json))
    }

    #[test]
    fn a_method_may_be_left_out() {
        assert_eq!(parsed(&["/ready"]), Ok((None, "/ready".to_owned(), None)));
        let named = parsed(&["delete", "/feed/consumers/a"]).unwrap();
        assert_eq!(named.0.as_deref(), Some("DELETE"));
        let posted = parsed(&["/episodes", "--json", r#"{"episode_id":"a"}"#]).unwrap();
        assert_eq!(posted.2, Some(serde_json::json!({"episode_id": "a"})));
    }

    #[test]
    fn what_is_no_request_is_said() {
        for (words, why) in [
            (&["ready"][..], "begins with a slash"),
            (&["LOOK", "/ready"], "GET, POST"),
            (&["/episodes", "--json", "{"], "EOF"),
        ] {
            let error = parsed(words).unwrap_err();
            assert!(error.contains(why), "{words:?}: {error}");
        }
    }

    #[test]
    fn a_reason_is_told_whatever_its_form() {
        let told = |reply: &str| refusal(503, reply.as_bytes()).to_string();
        assert_eq!(told(r#"{"error":{"message":"full"}}"#), "the server answered 503: full");
        assert_eq!(told("no\n"), "the server answered 503: no");
    }
}
