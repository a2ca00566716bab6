//! The dialects of upstreams.

use serde_json::Value;

use crate::json::tree;

/// The dialect of an upstream: which fields it accepts, and where its answers stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM's OpenAI server, with its frontend in Python or in Rust.
    Vllm,
    /// SGLang's OpenAI server.
    Sglang,
    /// llama.cpp's server.
    Llamacpp,
    /// rolltape's own engine, which follows vLLM.
    Rolltape,
    /// Any other OpenAI-compatible server. It is asked for nothing unless the user gave a
    /// vocabulary to read logprobs with; data that it sends by itself is kept.
    OpenAi,
}

impl Dialect {
    const ALL: [Self; 5] = [Self::Vllm, Self::Sglang, Self::Llamacpp, Self::Rolltape, Self::OpenAi];

    /// The dialect that a user names by `word`.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.as_str() == word)
    }

    /// The word by which a user names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Llamacpp => "llamacpp",
            Self::Rolltape => "rolltape",
            Self::OpenAi => "openai",
        }
    }

    /// The distribution of the server's logprobs unless it was started otherwise: `raw` (before
    /// temperature), `temperature` (the full softmax after it), `processed` (the distribution that
    /// was sampled from), `unknown`.
    pub fn logprob_kind(self) -> &'static str {
        match self {
            Self::Vllm | Self::Llamacpp => "raw",
            Self::Sglang => "temperature",
            Self::Rolltape => "processed",
            Self::OpenAi => "unknown",
        }
    }
}

/// The owner of the models of a vLLM that was started with `VLLM_USE_RUST_FRONTEND=1`.
const RUST_FRONTEND: &str = "vllm-frontend-rs";

/// The dialect of the server that sent this list of models; `openai` if the list does not tell.
pub fn dialect_of_models(models: &[u8]) -> Dialect {
    let list = tree(models).unwrap_or_default();
    match list.pointer("/data/0/owned_by").and_then(Value::as_str) {
        Some(RUST_FRONTEND) => Dialect::Vllm,
        Some(owner) => Dialect::from_word(owner).unwrap_or(Dialect::OpenAi),
        None => Dialect::OpenAi,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_the_models_names_the_server() {
        for dialect in Dialect::ALL {
            let list = format!(r#"{{"data":[{{"id":"m","owned_by":"{}"}}]}}"#, dialect.as_str());
            assert_eq!(dialect_of_models(list.as_bytes()), dialect);
        }
        let rust = br#"{"data":[{"id":"m","owned_by":"vllm-frontend-rs"}]}"#;
        assert_eq!(dialect_of_models(rust), Dialect::Vllm);
        for unknown in ["", "[]", r#"{"data":[]}"#, r#"{"data":[{"owned_by":"system"}]}"#] {
            assert_eq!(dialect_of_models(unknown.as_bytes()), Dialect::OpenAi);
        }
    }
}
