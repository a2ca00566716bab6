//! One root-to-leaf path of turns of an episode.

use crate::Turn;
use crate::words::words;

/// A path of turns. Its token columns are derived from the turns and have one length.
#[derive(Debug, Clone, PartialEq)]
pub struct Trajectory {
    /// The turns, first to last.
    pub turns: Vec<Turn>,
    /// The branch point, if the path left another trajectory of the episode.
    pub branch: Option<Branch>,
    /// The kind of path.
    pub kind: TrajectoryKind,
}

/// The point at which a trajectory left another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// Index of the other trajectory in its episode.
    pub parent: usize,
    /// Number of tokens that both share.
    pub position: usize,
}

words! {
    /// The kind of path that a trajectory is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum TrajectoryKind {
        /// The agent's own conversation, across summaries of it.
        Main = "main",
        /// A conversation of an agent that another agent started.
        Subagent = "subagent",
        /// A summary of the history.
        Compaction = "compaction",
        /// A try that a later one with the same prompt replaced.
        Retry = "retry",
        /// Another answer to a prompt, which was not continued.
        Sibling = "sibling",
        /// A call beside the conversation: a title, a topic, a probe.
        Auxiliary = "auxiliary",
        /// A history that does not start with the earlier one, or a second conversation.
        Fork = "fork",
    }
}

impl TrajectoryKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Main,
        Self::Subagent,
        Self::Compaction,
        Self::Retry,
        Self::Sibling,
        Self::Auxiliary,
        Self::Fork,
    ];
}

impl Trajectory {
    /// All ids of the path, prompt tokens included.
    pub fn input_ids(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.turns.iter().map(Turn::len).sum());
        for turn in &self.turns {
            ids.extend_from_slice(&turn.new_prompt);
            ids.extend_from_slice(turn.sampled.ids());
        }
        ids
    }

    /// 1 on sampled tokens that may be trained here, 0 on all others; as long as the ids. A token
    /// without a logprob cannot be trained.
    pub fn loss_mask(&self) -> Vec<i8> {
        self.column(0, |t| {
            t.sampled.logprobs().iter().map(|lp| i8::from(t.trained && !lp.is_nan())).collect()
        })
    }

    /// Logprobs of sampled tokens, 0.0 on all others; as long as the ids.
    pub fn logprobs(&self) -> Vec<f32> {
        self.column(0.0, |t| t.sampled.logprobs().to_vec())
    }

    /// Policy versions of sampled tokens, -1 on all others; as long as the ids.
    pub fn versions(&self) -> Vec<i32> {
        self.column(-1, |t| t.sampled.versions().to_vec())
    }

    /// Number of tokens that may be trained here.
    pub fn trained_tokens(&self) -> usize {
        self.loss_mask().iter().filter(|mask| **mask == 1).count()
    }

    /// One value for each token of the path: `prompt` for prompt tokens, then those of `sampled`.
    fn column<T: Clone>(&self, prompt: T, sampled: impl Fn(&Turn) -> Vec<T>) -> Vec<T> {
        let mut column = Vec::new();
        for turn in &self.turns {
            column.resize(column.len() + turn.new_prompt.len(), prompt.clone());
            column.extend(sampled(turn));
        }
        column
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{CallId, SampledTokens};

    fn turn(new_prompt: &[u32], sampled: &[u32], trained: bool) -> Turn {
        let n = sampled.len();
        Turn {
            call_id: CallId(Uuid::nil()),
            choice: 0,
            new_prompt: new_prompt.to_vec(),
            sampled: SampledTokens::new(sampled.to_vec(), vec![-0.5; n], vec![3; n]).unwrap(),
            trained,
            finish_reason: None,
            temperature: None,
        }
    }

    #[test]
    fn columns_have_one_length_and_mask_only_what_is_trained() {
        let turns = vec![turn(&[1, 2], &[3], false), turn(&[4], &[5, 6], true)];
        let path = Trajectory { turns, branch: None, kind: TrajectoryKind::Main };
        assert_eq!(path.input_ids(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(path.loss_mask(), [0, 0, 0, 0, 1, 1]);
        assert_eq!(path.logprobs(), [0.0, 0.0, -0.5, 0.0, -0.5, -0.5]);
        assert_eq!(path.versions(), [-1, -1, 3, -1, 3, 3]);
        assert_eq!(path.trained_tokens(), 2);
    }

    #[test]
    fn a_span_of_uneven_columns_is_refused() {
        assert!(SampledTokens::new(vec![1, 2], vec![0.0], vec![1, 1]).is_err());
    }
}
