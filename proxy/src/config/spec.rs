//! An engine as a user names it, in an option, a file or a request.

use std::collections::HashSet;
use std::str::FromStr;
use std::time::Duration;

use hyper::header::HeaderName;
use thiserror::Error;
use wire::Dialect;

use crate::bounds::{ENGINE_NAME_BYTES_MAX, ENGINE_WEIGHT_MAX, ENGINES_MAX, STALLED_AFTER};
use crate::config::address::{InvalidUpstream, Upstream};

/// One of several upstreams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSpec {
    /// The name in records, metrics and routes. Proxies that share engines must name them alike.
    pub name: String,
    /// The server.
    pub upstream: Upstream,
    /// Its dialect; that of all if `None`.
    pub dialect: Option<Dialect>,
    /// Its share of the threads, beside the weights of the others.
    pub weight: u32,
    /// Maximum number of calls in flight there; no limit if `None`.
    pub calls_max: Option<usize>,
}

/// A text that names no engine.
#[derive(Debug, Clone, Error)]
pub enum InvalidEngine {
    /// The address cannot be used.
    #[error(transparent)]
    Upstream(#[from] InvalidUpstream),
    /// The text has no address.
    #[error("there is no address; give URL, or URL name=NAME weight=N calls=N dialect=DIALECT")]
    NoAddress,
    /// A word after the address is unknown.
    #[error("`{0}` is unknown; after the address come name=, weight=, calls= and dialect=")]
    Unknown(String),
    /// A value is not valid.
    #[error("`{0}` is not valid; give {1}")]
    Value(String, &'static str),
    /// Two engines have one name.
    #[error("two upstreams have the name `{0}`; give each its own with name=")]
    Twice(String),
    /// There are more engines than a proxy takes.
    #[error("there are more than {ENGINES_MAX} upstreams")]
    TooMany,
}

impl From<Upstream> for EngineSpec {
    fn from(upstream: Upstream) -> Self {
        Self { name: upstream.short_name(), upstream, dialect: None, weight: 1, calls_max: None }
    }
}

impl FromStr for EngineSpec {
    type Err = InvalidEngine;

    /// Reads `URL [name=NAME] [weight=N] [calls=N] [dialect=DIALECT]`.
    fn from_str(line: &str) -> Result<Self, InvalidEngine> {
        let mut words = line.split_whitespace();
        let mut spec =
            Self::from(words.next().ok_or(InvalidEngine::NoAddress)?.parse::<Upstream>()?);
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "name" => spec.name = value.to_owned(),
                "weight" => spec.weight = number(word, value)?,
                "calls" => spec.calls_max = Some(number(word, value)?),
                "dialect" => spec.dialect = Some(Self::dialect_named(value)?),
                _ => return Err(InvalidEngine::Unknown(word.to_owned())),
            }
        }
        spec.checked()
    }
}

fn number<T: FromStr>(word: &str, value: &str) -> Result<T, InvalidEngine> {
    value.parse().map_err(|_| InvalidEngine::Value(word.to_owned(), "a number from 1"))
}

impl EngineSpec {
    /// The dialect that a word names.
    ///
    /// # Errors
    /// [`InvalidEngine`] if it names none.
    pub fn dialect_named(word: &str) -> Result<Dialect, InvalidEngine> {
        let expected = "vllm, sglang, llamacpp, rolltape or openai";
        Dialect::from_word(word).ok_or_else(|| InvalidEngine::Value(word.to_owned(), expected))
    }

    /// The same if its values are within their bounds.
    ///
    /// # Errors
    /// [`InvalidEngine`] if one is not.
    pub fn checked(self) -> Result<Self, InvalidEngine> {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "._:@-".contains(c);
        let is_named = !self.name.is_empty() && self.name.len() <= ENGINE_NAME_BYTES_MAX;
        if !is_named || !self.name.chars().all(is_letter) {
            let expected = "a name of letters, digits and . _ : @ -";
            return Err(InvalidEngine::Value(self.name, expected));
        }
        if self.weight == 0 || self.weight > ENGINE_WEIGHT_MAX {
            return Err(InvalidEngine::Value(self.weight.to_string(), "a weight from 1 to 1000"));
        }
        if self.calls_max == Some(0) {
            return Err(InvalidEngine::Value("calls=0".to_owned(), "a number from 1"));
        }
        Ok(self)
    }

    /// The engines in a text with one on each line; `#` begins a comment.
    ///
    /// # Errors
    /// [`InvalidEngine`] if a line names none, or two have one name.
    pub fn lines(text: &str) -> Result<Vec<Self>, InvalidEngine> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let specs: Vec<Self> =
            lines.filter(|line| !line.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
        check_all(&specs)?;
        Ok(specs)
    }
}

/// Refuses engines that share a name, and too many.
///
/// # Errors
/// [`InvalidEngine`] with the reason.
pub(crate) fn check_all(specs: &[EngineSpec]) -> Result<(), InvalidEngine> {
    let mut names = HashSet::new();
    if let Some(twice) = specs.iter().find(|spec| !names.insert(&spec.name)) {
        return Err(InvalidEngine::Twice(twice.name.clone()));
    }
    if specs.len() > ENGINES_MAX { Err(InvalidEngine::TooMany) } else { Ok(()) }
}

/// Settings of the engines together.
#[derive(Debug, Clone)]
pub struct FleetSettings {
    /// The engines; that of [`Config::upstream`](crate::Config) alone if empty.
    pub engines: Vec<EngineSpec>,
    /// True if engines come and go, although there may be one now.
    pub is_open: bool,
    /// The header that tells the upstream which thread a call belongs to.
    pub session_header: Option<HeaderName>,
    /// True if an engine with older weights than those that were acknowledged last gets no calls.
    pub fences_versions: bool,
    /// Longest time for which a call waits where an upstream answers 429 or 503; zero to pass such
    /// answers on.
    pub absorb_for: Duration,
    /// Least time for which calls of several attempts get no answer before their engine gets no new
    /// threads; zero to give it some however long they wait.
    pub stalled_after: Duration,
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self {
            engines: Vec::new(),
            is_open: false,
            session_header: None,
            fences_versions: true,
            absorb_for: Duration::ZERO,
            stalled_after: STALLED_AFTER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_an_engine_and_its_limits() {
        let spec: EngineSpec =
            "http://a:8000/v1 weight=2 calls=64 dialect=vllm name=big".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.weight, spec.calls_max), ("big", 2, Some(64)));
        assert_eq!(spec.dialect, Some(Dialect::Vllm));
        assert_eq!("https://h/llm/v1".parse::<EngineSpec>().unwrap().name, "h-llm");
        for bad in
            ["", "a", "http://a weight=0", "http://a calls=0", "http://a x=1", "http://a name="]
        {
            assert!(bad.parse::<EngineSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_has_an_engine_on_each_line() {
        let read = EngineSpec::lines("# both\nhttp://a:1\n\nhttp://b:1 weight=3 # big\n").unwrap();
        assert_eq!(read.iter().map(|spec| spec.weight).collect::<Vec<_>>(), [1, 3]);
        let twice = EngineSpec::lines("http://a:1\nhttp://a:1/v1\n").unwrap_err();
        assert!(matches!(twice, InvalidEngine::Twice(name) if name == "a:1"));
    }
}
