//! The report of a check.

use std::fmt::{self, Display};

/// Findings of each kind that a report lists; more are only counted.
const LISTED_MAX: usize = 1000;

/// The findings of a check of a whole store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Attempts at episodes.
    pub episodes: u64,
    /// Calls.
    pub calls: u64,
    /// Request and reply bodies, each compared with its hash where it has one.
    pub bodies: u64,
    /// Prompts, each assembled and compared with its hash where it has one.
    pub prompts: u64,
    /// Choices.
    pub choices: u64,
    /// Segments of logs.
    pub segments: u64,
    /// Calls without an end: they are under way, or their recorder died. This is no damage. The
    /// first thousand.
    pub holes: Vec<RecordRef>,
    /// The number of calls without an end, those that are not listed included.
    pub holes_found: u64,
    /// Attempts that were removed from what had been sealed. This is no damage.
    pub removed: u64,
    /// Attempts that were removed from their segment, of which the store still says something.
    pub removed_here: Vec<RecordRef>,
    /// Damage, the first thousand.
    pub damage: Vec<Damage>,
    /// The number of damages, those that are not listed included.
    pub damage_found: u64,
}

/// A reference to an episode or a call, as far as it is known. Without either it is the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordRef {
    /// Episode and attempt.
    pub episode: Option<(String, i64)>,
    /// The call.
    pub call: Option<String>,
}

/// A record that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The record.
    pub place: RecordRef,
    /// The defect, in words.
    pub what: String,
}

impl VerifyReport {
    /// True where nothing is damaged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damage_found == 0
    }

    /// Adds damage of an episode or a call.
    pub(crate) fn add_damage(&mut self, place: RecordRef, what: String) {
        self.damage_found += 1;
        if self.damage.len() < LISTED_MAX {
            self.damage.push(Damage { place, what });
        }
    }

    /// Adds damage of the store as a whole.
    pub(crate) fn add_store_damage(&mut self, what: impl Into<String>) {
        self.add_damage(RecordRef::default(), what.into());
    }

    /// Adds a call without an end.
    pub(crate) fn add_hole(&mut self, place: RecordRef) {
        self.holes_found += 1;
        if self.holes.len() < LISTED_MAX {
            self.holes.push(place);
        }
    }
}

impl Display for RecordRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.episode {
            None => f.write_str("the store")?,
            Some((id, attempt)) => write!(f, "episode `{id}` attempt {attempt}")?,
        }
        self.call.as_ref().map_or(Ok(()), |call| write!(f, ", call `{call}`"))
    }
}

impl Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}
