//! Scan: the calls of one episode, and what they sampled.

use std::collections::BTreeSet;

use episode::{Call, Choice, Ended, Micros, Reward, RewardScope};
use store::{EpisodeRecord, Selection, Snapshot, SnapshotError};

use crate::graph::chain::whole_requests;
use crate::graph::node::Node;
use crate::notes::{Dropped, Notes};
use crate::rewards::credit::{Ledger, REWARD};

/// One attempt at an episode with all that is recorded of it.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) record: EpisodeRecord,
    /// In the order in which they began.
    pub(crate) calls: Vec<Call>,
    /// In the order in which they were given.
    pub(crate) rewards: Vec<Reward>,
}

impl Scanned {
    /// About how many bytes it occupies.
    pub(crate) fn bytes(&self) -> usize {
        let of_choice = |c: &Choice| {
            let sides: usize = c.sides.iter().map(|side| side.json.len()).sum();
            c.token_ids.as_ref().map_or(0, Vec::len) * 4 + c.logprobs.len() * 4 + sides
        };
        let of_end = |e: &Ended| {
            let prompts: usize = e.prompts.iter().map(|prompt| prompt.len() * 4).sum();
            e.reply.len() + prompts + e.choices.iter().map(of_choice).sum::<usize>()
        };
        let of_call = |c: &Call| {
            size_of::<Call>() + c.begun.request.len() + c.ended.as_ref().map_or(0, of_end)
        };
        self.calls.iter().map(of_call).sum()
    }
}

/// An attempt with the reward of its episode, if it has a finite one.
pub(crate) type Scored = (EpisodeRecord, Option<f64>);

/// The attempts to read, sorted as their rows will be: by group (none last), episode, attempt.
pub(crate) async fn episodes(
    snapshot: &mut Snapshot,
    selection: &Selection,
) -> Result<Vec<EpisodeRecord>, SnapshotError> {
    let mut records = snapshot.episodes(selection).await?;
    records.sort_by(|a, b| {
        let key = |r: &EpisodeRecord| (r.group.is_none(), r.group.clone());
        key(a).cmp(&key(b)).then_with(|| (&a.id, a.attempt).cmp(&(&b.id, b.attempt)))
    });
    Ok(records)
}

/// Each attempt with the reward of its episode, as of a time; as many and in the same order.
pub(crate) async fn scored(
    snapshot: &mut Snapshot,
    records: Vec<EpisodeRecord>,
    as_of: Option<Micros>,
) -> Result<Vec<Scored>, SnapshotError> {
    let rewards = snapshot.episode_rewards(REWARD, as_of.unwrap_or(Micros::MAX)).await?;
    let of = |record: EpisodeRecord| {
        let reward = rewards.get(&record.key).copied().flatten();
        (record, reward.filter(|value| value.is_finite()))
    };
    Ok(records.into_iter().map(of).collect())
}

/// Attempts by the store's keys, each with the reward of its episode; those that are gone are not
/// among them.
pub(crate) async fn scored_by_key(
    snapshot: &mut Snapshot,
    keys: &[i64],
) -> Result<Vec<Scored>, SnapshotError> {
    let mut scored = Vec::with_capacity(keys.len());
    for record in snapshot.attempts(keys).await? {
        let rewards = snapshot.rewards(&record).await?;
        let reward = Ledger::new(&rewards).value(RewardScope::Episode);
        scored.push((record, reward));
    }
    Ok(scored)
}

/// Reads one attempt, with what was said of it up to a time.
pub(crate) async fn scan(
    snapshot: &mut Snapshot,
    record: EpisodeRecord,
    as_of: Option<Micros>,
) -> Result<(Scanned, Notes), SnapshotError> {
    let calls = snapshot.calls(&record).await?;
    let (rewards, rewards_later) = rewards(snapshot, &record, as_of).await?;
    let not_finite = |r: &&Reward| r.value.is_some_and(|v| !v.is_finite());
    let rewards_not_finite = rewards.iter().filter(not_finite).count() as u64;
    let notes = Notes { rewards_later, rewards_not_finite, ..Notes::default() };
    Ok((Scanned { record, calls, rewards }, notes))
}

