//! A server's own sampling: the distribution of its logprobs, and the defaults of parameters that
//! a request leaves out.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::dialect::Dialect;
use crate::json::tree;
use crate::parameters::is_shaping;
use crate::reply::missing::{tokenize_request, tokens_of_answer};

/// A server's own sampling, as far as the server reports it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerSampling {
    /// The server's word for the distribution of its logprobs, such as `raw_logprobs`.
    mode: Option<String>,
    /// The source of its defaults, in its own words: `vllm`, `auto`, `openai`, `model`.
    source: Option<String>,
    /// Defaults of parameters; an absent one is not known.
    defaults: Map<String, Value>,
    /// The model's end token, as text.
    end_text: Option<String>,
    /// The id of the model's end token.
    end_id: Option<u32>,
    /// The numbers of its KV cache, where they are fewer bits than the model's own.
    kv_cache: Option<String>,
}

/// A parameter that a model's `generation_config.json` may set, and its value without that file.
type ModelDefault = (&'static str, f64);

/// All such parameters. vLLM reads all of them from the file, SGLang and rolltape's engine all but
/// the penalties at the end.
const MODEL_DEFAULTS: [ModelDefault; 7] = [
    ("temperature", 1.0),
    ("top_p", 1.0),
    ("top_k", 0.0),
    ("min_p", 0.0),
    ("repetition_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
];
/// The parameters of the list that only vLLM reads from the file.
const VLLM_ONLY: std::ops::RangeFrom<usize> = 5..;

impl ServerSampling {
    /// The defaults that every server of `dialect` has.
    pub fn for_dialect(dialect: Dialect) -> Self {
        let mut sampling = Self::default();
        if matches!(dialect, Dialect::Sglang | Dialect::Rolltape) {
            sampling.set_neutral(&MODEL_DEFAULTS[VLLM_ONLY]);
        }
        sampling
    }

    /// The paths where a server of `dialect` reports how it samples; later ones are older names.
    pub fn paths(dialect: Dialect) -> &'static [&'static str] {
        match dialect {
            Dialect::Vllm | Dialect::Rolltape => &["/server_info?config_format=json"],
            Dialect::Sglang => &["/server_info", "/get_server_info"],
            Dialect::Llamacpp => &["/props"],
            Dialect::OpenAi => &[],
        }
    }

    /// Takes a document of one of [`Self::paths`]. Returns true if it held anything.
    pub fn take(&mut self, document: &[u8]) -> bool {
        let Some(document) = tree(document) else { return false };
        let vllm = document.pointer("/vllm_config/model_config").filter(|c| c.is_object());
        let llamacpp =
            document.pointer("/default_generation_settings/params").and_then(Value::as_object);

        let in_vllm = document.pointer("/vllm_config/cache_config/cache_dtype");
        let kv_cache = in_vllm.or_else(|| document.get("kv_cache_dtype")).and_then(Value::as_str);
        self.kv_cache = kv_cache.filter(|name| is_quantized(name)).map(str::to_owned);

        if let Some(config) = vllm {
            self.take_vllm(config);
        } else if let Some(params) = llamacpp {
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

    /// Takes vLLM's configuration. With `auto` it reads the model's own file, which it does not
    /// show.
    fn take_vllm(&mut self, config: &Value) {
        let text = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_owned);
        self.mode = text("logprobs_mode");
        self.source = text("generation_config");
        if self.source.as_deref() == Some("vllm") {
            self.set_neutral(&MODEL_DEFAULTS);
        }
        // The second key is rolltape's engine's: the defaults that it really uses.
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
            self.set_neutral(&MODEL_DEFAULTS);
        }
        // The route decides which of the two wins, so a preferred parameter is not known.
        for name in preferred_params(document.get("preferred_sampling_params")).keys() {
            self.defaults.remove(name);
        }
    }

    fn set_neutral(&mut self, defaults: &[ModelDefault]) {
        let values = defaults.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
        self.defaults.extend(values);
    }

    fn set(&mut self, values: &Map<String, Value>) {
        let numbers = values.iter().filter(|(_, value)| value.is_number());
        self.defaults.extend(numbers.map(|(name, value)| (name.clone(), value.clone())));
    }

    /// The path and body of the request for the id of the model's end token; `None` if no reply
    /// needs it.
    pub fn end_token_request(&self) -> Option<(&'static str, Bytes)> {
        self.end_text.as_deref().map(|text| tokenize_request(text, false))
    }

    /// Takes the answer to [`Self::end_token_request`]. A text of several tokens is no end token.
    pub fn take_end_token(&mut self, answer: &[u8]) {
        let ids = tokens_of_answer(answer).unwrap_or_default();
        self.end_id = <[u32; 1]>::try_from(ids).ok().map(|[id]| id);
    }

    /// The id of the model's end token, if the server was asked for it.
    pub fn end_token(&self) -> Option<u32> {
        self.end_id
    }

    /// The default of the parameter `name`, if it is known.
    pub(crate) fn default_of(&self, name: &str) -> Option<&Value> {
        self.defaults.get(name)
    }

    /// The distribution of the logprobs, if the server reports it: `raw`, `processed`, or `unknown`
    /// for numbers that are not logprobs.
    pub fn logprob_kind(&self) -> Option<&'static str> {
        match self.mode.as_deref()? {
            "raw_logprobs" => Some("raw"),
            "processed_logprobs" => Some("processed"),
            "raw_logits" | "processed_logits" => Some("unknown"),
            _ => None,
        }
    }

    /// Returns true if the server sends logits in the place of logprobs.
    pub(crate) fn sends_logits(&self) -> bool {
        self.mode.as_deref().is_some_and(|mode| mode.ends_with("_logits"))
    }

    /// The numbers of the server's KV cache in its own words, such as `fp8_e4m3`, if they have
    /// fewer bits than the model's own. Logprobs are then those of what such a cache holds.
    pub fn kv_cache(&self) -> Option<&str> {
        self.kv_cache.as_deref()
    }

    /// The source of the server's defaults, in its own words.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Returns true if all defaults that a model may set are known.
    pub fn knows_defaults(&self) -> bool {
        let is_known = |name: &str| self.defaults.contains_key(name);
        let mut penalties = ["repetition_penalty", "repeat_penalty"].into_iter();
        MODEL_DEFAULTS[..4].iter().all(|(name, _)| is_known(name)) && penalties.any(is_known)
    }

    /// The known defaults that change the distribution, as `name value`.
    pub fn non_neutral_defaults(&self) -> Vec<String> {
        let shaping = self.defaults.iter().filter(|(name, value)| is_shaping(name, value));
        shaping.map(|(name, value)| format!("{name} {value}")).collect()
    }
}

