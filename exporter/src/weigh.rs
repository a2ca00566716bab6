//! Chooses the paths that make rows, the tokens that each row trains, and the weights of the rows.
//!
//! A sampled token stands in every row whose path holds it. It is trained in the first of these
//! rows whose model sampled it. The weights of an episode's rows sum to one, so neither many
//! branches nor many rows make an episode count for more than one.

pub(crate) mod model_filter;
pub(crate) mod versions;

use std::collections::BTreeSet;

use episode::TrajectoryKind;

use crate::graph::derive::Derived;
use crate::graph::node::{NodeId, PerNode};
use crate::graph::paths::{PathId, Paths};
use crate::notes::models::count_model;
use crate::notes::{Notes, RowExclusion};
use crate::weigh::model_filter::{ModelFilter, policy};
use crate::weigh::versions::{VersionFilter, VersionSet, trainable_versions};

/// Rule for sampled tokens that stand in several rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SharedTokens {
    /// They are trained in the first row.
    #[default]
    Once,
    /// They are trained in every row.
    Keep,
}

impl SharedTokens {
    /// Returns the word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Keep => "keep",
        }
    }
}

/// Chooses the paths that make rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct PathFilter {
    /// Takes paths of these kinds; all if empty.
    pub(crate) kinds: BTreeSet<TrajectoryKind>,
    pub(crate) models: ModelFilter,
    pub(crate) shared: SharedTokens,
    pub(crate) versions: VersionFilter,
}

/// The tokens that each row of an episode trains.
#[derive(Debug)]
pub(crate) struct TokenShares<'p> {
    /// Paths that make rows, in order.
    pub(crate) paths: Vec<PathId>,
    all: &'p Paths,
    /// The row that trains each node; none where no row may.
    owners: PerNode<Option<PathId>>,
    shared: SharedTokens,
    /// Number of tokens trained over all rows.
    total: usize,
    /// Versions of the tokens that each node may train.
    versions: PerNode<VersionSet>,
}

/// Chooses the paths that pass `filter` and shares the tokens out among them. Counts what the other
/// paths would have trained.
///
/// The version filter sees only those tokens of a path that no chosen path before it trains.
pub(crate) fn weigh<'d>(derived: &'d Derived<'_>, filter: &PathFilter) -> (TokenShares<'d>, Notes) {
    let paths = &derived.paths;
    let mut notes = Notes::default();
    let mut shares = TokenShares {
        paths: Vec::new(),
        all: paths,
        owners: PerNode::filled(paths.nodes.len(), None),
        shared: filter.shared,
        total: 0,
        versions: trainable_versions(derived),
    };

    let policy = policy(paths);
    let mut excluded = Vec::new();
    for path in paths.ids() {
        match filter.refuse(&shares, path, policy) {
            Some(reason) => excluded.push((path, reason)),
            None => {
                shares.take(path);
                *notes.kinds.entry(paths[path].kind.as_str()).or_default() += 1;
                count_model(&mut notes.models, paths.model(path), 1);
            }
        }
    }

    // Only now is it known which tokens no row trains.
    let mut counted = PerNode::filled(paths.nodes.len(), false);
    for (path, reason) in excluded {
        notes.exclude(reason, paths.model(path), shares.untrained(path, &mut counted));
    }
    (shares, notes)
}

impl PathFilter {
    /// Returns the reason why a path makes no row; none for one that does.
    fn refuse(
        &self,
        shares: &TokenShares<'_>,
        id: PathId,
        policy: Option<&str>,
    ) -> Option<RowExclusion> {
        let path = &shares.all[id];
        if !self.kinds.is_empty() && !self.kinds.contains(&path.kind) {
            return Some(RowExclusion::Kind(path.kind));
        }
        if !self.models.takes(shares.all, id, policy) {
            return Some(RowExclusion::Model);
        }
        let fresh = path.nodes.iter().filter(|node| shares.could_train(id, **node));
        self.versions.check(&shares.versions_of(fresh)).err().map(RowExclusion::Version)
    }
}

impl TokenShares<'_> {
    /// Makes a path a row, which trains what no row before it does.
    fn take(&mut self, path: PathId) {
        self.paths.push(path);
        for (at, node) in self.all[path].nodes.iter().enumerate() {
            if self.could_train(path, *node) {
                self.owners[*node].get_or_insert(path);
                self.total += self.all.trainable_tokens(path, at);
            }
        }
    }

    /// Returns true where the row of `path` trains the trainable tokens of `node`.
    pub(crate) fn trains(&self, path: PathId, node: NodeId) -> bool {
        let is_share = self.shared == SharedTokens::Keep || self.owners[node] == Some(path);
        is_share && self.all.has_policy_of(path, node)
    }

    /// Returns true where `path`, as the next row, would train the trainable tokens of `node`.
    fn could_train(&self, path: PathId, node: NodeId) -> bool {
        let is_free = self.shared == SharedTokens::Keep || self.owners[node].is_none();
        is_free && self.all.has_policy_of(path, node)
    }

    /// Counts the tokens that a path would have trained, that no row trains, and that were not
    /// counted before.
    fn untrained(&self, path: PathId, counted: &mut PerNode<bool>) -> u64 {
        let mut tokens = 0;
        for (at, node) in self.all[path].nodes.iter().enumerate() {
            // The first path that holds a node has the node's policy, which needs no check.
            let is_lost = self.owners[*node].is_none();
            if is_lost && !std::mem::replace(&mut counted[*node], true) {
                tokens += self.all.trainable_tokens(path, at) as u64;
            }
        }
        tokens
    }

    fn versions_of<'a>(&self, nodes: impl Iterator<Item = &'a NodeId>) -> VersionSet {
        let mut versions = VersionSet::default();
        nodes.for_each(|node| versions.join(&self.versions[*node]));
        versions
    }

    /// Returns the versions of the tokens that the row of `path` trains.
    pub(crate) fn versions(&self, path: PathId) -> VersionSet {
        let nodes = self.all[path].nodes.iter();
        self.versions_of(nodes.filter(|node| self.trains(path, **node)))
    }

    /// Returns the weight of a row that trains this number of tokens.
    pub(crate) fn row_weight(&self, trained: usize) -> f64 {
        if trained == 0 { 0.0 } else { trained as f64 / self.total as f64 }
    }
}

#[cfg(test)]
mod tests;
