//! Puts the numbers of a trainer for the tokens of a trajectory on the choices that sampled them.

use std::ops::Range;

use episode::{Annotation, Call, Micros};
use thiserror::Error;

use crate::graph::derive::{Derived, derive};
use crate::graph::paths::PathId;

/// A stream of numbers, one a token; none where nothing is said of it.
pub type NumberStream = Vec<Option<f32>>;

/// Streams of numbers for a part of the tokens of one trajectory.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryStreams {
    /// Number of the trajectory in its attempt.
    pub trajectory: usize,
    /// Label of the trainer's weights.
    pub version: String,
    /// First token, counted from the first one of the trajectory.
    pub start: usize,
    /// The tokens, as the trainer has them.
    pub token_ids: Vec<u32>,
    /// Each stream by its name.
    pub streams: Vec<(String, NumberStream)>,
}

/// Annotations of choices, and what is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlacedStreams {
    /// In the order of the trajectories, their turns and their streams.
    pub annotations: Vec<Annotation>,
    /// Numbers that the annotations have.
    pub kept: u64,
    /// Numbers for tokens that no choice sampled, which are left out.
    pub not_sampled: u64,
}

/// Reason why streams cannot be put on a trajectory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// There is no such trajectory.
    #[error("there is no trajectory {0}: the attempt has {1}")]
    Missing(usize, usize),
    /// The server reported no ids of it, so nothing says which tokens are meant.
    #[error("trajectory {0} has no recorded token ids")]
    WithoutIds(usize),
    /// The tokens reach beyond its end.
    #[error("trajectory {trajectory} has {recorded} tokens, and the last one here would be {end}")]
    TooLong {
        /// Number of the trajectory.
        trajectory: usize,
        /// Number of its tokens.
        recorded: usize,
        /// One past the last token that was sent.
        end: usize,
    },
    /// A token is another one.
    #[error("token {at} of trajectory {trajectory} is {recorded}, not {sent}")]
    OtherToken {
        /// Number of the trajectory.
        trajectory: usize,
        /// Position of the token in it.
        at: usize,
        /// Id that was recorded.
        recorded: u32,
        /// Id that was sent.
        sent: u32,
    },
    /// A stream has another length than the tokens.
    #[error("`{name}` has {values} numbers for {tokens} tokens")]
    Uneven {
        /// Name of the stream.
        name: String,
        /// Number of its elements.
        values: usize,
        /// Number of tokens.
        tokens: usize,
    },
}

/// Puts streams on the choices of the calls of one attempt. The order of `calls` does not matter.
///
/// # Errors
/// [`PlaceError`] when a part of the streams cannot be meant; then none of them is placed.
pub fn place_streams(
    calls: &[Call],
    all: &[TrajectoryStreams],
    at: Micros,
) -> Result<PlacedStreams, PlaceError> {
    let derived = derive(calls);
    let mut placed = PlacedStreams::default();
    for streams in all {
        check(&derived, streams)?;
        placed.add(&derived, streams, at);
    }
    Ok(placed)
}

/// Checks that the tokens are those of the trajectory.
fn check(derived: &Derived<'_>, streams: &TrajectoryStreams) -> Result<(), PlaceError> {
    let &TrajectoryStreams { trajectory, start, ref token_ids, .. } = streams;
    let paths = &derived.paths;
    if trajectory >= paths.len() {
        return Err(PlaceError::Missing(trajectory, paths.len()));
    }
    let leaf = &derived.forest.nodes[paths[PathId(trajectory)].leaf()];
    if !leaf.has_ids {
        return Err(PlaceError::WithoutIds(trajectory));
    }

    let recorded = leaf.path_len();
    let end = start.saturating_add(token_ids.len());
    if end > recorded {
        return Err(PlaceError::TooLong { trajectory, recorded, end });
    }
    let ids = leaf.prompt.iter().chain(leaf.sampled).skip(start);
    let other = ids.zip(token_ids).position(|(recorded, sent)| recorded != sent);
    if let Some(offset) = other {
        let (at, sent) = (start + offset, token_ids[offset]);
        let recorded = *leaf.prompt.iter().chain(leaf.sampled).nth(at).unwrap_or(&sent);
        return Err(PlaceError::OtherToken { trajectory, at, recorded, sent });
    }

    match streams.streams.iter().find(|(_, values)| values.len() != token_ids.len()) {
        None => Ok(()),
        Some((name, values)) => Err(PlaceError::Uneven {
            name: name.clone(),
            values: values.len(),
            tokens: token_ids.len(),
        }),
    }
}

