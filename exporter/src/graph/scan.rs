//! Reads the calls of one episode, and makes a node of each choice.

use std::collections::{BTreeSet, HashMap};

use episode::{
    Annotation, Body, Call, CallEnd, CallId, ChainHead, Choice, Comment, Micros, Reward,
};
use store::{AttemptRecord, Snapshot, SnapshotError};

use crate::graph::node::{Node, PerNode, model_of};
use crate::graph::policies::name_policies;
use crate::graph::previous_responses::whole_requests;
use crate::notes::{DropReason, Notes};

/// One attempt at an episode with all that is recorded of it.
#[derive(Debug)]
pub(crate) struct RecordedAttempt {
    pub(crate) record: AttemptRecord,
    /// Calls in the order in which they began.
    pub(crate) calls: Vec<Call>,
    /// Rewards in the order in which they were given.
    pub(crate) rewards: Vec<Reward>,
    /// Numbers of trainers for sampled tokens, in the order in which they were given.
    pub(crate) annotations: Vec<Annotation>,
    /// Comments of people, in the order in which they were given.
    pub(crate) comments: Vec<Comment>,
    /// The chain over the calls that have ended; none where it was not read.
    pub(crate) chain: Option<ChainHead>,
    /// The trajectories of the recording that it went on from, by the ids of their calls.
    pub(crate) trunk: HashMap<CallId, String>,
}

impl RecordedAttempt {
    /// An attempt of which only the calls are known.
    pub(crate) fn of_calls(record: AttemptRecord, calls: Vec<Call>) -> Self {
        Self {
            record,
            calls,
            rewards: Vec::new(),
            annotations: Vec::new(),
            comments: Vec::new(),
            chain: None,
            trunk: HashMap::new(),
        }
    }

    /// Estimates the bytes that it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let values = self.annotations.iter().map(|a| size_of_val(a.values.as_slice()));
        // Bodies beyond the first ones are put together from the log of the attempt.
        let bodies = self.calls.iter().flat_map(|call| {
            [Some(&call.begun.request), call.ended.as_ref().map(|ended| &ended.reply)]
        });
        let log = bodies.flatten().map(Body::shared_bytes).max().unwrap_or(0);
        log + self.calls.iter().map(call_bytes).sum::<usize>() + values.sum::<usize>()
    }
}

fn call_bytes(call: &Call) -> usize {
    size_of::<Call>() + call.begun.request.held_bytes() + call.ended.as_ref().map_or(0, ended_bytes)
}

fn ended_bytes(ended: &CallEnd) -> usize {
    let prompts: usize = ended.prompts.iter().map(|prompt| prompt.len() * 4).sum();
    ended.reply.held_bytes() + prompts + ended.choices.iter().map(choice_bytes).sum::<usize>()
}

fn choice_bytes(choice: &Choice) -> usize {
    let columns: usize = choice.token_columns.iter().map(|column| column.json.len()).sum();
    choice.token_ids.as_ref().map_or(0, Vec::len) * 4 + choice.logprobs.len() * 4 + columns
}

/// Reads one attempt, with the rewards, annotations and comments that were given up to a time.
pub(crate) async fn scan(
    snapshot: &mut Snapshot,
    record: AttemptRecord,
    as_of: Option<Micros>,
) -> Result<(RecordedAttempt, Notes), SnapshotError> {
    let calls = snapshot.calls(&record).await?;
    let mut rewards = snapshot.rewards(&record).await?;

    let given = rewards.len();
    rewards.retain(|reward| as_of.is_none_or(|time| reward.at <= time));
    let rewards_later = (given - rewards.len()) as u64;
    let not_finite = |reward: &&Reward| reward.value.is_some_and(|value| !value.is_finite());
    let rewards_not_finite = rewards.iter().filter(not_finite).count() as u64;

    let mut annotations = snapshot.annotations(&record).await?;
    annotations.retain(|annotation| as_of.is_none_or(|time| annotation.at <= time));

    let mut comments = snapshot.comments(&record).await?;
    comments.retain(|comment| as_of.is_none_or(|time| comment.at <= time));

    let notes = Notes { rewards_later, rewards_not_finite, ..Notes::default() };
    let chain = Some(snapshot.chain(&record).await?);
    Ok((
        RecordedAttempt {
            record,
            calls,
            rewards,
            annotations,
            comments,
            chain,
            trunk: HashMap::new(),
        },
        notes,
    ))
}

/// Makes a node of each choice, in the order in which the calls began. The order of `calls` does
/// not matter.
pub(crate) fn choice_nodes(calls: &[Call]) -> (PerNode<Node<'_>>, Notes) {
    let mut sorted: Vec<&Call> = calls.iter().collect();
    sorted.sort_by_key(|call| (call.begun.started_at, call.begun.call_id));
    let mut whole = whole_requests(&sorted);

    let mut notes = Notes { calls: calls.len() as u64, ..Notes::default() };
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for call in sorted {
        match nodes_of_call(call) {
            Ok(mut found) => {
                notes.kept += 1;
                if let Some(request) = whole.remove(&call.begun.call_id) {
                    found.iter_mut().for_each(|node| node.request = request.clone());
                }
                nodes.extend(found);
            }
            Err(reason) => notes.drop_call(reason),
        }
    }
    name_policies(&mut nodes);
    (nodes.into_iter().collect(), notes)
}

