//! The pure part of the walk, for those who draw or count the same tree.

use episode::{Call, CallId, Kind, Trajectory};

use crate::graph::kind::Cue;
use crate::graph::merge::merge;
use crate::graph::scan::nodes;
use crate::graph::thread::thread;
use crate::notes::{Notes, Reason};
use crate::weigh::staleness::versions;
use crate::weigh::{Wanted, weigh};

/// One choice of one call, and the choice that its call continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The call.
    pub call_id: CallId,
    /// The choice of that call.
    pub choice: u32,
    /// The call and choice that it continues; none for the first call of a conversation.
    pub parent: Option<(CallId, u32)>,
    /// What the first path that holds it is, and what says so.
    pub kind: (Kind, Cue),
    /// Number of prompt tokens that the parent's path did not hold; 0 without ids.
    pub new_prompt: usize,
    /// Number of sampled tokens; 0 without ids.
    pub sampled: usize,
    /// Number of sampled tokens that may be trained.
    pub trained: usize,
    /// Why it is less than exact, sorted.
    pub reasons: Vec<Reason>,
}

/// The trajectories of one episode, in the order in which they are exported.
///
/// Logprobs are NaN where the server gave none; those tokens are not trained, even in a turn that
/// is. Without token ids the turns of a trajectory are empty. The order of `calls` is of no matter.
pub fn trajectories(calls: &[Call]) -> (Vec<Trajectory>, Notes) {
    let (nodes, mut notes) = nodes(calls);
    let (forest, threaded) = thread(nodes);
    let (merged, walked) = merge(&forest);
    notes.add(&threaded);
    notes.add(&walked);
    let (shares, _) = weigh(&merged, versions(&forest, &merged), &Wanted::default());
    (shares.paths.iter().map(|i| merged.trajectory(&forest, &shares, *i)).collect(), notes)
}

/// Every choice of one episode and what it continues, in the order in which the calls began.
pub fn links(calls: &[Call]) -> (Vec<Link>, Notes) {
    let (nodes, mut notes) = nodes(calls);
    let (forest, threaded) = thread(nodes);
    let (merged, _) = merge(&forest);
    notes.add(&threaded);
    let link = |i: usize| {
        let node = &forest.nodes[i];
        let parent = forest.parents[i].map(|p| &forest.nodes[p]);
        let judged = &merged.judged[i];
        let unclear = (!forest.unclear[i].is_empty()).then_some(Reason::AmbiguousParent);
        let mut reasons: Vec<Reason> = judged.reasons.iter().copied().chain(unclear).collect();
        reasons.sort();
        let path = &merged.paths[merged.owners[i]];
        Link {
            call_id: node.call.begun.call_id,
            choice: node.index,
            parent: parent.map(|p| (p.call.begun.call_id, p.index)),
            kind: (path.kind, path.cue),
            new_prompt: node.prompt.len() - parent.map_or(0, |p| p.path_len()),
            sampled: node.sampled.len(),
            trained: judged.tokens,
            reasons,
        }
    };
    ((0..forest.nodes.len()).map(link).collect(), notes)
}
