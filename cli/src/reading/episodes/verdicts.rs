//! Verdicts on the attempts of a list: those that `show` has, made of each attempt as a whole.

use std::collections::HashMap;

use viewer::{EpisodeTree, EpisodeView};

use crate::exit::Failure;
use crate::print;
use crate::reading::source::Source;
use crate::terminal::Style;
use crate::terminal::table::{TableCell, plain};

/// Verdicts by attempt.
#[derive(Debug, Default)]
pub(super) struct ListVerdicts(HashMap<(String, u32), ReadVerdict>);

/// The verdict on an attempt as it was in a list.
#[derive(Debug)]
struct ReadVerdict {
    episode: EpisodeView,
    /// The word of the documents, and the cell of a table; else why there is none.
    found: Result<(String, TableCell), String>,
}

impl ListVerdicts {
    /// Reads the verdicts on the attempts of a list. Those that are in it as they were before are
    /// not read again.
    pub(super) async fn read(&mut self, source: &Source, episodes: &[EpisodeView]) {
        let mut before = std::mem::take(&mut self.0);
        for episode in episodes {
            let key = (episode.episode_id.clone(), episode.attempt);
            let is_same = |read: &ReadVerdict| read.found.is_ok() && read.episode == *episode;
            let read = match before.remove(&key).filter(is_same) {
                Some(read) => read,
                None => {
                    let tree = source.tree(&episode.episode_id, Some(episode.attempt)).await;
                    ReadVerdict::of(episode, tree)
                }
            };
            self.0.insert(key, read);
        }
    }

    fn of(&self, episode: &EpisodeView) -> Option<&(String, TableCell)> {
        let read = self.0.get(&(episode.episode_id.clone(), episode.attempt))?;
        read.found.as_ref().ok()
    }

    /// The word for an attempt, as documents have it; `None` if it was not read.
    pub(super) fn word(&self, episode: &EpisodeView) -> Option<&str> {
        self.of(episode).map(|(word, _)| word.as_str())
    }

    /// The cell of an attempt.
    pub(super) fn cell(&self, episode: &EpisodeView) -> TableCell {
        self.of(episode).map_or_else(|| plain("-"), |(_, cell)| cell.clone())
    }

    /// The number of attempts that could not be read, with the reason of one of them.
    pub(super) fn unread(&self) -> Option<String> {
        let mut reasons = self.0.values().filter_map(|read| read.found.as_ref().err());
        let one = reasons.next()?;
        let count = print::count(1 + reasons.count() as u64, "verdict");
        Some(format!("{count} could not be made: {one}"))
    }
}

impl ReadVerdict {
    fn of(episode: &EpisodeView, tree: Result<EpisodeTree, Failure>) -> Self {
        let found = tree.map(|tree| (tree.verdict.clone(), verdict_cell(&tree)));
        Self { episode: episode.clone(), found: found.map_err(|failure| failure.to_string()) }
    }
}

/// A verdict in a word, with its color if it is an exception. A recording of what was said alone
/// has none.
pub(in crate::reading) fn verdict_cell(tree: &EpisodeTree) -> TableCell {
    match tree.verdict.as_str() {
        _ if tree.is_text_only() => (Style::Dim, "text only".to_owned()),
        "exact" => plain("exact"),
        "usable" => (Style::Yellow, "usable".to_owned()),
        other => (Style::Red, other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tree(verdict: &str) -> EpisodeTree {
        let episode = json!({
            "episode_id": "b", "attempt": 0, "group_id": null, "task_id": null, "labels": {},
            "source": "control", "state": "open", "opened_at": 1.0, "closed_at": null,
            "last_call_at": null, "model": null, "calls": 3, "generations": 0, "with_ids": 0,
            "incomplete": 0, "prompt_tokens": 0, "completion_tokens": 0, "reward": null,
            "may_lack_calls": false
        });
        let document = json!({
            "episode": episode, "attempts": [0], "verdict": verdict, "reasons": [],
            "trajectories": 0, "sampled_tokens": 0, "trainable_tokens": 0, "turns": [],
            "others": [], "forks": [], "rewards": []
        });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_verdict_that_was_not_made_is_told_and_left_out() {
        let [good, bad] = [tree("usable").episode, EpisodeView { attempt: 1, ..tree("").episode }];
        let mut verdicts = ListVerdicts::default();
        let mut put = |episode: &EpisodeView, found| {
            let key = (episode.episode_id.clone(), episode.attempt);
            verdicts.0.insert(key, ReadVerdict::of(episode, found));
        };
        put(&good, Ok(tree("usable")));
        put(&bad, Err(Failure::new("a hash differs")));

        assert_eq!(verdicts.word(&good), Some("usable"));
        assert_eq!(verdicts.cell(&good), (Style::Yellow, "usable".to_owned()));
        assert_eq!((verdicts.word(&bad), verdicts.cell(&bad)), (None, plain("-")));
        let told = verdicts.unread();
        assert_eq!(told.as_deref(), Some("1 verdict could not be made: a hash differs"));
    }

    #[test]
    fn only_an_exception_has_a_color() {
        assert_eq!(verdict_cell(&tree("exact")), plain("exact"));
        assert_eq!(verdict_cell(&tree("unusable")).0, Style::Red);
    }
}
