//! Attributes, and what all that is sent has in common.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::environment;
use crate::exit::Failure;

/// Version of the conventions.
pub(super) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";

/// The resource that everything is sent about.
///
/// # Errors
/// [`Failure`] if a variable of OpenTelemetry is malformed.
pub(super) fn resource() -> Result<Resource, Failure> {
    let mut attributes = Attributes::default();
    for (name, value) in environment::resource()? {
        attributes = attributes.text(&name, value.as_str());
    }
    Ok(Resource { attributes: attributes.0, ..Resource::default() })
}

/// The name of what made it.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "rolltape".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    }
}

/// Attributes of a span, a log record or a point. What is not known is left out.
#[derive(Default)]
pub(super) struct Attributes(pub(super) Vec<KeyValue>);

impl Attributes {
    pub(super) fn text<'a>(self, name: &str, value: impl Into<Option<&'a str>>) -> Self {
        self.with(name, value.into().map(string))
    }

    pub(super) fn list(self, name: &str, only: Option<&str>) -> Self {
        let values = |only| vec![AnyValue { value: Some(string(only)) }];
        self.with(name, only.map(|only| Value::ArrayValue(ArrayValue { values: values(only) })))
    }

    pub(super) fn count(self, name: &str, value: impl Into<Option<u64>>) -> Self {
        self.with(name, value.into().map(|count| Value::IntValue(count as i64)))
    }

    pub(super) fn number(self, name: &str, value: Option<f64>) -> Self {
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

/// A text as a value.
pub(super) fn string(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}

/// A time of the store, in nanoseconds.
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    // Times of the store are whole microseconds, which `f64` holds.
    (seconds * 1e6).round() as u64 * 1_000
}
