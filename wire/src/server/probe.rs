//! Small requests that show what an upstream reports: one for each wire, streamed or not, with
//! tools or without.

use bytes::Bytes;
use episode::Route;
use serde_json::{Map, Value, json};

/// Tokens that a plain probe may sample.
const TOKENS: u32 = 16;
/// Tokens that a probe with a tool may sample: a short call. The city is one of few, so that a
/// model that must call a tool comes to the end of a call.
const TOOL_TOKENS: u32 = 64;
const CITIES: [&str; 2] = ["Paris", "London"];
const QUESTION: &str = "What is the weather in Paris? Use the tool if there is one.";
const TOOL: &str = "get_weather";
const TOOL_USE: &str = "The weather of a city";

/// One small request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The wire.
    pub route: Route,
    /// Asks for a stream.
    pub streams: bool,
    /// Offers a tool, and forces a call of it.
    pub tools: bool,
}

impl Probe {
    /// All probes, wire by wire. Text completions have no tools.
    pub fn all() -> Vec<Self> {
        let routes = [Route::Chat, Route::Completions, Route::Responses, Route::Messages];
        let modes = [(false, false), (true, false), (false, true), (true, true)];
        let every = routes
            .into_iter()
            .flat_map(|route| modes.map(|(streams, tools)| Self { route, streams, tools }));
        every.filter(|probe| !probe.tools || probe.route != Route::Completions).collect()
    }

    /// The path that it is sent to.
    pub fn path(self) -> &'static str {
        match self.route {
            Route::Completions => "/v1/completions",
            Route::Responses => "/v1/responses",
            Route::Messages => "/v1/messages",
            _ => "/v1/chat/completions",
        }
    }

    /// The body, with every field that makes a reply of its wire repeatable. A tool call is forced:
    /// many servers report less of a call than of a text.
    pub fn body(self, model: &str) -> Bytes {
        let choice = match self.route {
            _ if !self.tools => None,
            Route::Messages => Some(json!({ "type": "any" })),
            _ => Some(json!("required")),
        };
        self.body_with_choice(model, choice)
    }

    /// The body as most agents send it, with a tool that the model need not call; `None` without a
    /// tool. Some servers accept a forced call and refuse a free one.
    pub fn unforced_body(self, model: &str) -> Option<Bytes> {
        self.tools.then(|| self.body_with_choice(model, None))
    }

    fn body_with_choice(self, model: &str, choice: Option<Value>) -> Bytes {
        let mut body = Map::new();
        let mut set = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));
        set("model", json!(model));
        set("temperature", json!(0));

        match self.route {
            Route::Completions => set("prompt", json!("Once upon a time")),
            Route::Responses => set("input", json!(QUESTION)),
            _ => set("messages", json!([{ "role": "user", "content": QUESTION }])),
        }
        let limit = if self.route == Route::Responses { "max_output_tokens" } else { "max_tokens" };
        set(limit, json!(if self.tools { TOOL_TOKENS } else { TOKENS }));
        // Only these two wires have a seed, and only they send usage in a stream on request.
        let is_openai = matches!(self.route, Route::Chat | Route::Completions);
        if is_openai {
            set("seed", json!(7));
        }

        if self.tools {
            set("tools", json!([self.tool()]));
        }
        if let Some(choice) = choice {
            set("tool_choice", choice);
        }
        if self.streams {
            set("stream", json!(true));
            if is_openai {
                set("stream_options", json!({ "include_usage": true }));
            }
        }
        Bytes::from(Value::Object(body).to_string())
    }

    fn tool(self) -> Value {
        let schema = json!({
            "type": "object",
            "properties": { "city": { "type": "string", "enum": CITIES } },
            "required": ["city"],
        });
        match self.route {
            Route::Messages => {
                json!({ "name": TOOL, "description": TOOL_USE, "input_schema": schema })
            }
            Route::Responses => json!({
                "type": "function", "name": TOOL, "description": TOOL_USE, "parameters": schema,
            }),
            _ => json!({
                "type": "function",
                "function": { "name": TOOL, "description": TOOL_USE, "parameters": schema },
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AskOptions, Dialect, Request, ask, is_translated, route, translate};

    #[test]
    fn every_probe_is_a_request_of_its_wire() {
        let all = Probe::all();
        assert_eq!(all.len(), 14);
        for probe in all {
            assert_eq!(route("POST", probe.path()), probe.route);
            let request = Request::read(&probe.body("m")).unwrap();
            assert_eq!(request.streams(), probe.streams, "{probe:?}");
            assert_eq!(request.model().as_deref(), Some("m"));
        }
    }

    #[test]
    fn a_tool_is_forced_and_can_be_offered_alone() {
        for probe in Probe::all() {
            let choice = |body: Bytes| {
                let body: Value = serde_json::from_slice(&body).unwrap();
                (body.get("tools").is_some(), body.get("tool_choice").cloned())
            };
            let forced = match probe.route {
                Route::Messages => json!({ "type": "any" }),
                _ => json!("required"),
            };
            assert_eq!(choice(probe.body("m")), (probe.tools, probe.tools.then_some(forced)));
            assert_eq!(probe.unforced_body("m").map(choice), probe.tools.then_some((true, None)));
        }
    }

    #[test]
    fn every_probe_can_be_asked_or_translated() {
        for probe in Probe::all() {
            let request = Request::read(&probe.body("m")).unwrap();
            if is_translated(Dialect::Vllm, probe.route) {
                assert!(translate(Dialect::Vllm, probe.route, &request).is_ok(), "{probe:?}");
            } else {
                let asked = ask(
                    &AskOptions::for_dialect(Dialect::Vllm),
                    probe.route,
                    &request,
                    None,
                    |_| false,
                );
                assert_eq!(asked.unasked, None, "{probe:?}");
            }
        }
    }
}
