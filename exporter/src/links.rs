//! The pure part of the walk, for callers that draw or count the tree of an episode.

use std::collections::BTreeMap;

use episode::{Body, Call, CallId, Trajectory, TrajectoryKind};

use crate::graph::assessment::{Assessment, assess_alone, is_missing};
use crate::graph::derive::{Derived, derive};
use crate::graph::kind::KindReason;
use crate::graph::node::NodeId;
use crate::graph::previous_responses;
use crate::graph::scan::choice_nodes;
use crate::notes::{Notes, Reason};
use crate::rows::trajectory::trajectory;
use crate::weigh::{PathFilter, weigh};

/// One choice of one call, and the choice that its call continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoiceLink {
    /// The call.
    pub call_id: CallId,
    /// Index of the choice in its call.
    pub choice: u32,
    /// The call and choice that it continues; none for the first call of a conversation.
    pub parent: Option<(CallId, u32)>,
    /// Kind of the first path that holds the choice, and the reason for it.
    pub kind: (TrajectoryKind, KindReason),
    /// Number of prompt tokens behind the parent's path; 0 without ids.
    pub new_prompt: usize,
    /// Number of sampled tokens; 0 without ids, and where a recorded reply was given again.
    pub sampled: usize,
    /// Number of sampled tokens that may be trained.
    pub trained: usize,
    /// Reasons why the choice is less than exact, sorted.
    pub reasons: Vec<Reason>,
}

/// Returns the trajectories of one episode, in the order in which they are exported.
///
/// Logprobs are NaN where the server gave none. Those tokens are not trained, even in a turn that
/// is. Without token ids the turns of a trajectory are empty. The order of `calls` does not matter.
pub fn trajectories(calls: &[Call]) -> (Vec<Trajectory>, Notes) {
    let derived = derive(calls);
    let (shares, _) = weigh(&derived, &PathFilter::default());
    let made = shares.paths.iter().map(|path| trajectory(&derived, &shares, *path)).collect();
    (made, derived.notes)
}

/// The tokens of one choice that may be trained, by the choice alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChoiceMask {
    /// True for each sampled token that may be trained; empty without ids.
    pub trainable: Vec<bool>,
    /// Reasons why the choice is less than exact, sorted.
    pub reasons: Vec<Reason>,
}

/// Returns the mask of one choice of a call; `None` if the call has no such choice, or no end.
pub fn choice_mask(call: &Call, choice: u32) -> Option<ChoiceMask> {
    let (nodes, _) = choice_nodes(std::slice::from_ref(call));
    let node = nodes.iter().find(|node| node.index == choice)?;
    let Assessment { trainable, reasons, .. } = assess_alone(node);
    let logprobs = node.choice.map_or(&[][..], |choice| &choice.logprobs);
    let has_logprob = |at: usize| logprobs.get(at).is_some_and(|logprob| !is_missing(*logprob));
    let trainable = (0..node.sampled.len()).map(|at| trainable && has_logprob(at)).collect();
    Some(ChoiceMask { trainable, reasons: reasons.into_iter().collect() })
}

/// Returns the requests that name a recorded response, with the whole conversation in front. The
/// order of `calls` does not matter; requests that name none are not in the result.
pub fn whole_requests(calls: &[Call]) -> BTreeMap<CallId, Body> {
    let mut sorted: Vec<&Call> = calls.iter().collect();
    sorted.sort_by_key(|call| (call.begun.started_at, call.begun.call_id));
    previous_responses::whole_requests(&sorted)
}

/// Returns every choice of one episode with what it continues, in the order in which the calls
/// began.
pub fn choice_links(calls: &[Call]) -> (Vec<ChoiceLink>, Notes) {
    let derived = derive(calls);
    (links(&derived), derived.notes)
}

/// Describes every choice of an attempt, in the order in which the calls began.
pub(crate) fn links(derived: &Derived<'_>) -> Vec<ChoiceLink> {
    derived.forest.nodes.ids().map(|node| choice_link(derived, node)).collect()
}

fn choice_link(derived: &Derived<'_>, id: NodeId) -> ChoiceLink {
    let Derived { forest, paths, .. } = derived;
    let node = &forest.nodes[id];
    let parent = forest.parent(id).map(|parent| &forest.nodes[parent]);
    let path = &paths[paths.first_of(id)];
    let assessment = &paths.nodes[id].assessment;

    let ambiguous = forest.is_ambiguous(id).then_some(Reason::AmbiguousParent);
    let mut reasons: Vec<Reason> = assessment.reasons.iter().copied().chain(ambiguous).collect();
    reasons.sort();

    ChoiceLink {
        call_id: node.call_id(),
        choice: node.index,
        parent: parent.map(|parent| (parent.call_id(), parent.index)),
        kind: (path.kind, path.kind_reason),
        new_prompt: forest.new_prompt(id).len(),
        sampled: node.newly_sampled(),
        trained: assessment.tokens,
        reasons,
    }
}
