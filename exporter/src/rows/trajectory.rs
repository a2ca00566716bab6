//! Makes the trajectory of a path: its turns with their tokens.

use episode::{SampledTokens, Trajectory, Turn};

use crate::graph::assessment::{is_missing, temperature};
use crate::graph::derive::Derived;
use crate::graph::node::Node;
use crate::graph::paths::PathId;
use crate::weigh::TokenShares;
use crate::weigh::versions::row_version;

/// Makes the trajectory of a path. Logprobs are NaN where the server gave none.
pub(crate) fn trajectory(
    derived: &Derived<'_>,
    shares: &TokenShares<'_>,
    id: PathId,
) -> Trajectory {
    let Derived { forest, paths, .. } = derived;
    let path = &paths[id];
    let mut turns = Vec::with_capacity(path.nodes.len());
    // Tokens of the path before the turn, which its prompt repeats.
    let mut inherited = 0;

    for (at, node_id) in path.nodes.iter().enumerate() {
        let node = &forest.nodes[*node_id];
        let (new_prompt, sampled) = match &path.retokenized {
            Some(made) => made.turn(at),
            None => (node.prompt[inherited..].to_vec(), reported(node)),
        };
        inherited = node.path_len();

        turns.push(Turn {
            call_id: node.call_id(),
            choice: node.index,
            new_prompt,
            sampled,
            trained: paths.nodes[*node_id].assessment.trainable && shares.trains(id, *node_id),
            finish_reason: node.choice.and_then(|choice| choice.finish_reason.clone()),
            temperature: temperature(node),
        });
    }
    Trajectory { turns, branch: path.branch, kind: path.kind }
}

/// Returns the sampled tokens as the server reported them; none without ids.
fn reported(node: &Node<'_>) -> SampledTokens {
    let Some(choice) = node.choice.filter(|_| node.has_ids) else {
        return SampledTokens::default();
    };
    let count = node.sampled.len();
    let logprobs = if choice.logprobs.len() == count {
        choice.logprobs.iter().map(|l| if is_missing(*l) { f32::NAN } else { *l }).collect()
    } else {
        // The counts differ, so no logprob is known to belong to a token.
        vec![f32::NAN; count]
    };

    let mut versions = vec![-1; count];
    for span in &choice.versions {
        let version = row_version(&span.version).unwrap_or(-1);
        let end = (span.end as usize).min(count);
        versions[(span.start as usize).min(end)..end].fill(version);
    }
    SampledTokens::new(node.sampled.to_vec(), logprobs, versions)
        .expect("all three arrays are made as long as the ids")
}
