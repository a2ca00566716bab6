//! The parameters of a question: names and values, as in a query.

use std::str::FromStr;

use episode::Micros;
use store::{EpisodeFilter, EpisodePage, EpisodeState, OpenedKey};

use crate::bounds::{PAGE, PAGE_MAX};
use crate::error::ViewError;
use crate::time::micros;

/// Latest time that is taken, in seconds since 1970: the year 5138.
const SECONDS_MAX: f64 = 1e11;

/// Parameters that are taken one by one. What remains at the end is unknown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(crate) fn new(parameters: &[(String, String)]) -> Self {
        Self(parameters.to_vec())
    }

    /// Takes a text; an empty one is none.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1).filter(|value| !value.is_empty())
    }

    /// Takes a value of another type.
    pub(crate) fn parsed<T: FromStr>(
        &mut self,
        name: &str,
        what: &str,
    ) -> Result<Option<T>, ViewError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let wrong = || ViewError::Parameter(format!("`{name}` is not {what}: {text}"));
        text.parse().map(Some).map_err(|_| wrong())
    }

    /// Takes a whole number within bounds.
    pub(crate) fn number(
        &mut self,
        name: &str,
        least: u32,
        most: u32,
    ) -> Result<Option<u32>, ViewError> {
        let found: Option<u32> = self.parsed(name, "a whole number")?;
        match found.filter(|number| !(least..=most).contains(number)) {
            Some(_) => Err(ViewError::Parameter(format!("`{name}` is not {least} to {most}"))),
            None => Ok(found),
        }
    }

    /// Takes a number that is finite.
    pub(crate) fn finite(&mut self, name: &str) -> Result<Option<f64>, ViewError> {
        let found: Option<f64> = self.parsed(name, "a number")?;
        match found.is_some_and(|number| !number.is_finite()) {
            true => Err(ViewError::Parameter(format!("`{name}` is not a finite number"))),
            false => Ok(found),
        }
    }

    /// Takes a time, in seconds since 1970.
    pub(crate) fn time(&mut self, name: &str) -> Result<Option<Micros>, ViewError> {
        let found = self.finite(name)?;
        match found.is_some_and(|seconds| seconds.abs() > SECONDS_MAX) {
            true => Err(ViewError::Parameter(format!("`{name}` is not a time of this age"))),
            false => Ok(found.map(micros)),
        }
    }

    /// Takes a flag: 1 or 0.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ViewError> {
        Ok(self.number(name, 0, 1)? == Some(1))
    }

    /// Takes one of a few words.
    pub(crate) fn word<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, ViewError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            ViewError::Parameter(format!("`{name}` is not one of {}", known.join(", ")))
        })
    }

    /// Takes the order of a list: one of a few words, with `-` in front for the largest first.
    pub(crate) fn order<T: Copy>(
        &mut self,
        words: &[(&str, T)],
    ) -> Result<Option<(T, bool)>, ViewError> {
        let Some(at) = self.0.iter().position(|(known, _)| known == "sort") else {
            return Ok(None);
        };
        let value = self.0[at].1.clone();
        let (descending, word) = match value.strip_prefix('-') {
            Some(word) => (true, word),
            None => (false, value.as_str()),
        };
        self.0[at].1 = word.to_owned();
        Ok(self.word("sort", words)?.map(|order| (order, descending)))
    }

    /// Takes the part of a list: its length and what is before it.
    pub(crate) fn part(&mut self) -> Result<(u32, u64), ViewError> {
        let limit = self.number("limit", 1, PAGE_MAX)?.unwrap_or(PAGE);
        Ok((limit, self.parsed("offset", "a whole number")?.unwrap_or(0)))
    }

    /// Takes the place behind which a list goes on.
    pub(crate) fn place(&mut self) -> Result<Option<OpenedKey>, ViewError> {
        let Some(cursor) = self.text("cursor") else { return Ok(None) };
        let place = place_of(&cursor);
        let wrong = || ViewError::Parameter(format!("`cursor` is not that of a page: {cursor}"));
        place.map(Some).ok_or_else(wrong)
    }

    /// Takes the filter of attempts.
    pub(crate) fn filter(&mut self) -> Result<EpisodeFilter, ViewError> {
        let label = self.text("label").map(|label| match label.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => Err(ViewError::Parameter(format!("`label` is not NAME=VALUE: {label}"))),
        });
        let state = self.text("state").map(|state| match state.as_str() {
            "open" => Ok(EpisodeState::Open),
            "closed" => Ok(EpisodeState::Closed),
            "failed" => Ok(EpisodeState::Failed),
            status if episode::CLOSE_STATUSES.contains(&status) => {
                Ok(EpisodeState::Ended(status.to_owned()))
            }
            other => Err(ViewError::Parameter(format!(
                "`state` is not one of open, closed, {}: {other}",
                episode::CLOSE_STATUSES.join(", ")
            ))),
        });

        Ok(EpisodeFilter {
            episode: self.parsed("episode", "an id")?,
            name: self.text("name"),
            group_name: None,
            group: self.parsed("group", "an id")?,
            task: self.parsed("task", "an id")?,
            label: label.transpose()?,
            state: state.transpose()?,
            since: self.time("since")?,
            until: self.time("until")?,
            min_reward: self.finite("min_reward")?,
            max_reward: self.finite("max_reward")?,
        })
    }

    /// Refuses what was not taken.
    pub(crate) fn end(self) -> Result<(), ViewError> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(ViewError::Parameter(format!("`{name}` is not a parameter of this view")))
            }
        }
    }
}

/// The place of an attempt in a cursor.
pub(crate) fn place_of(cursor: &str) -> Option<OpenedKey> {
    let (opened_at, key) = cursor.split_once('.')?;
    Some(OpenedKey { opened_at: opened_at.parse().ok()?, key: key.parse().ok()? })
}

/// The newest first.
pub(crate) fn newest_first(limit: u32, offset: u64) -> EpisodePage {
    EpisodePage { order: store::EpisodeOrder::Opened, descending: true, limit, offset, after: None }
}
