//! What a call was sampled with: what its request says, and what the server takes for the rest.

use bytes::Bytes;
use episode::Route;
use serde_json::{Map, Value, json};

use crate::dialect::Dialect;
use crate::force::Force;
use crate::mask::masks;
use crate::request::Request;
use crate::sampler::Sampler;
use crate::sse::documents;

/// Temperatures below this are greedy, on every server.
const GREEDY_BELOW: f64 = 1e-5;
/// The name under which a server's logits in the place of logprobs are noted.
const LOGITS: &str = "logprobs";

/// The sampling of a call, each parameter with its value and with who set it: `request`, `forced`,
/// `server`, or `unknown` where nobody says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Effective(Map<String, Value>);

/// Whether logprobs are of the distribution that was sampled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// They are.
    Yes,
    /// They are not.
    No,
    /// The server was left to choose how it samples, and does not say how it does.
    Unknown,
}

/// A parameter that shapes the distribution.
struct Shape {
    name: &'static str,
    /// Whether it cuts the distribution off, rather than moving all of it.
    cuts: bool,
    off: Off,
    knows: fn(Dialect) -> bool,
}

/// Values with which a parameter does nothing.
enum Off {
    At(f64),
    AtMost(f64),
    AtLeast(f64),
}

const fn shape(name: &'static str, cuts: bool, off: Off, knows: fn(Dialect) -> bool) -> Shape {
    Shape { name, cuts, off, knows }
}

fn any(_: Dialect) -> bool {
    true
}

fn llamacpp(dialect: Dialect) -> bool {
    dialect == Dialect::Llamacpp
}

fn others(dialect: Dialect) -> bool {
    dialect != Dialect::Llamacpp
}

/// Both 0 and -1 turn `top_k` off, by server.
const SHAPES: [Shape; 15] = [
    shape("temperature", false, Off::At(1.0), any),
    shape("top_p", true, Off::AtLeast(1.0), any),
    shape("top_k", true, Off::AtMost(0.0), any),
    shape("min_p", true, Off::AtMost(0.0), any),
    shape("presence_penalty", false, Off::At(0.0), any),
    shape("frequency_penalty", false, Off::At(0.0), any),
    shape("repetition_penalty", false, Off::At(1.0), others),
    shape("repeat_penalty", false, Off::At(1.0), llamacpp),
    shape("typical_p", true, Off::AtLeast(1.0), llamacpp),
    shape("top_n_sigma", true, Off::AtMost(0.0), llamacpp),
    shape("xtc_probability", true, Off::AtMost(0.0), llamacpp),
    shape("dry_multiplier", false, Off::At(0.0), llamacpp),
    shape("mirostat", true, Off::At(0.0), llamacpp),
    shape("dynatemp_range", false, Off::AtMost(0.0), llamacpp),
    shape("adaptive_target", true, Off::AtMost(-f64::MIN_POSITIVE), llamacpp),
];

impl Shape {
    fn is_off(&self, value: &Value) -> bool {
        value.as_f64().is_some_and(|value| match self.off {
            Off::At(neutral) => value == neutral,
            Off::AtMost(neutral) => value <= neutral,
            Off::AtLeast(neutral) => value >= neutral,
        })
    }
}

/// Whether a parameter of this name does something at `value`.
pub(crate) fn bends(name: &str, value: &Value) -> bool {
    SHAPES.iter().any(|shape| shape.name == name && !shape.is_off(value))
}

impl Effective {
    /// The sampling that the agent's request asks of a server of `dialect`, once forced; what it
    /// leaves out is unknown.
    pub fn asked(dialect: Dialect, sent: &Request, force: &Force) -> Self {
        let forced = Request::read(&force.apply(dialect, sent));
        Self::asked_in(
            dialect,
            &forced.and_then(|request| request.parsed()).unwrap_or_default(),
            force,
        )
    }

