//! Sampling parameters that the user sets in the agent's place.

use std::borrow::Cow;
use std::str::FromStr;

use bytes::Bytes;
use serde_json::Value;
use thiserror::Error;

use crate::dialect::Dialect;
use crate::parameters;
use crate::request::Request;

/// Sampling parameters with the values that every request gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForcedSampling(Vec<(&'static str, Setting)>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Setting {
    /// A value, as JSON text.
    To(String),
    /// The value that turns the parameter off.
    Off,
}

/// A text that is not a list of sampling parameters.
#[derive(Debug, Clone, Error)]
#[error("`{0}` is not a sampling parameter with a value; give NAME=VALUE,... or NAME=off")]
pub struct ForcedSamplingError(String);

impl FromStr for ForcedSampling {
    type Err = ForcedSamplingError;

    fn from_str(text: &str) -> Result<Self, ForcedSamplingError> {
        text.split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
            .map(parse_pair)
            .collect::<Option<Vec<_>>>()
            .map(Self)
            .ok_or_else(|| ForcedSamplingError(text.to_owned()))
    }
}

/// Reads `NAME=VALUE` or `NAME=off`.
fn parse_pair(pair: &str) -> Option<(&'static str, Setting)> {
    let (name, value) = pair.split_once('=')?;
    let known = parameters::NAMES.into_iter().find(|known| *known == name.trim())?;
    match value.trim() {
        "off" => Some((known, Setting::Off)),
        json => {
            let parsed: Value = serde_json::from_str(json).ok()?;
            Some((known, Setting::To(parsed.to_string())))
        }
    }
}

impl std::fmt::Display for ForcedSampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs = self.0.iter().map(|(name, setting)| match setting {
            Setting::To(value) => format!("{name}={value}"),
            Setting::Off => format!("{name}=off"),
        });
        f.write_str(&pairs.collect::<Vec<_>>().join(","))
    }
}

impl ForcedSampling {
    /// Returns true if no parameter is forced.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the parameter `name` is forced.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(forced, _)| *forced == name)
    }

    /// The sampling parameters of `request` once forced, as a JSON object; `None` if there are
    /// none. A parameter that is off has the value that turns it off in vLLM.
    pub fn sampling(&self, request: &Request) -> Option<String> {
        if self.is_empty() {
            return request.sampling();
        }
        let body = self.apply(Dialect::Vllm, request);
        Request::read(&body)?.sampling()
    }

    /// The body of `request` with the forced parameters; every other byte stays.
    pub fn apply(&self, dialect: Dialect, request: &Request) -> Bytes {
        if self.is_empty() {
            return request.body().clone();
        }

        let (mut set, mut removed) = (Vec::new(), Vec::new());
        for (name, setting) in &self.0 {
            match setting {
                Setting::To(value) => set.push((*name, Cow::Owned(value.clone()))),
                Setting::Off => match value_when_off(dialect, name) {
                    Some(value) => set.push((*name, Cow::Borrowed(value))),
                    None => removed.push(*name),
                },
            }
        }

        let body =
            if removed.is_empty() { request.body().clone() } else { request.without(&removed) };
        Request::read(&body).map_or(body, |request| request.edited(&set, &[]))
    }
}

/// The value that turns a parameter off. Without the field, the server would use its own default.
/// `None` if the server does not know the field, or if no value turns it off.
fn value_when_off(dialect: Dialect, name: &str) -> Option<&'static str> {
    let is_hosted = dialect == Dialect::OpenAi;
    match name {
        "top_p" => Some("1"),
        "presence_penalty" | "frequency_penalty" => Some("0"),
        _ if is_hosted => None,
        "top_k" if dialect == Dialect::Llamacpp => Some("0"),
        "top_k" => Some("-1"),
        "min_p" => Some("0"),
        "repetition_penalty" => Some("1"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forced(force: &str, dialect: Dialect, body: &'static str) -> Bytes {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        force.parse::<ForcedSampling>().unwrap().apply(dialect, &request)
    }

    #[test]
    fn what_is_forced_replaces_what_the_agent_sent() {
        let body = r#"{"top_p":0.9, "seed":1,"top_k":5}"#;
        let force = "top_p=1, top_k=off,temperature=0.7";
        assert_eq!(
            forced(force, Dialect::Vllm, body),
            r#"{"top_p":1, "seed":1,"top_k":-1,"temperature":0.7}"#
        );
        assert_eq!(
            forced(force, Dialect::OpenAi, body),
            r#"{"top_p":1, "seed":1,"temperature":0.7}"#
        );
        assert_eq!(forced("seed=off", Dialect::Vllm, body), r#"{"top_p":0.9, "top_k":5}"#);
        assert_eq!(forced("", Dialect::Vllm, body), body);
    }

    #[test]
    fn what_is_not_a_parameter_is_refused() {
        for bad in ["top_p", "top_p=", "model=x", "top_p=hot", "=1"] {
            assert!(bad.parse::<ForcedSampling>().is_err(), "{bad}");
        }
        let force: ForcedSampling = "top_p=1.0,top_k=off".parse().unwrap();
        assert_eq!(force.to_string(), "top_p=1.0,top_k=off");
    }
}
