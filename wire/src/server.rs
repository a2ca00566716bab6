//! What a server says of itself, beside its replies.

use serde_json::Value;

use crate::dialect::Dialect;
use crate::sse::documents;

/// A server, as far as it tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// Its version, in its own words.
    pub version: Option<String>,
    /// The weights that it serves now.
    pub weights: Option<String>,
    /// What its replies call it.
    pub fingerprint: Option<String>,
    /// The models that it lists.
    pub models: Vec<String>,
    /// Whether it says that a parser of tool calls or of reasoning is set; `None` when it does not
    /// say.
    pub parses: Option<bool>,
    /// Whether a reply said how much of its prompt came out of a cache.
    pub tells_cached: bool,
}

impl Server {
    /// Where a server of this dialect tells about itself; later paths are older names.
    pub fn paths(dialect: Dialect) -> &'static [&'static str] {
        match dialect {
            Dialect::Vllm | Dialect::Rolltape => &["/version"],
            Dialect::Sglang => {
                &["/server_info", "/model_info", "/get_server_info", "/get_model_info"]
            }
            Dialect::Llamacpp => &["/props"],
            Dialect::OpenAi => &[],
        }
    }

    /// Takes a document of one of [`Self::paths`]. What is known already stays.
    pub fn take(&mut self, document: &[u8]) {
        let Ok(document) = serde_json::from_slice::<Value>(document) else { return };
        let text = |key: &str| document.get(key).and_then(Value::as_str).map(str::to_owned);
        self.version = self.version.take().or_else(|| text("version"));
        self.version = self.version.take().or_else(|| text("build_info"));
        self.weights = self.weights.take().or_else(|| text("weight_version"));
        let parsers = ["tool_call_parser", "reasoning_parser"].map(|key| document.get(key));
        if parsers.iter().any(Option::is_some) {
            self.parses = Some(parsers.into_iter().flatten().any(|parser| !parser.is_null()));
        }
    }

    /// Takes the list of models.
    pub fn take_models(&mut self, list: &[u8]) {
        let list: Value = serde_json::from_slice(list).unwrap_or_default();
        let cards = list.get("data").and_then(Value::as_array).into_iter().flatten();
        let name = |card: &Value| Some(card.get("id")?.as_str()?.to_owned());
        self.models = cards.filter_map(name).collect();
    }

    /// Takes a reply of any wire.
    pub fn heard(&mut self, reply: &[u8]) {
        for document in documents(reply) {
            if let Ok(document) = serde_json::from_slice(&document) {
                self.look(&document);
            }
        }
    }

    fn look(&mut self, reply: &Value) {
        let named = reply.get("system_fingerprint").and_then(Value::as_str);
        self.fingerprint = self.fingerprint.take().or_else(|| named.map(str::to_owned));
        let cached = reply.pointer("/usage/prompt_tokens_details/cached_tokens");
        self.tells_cached |= cached.is_some_and(Value::is_number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_tells_in_its_own_words() {
        let mut sglang = Server::default();
        sglang.take(br#"{"version":"0.5.23","tool_call_parser":null}"#);
        sglang.take(br#"{"weight_version":"7","reasoning_parser":"qwen3"}"#);
        assert_eq!(sglang.version.as_deref(), Some("0.5.23"));
        assert_eq!((sglang.weights.as_deref(), sglang.parses), (Some("7"), Some(true)));
        let mut llamacpp = Server::default();
        llamacpp.take(br#"{"build_info":"b1-c"}"#);
        llamacpp.take(b"<html>");
        llamacpp.heard(b"data: {\"system_fingerprint\":\"b1\"}\n\ndata: [DONE]\n\n");
        llamacpp.take_models(br#"{"data":[{"id":"m"},{"id":"n"}]}"#);
        assert_eq!(llamacpp.version.as_deref(), Some("b1-c"));
        assert_eq!(llamacpp.fingerprint.as_deref(), Some("b1"));
        assert_eq!(llamacpp.models, ["m", "n"]);
    }

    #[test]
    fn a_count_of_cached_tokens_is_noticed() {
        let mut server = Server::default();
        server.heard(br#"{"usage":{"prompt_tokens_details":null}}"#);
        assert!(!server.tells_cached);
        server.heard(br#"{"usage":{"prompt_tokens_details":{"cached_tokens":0}}}"#);
        assert!(server.tells_cached);
    }
}