impl PlacedStreams {
    /// Adds the parts of the streams that are about sampled tokens.
    fn add(&mut self, derived: &Derived<'_>, streams: &TrajectoryStreams, at: Micros) {
        let told: usize = streams.streams.iter().map(|(_, values)| count(values)).sum();
        let before = self.kept;
        for id in &derived.paths[PathId(streams.trajectory)].nodes {
            let node = &derived.forest.nodes[*id];
            let span = node.prompt.len()..node.path_len();
            let part = common(&span, &(streams.start..streams.start + streams.token_ids.len()));

            for (name, values) in &streams.streams {
                let values = &values[part.start - streams.start..part.end - streams.start];
                if count(values) == 0 {
                    continue;
                }

                self.kept += count(values) as u64;
                self.annotations.push(Annotation {
                    call: node.call_id(),
                    choice: node.index,
                    name: name.clone(),
                    version: streams.version.clone(),
                    start: (part.start - span.start) as u32,
                    values: values.iter().map(|value| value.unwrap_or(f32::NAN)).collect(),
                    at,
                });
            }
        }
        self.not_sampled += told as u64 - (self.kept - before);
    }
}

fn count(values: &[Option<f32>]) -> usize {
    values.iter().flatten().count()
}

/// Returns what two ranges have in common: an empty range within the second where it is nothing.
fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.clamp(b.start, b.end);
    start..a.end.clamp(start, b.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::call;

    /// Two turns: the prompt 1 2, the answer 3 4, the question 5, the answer 6 7.
    fn two_turns() -> Vec<Call> {
        vec![call(1, &[1, 2], &[&[3, 4]]), call(2, &[1, 2, 3, 4, 5], &[&[6, 7]])]
    }

    fn streams(start: usize, token_ids: &[u32], values: &[f32]) -> TrajectoryStreams {
        let values = values.iter().map(|value| Some(*value).filter(|value| *value != 0.0));
        TrajectoryStreams {
            trajectory: 0,
            version: "7".to_owned(),
            start,
            token_ids: token_ids.to_owned(),
            streams: vec![("entropies".to_owned(), values.collect())],
        }
    }

    #[test]
    fn numbers_of_sampled_tokens_are_placed_and_others_are_counted() {
        let calls = two_turns();
        let sent = [streams(1, &[2, 3, 4, 5, 6, 7], &[0.2, 0.3, 0.4, 0.5, 0.0, 0.7])];
        let placed = place_streams(&calls, &sent, 9).unwrap();
        assert_eq!((placed.kept, placed.not_sampled), (3, 2));
        let told = |a: &Annotation| (a.call, a.choice, a.start, a.values.clone());
        let [first, second] = placed.annotations.as_slice() else { panic!("{placed:?}") };
        assert_eq!(told(first), (calls[0].begun.call_id, 0, 0, vec![0.3, 0.4]));
        assert_eq!((second.call, second.start), (calls[1].begun.call_id, 0));
        assert!(second.values[0].is_nan() && second.values[1] == 0.7);
        assert_eq!((second.version.as_str(), second.at), ("7", 9));
        let later = place_streams(&calls, &[streams(6, &[7], &[0.7])], 9).unwrap();
        assert_eq!((later.annotations[0].start, later.annotations.len()), (1, 1));
    }

    #[test]
    fn tokens_that_were_not_recorded_there_are_refused() {
        let calls = two_turns();
        let refused = |sent: TrajectoryStreams| {
            let error = place_streams(&calls, &[streams(0, &[1], &[0.1]), sent], 9).unwrap_err();
            error.to_string()
        };
        let other = refused(streams(2, &[3, 9], &[0.1, 0.2]));
        assert_eq!(other, "token 3 of trajectory 0 is 4, not 9");
        let long = refused(streams(6, &[7, 8], &[0.1, 0.2]));
        assert_eq!(long, "trajectory 0 has 7 tokens, and the last one here would be 8");
        let uneven = refused(streams(6, &[7], &[0.1, 0.2]));
        assert_eq!(uneven, "`entropies` has 2 numbers for 1 tokens");
        let missing = refused(TrajectoryStreams { trajectory: 1, ..streams(0, &[1], &[0.1]) });
        assert_eq!(missing, "there is no trajectory 1: the attempt has 1");
    }
}
