//! The parameters that a call was sampled with, and whether its logprobs are of that distribution.

use std::borrow::Cow;

use bytes::Bytes;
use episode::Route;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};

use super::forced::ForcedSampling;
use super::server::ServerSampling;
use crate::dialect::Dialect;
use crate::json::tree;
use crate::parameters::{Parameter, SHAPING, masks};
use crate::request::Request;
use crate::sse::documents;

/// Temperatures below this are greedy, on every server.
const GREEDY_BELOW: f64 = 1e-5;
/// The entry that notes that a server sends logits in the place of logprobs.
const LOGITS: &str = "logprobs";
/// The entry with the numbers of the KV cache, where they are not the model's own. They change no
/// parameter of the distribution, which is that of the model with this cache.
const KV_CACHE: &str = "kv_cache";
/// The kind of logprobs that are of the distribution that was sampled from.
const PROCESSED: &str = "processed";
/// Bytes of JSON for which room is made ahead.
const JSON_ROOM: usize = 512;

/// The sampling of a call: each parameter with its value and its source, which is `request`,
/// `forced`, `server`, or `unknown`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EffectiveSampling(Vec<(Cow<'static, str>, Entry)>);

/// A parameter: its value, unless that is unknown or not recorded, and its source.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    value: Option<Value>,
    source: Cow<'static, str>,
}

/// The source of a parameter that nobody tells.
const UNKNOWN: &str = "unknown";

impl Entry {
    fn new(value: &Value, source: &'static str) -> Self {
        Self { value: Some(value.clone()), source: source.into() }
    }

    /// A parameter that is set, to what is not recorded.
    fn without_value(source: &'static str) -> Self {
        Self { value: None, source: source.into() }
    }

    fn of_json(json: &Value) -> Self {
        let value = json.get("value").filter(|value| !value.is_null()).cloned();
        let source = json.get("source").and_then(Value::as_str).unwrap_or_default();
        Self { value, source: source.to_owned().into() }
    }

    fn is_unknown(&self) -> bool {
        self.source == UNKNOWN
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.value.is_some() || self.is_unknown() {
            map.serialize_entry("value", &self.value)?;
        }
        map.serialize_entry("source", &self.source)?;
        map.end()
    }
}

/// The answer to the question whether logprobs are of the distribution that was sampled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogprobFit {
    /// They are.
    Yes,
    /// They are not.
    No,
    /// The server chose the parameters, and does not tell them.
    Unknown,
}

impl LogprobFit {
    /// The fit of logprobs of `kind` for a call of which only the request's side was recorded. The
    /// request is read only where the answer depends on it.
    pub fn of_recorded_request(sampling: Option<&str>, request: &Bytes, kind: &str) -> Self {
        if kind == PROCESSED {
            return Self::Yes;
        }
        EffectiveSampling::from_recorded_request(sampling, request).fit(kind)
    }
}

impl EffectiveSampling {
    /// The sampling that `request`, once forced, asks of a server of `dialect`. Parameters that it
    /// leaves out are unknown.
    pub fn from_request(dialect: Dialect, request: &Request, forced: &ForcedSampling) -> Self {
        let edited = match forced.is_empty() {
            true => None,
            false => Request::read(&forced.apply(dialect, request)),
        };
        let fields = edited.as_ref().unwrap_or(request).short_fields();
        Self::from_fields(dialect, &fields, forced)
    }

    /// The sampling that a request to SGLang's own route asks for in `sampling_params`. A list of
    /// them, one for each prompt of a batch, is not read.
    pub fn from_native_request(request: &Request) -> Self {
        let nested = request.raw("sampling_params").and_then(tree);
        let forced = ForcedSampling::default();
        Self::from_fields(Dialect::Sglang, &nested.unwrap_or_default(), &forced)
    }

    fn from_fields(dialect: Dialect, fields: &Value, forced: &ForcedSampling) -> Self {
        let source = |name: &str| if forced.has(name) { "forced" } else { "request" };
        let mut sampling = Self::default();

        for parameter in SHAPING.iter().filter(|parameter| parameter.is_known_to(dialect)) {
            let entry = match fields.get(parameter.name).filter(|value| !value.is_null()) {
                Some(value) => Entry::new(value, source(parameter.name)),
                None => Entry::without_value(UNKNOWN),
            };
            sampling.set(parameter.name, entry);
        }
        for name in masks(Some(dialect), fields) {
            sampling.set(name, Entry::without_value(source(name)));
        }
        sampling
    }

