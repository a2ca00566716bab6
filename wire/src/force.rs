//! Sampling parameters that the user sets in the agent's place.

use std::borrow::Cow;
use std::str::FromStr;

use bytes::Bytes;
use serde_json::Value;
use thiserror::Error;

use crate::dialect::Dialect;
use crate::request::{Request, SAMPLING};

/// Sampling parameters with the values that every request gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Force(Vec<(&'static str, Setting)>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Setting {
    /// JSON text.
    To(String),
    Off,
}

/// What is not a list of sampling parameters.
#[derive(Debug, Clone, Error)]
#[error("`{0}` is not a sampling parameter with a value; give NAME=VALUE,... or NAME=off")]
pub struct BadForce(String);

impl FromStr for Force {
    type Err = BadForce;

    fn from_str(text: &str) -> Result<Self, BadForce> {
        let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
        let setting = |pair: &str| {
            let (name, value) = pair.split_once('=')?;
            let name = SAMPLING.into_iter().find(|known| *known == name.trim())?;
            match value.trim() {
                "off" => Some((name, Setting::Off)),
                value => {
                    let parsed: Value = serde_json::from_str(value).ok()?;
                    Some((name, Setting::To(parsed.to_string())))
                }
            }
        };
        let settings: Option<Vec<_>> = pairs.map(setting).collect();
        settings.map(Self).ok_or_else(|| BadForce(text.to_owned()))
    }
}

impl std::fmt::Display for Force {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs = self.0.iter().map(|(name, setting)| match setting {
            Setting::To(value) => format!("{name}={value}"),
            Setting::Off => format!("{name}=off"),
        });
        f.write_str(&pairs.collect::<Vec<_>>().join(","))
    }
}

impl Force {
    /// Whether nothing is forced.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `name` is forced.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.0.iter().any(|(forced, _)| *forced == name)
    }

    /// The sampling parameters of `request` as they are once forced, as a JSON object; `None`
    /// when there are none. A filter that is off has the value that vLLM has for it.
    pub fn sampling(&self, request: &Request) -> Option<String> {
        let body = self.apply(Dialect::Vllm, request);
        Request::read(&body)?.sampling()
    }

    /// `request` with its sampling as forced; every other byte stays.
    pub fn apply(&self, dialect: Dialect, request: &Request) -> Bytes {
        if self.is_empty() {
            return request.body().clone();
        }
        let value = |name, setting: &Setting| match setting {
            Setting::To(value) => Some(Cow::Owned(value.clone())),
            Setting::Off => off(dialect, name).map(Cow::Borrowed),
        };
        let settings = self.0.iter().map(|(name, setting)| (*name, value(name, setting)));
        let (set, gone): (Vec<_>, Vec<_>) = settings.partition(|(_, value)| value.is_some());
        let set: Vec<_> =
            set.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let gone: Vec<_> = gone.into_iter().map(|(name, _)| name).collect();
        let body = if gone.is_empty() { request.body().clone() } else { request.without(&gone) };
        Request::read(&body).map_or(body, |request| request.edited(&set, &[]))
    }
}

/// The value that says "do not filter": leaving the field out lets the server's own defaults in.
/// `None` where the server does not know the field, or where nothing means that.
fn off(dialect: Dialect, name: &str) -> Option<&'static str> {
    let hosted = dialect == Dialect::OpenAi;
    match name {
        "top_p" => Some("1"),
        "presence_penalty" | "frequency_penalty" => Some("0"),
        _ if hosted => None,
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
        force.parse::<Force>().unwrap().apply(dialect, &request)
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
            assert!(bad.parse::<Force>().is_err(), "{bad}");
        }
        let force: Force = "top_p=1.0,top_k=off".parse().unwrap();
        assert_eq!(force.to_string(), "top_p=1.0,top_k=off");
    }
}
