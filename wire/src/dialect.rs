//! The manners of speech of upstreams.

/// The manner of speech of an upstream: what may be asked and where the answers come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM's OpenAI server, with its frontend in Python or in Rust.
    Vllm,
    /// SGLang's OpenAI server.
    Sglang,
    /// llama.cpp's server.
    Llamacpp,
    /// rolltape's own engine, which speaks as vLLM does.
    Rolltape,
    /// Any other OpenAI-compatible server. Nothing is asked for unless the user gave a vocabulary
    /// to read logprobs with; what comes by itself is kept.
    OpenAi,
}

impl Dialect {
    const ALL: [Self; 5] = [Self::Vllm, Self::Sglang, Self::Llamacpp, Self::Rolltape, Self::OpenAi];

    /// The dialect that a user names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.as_str() == word)
    }

    /// The word a user names it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Llamacpp => "llamacpp",
            Self::Rolltape => "rolltape",
            Self::OpenAi => "openai",
        }
    }

    /// What the server's logprobs are unless it was started otherwise: `raw` (before
    /// temperature), `temperature` (the full softmax after it), `processed` (what was sampled
    /// from), `unknown`.
    pub fn logprob_kind(self) -> &'static str {
        match self {
            Self::Vllm | Self::Llamacpp => "raw",
            Self::Sglang => "temperature",
            Self::Rolltape => "processed",
            Self::OpenAi => "unknown",
        }
    }
}

/// What owns the models of a vLLM that was started with `VLLM_USE_RUST_FRONTEND=1`.
const RUST_FRONTEND: &str = "vllm-frontend-rs";

/// The dialect of the server whose list of models this is; `openai` when it does not say.
pub fn dialect_of_models(models: &[u8]) -> Dialect {
    let owner =
        serde_json::from_slice::<serde_json::Value>(models).ok().and_then(|list| {
            match list.get("data")?.get(0)?.get("owned_by")?.as_str()? {
                RUST_FRONTEND => Some(Dialect::Vllm),
                owner => Dialect::from_word(owner),
            }
        });
    owner.unwrap_or(Dialect::OpenAi)
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