    /// Sets a parameter.
    fn set(&mut self, name: &'static str, entry: Entry) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = entry,
            None => self.0.push((name.into(), entry)),
        }
    }

    fn get(&self, name: &str) -> Option<&Entry> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, entry)| entry)
    }

    /// Reads the sampling that was recorded as [`Self::to_json`].
    pub fn from_json(recorded: &str) -> Option<Self> {
        let entries: Map<String, Value> = serde_json::from_str(recorded).ok()?;
        let read = entries.into_iter().map(|(name, json)| (name.into(), Entry::of_json(&json)));
        Some(Self(read.collect()))
    }

    /// The sampling of a call of which only the request's side was recorded. Parameters that it
    /// left out are unknown.
    fn from_recorded_request(sampling: Option<&str>, request: &Bytes) -> Self {
        let sampling: Value =
            sampling.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        let mut recorded = Self::default();

        for parameter in &SHAPING {
            let entry = match sampling.get(parameter.name) {
                Some(value) => Entry::new(value, "request"),
                // The dialect was not recorded, so llama.cpp's own parameters are not expected.
                None if !parameter.is_known_to(Dialect::Vllm) => continue,
                None => Entry::without_value(UNKNOWN),
            };
            recorded.set(parameter.name, entry);
        }
        let body = Request::read(request);
        let body = body.as_ref().map(Request::short_fields).unwrap_or_default();
        for name in masks(None, &body).into_iter().chain(masks(None, &sampling)) {
            recorded.set(name, Entry::without_value("request"));
        }
        recorded
    }

    /// Sets unknown parameters to the defaults of `server`.
    pub fn fill_from_server(&mut self, server: &ServerSampling) {
        self.fill(|name| server.default_of(name));
        if server.sends_logits() {
            self.set(LOGITS, Entry::new(&json!("logits"), "server"));
        }
        if let Some(numbers) = server.kv_cache() {
            self.set(KV_CACHE, Entry::new(&json!(numbers), "server"));
        }
    }

    /// Sets unknown parameters to those that a reply on the Responses route repeats.
    pub fn fill_from_reply(&mut self, route: Route, reply: &[u8]) {
        if route != Route::Responses {
            return;
        }
        let responses = documents(reply).filter_map(|document| {
            let parsed = tree(&document)?;
            Some(parsed.get("response").cloned().unwrap_or(parsed))
        });
        let is_response = |value: &Value| value.get("object") == Some(&json!("response"));
        if let Some(last) = responses.filter(is_response).last() {
            self.fill(|name| last.get(name).filter(|value| value.is_number()));
        }
    }

    /// Sets each unknown parameter to its value on the server, if that is known.
    fn fill<'v>(&mut self, value_of: impl Fn(&str) -> Option<&'v Value>) {
        for (name, entry) in &mut self.0 {
            if entry.is_unknown()
                && let Some(value) = value_of(name)
            {
                *entry = Entry::new(value, "server");
            }
        }
    }

    /// The sampling as a JSON object, to be recorded.
    pub fn to_json(&self) -> String {
        let mut json = Vec::with_capacity(JSON_ROOM);
        let mut serializer = serde_json::Serializer::new(&mut json);
        let entries = self.0.iter().map(|(name, entry)| (name, entry));
        serializer.collect_map(entries).expect("texts and JSON values are always JSON");
        String::from_utf8(json).expect("JSON is UTF-8")
    }

    /// Tells whether logprobs of `kind` are of the distribution that was sampled from. `kind` is a
    /// word of [`Dialect::logprob_kind`].
    ///
    /// With greedy sampling the sampled token has probability one, and only `processed` logprobs
    /// say so.
    pub fn fit(&self, kind: &str) -> LogprobFit {
        if self.get(LOGITS).is_some() {
            return LogprobFit::No;
        }
        // After temperature, only truncation still changes the distribution.
        let matters: fn(&&Parameter) -> bool = match kind {
            PROCESSED => return LogprobFit::Yes,
            "temperature" => |parameter| parameter.truncates,
            _ => |_| true,
        };

        let mut relevant = SHAPING.iter().filter(matters);
        let is_shaped = relevant.clone().any(|parameter| self.shapes(parameter));
        if self.is_masked() || self.is_greedy() || is_shaped {
            return LogprobFit::No;
        }
        // An unknown temperature may be greedy.
        if self.is_unknown("temperature") || relevant.any(|p| self.is_unknown(p.name)) {
            return LogprobFit::Unknown;
        }
        LogprobFit::Yes
    }

    /// Returns true if `parameter` is known and changed the distribution.
    fn shapes(&self, parameter: &Parameter) -> bool {
        let known = self.get(parameter.name).filter(|entry| !entry.is_unknown());
        let is_neutral = |value: &Value| parameter.is_neutral(value);
        known.is_some_and(|entry| !entry.value.as_ref().is_some_and(is_neutral))
    }

    fn is_unknown(&self, name: &str) -> bool {
        self.get(name).is_some_and(Entry::is_unknown)
    }

    /// Returns true if there is an entry that is neither a shaping parameter nor about the cache:
    /// these are the masks.
    fn is_masked(&self) -> bool {
        let is_shaping = |name: &str| SHAPING.iter().any(|parameter| parameter.name == name);
        self.0.iter().any(|(name, _)| !is_shaping(name) && name != KV_CACHE)
    }

    /// The numbers of the KV cache, in the server's own words, where they are not the model's own.
    pub fn kv_cache(&self) -> Option<&str> {
        self.get(KV_CACHE)?.value.as_ref()?.as_str()
    }

    fn is_greedy(&self) -> bool {
        let temperature = self.get("temperature").and_then(|entry| entry.value.as_ref()?.as_f64());
        temperature.is_some_and(|temperature| temperature < GREEDY_BELOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEUTRAL: &str = r#""temperature":1,"top_p":1.0,"top_k":-1,"min_p":0,
        "repetition_penalty":1,"presence_penalty":0,"frequency_penalty":0"#;
    const OWN_DEFAULTS: &[u8] = br#"{"vllm_config":{"model_config":{"generation_config":"vllm"}}}"#;

    fn asked(body: &str, force: &str) -> EffectiveSampling {
        let request = Request::read(&Bytes::from(body.to_owned())).unwrap();
        EffectiveSampling::from_request(Dialect::Vllm, &request, &force.parse().unwrap())
    }

    fn entry(effective: &EffectiveSampling, name: &str) -> Value {
        serde_json::to_value(effective.get(name).unwrap()).unwrap()
    }

    fn fits(effective: &EffectiveSampling) -> [LogprobFit; 3] {
        ["raw", "temperature", "processed"].map(|kind| effective.fit(kind))
    }

    #[test]
    fn what_nobody_tells_is_unknown_and_never_a_fit() {
        use LogprobFit::{No, Unknown, Yes};
        assert_eq!(fits(&asked("{}", "")), [Unknown, Unknown, Yes]);
        assert_eq!(fits(&asked(&format!("{{{NEUTRAL}}}"), "")), [Yes, Yes, Yes]);
        let cold = asked(r#"{"temperature":0.7}"#, "top_p=1,top_k=off,min_p=off");
        assert_eq!(fits(&cold), [No, Yes, Yes]);
        let force = "temperature=1,top_p=1,top_k=off,min_p=off,repetition_penalty=1";
        assert_eq!(fits(&asked(r#"{"top_p":0.5}"#, force)), [Unknown, Yes, Yes]);
        let entries: Value =
            serde_json::from_str(&asked(r#"{"min_p":0}"#, "top_p=1").to_json()).unwrap();
        assert_eq!(entries["top_p"], json!({"value": 1, "source": "forced"}));
        assert_eq!(entries["min_p"], json!({"value": 0, "source": "request"}));
        assert_eq!(entries["top_k"], json!({"value": null, "source": "unknown"}));
    }

    #[test]
    fn the_numbers_of_the_cache_are_recorded_and_are_no_mask() {
        let page = br#"{"vllm_config":{"model_config":{"generation_config":"vllm"},
            "cache_config":{"cache_dtype":"fp8_e4m3"}}}"#;
        let mut server = ServerSampling::for_dialect(Dialect::Rolltape);
        assert!(server.take(page));
        let mut effective = asked(r#"{"temperature":1}"#, "");
        assert_eq!(effective.kv_cache(), None);
        effective.fill_from_server(&server);
        let recorded = effective.to_json();
        assert!(
            recorded.contains(r#""kv_cache":{"value":"fp8_e4m3","source":"server"}"#),
            "{recorded}"
        );
        let read = EffectiveSampling::from_json(&recorded).unwrap();
        assert_eq!((read.kv_cache(), fits(&read)), (Some("fp8_e4m3"), [LogprobFit::Yes; 3]));
    }

    #[test]
    fn greedy_sampling_is_alike_on_every_server() {
        let greedy = NEUTRAL.replace(r#""temperature":1"#, r#""temperature":0"#);
        let greedy = asked(&format!("{{{greedy}}}"), "");
        assert_eq!(fits(&greedy), [LogprobFit::No, LogprobFit::No, LogprobFit::Yes]);
    }

    #[test]
    fn the_server_chooses_what_the_request_left_out() {
        let mut server = ServerSampling::for_dialect(Dialect::Vllm);
        assert!(server.take(OWN_DEFAULTS));
        let mut effective = asked(r#"{"temperature":1}"#, "");
        effective.fill_from_server(&server);
        assert_eq!(effective.fit("raw"), LogprobFit::Yes);
        assert_eq!(EffectiveSampling::from_json(&effective.to_json()), Some(effective.clone()));
        let hot = br#"{"default_generation_settings":{"params":{"top_p":0.95}}}"#;
        let mut server = ServerSampling::default();
        assert!(server.take(hot));
        let mut effective = asked(r#"{"top_k":0}"#, "");
        effective.fill_from_server(&server);
        assert_eq!(effective.fit("raw"), LogprobFit::No);
        assert_eq!(entry(&effective, "top_p"), json!({"value": 0.95, "source": "server"}));
    }

    #[test]
    fn logits_are_never_logprobs() {
        let mut server = ServerSampling::for_dialect(Dialect::Vllm);
        assert!(
            server
                .take(br#"{"vllm_config":{"model_config":{"logprobs_mode":"processed_logits"}}}"#)
        );
        let mut effective = asked(&format!("{{{NEUTRAL}}}"), "");
        effective.fill_from_server(&server);
        assert_eq!(fits(&effective), [LogprobFit::No; 3]);
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
            assert_eq!(
                fits(&asked(&body, "")),
                [LogprobFit::No, LogprobFit::No, LogprobFit::Yes],
                "{mask}"
            );
            let old = EffectiveSampling::from_recorded_request(
                Some(&format!("{{{NEUTRAL}}}")),
                &Bytes::from(body),
            );
            assert_eq!(old.fit("raw"), LogprobFit::No, "{mask}");
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
            assert_eq!(
                fits(&asked(&format!("{{{NEUTRAL},{none}}}"), "")),
                [LogprobFit::Yes; 3],
                "{none}"
            );
        }
    }

    #[test]
    fn a_call_of_before_is_known_as_far_as_it_asked() {
        let old = |sampling: &str| {
            EffectiveSampling::from_recorded_request(Some(sampling), &Bytes::new())
        };
        for sampling in ["{}", r#"{"top_p":0.9}"#, r#"{"min_tokens":3}"#] {
            let by_kind =
                |kind| LogprobFit::of_recorded_request(Some(sampling), &Bytes::new(), kind);
            assert_eq!(["raw", "temperature", "processed"].map(by_kind), fits(&old(sampling)));
        }
        assert_eq!(fits(&old(&format!("{{{NEUTRAL}}}"))), [LogprobFit::Yes; 3]);
        assert_eq!(fits(&old("{}")), [LogprobFit::Unknown, LogprobFit::Unknown, LogprobFit::Yes]);
        assert_eq!(old(r#"{"top_p":0.9}"#).fit("temperature"), LogprobFit::No);
        assert_eq!(
            old(r#"{"min_tokens":3}"#).fit("raw"),
            LogprobFit::No,
            "forced, so not in its body"
        );
    }

    #[test]
    fn a_response_tells_what_it_was_sampled_with() {
        let reply = br#"event: response.completed
data: {"type":"response.completed","response":{"object":"response","temperature":0.6,"top_p":0.95}}

"#;
        let mut effective = asked(r#"{"top_p":1}"#, "");
        effective.fill_from_reply(Route::Chat, reply);
        assert_eq!(effective, asked(r#"{"top_p":1}"#, ""));
        effective.fill_from_reply(Route::Responses, reply);
        assert_eq!(entry(&effective, "temperature"), json!({"value": 0.6, "source": "server"}));
        assert_eq!(entry(&effective, "top_p"), json!({"value": 1, "source": "request"}));
    }
}
