//! Spans of changes, after the semantic conventions for generative AI.

use std::collections::{HashSet, VecDeque};

use blake3::Hasher;
use episode::{AttemptId, INFRASTRUCTURE_FAILED};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use serde::Deserialize;
use store::Location;
use viewer::{CallEvent, EpisodeView, RewardEvent};

use super::attributes::{Attributes, SCHEMA_URL, nanoseconds, scope};
use super::call::{self, Trace, call_span, fault, operation};

/// Closed attempts that are remembered, so that a later change does not send their span again.
const CLOSED_MAX: usize = 10_000;

/// Makes spans of the changes of one store.
pub(super) struct SpanMaker {
    /// Name of the store: two stores may have episodes of one name.
    store: String,
    resource: Resource,
    closed: VecDeque<AttemptId>,
    known: HashSet<AttemptId>,
}

impl SpanMaker {
    /// Makes spans of `store`, which are about `resource`.
    pub(super) fn new(store: &Location, resource: Resource) -> Self {
        let (closed, known) = (VecDeque::new(), HashSet::new());
        Self { store: store.to_string(), resource, closed, known }
    }

    /// The request that carries the spans of changes, and their number; `None` if there are none.
    pub(super) fn request(
        &mut self,
        changes: &[(&'static str, String)],
    ) -> Option<(ExportTraceServiceRequest, u64)> {
        let spans: Vec<Span> = changes
            .iter()
            .filter_map(|(kind, document)| match *kind {
                "call" => self.call(&read(document)?),
                "reward" => Some(self.reward(&read(document)?)),
                "episode" => self.attempt(&read(document)?),
                _ => None,
            })
            .collect();
        if spans.is_empty() {
            return None;
        }

        let count = spans.len() as u64;
        let scoped = ScopeSpans { scope: Some(scope()), spans, schema_url: SCHEMA_URL.into() };
        let of_resource = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![scoped],
            ..ResourceSpans::default()
        };
        Some((ExportTraceServiceRequest { resource_spans: vec![of_resource] }, count))
    }

    /// The span of a call that has ended, if the model was asked for something.
    fn call(&self, call: &CallEvent) -> Option<Span> {
        let outcome = call.outcome.as_deref()?;
        let operation = operation(&call.route)?;
        let trace = self.trace(&call.episode_id, call.attempt);
        let duration_ms = call.duration_ms.unwrap_or_default();
        let fault = fault(call, outcome);

        Some(Span {
            span_id: call_span(&call.call_id),
            parent_span_id: trace.root,
            trace_id: trace.id,
            name: named(operation, call.model.as_deref()),
            kind: SpanKind::Client.into(),
            start_time_unix_nano: nanoseconds(call.started_at),
            end_time_unix_nano: nanoseconds(call.started_at + duration_ms / 1e3),
            attributes: call::attributes(call, outcome).0,
            status: fault.map(|fault| failed(call.error.clone().unwrap_or(fault))),
            ..Span::default()
        })
    }

    /// The span of an attempt that was closed.
    fn attempt(&mut self, attempt: &EpisodeView) -> Option<Span> {
        let closed_at = attempt.closed_at?;
        let id = AttemptId { episode: attempt.episode_id.parse().ok()?, attempt: attempt.attempt };
        if !self.remember(id) {
            return None;
        }

        let trace = self.trace(&attempt.episode_id, attempt.attempt);
        let mut attributes = Attributes::default()
            .text("gen_ai.operation.name", "invoke_agent")
            .text("gen_ai.conversation.id", attempt.episode_id.as_str())
            .text("gen_ai.request.model", attempt.model.as_deref())
            .count("gen_ai.usage.input_tokens", attempt.prompt_tokens)
            .count("gen_ai.usage.output_tokens", attempt.completion_tokens)
            .count("rolltape.attempt", u64::from(attempt.attempt))
            .text("rolltape.group_id", attempt.group_id.as_deref())
            .text("rolltape.task_id", attempt.task_id.as_deref())
            .text("rolltape.state", attempt.state.as_str())
            .count("rolltape.calls", attempt.calls);
        for (name, value) in &attempt.labels {
            attributes = attributes.text(&format!("rolltape.label.{name}"), value.as_str());
        }

        let has_failed = ["failed", INFRASTRUCTURE_FAILED].contains(&attempt.state.as_str());
        Some(Span {
            span_id: trace.root,
            trace_id: trace.id,
            name: "invoke_agent".into(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: nanoseconds(attempt.opened_at),
            end_time_unix_nano: nanoseconds(closed_at),
            attributes: attributes.0,
            status: has_failed.then(|| failed("the episode failed".into())),
            ..Span::default()
        })
    }

    /// The span of a reward, which takes no time. Its parent is what the reward is of.
    fn reward(&self, reward: &RewardEvent) -> Span {
        let trace = self.trace(&reward.episode_id, reward.attempt);
        let attributes = Attributes::default()
            .text("gen_ai.evaluation.name", reward.name.as_str())
            .number("gen_ai.evaluation.score.value", reward.value)
            .text("gen_ai.conversation.id", reward.episode_id.as_str())
            .text("rolltape.source", reward.source.as_str())
            .text("rolltape.scope", reward.scope.as_str());

        let at = nanoseconds(reward.given_at);
        let mut hasher = Hasher::new();
        hasher.update(&trace.id).update(reward.name.as_bytes()).update(&at.to_le_bytes());
        hasher.update(reward.call_id.as_deref().unwrap_or_default().as_bytes());
        Span {
            span_id: hasher.finalize().as_bytes()[..8].to_vec(),
            parent_span_id: reward.call_id.as_deref().map_or(trace.root, call_span),
            trace_id: trace.id,
            name: format!("evaluation {}", reward.name),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: at,
            end_time_unix_nano: at,
            attributes: attributes.0,
            ..Span::default()
        }
    }

    fn trace(&self, episode: &str, attempt: u32) -> Trace {
        Trace::of(&self.store, episode, attempt)
    }

    /// Remembers a closed attempt. False if it was closed before.
    fn remember(&mut self, attempt: AttemptId) -> bool {
        if !self.known.insert(attempt.clone()) {
            return false;
        }
        self.closed.push_back(attempt);
        if self.closed.len() > CLOSED_MAX
            && let Some(oldest) = self.closed.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// A document of the viewer.
pub(super) fn read<'a, T: Deserialize<'a>>(document: &'a str) -> Option<T> {
    serde_json::from_str(document).ok()
}

fn failed(message: String) -> Status {
    Status { message, code: StatusCode::Error.into() }
}

fn named(operation: &str, model: Option<&str>) -> String {
    model.map_or_else(|| operation.to_owned(), |model| format!("{operation} {model}"))
}
