//! What a server says of how it samples: what its logprobs are of, and what it takes for the
//! parameters that a request leaves out.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::dialect::Dialect;
use crate::owed::{tokenize, tokens};

/// A server's way of sampling, as far as it tells.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampler {
    /// The server's own word for what its logprobs are, such as `raw_logprobs`.
    mode: Option<String>,
    /// Where it says that its defaults are from: `vllm`, `auto`, `openai`, `model`.
    source: Option<String>,
    /// What it takes for parameters that a request leaves out; what is absent is not known.
    defaults: Map<String, Value>,
    /// The token that ends what the model says, as text.
    end_text: Option<String>,
    /// Its id.
    end: Option<u32>,
}

/// Parameters that servers may take from a model's `generation_config.json`, with the values that
/// they have where there is none. vLLM takes all, SGLang and rolltape's engine all but the last.
const OF_MODELS: [(&str, f64); 7] = [
    ("temperature", 1.0),
    ("top_p", 1.0),
    ("top_k", 0.0),
    ("min_p", 0.0),
    ("repetition_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
];

impl Sampler {
    /// What holds for every server of this dialect.
    pub fn of(dialect: Dialect) -> Self {
        let mut sampler = Self::default();
        if matches!(dialect, Dialect::Sglang | Dialect::Rolltape) {
            sampler.neutral(&OF_MODELS[5..]);
        }
        sampler
    }

    /// Where a server of this dialect tells how it samples; later paths are older names.
    pub fn paths(dialect: Dialect) -> &'static [&'static str] {
        match dialect {
            Dialect::Vllm | Dialect::Rolltape => &["/server_info?config_format=json"],
            Dialect::Sglang => &["/server_info", "/get_server_info"],
            Dialect::Llamacpp => &["/props"],
            Dialect::OpenAi => &[],
        }
    }

    /// Takes a document of one of [`Self::paths`]; gives whether it told anything.
    pub fn take(&mut self, document: &[u8]) -> bool {
        let Ok(document) = serde_json::from_slice::<Value>(document) else { return false };
        let of_vllm = document.pointer("/vllm_config/model_config");
        let of_llamacpp = document.pointer("/default_generation_settings/params");
        if let Some(config) = of_vllm.filter(|config| config.is_object()) {
            self.take_vllm(config);
        } else if let Some(params) = of_llamacpp.and_then(Value::as_object) {
            self.set(params);
            let end = document.get("eos_token").and_then(Value::as_str);
            self.end_text = end.filter(|text| !text.is_empty()).map(str::to_owned);
        } else if document.get("sampling_defaults").is_some() {
            self.take_sglang(&document);
        } else {
            return false;
        }
        true
    }

    /// `auto` reads the model's own file, which the server does not show.
    fn take_vllm(&mut self, config: &Value) {
        let text = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_owned);
        self.mode = text("logprobs_mode");
        self.source = text("generation_config");
        if self.source.as_deref() == Some("vllm") {
            self.neutral(&OF_MODELS);
        }
        // The name of rolltape's engine for what it takes in fact.
        for key in ["override_generation_config", "default_sampling_params"] {
            if let Some(values) = config.get(key).and_then(Value::as_object) {
                self.set(values);
            }
        }
    }

    fn take_sglang(&mut self, document: &Value) {
        let source = document.get("sampling_defaults").and_then(Value::as_str);
        self.source = source.map(str::to_owned);
        if self.source.as_deref() == Some("openai") {
            self.neutral(&OF_MODELS);
        }
        // Which of the two wins depends on the route.
        for name in preferred(document.get("preferred_sampling_params")).keys() {
            self.defaults.remove(name);
        }
    }

    fn neutral(&mut self, names: &[(&str, f64)]) {
        let values = names.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
        self.defaults.extend(values);
    }

    fn set(&mut self, values: &Map<String, Value>) {
        let numbers = values.iter().filter(|(_, value)| value.is_number());
        self.defaults.extend(numbers.map(|(name, value)| (name.clone(), value.clone())));
    }

    /// Where to ask for the id of the token that ends what the model says, and the body to send;
    /// none where nothing needs it.
    pub fn end_question(&self) -> Option<(&'static str, Bytes)> {
        self.end_text.as_deref().map(|text| tokenize(text, false))
    }

    /// Takes the answer to that. A text of several tokens is no end token.
    pub fn take_end(&mut self, answer: &[u8]) {
        self.end = tokens(answer).and_then(|ids| <[u32; 1]>::try_from(ids).ok()).map(|[id]| id);
    }

    /// The id of the token that ends what the model says, where it was asked for.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// What the server takes for `name` where a request leaves it out; `None` when that is not
    /// known.
    pub(crate) fn default_of(&self, name: &str) -> Option<&Value> {
        self.defaults.get(name)
    }

    /// What the logprobs are, where the server says it: `raw`, `processed`, or `unknown` where
    /// they are no logprobs.
    pub fn logprob_kind(&self) -> Option<&'static str> {
        match self.mode.as_deref()? {
            "raw_logprobs" => Some("raw"),
            "processed_logprobs" => Some("processed"),
            "raw_logits" | "processed_logits" => Some("unknown"),
            _ => None,
        }
    }

    /// Whether the numbers in the place of logprobs are logits.
    pub(crate) fn tells_logits(&self) -> bool {
        self.mode.as_deref().is_some_and(|mode| mode.ends_with("_logits"))
    }

    /// Where the server says that its defaults are from.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Whether all that a model may bring along is known.
    pub fn tells_defaults(&self) -> bool {
        let known = |name: &str| self.defaults.contains_key(name);
        let mut penalties = ["repetition_penalty", "repeat_penalty"].into_iter();
        OF_MODELS[..4].iter().all(|(name, _)| known(name)) && penalties.any(known)
    }

    /// The defaults that are known and are not neutral, as `name value`.
    pub fn bending(&self) -> Vec<String> {
        let bends = |(name, value): &(&String, &Value)| crate::effective::bends(name, value);
        let known = self.defaults.iter().filter(bends);
        known.map(|(name, value)| format!("{name} {value}")).collect()
    }
}

