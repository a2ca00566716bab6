//! The derivation: the calls of an attempt as a forest, and the forest as paths.
//!
//! All that is made of an attempt is made of [`Derived`]: rows, forks, verdicts, the tree that
//! people look at. Rows take two more steps: `weigh` chooses their paths, and `rows` makes them.

use episode::Call;

use crate::graph::forest::Forest;
use crate::graph::merge::merge;
use crate::graph::paths::Paths;
use crate::graph::scan::choice_nodes;
use crate::graph::thread::thread;
use crate::notes::Notes;

/// An attempt, derived from its calls.
#[derive(Debug)]
pub(crate) struct Derived<'a> {
    /// The choices of the calls, and what each of them continues.
    pub(crate) forest: Forest<'a>,
    /// The paths through the forest, in the order of export.
    pub(crate) paths: Paths,
    /// Counts of the calls that were kept and dropped, and of the evidence that linked them.
    pub(crate) notes: Notes,
}

/// Derives an attempt from its calls: scan, thread, merge. The order of `calls` does not matter.
pub(crate) fn derive(calls: &[Call]) -> Derived<'_> {
    let (nodes, mut notes) = choice_nodes(calls);
    let (forest, threaded) = thread(nodes);
    let (paths, merged) = merge(&forest);

    notes.add(&threaded);
    notes.add(&merged);
    Derived { forest, paths, notes }
}