/// Returns true for the name of numbers of a KV cache that are not the model's own.
fn is_quantized(name: &str) -> bool {
    let own = ["auto", "bfloat16", "bf16", "float16", "half", "float32", "float", ""];
    !own.contains(&name)
}

/// SGLang's preferred parameters, which it shows as they were given: as JSON, or as text that is
/// JSON.
fn preferred_params(value: Option<&Value>) -> Map<String, Value> {
    match value {
        Some(Value::Object(values)) => values.clone(),
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_default(),
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &[u8] = include_bytes!("../../../tests/tapes/vllm/server_info.json");
    /// Started with `--generation-config vllm --override-generation-config '{"top_k": 5}'
    /// --logprobs-mode processed_logprobs`.
    const VLLM_OWN: &[u8] = include_bytes!("../../../tests/tapes/vllm/server_info_own.json");
    const SGLANG: &[u8] = include_bytes!("../../../tests/tapes/sglang/server_info.json");
    /// Started with `--sampling-defaults openai --preferred-sampling-params '{"temperature": 0.7}'`.
    const SGLANG_OWN: &[u8] = include_bytes!("../../../tests/tapes/sglang/server_info_own.json");
    const LLAMACPP: &[u8] = include_bytes!("../../../tests/tapes/llamacpp/props.json");

    fn sampling_of(dialect: Dialect, page: &[u8]) -> ServerSampling {
        let mut sampling = ServerSampling::for_dialect(dialect);
        assert!(sampling.take(page));
        sampling
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
    fn a_server_with_the_model_s_file_does_not_tell_its_defaults() {
        let vllm = sampling_of(Dialect::Vllm, VLLM);
        assert_eq!((vllm.logprob_kind(), vllm.source()), (Some("raw"), Some("auto")));
        let sglang = sampling_of(Dialect::Sglang, SGLANG);
        assert_eq!((sglang.logprob_kind(), sglang.source()), (None, Some("model")));
        for sampling in [vllm, sglang] {
            assert!(!sampling.knows_defaults() && sampling.default_of("top_p").is_none());
        }
        assert!(
            ServerSampling::for_dialect(Dialect::Vllm).default_of("presence_penalty").is_none()
        );
        assert!(
            ServerSampling::for_dialect(Dialect::Sglang).default_of("presence_penalty").is_some()
        );
    }

    #[test]
    fn neutral_defaults_are_known_and_what_overrides_them() {
        let vllm = sampling_of(Dialect::Vllm, VLLM_OWN);
        assert!(vllm.knows_defaults());
        assert_eq!(
            (vllm.logprob_kind(), vllm.non_neutral_defaults()),
            (Some("processed"), vec!["top_k 5".to_owned()])
        );
        let plain = with(VLLM_OWN, &[(r#"{"top_k":5}"#, "{}")]);
        assert!(sampling_of(Dialect::Vllm, &plain).non_neutral_defaults().is_empty());
        let hot = sampling_of(Dialect::Sglang, SGLANG_OWN);
        assert!(!hot.knows_defaults() && hot.default_of("temperature").is_none());
        assert!(hot.default_of("top_p").is_some());
        let preferred = r#"{"temperature":0.7}"#;
        assert!(
            sampling_of(Dialect::Sglang, &with(SGLANG_OWN, &[(preferred, "null")]))
                .knows_defaults()
        );
    }

    #[test]
    fn a_kv_cache_of_fewer_bits_is_told() {
        let vllm = |dtype: &str| {
            let page = json!({"vllm_config": {"model_config": {}, "cache_config": {
                "cache_dtype": dtype}}});
            sampling_of(Dialect::Vllm, page.to_string().as_bytes())
        };
        assert_eq!(vllm("fp8_e4m3").kv_cache(), Some("fp8_e4m3"));
        assert_eq!([vllm("auto").kv_cache(), vllm("bfloat16").kv_cache()], [None, None]);
        let page = br#"{"sampling_defaults":"model","kv_cache_dtype":"fp8_e5m2"}"#;
        assert_eq!(sampling_of(Dialect::Sglang, page).kv_cache(), Some("fp8_e5m2"));
        assert_eq!(sampling_of(Dialect::Sglang, SGLANG).kv_cache(), None);
    }

    #[test]
    fn llamacpp_tells_every_default() {
        let llamacpp = sampling_of(Dialect::Llamacpp, LLAMACPP);
        assert!(llamacpp.knows_defaults());
        let mut bending = llamacpp.non_neutral_defaults();
        bending.sort();
        let bending = bending.join(", ");
        assert_eq!(
            bending,
            "min_p 0.05000000074505806, temperature 0.800000011920929, top_k 40, \
             top_p 0.949999988079071"
        );
        let (path, body) = llamacpp.end_token_request().unwrap();
        assert!(path == "/tokenize" && body.windows(10).any(|w| w == b"<|im_end|>"));
        let end_after = |answer: &[u8]| {
            let mut llamacpp = llamacpp.clone();
            llamacpp.take_end_token(answer);
            llamacpp.end_token()
        };
        assert_eq!(end_after(br#"{"tokens":[390]}"#), Some(390));
        assert_eq!(end_after(br#"{"tokens":[3,9]}"#), None);
        let mut silent = ServerSampling::for_dialect(Dialect::Vllm);
        assert!(!silent.take(br#"{"detail":"Not Found"}"#) && !silent.take(b"<html>"));
        assert_eq!(silent, ServerSampling::for_dialect(Dialect::Vllm));
    }
}
