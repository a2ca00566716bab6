//! A call in one line, for people who watch a server.

use viewer::CallEvent;

use super::numbers::known_milliseconds;
use crate::terminal::layout::{shortened, width_of};
use crate::terminal::{Line, Style};
use crate::time::clock;

/// Columns of an episode's id in a line.
const EPISODE_COLUMNS: usize = 40;
/// Fewest columns that are worth an excerpt.
const EXCERPT_MIN: usize = 12;

/// The line of a call that has ended, at most `width` wide if it has an excerpt.
pub(crate) fn call_line(event: &CallEvent, width: Option<usize>) -> Line {
    let name = match event.attempt {
        0 => event.episode_id.clone(),
        attempt => format!("{}/{attempt}", event.episode_id),
    };
    let ended_at = event.started_at + event.duration_ms.unwrap_or(0.0) / 1e3;
    let tokens = match (event.prompt_tokens, event.completion_tokens) {
        (None, None) => String::new(),
        (prompt, sampled) => {
            let known = |tokens: Option<u64>| tokens.map_or("?".to_owned(), |n| n.to_string());
            format!(" {}+{} tokens", known(prompt), known(sampled))
        }
    };
    let (style, outcome) = outcome(event);
    let line = Line::styled(Style::Dim, clock(ended_at))
        .then(Style::Bold, format!(" {}", shortened(&name, EPISODE_COLUMNS)))
        .then(Style::Plain, format!(" {}", what(event)))
        .then(Style::Plain, tokens)
        .then(Style::Plain, format!(" {}", known_milliseconds(event.duration_ms)))
        .then(style, format!(" {outcome}"));

    let Some(said) = event.said.as_ref().or(event.error.as_ref()) else { return line };
    let room = width.map(|width| width.saturating_sub(width_of(&line.text()) + 2));
    match room {
        Some(room) if room < EXCERPT_MIN => line,
        Some(room) => line.then(Style::Dim, format!("  {}", shortened(said, room))),
        None => line.then(Style::Dim, format!("  {said}")),
    }
}

/// The route with the model; the method and the path of a call that samples nothing.
fn what(event: &CallEvent) -> String {
    match (&event.model, event.route.as_str()) {
        (Some(model), route) if route != "other" => format!("{route} {model}"),
        (None, route) if route != "other" => route.to_owned(),
        _ => format!("{} {}", event.method, event.path),
    }
}

/// The end of a call, in a word or a few.
fn outcome(event: &CallEvent) -> (Style, String) {
    let outcome = event.outcome.as_deref().unwrap_or("running");
    let status = event.status.unwrap_or(0);
    match (outcome, &event.finish_reason) {
        ("complete", _) if status >= 400 => (Style::Red, status.to_string()),
        ("complete", Some(reason)) => (Style::Green, reason.clone()),
        ("complete", None) => (Style::Green, outcome.to_owned()),
        _ => (Style::Red, outcome.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> CallEvent {
        let document = serde_json::json!({
            "call_id": "c", "episode_id": "run-1", "attempt": 0, "group_id": null,
            "method": "POST", "path": "/v1/chat/completions", "route": "chat", "model": "qwen",
            "client": null, "kind": "main", "agent": null, "started_at": 1_795_292_266.5,
            "first_byte_ms": 12.0, "duration_ms": 840.0, "status": 200, "outcome": "complete",
            "error": null, "prompt_tokens": 420, "completion_tokens": 61,
            "finish_reason": "stop", "version_start": null, "said": "The answer is 42."
        });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_call_is_one_line() {
        let line = "20:17:47Z run-1 chat qwen 420+61 tokens 840 ms stop";
        assert_eq!(call_line(&event(), Some(50)).text(), line);
        let wide = call_line(&event(), Some(69)).text();
        assert_eq!(wide, format!("{line}  The answer is..."));
        assert_eq!(call_line(&event(), None).text(), format!("{line}  The answer is 42."));
    }

    #[test]
    fn what_went_wrong_is_named() {
        let gone = CallEvent { outcome: Some("client_gone".to_owned()), attempt: 2, ..event() };
        let line = call_line(&gone, Some(60)).text();
        assert!(line.contains("run-1/2") && line.contains("client_gone"), "{line}");
        let refused = CallEvent { status: Some(429), finish_reason: None, ..event() };
        assert!(call_line(&refused, Some(60)).text().contains(" 429"));
        let plain = CallEvent {
            route: "other".to_owned(),
            method: "GET".to_owned(),
            path: "/v1/models".to_owned(),
            prompt_tokens: None,
            completion_tokens: None,
            ..event()
        };
        assert!(call_line(&plain, Some(60)).text().contains("run-1 GET /v1/models 840 ms"));
    }
}
