//! Trajectory: a path with its tokens.

use episode::{Sampled, Trajectory, Turn};

use crate::graph::forest::Forest;
use crate::graph::judged::{is_missing, temperature};
use crate::graph::node::Node;
use crate::graph::path::Merged;
use crate::weigh::Shares;
use crate::weigh::staleness::number;

impl Merged {
    /// Builds path `index` with its tokens. Logprobs are NaN where the server gave none.
    pub(crate) fn trajectory(
        &self,
        forest: &Forest<'_>,
        shares: &Shares<'_>,
        index: usize,
    ) -> Trajectory {
        let path = &self.paths[index];
        let trained = |n: usize| self.judged[n].trainable && shares.trains(index, n);
        let mut held = 0;
        let turn = |(at, &n): (usize, &usize)| {
            let node = &forest.nodes[n];
            if let Some(written) = &self.written[index] {
                let (new_prompt, sampled) = written.turn(at);
                return Turn { new_prompt, sampled, ..turn(node, node.prompt.len(), trained(n)) };
            }
            let from = std::mem::replace(&mut held, node.path_len());
            turn(node, from, trained(n))
        };
        Trajectory {
            turns: path.nodes.iter().enumerate().map(turn).collect(),
            branch: path.branch,
            kind: path.kind,
        }
    }
}

fn turn(node: &Node<'_>, held: usize, trained: bool) -> Turn {
    Turn {
        call_id: node.call.begun.call_id,
        choice: node.index,
        new_prompt: node.prompt[held..].to_vec(),
        sampled: sampled(node),
        trained,
        finish_reason: node.choice.and_then(|c| c.finish_reason.clone()),
        temperature: temperature(node),
    }
}

fn sampled(node: &Node<'_>) -> Sampled {
    let Some(choice) = node.choice.filter(|_| node.has_ids) else { return Sampled::default() };
    let known = |l: &f32| if is_missing(*l) { f32::NAN } else { *l };
    let count = node.sampled.len();
    let logprobs = if choice.logprobs.len() == count {
        choice.logprobs.iter().map(known).collect()
    } else {
        // Which logprob belongs to which token is not known, so none is.
        vec![f32::NAN; count]
    };
    let mut versions = vec![-1; count];
    for span in &choice.versions {
        let version = number(&span.version).unwrap_or(-1);
        let end = (span.end as usize).min(count);
        versions[(span.start as usize).min(end)..end].fill(version);
    }
    Sampled::new(node.sampled.to_vec(), logprobs, versions)
        .expect("all three arrays are made as long as the ids")
}
