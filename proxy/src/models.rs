//! The models that the upstream lists: asked for where a call names one that is not known.

use std::sync::{Mutex, PoisonError};

use hyper::HeaderMap;
use wire::Server;

use crate::forward::Forward;
use crate::rewrite::Plan;

/// The models that the upstream listed last.
#[derive(Debug, Default)]
pub(crate) struct Models(Mutex<Vec<String>>);

impl Models {
    /// Whether `name` is one of them, or an adapter of one (`BASE:ADAPTER`).
    fn hold(&self, name: &str) -> bool {
        let base = name.split(':').next().unwrap_or(name);
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.iter().any(|held| held == name || held == base)
    }

    fn take(&self, list: &[u8]) {
        let mut server = Server::default();
        server.take_models(list);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = server.models;
    }
}

impl Forward {
    /// The plan for a call whose model the server's own route would look for: a model that it does
    /// not have is its own route's to refuse.
    pub(crate) async fn fit<'a>(&self, plan: Plan<'a>, agent: &HeaderMap) -> Plan<'a> {
        match plan.doubted_model() {
            Some(name) if !self.has_model(&name, agent).await => plan.untranslated(),
            _ => plan,
        }
    }

    /// Whether the upstream has a model of this name; true where it does not say.
    async fn has_model(&self, name: &str, agent: &HeaderMap) -> bool {
        if self.models.hold(name) {
            return true;
        }
        match self.fetch("/v1/models", agent).await {
            Ok((status, list)) if status.is_success() => self.models.take(&list),
            _ => return true,
        }
        self.models.hold(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_goes_by_its_model() {
        let models = Models::default();
        assert!(!models.hold("m"));
        models.take(br#"{"data":[{"id":"m"},{"id":"lora"}]}"#);
        assert!(models.hold("m") && models.hold("m:any") && models.hold("lora"));
        assert!(!models.hold("n") && !models.hold("n:m"));
    }
}