/// What was said of an attempt up to a time, and how many statements came later.
async fn rewards(
    snapshot: &mut Snapshot,
    record: &EpisodeRecord,
    as_of: Option<Micros>,
) -> Result<(Vec<Reward>, u64), SnapshotError> {
    let mut rewards = snapshot.rewards(record).await?;
    let all = rewards.len();
    rewards.retain(|reward| as_of.is_none_or(|time| reward.at <= time));
    let later = (all - rewards.len()) as u64;
    Ok((rewards, later))
}

/// What the calls sampled, in the order in which they began, whatever the order of the list.
pub(crate) fn nodes(calls: &[Call]) -> (Vec<Node<'_>>, Notes) {
    let mut sorted: Vec<&Call> = calls.iter().collect();
    sorted.sort_by_key(|c| (c.begun.started_at, c.begun.call_id));
    let mut notes = Notes { calls: calls.len() as u64, ..Notes::default() };
    let mut nodes: Vec<Node<'_>> = Vec::new();
    let mut whole = whole_requests(&sorted);
    for call in sorted {
        match of_call(call) {
            Ok(mut found) => {
                notes.kept += 1;
                if let Some(request) = whole.remove(&call.begun.call_id) {
                    found.iter_mut().for_each(|node| node.request = request.clone());
                }
                nodes.extend(found);
            }
            Err(why) => notes.drop_call(why),
        }
    }
    (nodes, notes)
}

fn of_call(call: &Call) -> Result<Vec<Node<'_>>, Dropped> {
    if !call.begun.route.generates() {
        return Err(Dropped::OtherRoute);
    }
    let ended = call.ended.as_ref().ok_or(Dropped::Lost)?;
    let mut nodes: Vec<Node<'_>> =
        ended.choices.iter().filter_map(|choice| with_ids(call, ended, choice)).collect();
    if nodes.is_empty() || nodes.len() < ended.choices.len() {
        let known: BTreeSet<u32> = nodes.iter().map(|n| n.index).collect();
        nodes.extend(without_ids(call, ended).filter(|n| !known.contains(&n.index)));
    }
    nodes.sort_by_key(|n| (!n.has_ids, n.prompt_index, n.index));
    if nodes.is_empty() { Err(Dropped::NoReply) } else { Ok(nodes) }
}

/// `None` where the server did not report both the prompt's ids and the sampled ones, or where
/// they are too large to be ids.
fn with_ids<'a>(call: &'a Call, ended: &'a Ended, choice: &'a Choice) -> Option<Node<'a>> {
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
    })
}

/// Whether all numbers fit into the columns of ids. Without a way out, many are looked at at once.
fn are_ids(numbers: &[u32]) -> bool {
    numbers.iter().fold(0, |all, number| all | number) <= i32::MAX as u32
}

/// What the reply says in words alone.
fn without_ids<'a>(call: &'a Call, ended: &'a Ended) -> impl Iterator<Item = Node<'a>> {
    wire::answers(call.begun.route, &ended.reply).into_iter().map(move |answer| {
        let index = answer.index;
        let choice = ended.choices.iter().find(|c| c.index == index);
        let prompt_index = choice.map_or(0, |c| c.prompt_index);
        let (prompt, sampled): (&[u32], &[u32]) = (&[], &[]);
        let request = call.begun.request.clone();
        Node { call, ended, request, index, prompt_index, choice, has_ids: false, prompt, sampled }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{call, reply, rows_of};

    #[test]
    fn choices_are_taken_by_their_index() {
        let mut both = call(1, &[1], &[&[2], &[3]]);
        reply(&mut both).choices.reverse();
        let rows = rows_of(&crate::fixture::episode(vec![both]));
        assert_eq!(rows[0].tokens.input_ids, [1, 2]);
        let calls = [call(1, &[1], &[&[2, 3]])];
        let (nodes, notes) = nodes(&calls);
        assert_eq!((nodes[0].path_len(), notes.kept), (3, 1));
    }
}
