//! The models that the upstream lists.

use std::sync::{Mutex, PoisonError};

use wire::ServerInfo;

/// The models that the upstream listed last.
#[derive(Debug, Default)]
pub(super) struct ModelList(Mutex<Vec<String>>);

impl ModelList {
    /// True if `name` is one of the models, or an adapter of one (`BASE:ADAPTER`).
    pub(super) fn contains(&self, name: &str) -> bool {
        let base = name.split(':').next().unwrap_or(name);
        let models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        models.iter().any(|model| model == name || model == base)
    }

    /// Replaces the models by those in the reply to `GET /v1/models`.
    pub(super) fn replace(&self, reply: &[u8]) {
        let mut server = ServerInfo::default();
        server.take_models(reply);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = server.models;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_goes_by_its_model() {
        let models = ModelList::default();
        assert!(!models.contains("m"));
        models.replace(br#"{"data":[{"id":"m"},{"id":"lora"}]}"#);
        assert!(models.contains("m") && models.contains("m:any") && models.contains("lora"));
        assert!(!models.contains("n") && !models.contains("n:m"));
        let anthropics = br#"{"data":[{"type":"model","id":"claude-a","display_name":"A"}],
            "has_more":false,"first_id":"claude-a","last_id":"claude-a"}"#;
        models.replace(anthropics);
        assert!(models.contains("claude-a") && !models.contains("m"));
    }
}
