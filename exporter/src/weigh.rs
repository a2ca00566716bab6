//! Weigh: which rows there are, which tokens each of them trains, and how much it weighs.
//!
//! A sampled token stands in every row whose path goes through it. It is trained in the first of
//! them whose model sampled it, and the weights of an episode's rows sum to one, so that neither
//! many branches nor many rows make an episode count for more than one.

pub(crate) mod models;
pub(crate) mod staleness;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use episode::Kind;

use crate::graph::path::Merged;
use crate::notes::{Notes, Why};
use crate::weigh::models::{Models, policy};
use crate::weigh::staleness::{VersionFilter, Versions};

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
    /// Of these models.
    pub(crate) models: Models,
    pub(crate) shared: Shared,
    /// With tokens of these versions.
    pub(crate) versions: VersionFilter,
}

/// What the rows of an episode train.
#[derive(Debug)]
pub(crate) struct Shares<'m> {
    /// The paths that are rows, in order.
    pub(crate) paths: Vec<usize>,
    merged: &'m Merged,
    /// For each node the row that trains it; none where no row may.
    owners: Vec<Option<usize>>,
    shared: Shared,
    /// Tokens trained over all rows.
    total: usize,
    /// For each node the versions of what it may train.
    versions: Vec<Versions>,
}

/// Chooses the paths that are wanted, and shares the tokens out among them. A path is judged by the
/// versions of those tokens that no chosen one before it trains. Counts what the others would have
/// trained.
pub(crate) fn weigh<'m>(
    merged: &'m Merged,
    versions: Vec<Versions>,
    wanted: &Wanted,
) -> (Shares<'m>, Notes) {
    let mut notes = Notes::default();
    let mut shares = Shares {
        paths: Vec::new(),
        merged,
        owners: vec![None; merged.owners.len()],
        shared: wanted.shared,
        total: 0,
        versions,
    };
    let policy = policy(merged);
    let mut left = Vec::new();

    for index in 0..merged.paths.len() {
        match wanted.refuses(&shares, index, policy) {
            Some(why) => left.push((index, why)),
            None => {
                shares.take(index);
                *notes.kinds.entry(merged.paths[index].kind.as_str()).or_default() += 1;
                *notes.models.entry(merged.model(index).to_owned()).or_default() += 1;
            }
        }
    }

    let mut counted = vec![false; merged.owners.len()];
    for (index, why) in left {
        notes.refuse(why, merged.model(index), shares.lost(index, &mut counted));
    }
    (shares, notes)
}

impl Wanted {
    /// Why path `index` is no row, where it is none.
    fn refuses(&self, shares: &Shares<'_>, index: usize, policy: Option<&str>) -> Option<Why> {
        let path = &shares.merged.paths[index];
        if !self.kinds.is_empty() && !self.kinds.contains(&path.kind) {
            return Some(Why::Kind(path.kind));
        }
        if !self.models.takes(shares.merged.model(index), policy) {
            return Some(Why::Model);
        }
        let fresh = path.nodes.iter().filter(|node| shares.could_train(index, **node));
        self.versions.check(&shares.of(fresh)).err().map(Why::Version)
    }
}

impl Shares<'_> {
    /// Makes path `index` a row, which trains what no row before it does.
    fn take(&mut self, index: usize) {
        self.paths.push(index);
        for (at, node) in self.merged.paths[index].nodes.iter().enumerate() {
            if self.could_train(index, *node) {
                self.owners[*node].get_or_insert(index);
                self.total += self.merged.tokens(index, at);
            }
        }
    }

    /// Whether the row of `path` trains what `node` sampled, as far as that may be trained.
    pub(crate) fn trains(&self, path: usize, node: usize) -> bool {
        let held = self.shared == Shared::Keep || self.owners[node] == Some(path);
        held && self.merged.is_own(path, node)
    }

    /// Whether `path`, as the next row, would train what `node` sampled.
    fn could_train(&self, path: usize, node: usize) -> bool {
        let free = self.shared == Shared::Keep || self.owners[node].is_none();
        free && self.merged.is_own(path, node)
    }

    /// Number of tokens that path `index` would have trained, that no row trains, and that were not
    /// counted before.
    fn lost(&self, index: usize, counted: &mut [bool]) -> u64 {
        let mut tokens = 0;
        for (at, node) in self.merged.paths[index].nodes.iter().enumerate() {
            // The first path that holds a choice is one of its own model.
            let is_lost = self.owners[*node].is_none();
            if is_lost && !std::mem::replace(&mut counted[*node], true) {
                tokens += self.merged.tokens(index, at) as u64;
            }
        }
        tokens
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
