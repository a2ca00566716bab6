//! An upstream as the doctor and the audit see it.
//!
//! - [`ServerInfo`]: the server's description of itself.
//! - [`Probe`]: small requests that show what it reports.
//! - [`compare`]: a reply with our fields beside one without.
//! - [`ScoreQuestion`]: the logprobs of ids under its model.

mod compare;
mod probe;
mod score;

use serde_json::Value;

use crate::dialect::Dialect;
use crate::json::tree;
use crate::sse::documents;
pub use compare::{Comparison, Difference, compare};
pub use probe::Probe;
pub use score::{
    ScoreError, ScoreQuestion, TokenScore, adapter_request, around_questions, weights_request,
};

/// A server's description of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Its version, in its own words.
    pub version: Option<String>,
    /// The version of the weights that it serves now.
    pub weights: Option<String>,
    /// The `system_fingerprint` of its replies.
    pub fingerprint: Option<String>,
    /// The models that it lists.
    pub models: Vec<String>,
    /// True if a parser of tool calls or of reasoning is set; `None` if it does not say.
    pub parses: Option<bool>,
    /// True if a reply had a count of cached prompt tokens.
    pub tells_cached: bool,
}

impl ServerInfo {
    /// The paths where a server of `dialect` describes itself; later ones are older names.
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

    /// Takes a document of one of [`Self::paths`]. Facts that are known already stay.
    pub fn take(&mut self, document: &[u8]) {
        let Some(document) = tree(document) else { return };
        let text = |key: &str| document.get(key).and_then(Value::as_str).map(str::to_owned);

        let version = text("version").or_else(|| text("build_info"));
        self.version = self.version.take().or(version);
        self.weights = self.weights.take().or_else(|| text("weight_version"));
        let parsers = ["tool_call_parser", "reasoning_parser"].map(|key| document.get(key));
        if parsers.iter().any(Option::is_some) {
            self.parses = Some(parsers.into_iter().flatten().any(|parser| !parser.is_null()));
        }
    }

    /// Takes the list of models.
    pub fn take_models(&mut self, list: &[u8]) {
        let list = tree(list).unwrap_or_default();
        let models = list.get("data").and_then(Value::as_array).into_iter().flatten();
        self.models =
            models.filter_map(|model| Some(model.get("id")?.as_str()?.to_owned())).collect();
    }

    /// Takes a reply of any wire.
    pub fn take_reply(&mut self, reply: &[u8]) {
        for document in documents(reply) {
            let Some(document) = tree(&document) else { continue };
            let fingerprint = document.get("system_fingerprint").and_then(Value::as_str);
            self.fingerprint = self.fingerprint.take().or_else(|| fingerprint.map(str::to_owned));
            let cached = document.pointer("/usage/prompt_tokens_details/cached_tokens");
            self.tells_cached |= cached.is_some_and(Value::is_number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_tells_in_its_own_words() {
        let mut sglang = ServerInfo::default();
        sglang.take(br#"{"version":"0.5.23","tool_call_parser":null}"#);
        sglang.take(br#"{"weight_version":"7","reasoning_parser":"qwen3"}"#);
        assert_eq!(sglang.version.as_deref(), Some("0.5.23"));
        assert_eq!((sglang.weights.as_deref(), sglang.parses), (Some("7"), Some(true)));
        let mut llamacpp = ServerInfo::default();
        llamacpp.take(br#"{"build_info":"b1-c"}"#);
        llamacpp.take(b"<html>");
        llamacpp.take_reply(b"data: {\"system_fingerprint\":\"b1\"}\n\ndata: [DONE]\n\n");
        llamacpp.take_models(br#"{"data":[{"id":"m"},{"id":"n"}]}"#);
        assert_eq!(llamacpp.version.as_deref(), Some("b1-c"));
        assert_eq!(llamacpp.fingerprint.as_deref(), Some("b1"));
        assert_eq!(llamacpp.models, ["m", "n"]);
    }

    #[test]
    fn a_count_of_cached_tokens_is_noticed() {
        let mut server = ServerInfo::default();
        server.take_reply(br#"{"usage":{"prompt_tokens_details":null}}"#);
        assert!(!server.tells_cached);
        server.take_reply(br#"{"usage":{"prompt_tokens_details":{"cached_tokens":0}}}"#);
        assert!(server.tells_cached);
    }
}
