//! Identifiers. A name that a user gives is checked here, once.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use uuid::Uuid;

/// Longest name of an episode, a group or a task, in bytes.
const NAME_BYTES_MAX: usize = 200;

/// Microseconds since the Unix epoch, UTC.
pub type Micros = i64;

/// A name that is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{name}` is not an id; an id has 1 to {NAME_BYTES_MAX} characters of A-Z a-z 0-9 . _ : - and \
     is not `.` or `..`"
)]
pub struct InvalidId {
    /// The refused text, cut to 60 characters.
    pub name: String,
}

impl InvalidId {
    fn of(name: &str) -> Self {
        Self { name: name.chars().take(60).collect() }
    }
}

fn validated(name: &str) -> Result<String, InvalidId> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    // Clients and servers take these two out of a path.
    let is_dots = matches!(name, "." | "..");
    let is_long = name.len() > NAME_BYTES_MAX;
    if name.is_empty() || is_dots || is_long || !name.bytes().all(allowed) {
        return Err(InvalidId::of(name));
    }
    Ok(name.to_owned())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = InvalidId;

            fn from_str(name: &str) -> Result<Self, InvalidId> {
                validated(name).map(Self)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// One run of an agent, named by its user or by the proxy.
    EpisodeId
}
impl EpisodeId {
    /// The episode of an agent's own session. A name that is not an id has `_` and two digits in
    /// place of each byte that an id does not have; `None` if it is too long for that.
    pub fn of_session(session: &str) -> Option<Self> {
        session.parse().ok().or_else(|| {
            let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || b".:-".contains(&byte);
            let escaped = session.bytes().map(|byte| match is_kept(byte) {
                true => char::from(byte).to_string(),
                false => format!("_{byte:02x}"),
            });
            escaped.collect::<String>().parse().ok()
        })
    }
}

name! {
    /// Episodes of one task whose rewards are compared.
    GroupId
}
name! {
    /// The task of an episode.
    TaskId
}

/// One attempt at an episode. Its text is `EPISODE/ATTEMPT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId {
    /// The episode.
    pub episode: EpisodeId,
    /// The number of the run; the first is 0.
    pub attempt: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.episode, self.attempt)
    }
}

impl FromStr for AttemptId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let named = text.rsplit_once('/').and_then(|(id, number)| Some((id, number.parse().ok()?)));
        let (episode, attempt) = named.ok_or_else(|| InvalidId::of(text))?;
        Ok(Self { episode: episode.parse()?, attempt })
    }
}

/// One call. Sorts by the time at which the call began (UUID version 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub Uuid);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl FromStr for CallId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::parse_str(text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_of_the_allowed_letters() {
        for good in ["a", "run-1", "A.b_c:d-9", "...", ".a", &"x".repeat(200)] {
            assert_eq!(good.parse::<EpisodeId>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a b", "a/b", "é", &"x".repeat(201)] {
            assert!(bad.parse::<EpisodeId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_session_that_is_no_id_has_an_episode_all_the_same() {
        let id = |session: &str| EpisodeId::of_session(session).map(|id| id.to_string());
        assert_eq!(id("run_1").as_deref(), Some("run_1"));
        assert_eq!(id("a b_é/1").as_deref(), Some("a_20b_5f_c3_a9_2f1"));
        assert_ne!(id("a é"), id("a_20é"));
        assert!(["", ".", &"é".repeat(67)].iter().all(|bad| id(bad).is_none()));
    }

    #[test]
    fn the_text_of_an_attempt_names_it() {
        let attempt: AttemptId = "run:1/3".parse().unwrap();
        assert_eq!((attempt.episode.as_str(), attempt.attempt), ("run:1", 3));
        assert_eq!(attempt.to_string(), "run:1/3");
        for bad in ["run", "/0", "a/", "a/-1", "a/b/0"] {
            assert!(bad.parse::<AttemptId>().is_err(), "{bad}");
        }
    }
}
