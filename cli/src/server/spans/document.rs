//! Spans of changes, after the semantic conventions for generative AI.

use std::collections::{HashSet, VecDeque};

use blake3::Hasher;
use episode::{AttemptId, INFRASTRUCTURE_FAILED};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use serde::Deserialize;
use uuid::Uuid;
use viewer::{CallEvent, EpisodeView, RewardEvent};

use super::collector::resource;
use crate::exit::Failure;

/// Closed attempts that are remembered, so that a later change does not send their span again.
const CLOSED_MAX: usize = 10_000;
/// Version of the conventions.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";

/// Makes spans of the changes of one store.
pub(super) struct SpanMaker {
    /// Name of the store: two stores may have episodes of one name.
    store: String,
    resource: Resource,
    closed: VecDeque<AttemptId>,
    known: HashSet<AttemptId>,
}

/// The ids of an attempt's trace.
struct Trace {
    id: Vec<u8>,
    /// The span of the attempt itself.
    root: Vec<u8>,
}

impl SpanMaker {
    /// Makes spans of `store`.
    ///
    /// # Errors
    /// [`Failure`] if a variable of OpenTelemetry is malformed.
    pub(super) fn new(store: &str) -> Result<Self, Failure> {
        let mut attributes = Attributes::default();
        for (name, value) in resource()? {
            attributes = attributes.text(&name, value.as_str());
        }
        Ok(Self {
            store: store.to_owned(),
            resource: Resource { attributes: attributes.0, ..Resource::default() },
            closed: VecDeque::new(),
            known: HashSet::new(),
        })
    }

    /// The request that carries the spans of changes; `None` if there are none.
    pub(super) fn request(
        &mut self,
        changes: &[(&'static str, String)],
    ) -> Option<ExportTraceServiceRequest> {
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

        let scope = InstrumentationScope {
            name: "rolltape".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..InstrumentationScope::default()
        };
        let scoped = ScopeSpans { scope: Some(scope), spans, schema_url: SCHEMA_URL.into() };
        let of_resource = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![scoped],
            ..ResourceSpans::default()
        };
        Some(ExportTraceServiceRequest { resource_spans: vec![of_resource] })
    }

    /// The span of a call that has ended, if the model was asked for something.
    fn call(&self, call: &CallEvent) -> Option<Span> {
        let outcome = call.outcome.as_deref()?;
        let operation = operation(&call.route)?;
        let trace = self.trace(&call.episode_id, call.attempt);
        let duration_ms = call.duration_ms.unwrap_or_default();
        let fault = fault(call, outcome);
        let attributes = Attributes::default()
            .text("gen_ai.operation.name", operation)
            .text("gen_ai.provider.name", provider(&call.route))
            .text("gen_ai.conversation.id", call.episode_id.as_str())
            .text("gen_ai.agent.name", call.agent.as_deref())
            .text("gen_ai.request.model", call.model.as_deref())
            .count("gen_ai.usage.input_tokens", call.prompt_tokens)
            .count("gen_ai.usage.output_tokens", call.completion_tokens)
            .list("gen_ai.response.finish_reasons", call.finish_reason.as_deref())
            .text("http.request.method", call.method.as_str())
            .text("url.path", call.path.split('?').next())
            .count("http.response.status_code", call.status.map(u64::from))
            .text("error.type", fault.as_deref())
            .text("user_agent.name", call.client.as_deref())
            .text("rolltape.call_id", call.call_id.as_str())
            .count("rolltape.attempt", u64::from(call.attempt))
            .text("rolltape.group_id", call.group_id.as_deref())
            .text("rolltape.kind", call.kind.as_str())
            .text("rolltape.outcome", outcome)
            .text("rolltape.version", call.version_start.as_deref())
            .number("rolltape.first_byte_ms", call.first_byte_ms);

        Some(Span {
            span_id: call_span(&call.call_id),
            parent_span_id: trace.root,
            trace_id: trace.id,
            name: named(operation, call.model.as_deref()),
            kind: SpanKind::Client.into(),
            start_time_unix_nano: nanoseconds(call.started_at),
            end_time_unix_nano: nanoseconds(call.started_at + duration_ms / 1e3),
            attributes: attributes.0,
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

    /// The trace of an attempt, the same whenever and wherever it is asked for.
    fn trace(&self, episode: &str, attempt: u32) -> Trace {
        let mut hasher = Hasher::new();
        hasher.update(self.store.as_bytes()).update(b"\0").update(episode.as_bytes());
        let hash = hasher.update(b"\0").update(&attempt.to_le_bytes()).finalize();
        let bytes = hash.as_bytes();
        Trace { id: bytes[..16].to_vec(), root: bytes[16..24].to_vec() }
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

/// Attributes of a span. What is not known is left out.
#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn text<'a>(self, name: &str, value: impl Into<Option<&'a str>>) -> Self {
        self.with(name, value.into().map(string))
    }

    fn list(self, name: &str, only: Option<&str>) -> Self {
        let values = |only| vec![AnyValue { value: Some(string(only)) }];
        self.with(name, only.map(|only| Value::ArrayValue(ArrayValue { values: values(only) })))
    }

    fn count(self, name: &str, value: impl Into<Option<u64>>) -> Self {
        self.with(name, value.into().map(|count| Value::IntValue(count as i64)))
    }

    fn number(self, name: &str, value: Option<f64>) -> Self {
        self.with(name, value.map(Value::DoubleValue))
    }

    fn with(mut self, name: &str, value: Option<Value>) -> Self {
        self.0.extend(value.map(|value| KeyValue {
            key: name.to_owned(),
            value: Some(AnyValue { value: Some(value) }),
            ..KeyValue::default()
        }));
        self
    }
}

fn string(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}

/// A document of the viewer.
fn read<'a, T: Deserialize<'a>>(document: &'a str) -> Option<T> {
    serde_json::from_str(document).ok()
}

/// The operation that a route asks of the model; `None` if it asks for none.
fn operation(route: &str) -> Option<&'static str> {
    match route {
        "chat" | "responses" | "messages" => Some("chat"),
        "completions" | "generate" => Some("text_completion"),
        "embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// The provider whose API the agent speaks, which need not be the one that answered.
fn provider(route: &str) -> &'static str {
    if route == "messages" { "anthropic" } else { "openai" }
}

/// The reason for which a call is a failure.
fn fault(call: &CallEvent, outcome: &str) -> Option<String> {
    match call.status {
        Some(status) if status >= 400 => Some(status.to_string()),
        _ => (outcome != "complete").then(|| outcome.to_owned()),
    }
}

fn failed(message: String) -> Status {
    Status { message, code: StatusCode::Error.into() }
}

/// The span of a call. Half of a call's id is random.
fn call_span(call_id: &str) -> Vec<u8> {
    let id = Uuid::parse_str(call_id).unwrap_or_default();
    id.as_bytes()[8..].to_vec()
}

fn named(operation: &str, model: Option<&str>) -> String {
    model.map_or_else(|| operation.to_owned(), |model| format!("{operation} {model}"))
}

fn nanoseconds(seconds: f64) -> u64 {
    // Times of the store are whole microseconds, which `f64` holds.
    (seconds * 1e6).round() as u64 * 1_000
}
