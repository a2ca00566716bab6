//! Weigh: which rows there are, which tokens each of them trains, and how much it weighs.
//!
//! A sampled token stands in every row whose path goes through it. It is trained in the first of
//! them, and the weights of an episode's rows sum to one, so that neither many branches nor many
//! rows make an episode count for more than one.

use std::collections::BTreeSet;

use episode::Kind;

use crate::merge::Merged;
use crate::notes::Notes;
use crate::staleness::{VersionFilter, Versions};

#[cfg(test)]
mod tests;

/// In which rows a sampled token is trained that stands in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shared {
    /// In the first one.
    #[default]
    Once,
    /// In every one.
    Keep,
}

impl Shared {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Keep => "keep",
        }
    }
}

/// Which paths are to be rows, and what they are to train.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// Of these kinds; none takes all.
    pub(crate) kinds: BTreeSet<Kind>,
    pub(crate) shared: Shared,
    /// With tokens of these versions.
    pub(crate) versions: VersionFilter,
}

/// What the rows of an episode train.
#[derive(Debug)]
pub(crate) struct Shares {
    /// The paths that are rows, in order.
    pub(crate) paths: Vec<usize>,
    /// For each node the row that trains it; none where no row holds it.
    owners: Vec<Option<usize>>,
    shared: Shared,
    /// Tokens trained over all rows.
    total: usize,
    /// For each node the versions of what it may train.
    versions: Vec<Versions>,
}

/// Chooses the paths that are wanted, and shares the tokens out among them. A path is judged by the
/// versions of those tokens that no chosen one before it trains.
pub(crate) fn weigh(merged: &Merged, versions: Vec<Versions>, wanted: &Wanted) -> (Shares, Notes) {
    let mut notes = Notes::default();
    let mut shares = Shares {
        paths: Vec::new(),
        owners: vec![None; merged.owners.len()],
        shared: wanted.shared,
        total: 0,
        versions,
    };
    for (index, path) in merged.paths.iter().enumerate() {
        if !wanted.kinds.is_empty() && !wanted.kinds.contains(&path.kind) {
            notes.not_asked_for += 1;
            continue;
        }
        let fresh = path.nodes.iter().filter(|n| shares.could_train(**n));
        if let Err(why) = wanted.versions.check(&shares.of(fresh)) {
            *notes.not_of_versions.entry(why).or_default() += 1;
            continue;
        }
        *notes.kinds.entry(path.kind.as_str()).or_default() += 1;
        shares.paths.push(index);
        for (at, node) in path.nodes.iter().enumerate() {
            shares.owners[*node].get_or_insert(index);
            if shares.trains(index, *node) {
                shares.total += merged.tokens(index, at);
            }
        }
    }
    (shares, notes)
}

impl Shares {
    /// Whether the row of `path` trains what `node` sampled, as far as that may be trained.
    pub(crate) fn trains(&self, path: usize, node: usize) -> bool {
        self.shared == Shared::Keep || self.owners[node] == Some(path)
    }

    /// Whether the next row would train what `node` sampled.
    fn could_train(&self, node: usize) -> bool {
        self.shared == Shared::Keep || self.owners[node].is_none()
    }

    fn of<'a>(&self, nodes: impl Iterator<Item = &'a usize>) -> Versions {
        let mut versions = Versions::default();
        nodes.for_each(|node| versions.join(&self.versions[*node]));
        versions
    }

    /// The versions of what the row of `path`, which holds `nodes`, trains.
    pub(crate) fn versions(&self, path: usize, nodes: &[usize]) -> Versions {
        self.of(nodes.iter().filter(|node| self.trains(path, **node)))
    }

    /// The weight of a row that trains so many tokens.
    pub(crate) fn row_weight(&self, trained: usize) -> f64 {
        if trained == 0 { 0.0 } else { trained as f64 / self.total as f64 }
    }
}
