//! The attempt that a person means: by its whole name, by the beginning of one, or the newest.

use std::collections::BTreeSet;

use viewer::EpisodeTree;

use super::source::{Source, pair};
use crate::exit::Failure;
use crate::options::parse::AttemptName;

/// The parts of an attempt that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Its turns.
    Turns,
    /// Its turns, with what was said in each.
    Messages,
}

/// Episodes among which a name is looked for that begins or sounds as one that was given.
const LOOKED_AT: u32 = 1000;
/// Names that are told where none, or more than one, is meant.
const TOLD: usize = 5;
/// Least likeness of a name that is told for another; 1 is the same name.
const ALIKE: f64 = 0.85;

impl Source {
    /// Reads the attempt of this name; without one the newest, and `behind` older ones skipped.
    pub(super) async fn named(
        &self,
        name: Option<&AttemptName>,
        behind: u32,
        depth: Depth,
    ) -> Result<EpisodeTree, Failure> {
        let Some(AttemptName { id, attempt }) = name else {
            return self.newest(behind, depth).await;
        };
        let failure = match self.at_depth(depth, id, *attempt).await {
            Ok(tree) => return Ok(tree),
            Err(failure) => failure,
        };

        let (longer, is_whole) = self.names(Some(id)).await.unwrap_or_default();
        let longer: Vec<&String> = longer.iter().filter(|name| name.starts_with(id)).collect();
        match longer.as_slice() {
            [only] if *only != id && is_whole => self.at_depth(depth, only, *attempt).await,
            [_, _, ..] if !longer.contains(&id) => {
                let told = told(longer.into_iter());
                Err(Failure::new(format!("several episodes begin with `{id}`")).hint(told))
            }
            [] => Err(match told(alike(id, &self.names(None).await.unwrap_or_default().0)) {
                none if none.is_empty() => failure,
                near => failure.hint(format!("did you mean {near}?")),
            }),
            _ => Err(failure),
        }
    }

    async fn at_depth(
        &self,
        depth: Depth,
        id: &str,
        attempt: Option<u32>,
    ) -> Result<EpisodeTree, Failure> {
        match depth {
            Depth::Turns => self.tree(id, attempt).await,
            Depth::Messages => self.told_tree(id, attempt).await,
        }
    }

    async fn newest(&self, behind: u32, depth: Depth) -> Result<EpisodeTree, Failure> {
        let list = self.episodes(&vec![pair("limit", 1), pair("offset", behind)]).await?;
        match list.episodes.first() {
            Some(newest) => self.at_depth(depth, &newest.episode_id, Some(newest.attempt)).await,
            None if list.total == 0 => Err(Failure::new("the recording has no episodes yet")),
            None => Err(Failure::new("the recording has no other episode to compare with")),
        }
    }

    /// The names of the newest episodes, or of those that contain a text, and whether these are
    /// all.
    async fn names(&self, part: Option<&str>) -> Result<(BTreeSet<String>, bool), Failure> {
        let mut parameters = vec![pair("limit", LOOKED_AT)];
        parameters.extend(part.map(|part| pair("name", part)));
        let list = self.episodes(&parameters).await?;
        let is_whole = list.total <= u64::from(LOOKED_AT);
        Ok((list.episodes.into_iter().map(|episode| episode.episode_id).collect(), is_whole))
    }
}

/// The names that are like `id`, the most alike first.
fn alike<'a>(id: &str, names: &'a BTreeSet<String>) -> impl Iterator<Item = &'a String> {
    let likeness = |name: &str| strsim::jaro_winkler(id, name);
    let mut near: Vec<(f64, &String)> = names
        .iter()
        .map(|name| (likeness(name), name))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().map(|(_, name)| name)
}

fn told<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let mut names = names.map(|name| format!("`{name}`"));
    let mut text = names.by_ref().take(TOLD).collect::<Vec<_>>().join(", ");
    let more = names.count();
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_misspelled_is_found() {
        let names = ["run-otter", "aider-lynx", "run-otters", "guess-3"].map(str::to_owned).into();
        let near = |id: &str| alike(id, &names).cloned().collect::<Vec<_>>();
        assert_eq!(near("run-oter"), ["run-otter", "run-otters"]);
        assert_eq!(near("aidr-lynx"), ["aider-lynx"]);
        assert!(near("nothing").is_empty());
    }

    #[test]
    fn few_names_are_told() {
        let names: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        assert_eq!(told(names.iter().take(2)), "`0`, `1`");
        assert_eq!(told(names.iter()), "`0`, `1`, `2`, `3`, `4` and 2 more");
    }
}