    /// The same for SGLang's own route, which has them in an object of their own. One for each
    /// prompt of a batch is not read.
    pub fn asked_natively(sent: &Request) -> Self {
        let nested = sent.parsed().and_then(|body| body.get("sampling_params").cloned());
        Self::asked_in(Dialect::Sglang, &nested.unwrap_or_default(), &Force::default())
    }

    fn asked_in(dialect: Dialect, body: &Value, force: &Force) -> Self {
        let by = |name: &str| if force.names(name) { "forced" } else { "request" };
        let mut told = Map::new();
        for shape in SHAPES.iter().filter(|shape| (shape.knows)(dialect)) {
            let own = body.get(shape.name).filter(|value| !value.is_null());
            let entry = match own {
                Some(value) => json!({"value": value, "source": by(shape.name)}),
                None => json!({"value": null, "source": "unknown"}),
            };
            told.insert(shape.name.to_owned(), entry);
        }
        for name in masks(Some(dialect), body) {
            told.insert(name.to_owned(), json!({"source": by(name)}));
        }
        Self(told)
    }

    /// Lets a server that samples as `sampler` says choose what is unknown.
    pub fn served(&mut self, sampler: &Sampler) {
        for (name, entry) in &mut self.0 {
            if let Some(value) = sampler.default_of(name).filter(|_| is_unknown(entry)) {
                *entry = json!({"value": value, "source": "server"});
            }
        }
        if sampler.tells_logits() {
            self.0.insert(LOGITS.to_owned(), json!({"value": "logits", "source": "server"}));
        }
    }

    /// The sampling that is recorded of a call as [`Self::to_json`] wrote it.
    pub fn read(recorded: &str) -> Option<Self> {
        serde_json::from_str(recorded).ok().map(Self)
    }

    /// The sampling of a call of which only the request's side was recorded: what it left out is
    /// unknown.
    pub fn of_request(sampling: Option<&str>, request: &Bytes) -> Self {
        let sampling: Value =
            sampling.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        let mut told = Map::new();
        for shape in &SHAPES {
            let entry = match sampling.get(shape.name) {
                Some(value) => json!({"value": value, "source": "request"}),
                None if llamacpp_only(shape) => continue,
                None => json!({"value": null, "source": "unknown"}),
            };
            told.insert(shape.name.to_owned(), entry);
        }
        let body = Request::read(request).and_then(|request| request.parsed()).unwrap_or_default();
        for name in masks(None, &body).into_iter().chain(masks(None, &sampling)) {
            told.insert(name.to_owned(), json!({"source": "request"}));
        }
        Self(told)
    }

    /// Takes what a reply on the Responses route says of its own sampling, for what is unknown.
    pub fn heard(&mut self, route: Route, reply: &[u8]) {
        if route != Route::Responses {
            return;
        }
        let mut said = documents(reply).into_iter().filter_map(|document| {
            let document: Value = serde_json::from_slice(&document).ok()?;
            Some(document.get("response").cloned().unwrap_or(document))
        });
        let is_whole = |said: &Value| said.get("object") == Some(&json!("response"));
        let Some(said) = said.rfind(is_whole) else { return };
        for (name, entry) in &mut self.0 {
            let value = said.get(name).filter(|value| value.is_number());
            if let Some(value) = value.filter(|_| is_unknown(entry)) {
                *entry = json!({"value": value, "source": "server"});
            }
        }
    }

    /// The sampling as a JSON object, to be recorded.
    pub fn to_json(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }

    /// Whether logprobs of this kind are of the distribution that was sampled from. With greedy
    /// sampling the sampled token has probability one, and only `processed` may say so.
    pub fn fit(&self, kind: &str) -> Fit {
        if self.0.contains_key(LOGITS) {
            return Fit::No;
        }
        let matters: fn(&Shape) -> bool = match kind {
            "processed" => return Fit::Yes,
            "temperature" => |shape| shape.cuts,
            _ => |_| true,
        };
        let shapes = || SHAPES.iter().filter(|shape| matters(shape));
        let of = |shape: &Shape| self.0.get(shape.name).filter(|entry| !is_unknown(entry));
        let bent = |shape: &Shape| of(shape).is_some_and(|entry| !shape.is_off(&entry["value"]));
        if self.is_masked() || self.is_greedy() || shapes().any(bent) {
            return Fit::No;
        }
        let unknown = |name: &str| self.0.get(name).is_some_and(is_unknown);
        match unknown("temperature") || shapes().any(|shape| unknown(shape.name)) {
            true => Fit::Unknown,
            false => Fit::Yes,
        }
    }