/// SGLang shows the parameters as they were given: as JSON, or as text that is JSON.
fn preferred(value: Option<&Value>) -> Map<String, Value> {
    match value {
        Some(Value::Object(values)) => values.clone(),
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_default(),
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &[u8] = include_bytes!("../../tests/tapes/vllm/server_info.json");
    /// Started with `--generation-config vllm --override-generation-config '{"top_k": 5}'
    /// --logprobs-mode processed_logprobs`.
    const VLLM_OWN: &[u8] = include_bytes!("../../tests/tapes/vllm/server_info_own.json");
    const SGLANG: &[u8] = include_bytes!("../../tests/tapes/sglang/server_info.json");
    /// Started with `--sampling-defaults openai --preferred-sampling-params '{"temperature": 0.7}'`.
    const SGLANG_OWN: &[u8] = include_bytes!("../../tests/tapes/sglang/server_info_own.json");
    const LLAMACPP: &[u8] = include_bytes!("../../tests/tapes/llamacpp/props.json");

    fn told(dialect: Dialect, page: &[u8]) -> Sampler {
        let mut sampler = Sampler::of(dialect);
        assert!(sampler.take(page));
        sampler
    }

    /// A page with some of its words replaced.
    fn with(page: &[u8], changes: &[(&str, &str)]) -> Vec<u8> {
        let mut text = String::from_utf8(page.to_vec()).unwrap();
        for (from, to) in changes {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        text.into_bytes()
    }

    #[test]
    fn a_server_that_reads_the_models_own_file_does_not_tell_its_defaults() {
        let vllm = told(Dialect::Vllm, VLLM);
        assert_eq!((vllm.logprob_kind(), vllm.source()), (Some("raw"), Some("auto")));
        let sglang = told(Dialect::Sglang, SGLANG);
        assert_eq!((sglang.logprob_kind(), sglang.source()), (None, Some("model")));
        for sampler in [vllm, sglang] {
            assert!(!sampler.tells_defaults() && sampler.default_of("top_p").is_none());
        }
        assert!(Sampler::of(Dialect::Vllm).default_of("presence_penalty").is_none());
        assert!(Sampler::of(Dialect::Sglang).default_of("presence_penalty").is_some());
    }

    #[test]
    fn neutral_defaults_are_known_and_what_overrides_them() {
        let vllm = told(Dialect::Vllm, VLLM_OWN);
        assert!(vllm.tells_defaults());
        assert_eq!(
            (vllm.logprob_kind(), vllm.bending()),
            (Some("processed"), vec!["top_k 5".to_owned()])
        );
        let plain = with(VLLM_OWN, &[(r#"{"top_k":5}"#, "{}")]);
        assert!(told(Dialect::Vllm, &plain).bending().is_empty());
        let hot = told(Dialect::Sglang, SGLANG_OWN);
        assert!(!hot.tells_defaults() && hot.default_of("temperature").is_none());
        assert!(hot.default_of("top_p").is_some());
        let preferred = r#"{"temperature":0.7}"#;
        assert!(told(Dialect::Sglang, &with(SGLANG_OWN, &[(preferred, "null")])).tells_defaults());
    }

    #[test]
    fn llamacpp_tells_every_default() {
        let llamacpp = told(Dialect::Llamacpp, LLAMACPP);
        assert!(llamacpp.tells_defaults());
        let mut bending = llamacpp.bending();
        bending.sort();
        let bending = bending.join(", ");
        assert_eq!(
            bending,
            "min_p 0.05000000074505806, temperature 0.800000011920929, top_k 40, \
             top_p 0.949999988079071"
        );
        let (path, body) = llamacpp.end_question().unwrap();
        assert!(path == "/tokenize" && body.windows(10).any(|w| w == b"<|im_end|>"));
        let end_after = |answer: &[u8]| {
            let mut llamacpp = llamacpp.clone();
            llamacpp.take_end(answer);
            llamacpp.end()
        };
        assert_eq!(end_after(br#"{"tokens":[390]}"#), Some(390));
        assert_eq!(end_after(br#"{"tokens":[3,9]}"#), None);
        let mut silent = Sampler::of(Dialect::Vllm);
        assert!(!silent.take(br#"{"detail":"Not Found"}"#) && !silent.take(b"<html>"));
        assert_eq!(silent, Sampler::of(Dialect::Vllm));
    }
}
