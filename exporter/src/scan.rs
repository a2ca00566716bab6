//! Scan: the calls of one episode, and what they sampled.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use episode::{Call, Choice, Ended, Reward};
use serde_json::Value;
use store::{EpisodeRecord, Selection, Snapshot, SnapshotError};

use crate::notes::{Dropped, Notes};

/// One attempt at an episode with all that is recorded of it.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) record: EpisodeRecord,
    /// In the order in which they began.
    pub(crate) calls: Vec<Call>,
    /// In the order in which they were given.
    pub(crate) rewards: Vec<Reward>,
}

/// One choice of one call: what it was asked to continue, and what it sampled.
///
/// Both are sequences of symbols: token ids where the server reported them, else one number for
/// each distinct message, so that one rule threads both.
#[derive(Debug, Clone)]
pub(crate) struct Node<'a> {
    pub(crate) call: &'a Call,
    pub(crate) ended: &'a Ended,
    /// Index of the choice in its call.
    pub(crate) index: u32,
    /// Which of the call's prompts it continues.
    pub(crate) prompt_index: u32,
    /// What the server reported of the choice, if anything.
    pub(crate) choice: Option<&'a Choice>,
    /// Whether the symbols are token ids.
    pub(crate) has_ids: bool,
    pub(crate) prompt: Cow<'a, [u32]>,
    pub(crate) sampled: Cow<'a, [u32]>,
}

impl Node<'_> {
    /// Number of symbols of the path that ends here.
    pub(crate) fn path_len(&self) -> usize {
        self.prompt.len() + self.sampled.len()
    }

    /// Choices with one key continue one prompt of one call.
    pub(crate) fn group(&self) -> (episode::CallId, u32, bool) {
        (self.call.begun.call_id, self.prompt_index, self.has_ids)
    }
}

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

/// Reads one attempt.
pub(crate) async fn scan(
    snapshot: &mut Snapshot,
    record: EpisodeRecord,
) -> Result<Scanned, SnapshotError> {
    let calls = snapshot.calls(&record).await?;
    let rewards = snapshot.rewards(&record).await?;
    Ok(Scanned { record, calls, rewards })
}

/// What the calls sampled, in the order in which they began, whatever the order of the list.
pub(crate) fn nodes(calls: &[Call]) -> (Vec<Node<'_>>, Notes) {
    let mut sorted: Vec<&Call> = calls.iter().collect();
    sorted.sort_by_key(|c| (c.begun.started_at, c.begun.call_id));
    let mut notes = Notes { calls: calls.len() as u64, ..Notes::default() };
    let mut words = Words::default();
    let mut nodes = Vec::new();
    for call in sorted {
        match of_call(call, &mut words) {
            Ok(found) => {
                notes.kept += 1;
                nodes.extend(found);
            }
            Err(why) => notes.drop_call(why),
        }
    }
    (nodes, notes)
}

fn of_call<'a>(call: &'a Call, words: &mut Words) -> Result<Vec<Node<'a>>, Dropped> {
    if !call.begun.route.generates() {
        return Err(Dropped::OtherRoute);
    }
    let ended = call.ended.as_ref().ok_or(Dropped::Lost)?;
    let mut nodes: Vec<Node<'_>> =
        ended.choices.iter().filter_map(|choice| with_ids(call, ended, choice)).collect();
    if nodes.is_empty() || nodes.len() < ended.choices.len() {
        let known: BTreeSet<u32> = nodes.iter().map(|n| n.index).collect();
        nodes.extend(without_ids(call, ended, words).filter(|n| !known.contains(&n.index)));
    }
    nodes.sort_by_key(|n| (!n.has_ids, n.prompt_index, n.index));
    if nodes.is_empty() { Err(Dropped::NoReply) } else { Ok(nodes) }
}

/// `None` where the server did not report both the prompt's ids and the sampled ones, or where
/// they are too large to be ids.
fn with_ids<'a>(call: &'a Call, ended: &'a Ended, choice: &'a Choice) -> Option<Node<'a>> {
    let prompt = ended.prompts.get(choice.prompt_index as usize)?;
    let sampled = choice.token_ids.as_ref()?;
    let is_id = |id: &u32| i32::try_from(*id).is_ok();
    if prompt.is_empty() || !prompt.iter().chain(sampled).all(is_id) {
        return None;
    }
    Some(Node {
        call,
        ended,
        index: choice.index,
        prompt_index: choice.prompt_index,
        choice: Some(choice),
        has_ids: true,
        prompt: Cow::Borrowed(prompt),
        sampled: Cow::Borrowed(sampled),
    })
}

fn without_ids<'a>(
    call: &'a Call,
    ended: &'a Ended,
    words: &mut Words,
) -> impl Iterator<Item = Node<'a>> {
    let route = call.begun.route;
    let asked = wire::conversation(route, &call.begun.request).unwrap_or_default();
    let prompt: Vec<u32> = asked.messages.iter().map(|m| words.symbol(m)).collect();
    let answers = wire::answers(route, &ended.reply);
    let answers: Vec<_> = answers.iter().map(|a| (a.index, words.symbol(&a.message))).collect();
    answers.into_iter().map(move |(index, symbol)| {
        let choice = ended.choices.iter().find(|c| c.index == index);
        Node {
            call,
            ended,
            index,
            prompt_index: choice.map_or(0, |c| c.prompt_index),
            choice,
            has_ids: false,
            prompt: Cow::Owned(prompt.clone()),
            sampled: Cow::Owned(vec![symbol]),
        }
    })
}

/// One number for each distinct message of an episode.
#[derive(Debug, Default)]
struct Words(HashMap<String, u32>);

impl Words {
    fn symbol(&mut self, message: &Value) -> u32 {
        // An episode's messages are in memory, so there are fewer of them than u32 can count.
        let next = self.0.len() as u32;
        *self.0.entry(wire::canonical(message)).or_insert(next)
    }
}