    fn is_masked(&self) -> bool {
        self.0.keys().any(|name| SHAPES.iter().all(|shape| shape.name != name))
    }

    fn is_greedy(&self) -> bool {
        let temperature = self.0.get("temperature").and_then(|entry| entry["value"].as_f64());
        temperature.is_some_and(|temperature| temperature < GREEDY_BELOW)
    }
}

fn llamacpp_only(shape: &Shape) -> bool {
    !(shape.knows)(Dialect::Vllm)
}

fn is_unknown(entry: &Value) -> bool {
    entry["source"] == "unknown"
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEUTRAL: &str = r#""temperature":1,"top_p":1.0,"top_k":-1,"min_p":0,
        "repetition_penalty":1,"presence_penalty":0,"frequency_penalty":0"#;
    const OWN_DEFAULTS: &[u8] = br#"{"vllm_config":{"model_config":{"generation_config":"vllm"}}}"#;

    fn asked(body: &str, force: &str) -> Effective {
        let request = Request::read(&Bytes::from(body.to_owned())).unwrap();
        Effective::asked(Dialect::Vllm, &request, &force.parse().unwrap())
    }

    fn fits(effective: &Effective) -> [Fit; 3] {
        ["raw", "temperature", "processed"].map(|kind| effective.fit(kind))
    }

    #[test]
    fn what_nobody_tells_is_unknown_and_never_a_fit() {
        use Fit::{No, Unknown, Yes};
        assert_eq!(fits(&asked("{}", "")), [Unknown, Unknown, Yes]);
        assert_eq!(fits(&asked(&format!("{{{NEUTRAL}}}"), "")), [Yes, Yes, Yes]);
        let cold = asked(r#"{"temperature":0.7}"#, "top_p=1,top_k=off,min_p=off");
        assert_eq!(fits(&cold), [No, Yes, Yes]);
        let force = "temperature=1,top_p=1,top_k=off,min_p=off,repetition_penalty=1";
        assert_eq!(fits(&asked(r#"{"top_p":0.5}"#, force)), [Unknown, Yes, Yes]);
        let told: Value =
            serde_json::from_str(&asked(r#"{"min_p":0}"#, "top_p=1").to_json()).unwrap();
        assert_eq!(told["top_p"], json!({"value": 1, "source": "forced"}));
        assert_eq!(told["min_p"], json!({"value": 0, "source": "request"}));
        assert_eq!(told["top_k"], json!({"value": null, "source": "unknown"}));
    }

    #[test]
    fn greedy_sampling_is_alike_on_every_server() {
        let greedy = NEUTRAL.replace(r#""temperature":1"#, r#""temperature":0"#);
        let greedy = asked(&format!("{{{greedy}}}"), "");
        assert_eq!(fits(&greedy), [Fit::No, Fit::No, Fit::Yes]);
    }

    #[test]
    fn the_server_chooses_what_the_request_left_out() {
        let mut sampler = Sampler::of(Dialect::Vllm);
        assert!(sampler.take(OWN_DEFAULTS));
        let mut effective = asked(r#"{"temperature":1}"#, "");
        effective.served(&sampler);
        assert_eq!(effective.fit("raw"), Fit::Yes);
        assert_eq!(Effective::read(&effective.to_json()), Some(effective.clone()));
        let hot = br#"{"default_generation_settings":{"params":{"top_p":0.95}}}"#;
        let mut sampler = Sampler::default();
        assert!(sampler.take(hot));
        let mut effective = asked(r#"{"top_k":0}"#, "");
        effective.served(&sampler);
        assert_eq!(effective.fit("raw"), Fit::No);
        assert_eq!(effective.0["top_p"], json!({"value": 0.95, "source": "server"}));
    }

    #[test]
    fn logits_are_never_logprobs() {
        let mut sampler = Sampler::of(Dialect::Vllm);
        assert!(
            sampler
                .take(br#"{"vllm_config":{"model_config":{"logprobs_mode":"processed_logits"}}}"#)
        );
        let mut effective = asked(&format!("{{{NEUTRAL}}}"), "");
        effective.served(&sampler);
        assert_eq!(fits(&effective), [Fit::No; 3]);
    }

    #[test]
    fn masks_bend_all_but_processed_logprobs() {
        for mask in [
            r#""min_tokens":4"#,
            r#""bad_words":["x"]"#,
            r#""logit_bias":{"5":-100}"#,
            r#""allowed_token_ids":[1,2]"#,
            r#""guided_regex":"a+""#,
            r#""structured_outputs":{"choice":["a"]}"#,
            r#""grammar":"root ::= \"a\"""#,
            r#""response_format":{"type":"json_schema","json_schema":{}}"#,
            r#""response_format":{"type":"json_object"}"#,
            r#""text":{"format":{"type":"json_schema"}}"#,
            r#""output_config":{"format":{"type":"json_schema"}}"#,
            r#""tool_choice":"required""#,
            r#""tool_choice":{"type":"any"}"#,
            r#""tools":[{"type":"function","function":{"name":"f","strict":true}}]"#,
        ] {
            let body = format!("{{{NEUTRAL},{mask}}}");
            assert_eq!(fits(&asked(&body, "")), [Fit::No, Fit::No, Fit::Yes], "{mask}");
            let old = Effective::of_request(Some(&format!("{{{NEUTRAL}}}")), &Bytes::from(body));
            assert_eq!(old.fit("raw"), Fit::No, "{mask}");
        }
        for none in [
            r#""min_tokens":0"#,
            r#""bad_words":[]"#,
            r#""logit_bias":{}"#,
            r#""allowed_token_ids":null"#,
            r#""response_format":{"type":"text"}"#,
            r#""text":{"format":{"type":"text"},"verbosity":"low"}"#,
            r#""tool_choice":"auto""#,
            r#""tool_choice":{"type":"auto"}"#,
            r#""tools":[{"type":"function","function":{"name":"f","strict":false}}]"#,
            r#""ignore_eos":true"#,
        ] {
            assert_eq!(fits(&asked(&format!("{{{NEUTRAL},{none}}}"), "")), [Fit::Yes; 3], "{none}");
        }
    }

    #[test]
    fn a_call_of_before_is_known_as_far_as_it_asked() {
        let old = |sampling: &str| Effective::of_request(Some(sampling), &Bytes::new());
        assert_eq!(fits(&old(&format!("{{{NEUTRAL}}}"))), [Fit::Yes; 3]);
        assert_eq!(fits(&old("{}")), [Fit::Unknown, Fit::Unknown, Fit::Yes]);
        assert_eq!(old(r#"{"top_p":0.9}"#).fit("temperature"), Fit::No);
        assert_eq!(old(r#"{"min_tokens":3}"#).fit("raw"), Fit::No, "forced, so not in its body");
    }

    #[test]
    fn a_response_tells_what_it_was_sampled_with() {
        let reply = br#"event: response.completed
data: {"type":"response.completed","response":{"object":"response","temperature":0.6,"top_p":0.95}}

"#;
        let mut effective = asked(r#"{"top_p":1}"#, "");
        effective.heard(Route::Chat, reply);
        assert_eq!(effective, asked(r#"{"top_p":1}"#, ""));
        effective.heard(Route::Responses, reply);
        assert_eq!(effective.0["temperature"], json!({"value": 0.6, "source": "server"}));
        assert_eq!(effective.0["top_p"], json!({"value": 1, "source": "request"}));
    }
}