fn nodes_of_call(call: &Call) -> Result<Vec<Node<'_>>, DropReason> {
    if !call.begun.route.generates() {
        return Err(DropReason::OtherRoute);
    }
    let ended = call.ended.as_ref().ok_or(DropReason::Lost)?;
    let mut nodes: Vec<Node<'_>> =
        ended.choices.iter().filter_map(|choice| node_with_ids(call, ended, choice)).collect();
    // The reply is parsed only where a choice without ids may be in it.
    if nodes.is_empty() || nodes.len() < ended.choices.len() {
        let known: BTreeSet<u32> = nodes.iter().map(|node| node.index).collect();
        let others = nodes_without_ids(call, ended).filter(|node| !known.contains(&node.index));
        nodes.extend(others);
    }
    nodes.sort_by_key(|node| (!node.has_ids, node.prompt_index, node.index));
    if nodes.is_empty() { Err(DropReason::NoReply) } else { Ok(nodes) }
}

/// Makes the node of a choice with ids. Gives none where the server did not report both the
/// prompt's ids and the sampled ones, or where they are too large to be ids.
fn node_with_ids<'a>(call: &'a Call, ended: &'a CallEnd, choice: &'a Choice) -> Option<Node<'a>> {
    let prompt = ended.prompts.get(choice.prompt_index as usize)?;
    let sampled = choice.token_ids.as_ref()?;
    if prompt.is_empty() || !are_ids(prompt) || !are_ids(sampled) {
        return None;
    }
    Some(Node {
        call,
        ended,
        request: call.begun.request.clone(),
        index: choice.index,
        prompt_index: choice.prompt_index,
        choice: Some(choice),
        has_ids: true,
        prompt,
        sampled,
        policy: model_of(call, ended),
    })
}

/// More ids than any vocabulary has; a power of two.
const TOKEN_IDS_MAX: u32 = 1 << 24;

/// Returns true where all numbers may be ids. They then fit into the columns of ids, too.
pub(crate) fn are_ids(numbers: &[u32]) -> bool {
    // A fold without an early exit compiles to vector instructions.
    numbers.iter().fold(0, |all, number| all | number) < TOKEN_IDS_MAX
}

/// Makes the nodes of a reply's choices from its text alone.
fn nodes_without_ids<'a>(
    call: &'a Call,
    ended: &'a CallEnd,
) -> impl Iterator<Item = Node<'a>> + use<'a> {
    wire::answers(call.begun.route, &ended.reply.read()).into_iter().map(move |answer| {
        let choice = ended.choices.iter().find(|choice| choice.index == answer.index);
        Node {
            call,
            ended,
            request: call.begun.request.clone(),
            index: answer.index,
            prompt_index: choice.map_or(0, |choice| choice.prompt_index),
            choice,
            has_ids: false,
            prompt: &[],
            sampled: &[],
            policy: model_of(call, ended),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use episode::KeptBody;

    use super::*;
    use crate::graph::node::NodeId;
    use crate::tests::fixture::{call, reply, rows_of};

    /// A body of a log of a million bytes.
    struct OfLog;

    impl KeptBody for OfLog {
        fn length(&self) -> usize {
            1
        }

        fn read(&self) -> Bytes {
            Bytes::from_static(b"1")
        }

        fn shared_bytes(&self) -> usize {
            1_000_000
        }
    }

    #[test]
    fn a_log_that_bodies_are_put_together_from_is_counted_once() {
        let mut calls = vec![call(1, &[1], &[&[2]]), call(2, &[1], &[&[3]])];
        let held = crate::tests::fixture::episode(calls.clone()).bytes();
        for call in &mut calls {
            call.begun.request = Body::kept(Arc::new(OfLog));
        }
        let kept = crate::tests::fixture::episode(calls).bytes();
        assert!((1_000_000..=1_000_000 + held).contains(&kept), "{kept}");
    }

    #[test]
    fn choices_are_taken_by_their_index() {
        let mut both = call(1, &[1], &[&[2], &[3]]);
        reply(&mut both).choices.reverse();
        let rows = rows_of(&crate::tests::fixture::episode(vec![both]));
        assert_eq!(rows[0].tokens.input_ids, [1, 2]);
        let calls = [call(1, &[1], &[&[2, 3]])];
        let (nodes, notes) = choice_nodes(&calls);
        assert_eq!((nodes[NodeId(0)].path_len(), notes.kept), (3, 1));
    }
}
